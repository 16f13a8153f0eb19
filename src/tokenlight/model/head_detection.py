"""Detect which head a model has and what its logits mean; wrap a torch module as a transformers model."""

import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from tokenlight.data.head import Head, HeadTask
from tokenlight.data.tokenizer import Vocabulary
from tokenlight.errors import TokenlightError, UnsupportedModel
from tokenlight.hooks.patching import patched_attributes
from tokenlight.model.vision import find_image_token_id

# Tasks of supported heads, by how the names of transformers' classes end.
TASKS = {
    "classify texts": ("ForSequenceClassification",),
    "answer questions": ("ForQuestionAnswering", "ForQuestionAnsweringSimple"),
    "continue texts": ("ForCausalLM", "LMHeadModel"),
    "generate from a source": ("ForConditionalGeneration", "MTModel", "EncoderDecoderModel"),
    "fill in masked tokens": ("ForMaskedLM",),
    "label tokens": ("ForTokenClassification",),
    "classify images": ("ForImageClassification", "ForImageClassificationWithTeacher"),
}
LANGUAGE_MODEL_SUFFIXES = (*TASKS["continue texts"], *TASKS["fill in masked tokens"])
SUPPORTED_SUFFIXES = tuple(suffix for suffixes in TASKS.values() for suffix in suffixes)
# What ``problem_type`` of a config means for a Head; anything else is a single label per text.
PROBLEM_TYPES = {"regression": "regression", "multi_label_classification": "multi"}
PROBE_LENGTH = 16  # tokens of the row of zeros with which a plain module is called


def unwrap_pretrained(model: Any) -> PreTrainedModel:
    """Return the transformers model inside the wrappers of torch.compile, DataParallel and PEFT.

    Raises:
        UnsupportedModel: There is none, or the adapter adds tokens of its own.
    """
    model = getattr(model, "_orig_mod", model)
    if isinstance(getattr(model, "module", None), PreTrainedModel):  # DataParallel and similar
        model = model.module
    if hasattr(model, "peft_config") and hasattr(model, "get_base_model"):
        for adapter in model.peft_config.values():
            if getattr(adapter, "is_prompt_learning", False):
                raise UnsupportedModel(
                    f"The PEFT adapter {type(adapter).__name__} puts tokens of its own before the text, "
                    "and their effect cannot be attributed to any token of the text. Use an adapter "
                    "that changes weights, such as LoRA.",
                    code="prompt-learning-adapter",
                )
        model = model.get_base_model()
    if not isinstance(model, PreTrainedModel):
        raise UnsupportedModel(
            f"{type(model).__name__} is not a transformers model. Give a PreTrainedModel such as "
            "BertForSequenceClassification.",
            code="not-a-transformers-model",
        )
    return model


def detect_head(model: PreTrainedModel, tokenizer: Any) -> Head:
    """Detect the head by the class of the model, and its labels by the config.

    Args:
        model: The model.
        tokenizer: Its tokenizer, which names the tokens of a language model.

    Raises:
        UnsupportedModel: The model has no head that can be explained.
    """
    name = type(model).__name__
    if "QuestionAnswering" in name:
        return Head("question-answering")
    is_language_model = name.endswith(LANGUAGE_MODEL_SUFFIXES)
    is_conditional = name.endswith(TASKS["generate from a source"])
    if model.config.is_encoder_decoder and (is_language_model or is_conditional):
        return _make_encoder_decoder_head(model, tokenizer)
    reads_image_tokens = is_conditional and find_image_token_id(model) is not None
    if is_language_model or reads_image_tokens:
        return _make_language_model_head(model, tokenizer)
    if is_conditional:
        raise UnsupportedModel(
            f"{name} reads neither a source text nor images as tokens of a text; tokenlight explains "
            f"{describe_supported_models()}.",
            code="unsupported-conditional-generation",
        )
    if _is_headless(model):
        return _make_embedding_head(model)
    return _make_classification_head(model)


