"""Which head a model has, and what its logits mean; and a plain torch module as a transformers model."""

import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from tokenlight.capture.sight import image_token
from tokenlight.capture.turns import lent
from tokenlight.data.target import Head, Reads
from tokenlight.data.tokenizer import Vocabulary
from tokenlight.errors import UnsupportedModel

# What heads do, by how the names of transformers' classes end.
WAYS = {
    "classify texts": ("ForSequenceClassification",),
    "answer questions": ("ForQuestionAnswering", "ForQuestionAnsweringSimple"),
    "write on": ("ForCausalLM", "LMHeadModel"),
    "write after a source": ("ForConditionalGeneration", "MTModel", "EncoderDecoderModel"),
    "fill in masked tokens": ("ForMaskedLM",),
    "label tokens": ("ForTokenClassification",),
    "classify images": ("ForImageClassification", "ForImageClassificationWithTeacher"),
}
TAKEN = tuple(ending for endings in WAYS.values() for ending in endings)
TRIED = 16  # tokens of the row of zeros that is asked for the number of labels


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
    from_source = name.endswith(WAYS["write after a source"])
    if config.is_encoder_decoder and (writes or from_source):
        return _writer(model, tokenizer)
    if writes or (from_source and image_token(model) is not None):
        size = int(config.get_text_config().vocab_size)
        asked: Reads = "mask" if name.endswith("ForMaskedLM") else "next"
        return Head("classification", Vocabulary(tokenizer, size), reads=asked)
    if from_source or ("For" in name and not name.endswith(TAKEN)):
        why = "has a head tokenlight does not take"
        if from_source:
            why = "reads neither a source nor, as tokens among those of a text, a picture"
        raise UnsupportedModel(f"{name} {why}; tokenlight takes {taken_in_words()}.")
    pictures = model.main_input_name == "pixel_values"
    headless = not any("For" in cls.__name__ for cls in type(model).__mro__[:-1])
    if headless and model.base_model is model:
        if config.is_encoder_decoder or pictures:
            kind = "ImageClassification" if pictures else "SequenceClassification"
            raise UnsupportedModel(
                f"{name} has no head, so there is no output to explain; load the fine-tuned model, "
                f"for example with AutoModelFor{kind}."
            )
        return Head("classification", ("cosine similarity",), "regression", reads="pair")
    labels = tuple(str(config.id2label[i]) for i in range(config.num_labels))
    if name.endswith("ForTokenClassification"):
        return Head("classification", labels, reads="token")
    reads: Reads = "image" if "ForImageClassification" in name else "text"
    if (reads == "image") != pictures:
        raise UnsupportedModel(
            f"{name} reads {model.main_input_name!r}, which is not what its head classifies; give a "
            "text classifier that reads input_ids or an image classifier that reads pixel_values."
        )
    # One label a text or image, any of several, or a number, as the config says.
    kinds = {"regression": "regression", "multi_label_classification": "multi"}
    usual = "regression" if config.num_labels == 1 else ""
    problem = kinds.get(getattr(config, "problem_type", None) or usual, "single")
    return Head("classification", labels, problem, reads)  # type: ignore[arg-type]


def _writer(model: PreTrainedModel, tokenizer: Any) -> Head:
    """Of a model whose encoder reads a source and whose decoder writes after it."""
    start = getattr(model.config, "decoder_start_token_id", None)
    sizes: list[int] = []
    with suppress(AttributeError, NotImplementedError):
        parts = model.get_encoder(), model.get_decoder()
        sizes = [int(part.get_input_embeddings().weight.shape[0]) for part in parts]
    whole = len(sizes) == 2 and sizes[0] == sizes[1] and isinstance(start, int)
    if not whole or model.main_input_name != "input_ids":
        raise UnsupportedModel(
            f"{type(model).__name__} writes from {model.main_input_name!r}, beginning with the token {start} "
            f"(decoder_start_token_id), and its tables of tokens hold {sizes or 'nobody knows how many'}; "
            "tokenlight explains what is written from a text, by models that read and write one vocabulary."
        )
    return Head("classification", Vocabulary(tokenizer, sizes[0]), reads="next")


def taken_in_words() -> str:
    """``models that classify texts (ForSequenceClassification), …``."""
    listed = ", ".join(f"{way} ({endings[0]})" for way, endings in WAYS.items())
    return f"models that {listed}, or that turn texts into vectors (no head)"


class PlainForSequenceClassification(PreTrainedModel):  # type: ignore[misc]
    """``module(input_ids)`` or ``module(input_ids=…, attention_mask=…)``, ``batch token`` → ``batch
    label``: a tensor, an object with ``logits``, or a tuple or mapping that begins with them. It holds the
    module itself, not a copy."""

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
        known = inspect.signature(module.forward).parameters
        self._takes = [name for name in ("input_ids", "attention_mask") if name in known]
        ids = torch.zeros(1, TRIED, dtype=torch.long, device=found[0].weight.device)
        told = UnsupportedModel.telling(
            f"{type(module).__name__} cannot be called with token ids alone (",
            *(TypeError, ValueError, RuntimeError, LookupError),
            end="); give a module that takes (input_ids) or (input_ids, attention_mask), batch × token, "
            "and gives batch × label.",
        )
        with told, torch.no_grad(), lent([*self.modules()], training=False):
            _, count = self(ids, torch.ones_like(ids)).logits.shape
        if labels is not None and len(labels) != count:
            raise UnsupportedModel(
                f"{type(module).__name__} gives {count} logits, but {len(labels)} labels were named."
            )
        self.config.id2label = dict(enumerate(labels or (f"LABEL_{i}" for i in range(count))))
        self.config.label2id = {name: i for i, name in self.config.id2label.items()}
        self.config.pad_token_id = found[0].padding_idx
        self.config._name_or_path = type(module).__name__

    def get_input_embeddings(self) -> nn.Module:
        return self._embedded[0]

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any
    ) -> SequenceClassifierOutput:
        both = {"input_ids": input_ids, "attention_mask": attention_mask}
        given = {name: both[name] for name in self._takes}
        said = self.module(*(() if "input_ids" in given else (input_ids,)), **given)
        if isinstance(said, Mapping):
            said = said["logits"] if "logits" in said else next(iter(said.values()))
        said = getattr(said, "logits", said)
        return SequenceClassifierOutput(logits=said if isinstance(said, Tensor) else said[0])
