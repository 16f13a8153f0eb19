"""What other libraries hold a model in: ``transformers.pipeline``, and ``CrossEncoder`` and
``SentenceTransformer`` of sentence-transformers. They are known by the names of their classes, so that
neither library need be there."""

from collections.abc import Sequence
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from tokenlight.capture.live import Pooling
from tokenlight.capture.plain_module import PlainForSequenceClassification
from tokenlight.errors import BadInput, UnsupportedModel
from tokenlight.models.loading import pooling_in

KINDS = ("Pipeline", "CrossEncoder", "SentenceTransformer")


def carried(
    model: Any, tokenizer: Any, pooling: Pooling, labels: Sequence[str] | None
) -> tuple[Any, Any, Pooling]:
    """The model, its tokenizer (or what reads its images) and its pooling, out of what holds them.

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
        pooling = _pooling(model, pooling)
        return model[0].auto_model, tokenizer or model.tokenizer, pooling
    if kind is not None:
        reader = tokenizer or model.tokenizer or getattr(model, "image_processor", None)
        return model.model, reader, pooling
    known = isinstance(model, PreTrainedModel) or hasattr(model, "peft_config")
    inner = getattr(model, "_orig_mod", getattr(model, "module", None))
    if known or not isinstance(model, nn.Module) or isinstance(inner, PreTrainedModel):
        return model, tokenizer, pooling  # LiveModel takes it, or says why not
    return PlainForSequenceClassification(model, labels), tokenizer, pooling


def _pooling(model: Any, given: Pooling) -> Pooling:
    """How a SentenceTransformer makes one vector of a text. Normalising changes no cosine; any other
    module behind the pooling would, and is refused."""
    for part in list(model)[1:]:
        match type(part).__name__:
            case "Pooling":
                given = pooling_in(part.get_config_dict(), type(model).__name__)
            case "Normalize":
                pass
            case other:
                raise UnsupportedModel(
                    f"this SentenceTransformer has a {other} module behind its pooling, which tokenlight "
                    "does not know; it reads Transformer, Pooling and Normalize."
                )
    return given
