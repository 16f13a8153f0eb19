"""Which head a model has, and what its logits mean."""

from typing import Any

from transformers import PreTrainedModel

from tokenlight.capture.rewired import reads_pictures
from tokenlight.capture.sight import image_token
from tokenlight.data.target import Head, Reads
from tokenlight.data.vocabulary import Vocabulary
from tokenlight.errors import UnsupportedModel

# How the names of transformers' classes end, by what their head does.
TAKEN = {
    "ForSequenceClassification": "classify texts",
    "ForQuestionAnswering": "answer questions",
    "ForQuestionAnsweringSimple": "answer questions",
    "ForCausalLM": "write on",
    "LMHeadModel": "write on",
    "ForConditionalGeneration": "write after a source",
    "MTModel": "write after a source",
    "EncoderDecoderModel": "write after a source",
    "ForMaskedLM": "fill in masked tokens",
    "ForTokenClassification": "label tokens",
    "ForImageClassification": "classify images",
    "ForImageClassificationWithTeacher": "classify images",
}

# Of models whose encoder reads a source and whose decoder writes after it.
FROM_SOURCE = ("ForConditionalGeneration", "MTModel", "EncoderDecoderModel")


def unwrapped(model: Any) -> PreTrainedModel:
    """The transformers model inside torch.compile's and PEFT's wrappers."""
    model = getattr(model, "_orig_mod", model)
    if isinstance(getattr(model, "module", None), PreTrainedModel):  # DataParallel and its kin
        model = model.module
    if hasattr(model, "peft_config") and hasattr(model, "get_base_model"):
        for adapter in model.peft_config.values():
            if getattr(adapter, "is_prompt_learning", False):
                raise UnsupportedModel(
                    f"the PEFT adapter {type(adapter).__name__} puts tokens of its own before the "
                    "text, which no token of the text could be credited with; use an adapter that "
                    "changes weights, such as LoRA."
                )
        model = model.get_base_model()
    if not isinstance(model, PreTrainedModel):
        raise UnsupportedModel(
            f"{type(model).__name__} is not a transformers model; give a PreTrainedModel such as "
            "BertForSequenceClassification."
        )
    return model


def head_of(model: PreTrainedModel, tokenizer: Any) -> Head:
    """The head by the class of the model, its labels by the config."""
    name, config = type(model).__name__, model.config
    if "QuestionAnswering" in name:
        return Head("span")
    writes = name.endswith(("ForCausalLM", "LMHeadModel", "ForMaskedLM"))
    if config.is_encoder_decoder and (writes or name.endswith(FROM_SOURCE)):
        return _writer(model, tokenizer)
    if writes or (name.endswith(FROM_SOURCE) and image_token(model) is not None):
        size = int(config.get_text_config().vocab_size)
        reads = "mask" if name.endswith("ForMaskedLM") else "next"
        return Head("classification", Vocabulary(tokenizer, size), reads=reads)  # type: ignore[arg-type]
    if name.endswith(FROM_SOURCE) and hasattr(config, "vision_config"):
        raise UnsupportedModel(
            f"{name} does not read the places of its picture as tokens among those of a text, so both "
            "could not be scored together; use a model of LLaVA's kind, such as PaliGemma or Qwen2-VL."
        )
    if ("For" in name and not name.endswith(tuple(TAKEN))) or name.endswith(FROM_SOURCE):
        raise UnsupportedModel(
            f"{name} has a head tokenlight does not take; it takes {taken_in_words()}."
        )
    if not any("For" in cls.__name__ for cls in type(model).__mro__[:-1]) and (
        model.base_model is model
    ):
        if config.is_encoder_decoder or reads_pictures(model):
            kind = "ImageClassification" if reads_pictures(model) else "SequenceClassification"
            raise UnsupportedModel(
                f"{name} has no head, so there is no output to explain; load the fine-tuned model, "
                f"for example with AutoModelFor{kind}."
            )
        return Head("classification", ("cosine similarity",), "regression", reads="pair")
    labels = tuple(str(config.id2label[i]) for i in range(config.num_labels))
    if name.endswith("ForTokenClassification"):
        return Head("classification", labels, reads="token")
    return _classifier(model, labels)


def _writer(model: PreTrainedModel, tokenizer: Any) -> Head:
    """Of a model whose encoder reads a source and whose decoder writes after it."""
    name, config = type(model).__name__, model.config
    if model.main_input_name != "input_ids":
        raise UnsupportedModel(
            f"{name} writes from {model.main_input_name!r}, which are not tokens; tokenlight explains "
            "what is written from a text."
        )
    if not isinstance(getattr(config, "decoder_start_token_id", None), int):
        raise UnsupportedModel(
            f"the config of {name} names no decoder_start_token_id, with which its decoder begins to "
            "write; set it."
        )
    try:
        parts = model.get_encoder(), model.get_decoder()
        read, size = (int(part.get_input_embeddings().weight.shape[0]) for part in parts)
    except (AttributeError, NotImplementedError) as hidden:
        raise UnsupportedModel(
            f"{name} does not tell where its encoder and its decoder look up their tokens, as "
            "transformers' models do, so what comes in could not be read."
        ) from hidden
    if size != read:
        raise UnsupportedModel(
            f"{name} reads {read} different tokens and writes {size}; tokenlight explains models that "
            "read and write one vocabulary."
        )
    return Head("classification", Vocabulary(tokenizer, size), reads="next")


def _classifier(model: PreTrainedModel, labels: tuple[str, ...]) -> Head:
    """One label a text or image, any of several, or a number, as the config says."""
    name, config = type(model).__name__, model.config
    problem = getattr(config, "problem_type", None)
    reads: Reads = "image" if "ForImageClassification" in name else "text"
    if (reads == "image") != reads_pictures(model):
        raise UnsupportedModel(
            f"{name} reads {model.main_input_name!r}, which is not what its head classifies; give a "
            "text classifier that reads input_ids or an image classifier that reads pixel_values."
        )
    if problem == "regression" or (problem is None and config.num_labels == 1):
        return Head("classification", labels, "regression", reads)
    several = problem == "multi_label_classification"
    return Head("classification", labels, "multi" if several else "single", reads)


def taken_in_words() -> str:
    """``models that classify texts (ForSequenceClassification), …``."""
    ways: dict[str, str] = {}
    for ending, way in TAKEN.items():
        ways.setdefault(way, ending)
    listed = ", ".join(f"{way} ({ending})" for way, ending in ways.items())
    return f"models that {listed}, or that turn texts into vectors (no head)"
