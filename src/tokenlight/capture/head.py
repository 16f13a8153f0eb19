"""Which head a model has, and what its logits mean; and a plain torch module as a transformers model."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from tokenlight.capture.rewired import reads_pictures
from tokenlight.capture.sight import image_token
from tokenlight.capture.turns import lent
from tokenlight.data.target import Head, Reads
from tokenlight.data.tokenizer import Vocabulary
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

TRIED = 16  # tokens of the row of zeros that is asked for the number of labels
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


class PlainForSequenceClassification(PreTrainedModel):  # type: ignore[misc]
    """``module(input_ids)`` or ``module(input_ids=…, attention_mask=…)``, ``batch token`` → ``batch
    label``: a tensor, an object with ``logits``, or a tuple or mapping that begins with them.

    Black-box and gradient methods need its logits and where its ids become vectors, nothing else. It
    holds the module itself, not a copy; what that does with padding is found out before its first use, as
    for any model.
    """

    config_class = PretrainedConfig

    def __init__(self, module: nn.Module, labels: Sequence[str] | None = None) -> None:
        super().__init__(PretrainedConfig())
        self.module = module
        self.training = module.training
        found = [part for part in module.modules() if isinstance(part, nn.Embedding)]
        if not found:
            raise UnsupportedModel(
                f"{type(module).__name__} is not a transformers model, and it has no embedding layer "
                "(torch.nn.Embedding) through which it could read token ids; give a PreTrainedModel such as "
                "BertForSequenceClassification, or a module that reads ids."
            )
        self._embedded = [found[0]]  # in a list: it is the module's part, not one of ours
        parameters = inspect.signature(module.forward).parameters
        self._masked = "attention_mask" in parameters
        self._named = "input_ids" in parameters
        count = self._labels_of_a_trial(found[0])
        if labels is not None and len(labels) != count:
            raise UnsupportedModel(
                f"{type(module).__name__} gives {count} logits, but {len(labels)} labels were named."
            )
        self.config.id2label = dict(enumerate(labels or (f"LABEL_{i}" for i in range(count))))
        self.config.label2id = {name: i for i, name in self.config.id2label.items()}
        self.config.pad_token_id = found[0].padding_idx
        self.config._name_or_path = type(module).__name__

    def _labels_of_a_trial(self, embedding: nn.Embedding) -> int:
        ids = torch.zeros(1, TRIED, dtype=torch.long, device=embedding.weight.device)
        try:
            with torch.no_grad(), lent([*self.modules()], training=False):
                logits = self(ids, torch.ones_like(ids)).logits
        except (TypeError, ValueError, RuntimeError, LookupError) as refused:
            raise UnsupportedModel(
                f"{type(self.module).__name__} cannot be called with token ids alone ({refused}); give a "
                "module that takes (input_ids) or (input_ids, attention_mask), batch × token."
            ) from refused
        if logits.dim() != 2 or len(logits) != 1:
            raise UnsupportedModel(
                f"{type(self.module).__name__} gives {tuple(logits.shape)} for one text; a classifier "
                "gives batch × label."
            )
        return int(logits.shape[1])

    def get_input_embeddings(self) -> nn.Module:
        return self._embedded[0]

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any
    ) -> SequenceClassifierOutput:
        mask = {"attention_mask": attention_mask} if self._masked else {}
        given = {"input_ids": input_ids, **mask} if self._named else mask
        said = self.module(*(() if self._named else (input_ids,)), **given)
        logits = getattr(said, "logits", said)
        if isinstance(logits, Mapping):
            logits = logits["logits"] if "logits" in logits else next(iter(logits.values()))
        elif isinstance(logits, Sequence):
            logits = logits[0]
        return SequenceClassifierOutput(logits=logits)
