"""Explanations with handmade scores: what is rendered from them is the same on every machine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.helpers.handmade_attributions import make_attribution, make_row, split_words
from tokenlight.data.attribution import Attribution
from tokenlight.data.prediction import Prediction
from tokenlight.data.target import ResolvedTarget
from tokenlight.inputs.prompt import CONTINUATION_SEGMENT

REVIEW = "Charming, but never dull."
# Special tokens first and last, as the tokenizer places them.
REVIEW_SCORES = [0.05, 0.5, -0.02, 0.1, -0.25, 0.75, 0.0, 0.02]
TRUST = {
    "grade": "faithful",
    "verdict": "removing the top word (dull) lowers P(positive) from 98 % to 61 %",
    "findings": ["its order beats 98 % of random orders"],
}


def review(method: str = "attcat", **fields) -> Attribution:
    """Return an explanation of a sentiment classifier."""
    row = make_row([REVIEW], [split_words(REVIEW)])
    return make_attribution(row, REVIEW_SCORES, method=method, **fields)


def review_by_layer() -> Attribution:
    """Return an explanation with the terms of two layers."""
    scores = np.array(REVIEW_SCORES)
    return review(layers=np.stack([0.25 * scores, 0.75 * scores]))


def reviews_by_two_methods() -> list[Attribution]:
    rollout = review("rollout", extras={"trust": TRUST | {"grade": "inconclusive"}})
    opposite = replace(rollout, scores=-np.array(REVIEW_SCORES))
    return [review(extras={"trust": TRUST}), opposite]


def contrast() -> Attribution:
    """Return an explanation of the difference between two logits."""
    target = ResolvedTarget(
        "contrast", "positive rather than negative", (((1,), 1.0), ((0,), -1.0))
    )
    return replace(review("attnlrp"), target=target)


def answer() -> Attribution:
    """Return an explanation of the answer to a question."""
    question = "Who wrote Hamlet?"
    context = "Hamlet was written by Shakespeare."
    row = replace(
        make_row([question, context], [split_words(question), split_words(context)]),
        segment_names=("question", "context"),
    )
    scores = [0.0, 0.4, 0.3, 0.2, 0.0, 0.0, 0.1, -0.1, 0.25, 0.15, 0.9, 0.0, 0.05]
    target = ResolvedTarget("span", "the answer ‘Shakespeare’", (((10, 0), 1.0), ((10, 1), 1.0)))
    prediction = Prediction(
        "Shakespeare", 0, ("Shakespeare",), (0.75,), answer_score=6.0, null_score=1.0
    )
    attribution = make_attribution(
        row, scores, method="attnlrp", prediction=prediction, model="tokenlight/qa"
    )
    return replace(attribution, target=target, logits=np.zeros((len(row), 2)))


def continuation() -> list[Attribution]:
    """Return an explanation of each of the two tokens that a language model wrote."""
    row = replace(
        make_row(["Once upon", " a time"], [[(0, 4), (5, 9)], [(1, 2), (3, 7)]], special=False),
        segment_names=("prompt", CONTINUATION_SEGMENT),
    )
    attributions = []
    for position, (token, probability) in enumerate([("a", 0.75), ("time", 0.875)], start=2):
        prediction = Prediction(
            token, position, (token, "the"), (probability, 0.125), ids=(position, 9)
        )
        attribution = make_attribution(
            row.take(range(position)),
            [0.25, 0.5, -0.125][:position],
            method="attnlrp",
            prediction=prediction,
            model="a language model",
        )
        target = ResolvedTarget("class", f"‘{token}’", (((position,), 1.0),))
        attributions.append(replace(attribution, target=target))
    return attributions