def _make_language_model_head(model: PreTrainedModel, tokenizer: Any) -> Head:
    """Return the head of a model that continues a text or fills in masked tokens."""
    is_masked = type(model).__name__.endswith("ForMaskedLM")
    task: HeadTask = "fill-mask" if is_masked else "text-generation"
    vocab_size = int(model.config.get_text_config().vocab_size)
    return Head(task, Vocabulary(tokenizer, vocab_size))


def _make_encoder_decoder_head(model: PreTrainedModel, tokenizer: Any) -> Head:
    """Return the head of a model whose decoder writes after a source that its encoder reads."""
    start_id = getattr(model.config, "decoder_start_token_id", None)
    table_sizes: list[int] = []
    with suppress(AttributeError, NotImplementedError):
        for part in (model.get_encoder(), model.get_decoder()):
            table_sizes.append(int(part.get_input_embeddings().weight.shape[0]))
    shares_vocabulary = len(table_sizes) == 2 and table_sizes[0] == table_sizes[1]
    reads_text = model.main_input_name == "input_ids"
    if not shares_vocabulary or not isinstance(start_id, int) or not reads_text:
        raise UnsupportedModel(
            f"{type(model).__name__} generates from {model.main_input_name!r}, with "
            f"decoder_start_token_id={start_id} and token tables of the sizes {table_sizes}. tokenlight "
            "explains generation from a text by models that read and write one vocabulary.",
            code="unsupported-encoder-decoder",
        )
    return Head("text-generation", Vocabulary(tokenizer, table_sizes[0]))


def _is_headless(model: PreTrainedModel) -> bool:
    """Return whether the model is a base model, without any head."""
    for model_class in type(model).__mro__[:-1]:
        if "For" in model_class.__name__:
            return False
    return model.base_model is model


def _make_embedding_head(model: PreTrainedModel) -> Head:
    """Return the head of a base model: the similarity of its embedding to that of another text."""
    reads_images = model.main_input_name == "pixel_values"
    if model.config.is_encoder_decoder or reads_images:
        task = "ImageClassification" if reads_images else "SequenceClassification"
        raise UnsupportedModel(
            f"{type(model).__name__} has no head, so there is no output to explain. Load the fine-tuned "
            f"model, for example with AutoModelFor{task}.",
            code="model-without-head",
        )
    return Head("sentence-similarity", ("cosine similarity",), "regression")


def _make_classification_head(model: PreTrainedModel) -> Head:
    """Return the head of a classifier of texts, tokens or images."""
    name = type(model).__name__
    if "For" in name and not name.endswith(SUPPORTED_SUFFIXES):
        raise UnsupportedModel(
            f"{name} has a head that tokenlight does not support; tokenlight explains "
            f"{describe_supported_models()}.",
            code="unsupported-head",
        )
    config = model.config
    labels = tuple(str(config.id2label[index]) for index in range(config.num_labels))
    if name.endswith("ForTokenClassification"):
        return Head("token-classification", labels)
    classifies_images = "ForImageClassification" in name
    task: HeadTask = "image-classification" if classifies_images else "text-classification"
    reads_images = model.main_input_name == "pixel_values"
    if classifies_images != reads_images:
        raise UnsupportedModel(
            f"{name} reads {model.main_input_name!r}, which is not what its head classifies. Give a text "
            "classifier that reads input_ids, or an image classifier that reads pixel_values.",
            code="head-input-mismatch",
        )
    problem_type = getattr(config, "problem_type", None)
    if not problem_type and config.num_labels == 1:
        problem_type = "regression"
    problem = PROBLEM_TYPES.get(problem_type or "", "single")
    return Head(task, labels, problem)  # type: ignore[arg-type]


def describe_supported_models() -> str:
    """Return ``models that classify texts (ForSequenceClassification), …`` for messages."""
    tasks = [f"{task} ({suffixes[0]})" for task, suffixes in TASKS.items()]
    return f"models that {', '.join(tasks)}, or that turn texts into vectors (no head)"


