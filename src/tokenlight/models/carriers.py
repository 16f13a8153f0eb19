"""What other libraries hold a model in: ``transformers.pipeline``, and ``CrossEncoder`` and
``SentenceTransformer`` of sentence-transformers; and how the files of the last say that a model without a
head makes one vector of a text. Both are known by names, so that neither library need be there."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from torch import nn
from transformers import PreTrainedModel

from tokenlight.capture.head import PlainForSequenceClassification
from tokenlight.capture.live import Pooling, Similarity
from tokenlight.errors import BadInput, UnsupportedModel
from tokenlight.models.embedded import resolve
from tokenlight.models.folder import document, fetched, reaching

KINDS = ("Pipeline", "CrossEncoder", "SentenceTransformer")
POOLINGS: dict[str, Pooling] = {way.replace("last", "lasttoken"): way for way in get_args(Pooling)}


def carried(
    model: Any,
    tokenizer: Any,
    pooling: Pooling,
    similarity: Similarity,
    labels: Sequence[str] | None,
) -> tuple[Any, Any, Pooling, Similarity]:
    """The model, its tokenizer (or what reads its images), its pooling and what it compares vectors by, out
    of what holds them. A plain module that reads token ids becomes a classifier with ``labels``."""
    names = {one.__name__ for one in type(model).__mro__}
    kind = next((kind for kind in KINDS if kind in names), None)
    if labels is not None and (kind or isinstance(model, PreTrainedModel)):
        said = f"labels={list(labels)!r} name the classes of a plain torch module"
        raise BadInput(f"{said}; a transformers model has them in its config (id2label).")
    if kind == "SentenceTransformer":
        name, parts = type(model).__name__, {type(part).__name__: part for part in model}
        if "Pooling" in parts:
            pooling = _pooling(parts["Pooling"].get_config_dict(), name)
        similarity = _similarity([*parts], getattr(model, "similarity_fn_name", None), name)
        return model[0].auto_model, tokenizer or model.tokenizer, pooling, similarity
    if kind is not None:
        own = getattr(model, "processor", None) or model.tokenizer
        reader = tokenizer or own or getattr(model, "image_processor", None)
        return model.model, reader, pooling, similarity
    known = isinstance(model, PreTrainedModel) or hasattr(model, "peft_config")
    inner = getattr(model, "_orig_mod", getattr(model, "module", None))
    if known or not isinstance(model, nn.Module) or isinstance(inner, PreTrainedModel):
        return model, tokenizer, pooling, similarity  # LiveModel takes it, or says why not
    return PlainForSequenceClassification(model, labels), tokenizer, pooling, similarity


def vectors(name: str, **hub: Any) -> tuple[Pooling, Similarity, int | None]:
    """How a model without a head makes one vector of a text, how it compares two, and the most tokens it
    reads; the mean, the cosine and no limit where no file says anything."""
    place = resolve(name)
    hub = hub if Path(place).is_dir() else reaching(hub)

    def said(file: str) -> Any:
        found = fetched(place, file, hub)
        return {} if found is None else document(found, list if file == "modules.json" else dict)

    parts = {str(one["type"]).rpartition(".")[2]: one["path"] for one in said("modules.json")}
    read = said("sentence_bert_config.json")
    if read.get("do_lower_case"):
        wrong = f"sentence_bert_config.json of {name} lower-cases texts, which tokenlight does not"
        raise UnsupportedModel(f"{wrong}; set do_lower_case in the tokenizer instead.")
    how = said(f"{parts.get('Pooling', '1_Pooling')}/config.json")
    likeness = said("config_sentence_transformers.json").get("similarity_fn_name")
    pooling = _pooling(how, name) if how else "mean"
    return pooling, _similarity([*parts], likeness, name), read.get("max_seq_length")


def _similarity(parts: list[str], likeness: object, name: str) -> Similarity:
    """How two vectors are compared behind the modules ``parts``; one that would change them is refused."""
    for part in parts:
        if part not in ("Transformer", "Pooling", "Normalize"):
            said = f"{name} has a {part} module behind its pooling, which tokenlight does not know"
            raise UnsupportedModel(f"{said}; it reads Transformer, Pooling and Normalize.")
    if likeness not in (None, "cosine", "dot", "dot_score"):
        said = f"{name} compares vectors by {likeness}"
        raise UnsupportedModel(f"{said}; tokenlight knows the cosine and the dot product.")
    # The dot product of vectors of length one is their cosine.
    return "cosine" if likeness in (None, "cosine") or "Normalize" in parts else "dot"


def _pooling(says: Mapping[str, Any], name: str) -> Pooling:
    """The one way of pooling that a configuration of sentence-transformers asks for."""
    named = says.get("pooling_mode", ())  # since sentence-transformers 6: a word, or a list
    chosen = sorted(k.removeprefix("pooling_mode_") for k, v in says.items() if v is True)
    old = [re.sub("_tokens?$", "", way) for way in chosen if way != "include_prompt"]
    ways = ([named] if isinstance(named, str) else list(named)) or old
    if len(ways) != 1 or ways[0] not in POOLINGS:
        raise UnsupportedModel(
            f"{name} pools its tokens by {' and '.join(map(str, ways)) or 'nothing'}; tokenlight knows "
            f"{', '.join(POOLINGS)}. Load the model yourself and give Explainer(…, pooling=…)."
        )
    return POOLINGS[ways[0]]
