"""A short text of the kind a model reads: what is wrong with it is wrong for every text."""

from typing import Any

import numpy as np

from tokenlight.data.target import TargetLike, TokenTarget
from tokenlight.data.tokens import Question
from tokenlight.explaining.session import Session
from tokenlight.inputs.picture import Picture

SENTENCE = "The plot is thin, yet the cast makes it a joy to watch."
QUESTION = "Who makes it a joy to watch?"


def sample(session: Session) -> tuple[Any, TargetLike]:
    """A short text of the kind this model reads, and a target it has."""
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
