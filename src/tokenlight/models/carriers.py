"""What other libraries hold a model in: ``transformers.pipeline``, and ``CrossEncoder`` and
``SentenceTransformer`` of sentence-transformers. They are known by the names of their classes, so that
neither library need be there."""

from collections.abc import Sequence
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from tokenlight.capture.live import Pooling, Similarity
from tokenlight.capture.plain_module import PlainForSequenceClassification
from tokenlight.errors import BadInput
from tokenlight.models.pooling import pooling_in, similarity_of

KINDS = ("Pipeline", "CrossEncoder", "SentenceTransformer")


def carried(
    model: Any,
    tokenizer: Any,
    pooling: Pooling,
    similarity: Similarity,
    labels: Sequence[str] | None,
) -> tuple[Any, Any, Pooling, Similarity]:
    """The model, its tokenizer (or what reads its images), its pooling and what it compares vectors by,
    out of what holds them.

    A plain module that reads token ids becomes a classifier with ``labels``.
    """
    names = {one.__name__ for one in type(model).__mro__}
    kind = next((kind for kind in KINDS if kind in names), None)
    if labels is not None and (kind or isinstance(model, PreTrainedModel)):
        raise BadInput(
            f"labels={list(labels)!r} name the classes of a plain torch module; a transformers model "
            "has them in its config (id2label)."
        )
    if kind == "SentenceTransformer":
        return model[0].auto_model, tokenizer or model.tokenizer, *_vectors(model, pooling)
    if kind is not None:
        own = getattr(model, "processor", None) or model.tokenizer
        reader = tokenizer or own or getattr(model, "image_processor", None)
        return model.model, reader, pooling, similarity
    known = isinstance(model, PreTrainedModel) or hasattr(model, "peft_config")
    inner = getattr(model, "_orig_mod", getattr(model, "module", None))
    if known or not isinstance(model, nn.Module) or isinstance(inner, PreTrainedModel):
        return model, tokenizer, pooling, similarity  # LiveModel takes it, or says why not
    return PlainForSequenceClassification(model, labels), tokenizer, pooling, similarity


def _vectors(model: Any, given: Pooling) -> tuple[Pooling, Similarity]:
    """How a SentenceTransformer makes one vector of a text, and compares two."""
    name, parts = type(model).__name__, {type(part).__name__: part for part in model}
    if "Pooling" in parts:
        given = pooling_in(parts["Pooling"].get_config_dict(), name)
    return given, similarity_of([*parts], getattr(model, "similarity_fn_name", None), name)