class PlainForSequenceClassification(PreTrainedModel):  # type: ignore[misc]
    """A plain torch module as a transformers classifier. It holds the module itself, not a copy.

    Args:
        module: Called as ``module(input_ids)`` or ``module(input_ids=…, attention_mask=…)`` with
            ``batch token``. Returns ``batch label``: a tensor, an object with ``logits``, or a tuple or
            mapping that begins with them.
        labels: Names of the labels.

    Raises:
        UnsupportedModel: The module has no embedding layer, cannot be called with ids, or has another
            number of labels.

    Example:
        >>> import torch
        >>> from tokenlight.model.head_detection import PlainForSequenceClassification
        >>> class Bag(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.table = torch.nn.Embedding(10, 2)
        ...     def forward(self, input_ids):
        ...         return self.table(input_ids).sum(dim=1)
        >>> PlainForSequenceClassification(Bag(), ["no", "yes"]).config.num_labels
        2
    """

    config_class = PretrainedConfig

    def __init__(self, module: nn.Module, labels: Sequence[str] | None = None) -> None:
        super().__init__(PretrainedConfig())
        self.module = module
        self.training = module.training
        embeddings = [part for part in module.modules() if isinstance(part, nn.Embedding)]
        if not embeddings:
            raise UnsupportedModel(
                f"{type(module).__name__} is not a transformers model, and it has no embedding layer "
                "(torch.nn.Embedding) through which it could read token ids. Give a PreTrainedModel such "
                "as BertForSequenceClassification, or a module that reads ids.",
                code="no-embedding-layer",
            )
        # In a list, so that torch does not register the layer a second time.
        self._embedding = [embeddings[0]]
        parameters = inspect.signature(module.forward).parameters
        self._accepted_arguments = [
            name for name in ("input_ids", "attention_mask") if name in parameters
        ]
        num_labels = self._count_labels()
        if labels is None:
            labels = [f"LABEL_{index}" for index in range(num_labels)]
        if len(labels) != num_labels:
            raise UnsupportedModel(
                f"{type(module).__name__} gives {num_labels} logits, but {len(labels)} labels were named. "
                "Give one label for each logit.",
                code="label-count",
            )
        self.config.id2label = dict(enumerate(labels))
        self.config.label2id = {name: index for index, name in self.config.id2label.items()}
        self.config.pad_token_id = embeddings[0].padding_idx
        self.config._name_or_path = type(module).__name__

    def _count_labels(self) -> int:
        """Return the number of logits for a row of zeros."""
        device = self.get_input_embeddings().weight.device
        ids = torch.zeros(1, PROBE_LENGTH, dtype=torch.long, device=device)
        evaluating = patched_attributes([*self.modules()], training=False)
        try:
            with torch.no_grad(), evaluating:
                _, num_labels = self(ids, torch.ones_like(ids)).logits.shape
        except TokenlightError:
            raise
        except (TypeError, ValueError, RuntimeError, LookupError) as error:
            raise UnsupportedModel(
                f"{type(self.module).__name__} cannot be called with token ids alone ({error}). Give a "
                "module that takes (input_ids) or (input_ids, attention_mask), batch × token, and returns "
                "batch × label.",
                code="module-call-failed",
            ) from error
        return int(num_labels)

    def get_input_embeddings(self) -> Any:
        """Return the first embedding layer of the module."""
        return self._embedding[0]

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any
    ) -> SequenceClassifierOutput:
        """Call the module with the arguments that it accepts."""
        arguments: dict[str, Any] = {"input_ids": input_ids, "attention_mask": attention_mask}
        accepted = {name: arguments[name] for name in self._accepted_arguments}
        positional = () if "input_ids" in accepted else (input_ids,)
        logits = self.module(*positional, **accepted)
        if isinstance(logits, Mapping):
            first_value = next(iter(logits.values()))
            logits = logits.get("logits", first_value)
        logits = getattr(logits, "logits", logits)
        if not isinstance(logits, Tensor):
            logits = logits[0]
        return SequenceClassifierOutput(logits=logits)
