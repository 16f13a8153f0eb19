"""How a model without a head makes one vector of a text, and compares two: as the files of
sentence-transformers beside it say, in its folder, on the hub or in the cache."""

import re
from collections.abc import Mapping
from typing import Any

from tokenlight.capture.live import Pooling, Similarity
from tokenlight.errors import DamagedFile, UnsupportedModel
from tokenlight.files.documents import json_in
from tokenlight.models import embedded as models
from tokenlight.models.folder import fetched

KNOWN: dict[str, Pooling] = {
    "mean": "mean", "cls": "cls", "lasttoken": "last", "max": "max", "weightedmean": "weightedmean",
    "mean_sqrt_len": "mean_sqrt_len",
}  # fmt: skip


def vectors_of(name: str, hub: dict[str, Any]) -> tuple[Pooling, Similarity, int | None]:
    """The pooling, the likeness and the most tokens read, which may be fewer than the model could;
    the mean, the cosine and no limit where no file says anything."""

    def said(file: str) -> Any:
        found = fetched(str(models.resolve(name)), file, hub)
        try:
            return None if found is None else json_in(found)
        except (OSError, ValueError) as broken:
            raise DamagedFile(f"{found} is not a readable JSON file: {broken}.") from broken

    parts = {str(one["type"]).rpartition(".")[2]: one["path"] for one in said("modules.json") or ()}
    likeness = (said("config_sentence_transformers.json") or {}).get("similarity_fn_name")
    read = said("sentence_bert_config.json") or {}
    if read.get("do_lower_case"):
        raise UnsupportedModel(
            f"the sentence_bert_config.json of {name} lower-cases texts before its tokenizer reads "
            "them, which tokenlight does not; set do_lower_case in the tokenizer instead."
        )
    how = said(f"{parts.get('Pooling', '1_Pooling')}/config.json")
    if how is not None and not isinstance(how, Mapping):
        raise DamagedFile(f"the pooling file of {name} is no table.")
    pooling = "mean" if how is None else pooling_in(how, name)
    return pooling, similarity_of([*parts], likeness, name), read.get("max_seq_length")


def similarity_of(parts: list[str], likeness: object, name: str) -> Similarity:
    """How two vectors are compared behind the modules ``parts``; one that would change them is refused."""
    for part in parts:
        if part not in ("Transformer", "Pooling", "Normalize"):
            raise UnsupportedModel(
                f"{name} has a {part} module behind its pooling, which tokenlight does not know; it reads "
                "Transformer, Pooling and Normalize."
            )
    if likeness not in (None, "cosine", "dot", "dot_score"):
        raise UnsupportedModel(
            f"{name} compares vectors by {likeness}; tokenlight knows the cosine and the dot product."
        )
    # The dot product of vectors of length one is their cosine.
    return "cosine" if likeness in (None, "cosine") or "Normalize" in parts else "dot"


def pooling_in(says: Mapping[str, Any], name: str) -> Pooling:
    """The one way of pooling that a configuration of sentence-transformers asks for."""
    chosen = sorted(k.removeprefix("pooling_mode_") for k, v in says.items() if v is True)
    named = says.get("pooling_mode", ())  # since sentence-transformers 6: a word, or a list
    named = [named] if isinstance(named, str) else list(named)
    ways = [way for way in chosen if way != "include_prompt"]
    ways = named or [re.sub("_tokens?$", "", way) for way in ways]
    if len(ways) != 1 or ways[0] not in KNOWN:
        raise UnsupportedModel(
            f"{name} pools its tokens by {' and '.join(map(str, ways)) or 'nothing'}; tokenlight knows "
            f"{', '.join(KNOWN)}. Load the model yourself and give Explainer(…, pooling=…)."
        )
    return KNOWN[ways[0]]
