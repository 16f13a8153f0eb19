"""method="auto": one of the most faithful methods measured for this kind of input, and why; and a text of
that kind to try it on.

``default.json`` is made by ``benchmarks/default_method.py`` and nothing else decides: never the clock, never
the text. A model that the method does not support gets integrated gradients, which need only a gradient.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tokenlight.data.target import TargetLike, TokenTarget
from tokenlight.data.tokens import Question
from tokenlight.explaining.session import Session
from tokenlight.inputs.picture import Picture

AUTO = "auto"
KINDS = {
    "text": "a text", "pair": "a pair of texts", "span": "an answer in a context", "mask": "a hidden word",
    "next": "the next token", "cosine": "the likeness of two texts", "image": "a picture",
}  # fmt: skip
MEASURES = {"image": "insertion − deletion", "cosine": "fall of the cosine"}  # others: AOPC
SENTENCE = "The plot is thin, yet the cast makes it a joy to watch."
QUESTION = "Who makes it a joy to watch?"


def is_auto(method: Any) -> bool:
    """Whether this asks for the default: the name, or as a pair with no options."""
    return isinstance(method, str | tuple) and method in (AUTO, (AUTO, {}))


@cache
def table(name: str = "default.json") -> dict[str, Any]:
    """What was measured: ``kinds`` (method, texts, means) and the method ``otherwise``."""
    return {**json.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))}


def kind_of(session: Session, given: Any) -> str:
    """The kind of input that is explained, as the table names it."""
    head, given = session.live.head, getattr(given, "text", given)
    if head.kind == "span":
        return "span"
    named = {"next": "next", "mask": "mask", "pair": "cosine", "image": "image"}
    return named.get(head.reads, "pair" if isinstance(given, tuple) else "text")


def candidates(kind: str, session: Session | None = None) -> tuple[str, ...]:
    """The methods to take, the first that the model supports; no relevance has a decoder's share."""
    method, otherwise = table()["kinds"][kind]["method"], table()["otherwise"]
    if session is not None and session.live.model.config.is_encoder_decoder:
        return (otherwise,)
    return tuple(dict.fromkeys((method, otherwise)))


def measured() -> dict[str, Any]:
    """Faithfulness on texts, by ``benchmarks/leaderboard.py``: ``texts``, ``means`` (AOPC), ``ranks``."""
    return table("leaderboard.json")


def recommended() -> dict[str, float]:
    """The five methods that measured best on texts, with their mean AOPC, the best first."""
    means, ranks = measured()["means"], measured()["ranks"]
    best = sorted(means, key=lambda name: (ranks[name][0], -means[name]))
    return {name: means[name] for name in [one for one in best if one != "random"][:5]}


def reason(kind: str, method: str, refused: object) -> str:
    """Why this method, in one line."""
    first, means = candidates(kind)[0], table()["kinds"][kind]["means"]
    if refused:
        return f"method='auto': {method}, since {first} does not serve this model"
    rank = "the most" if means[method] == max(means.values()) else "among the most"
    return (
        f"method='auto': {method}, {rank} faithful of {len(means) - 1} methods measured for "
        f"{KINDS[kind]} ({MEASURES.get(kind, 'AOPC')} {means[method]:.2f}; random {means['random']:.2f})"
    )


def sample(session: Session) -> tuple[Any, TargetLike]:
    """A short text of the kind this model reads, and its target: what it is refused for, all are."""
    head = session.live.head
    if head.kind == "span":
        return Question(question=QUESTION, context=SENTENCE), "predicted"
    if head.reads == "mask":
        blank = getattr(session.tokenizer, "mask_token", None) or ""
        return SENTENCE.replace("thin", blank), "predicted"
    if head.reads == "token":
        return SENTENCE, TokenTarget("cast")
    if head.reads == "image" or session.live.sight is not None:
        shades = np.add.outer(np.arange(0, 128, 2), np.arange(0, 128, 2))
        colours = np.stack([shades, 255 - shades, shades // 2], axis=2)
        beside = None if head.reads == "image" else SENTENCE
        return Picture(colours.astype("u1"), text=beside), head.usual
    if head.reads == "pair":
        return (SENTENCE, QUESTION), "predicted"
    return SENTENCE, head.usual
