"""The deciding word, computed by hand and with a model whose deciding word is planted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.copy_model import FILLER_WORDS, NAMES, VALUES, make_copy_explainer
from tests.helpers.expect import expect_error
from tests.helpers.handmade_attributions import make_attribution, make_row
from tokenlight import registry
from tokenlight.data.head import Head
from tokenlight.errors import BadInput
from tokenlight.metrics.base import Case
from tokenlight.perturb.variants import Perturber, ReplacementIds

TEXT = "capital of France is"
# France has two tokens; [CLS] and [SEP] stand around the five.
SPANS = [(0, 7), (8, 10), (11, 14), (14, 17), (18, 20)]
ROW = make_row([TEXT], [SPANS], words=[0, 1, 2, 2, 3])
FRANCE = (0, 11, 17)


def measure(scores, *spans):
    head = Head("text-classification", labels=("negative", "positive"))
    case = Case(
        make_attribution(ROW, [9.0, *scores, 9.0]),
        Perturber(ROW, ReplacementIds(0, 0)),
        head,
        spans=spans,
    )
    return registry.build("metrics", "deciding_word", {}).measure(case, [])


@pytest.mark.parametrize(
    ("scores", "top", "rank", "share"),
    [
        ([1.0, 0.0, 2.0, 3.0, 4.0], 1.0, 1.0, 5 / 10),  # no token of France has the highest score
        ([9.0, 1.0, 2.0, 3.0, 5.0], 0.0, 2.5, 5 / 20),
        ([1.0, 1.0, 0.5, 0.5, 1.0], 1 / 4, 2.5, 1 / 4),
        ([0.0, 0.0, -2.0, -3.0, 0.0], 0.0, 4.0, 1.0),
        ([0.0, 0.0, 0.0, 0.0, 0.0], 1 / 4, 2.5, 0.0),
    ],
)
def test_the_value_and_its_parts_are_those_computed_by_hand(scores, top, rank, share):
    measurement = measure(scores, FRANCE)
    assert measurement.value == top
    assert measurement.parts == {
        "rank": rank,
        "reciprocal_rank": 1 / rank,
        "share": share,
        "chance": 1 / 4,
    }


def test_of_two_marked_words_the_better_one_counts():
    measurement = measure([1.0, 0.0, 2.0, 1.0, 9.0], (0, 0, 7), (0, 18, 20))
    assert (measurement.value, measurement.parts["rank"]) == (1.0, 1.0)
    assert measurement.parts["chance"] == 1 / 2


def test_a_text_without_a_marked_word_is_refused():
    with expect_error(BadInput, "no-deciding-word"):
        measure([1.0, 0.0, 2.0, 1.0, 9.0])


def make_prompt(index):
    """Return a prompt that is completed by the word after the first name, and the span of that word."""
    name, value = NAMES[index], VALUES[index]
    filler = FILLER_WORDS[4 * index : 4 * index + 4]
    before = f"{filler[0]} {filler[1]} {name} "
    return f"{before}{value} {filler[2]} {filler[3]} {name}", (len(before), len(before + value))


def test_the_planted_word_scores_above_chance_and_its_inverse_below():
    explainer = make_copy_explainer()
    prompts = [make_prompt(index) for index in range(12)]
    texts = [text for text, _ in prompts]
    spans = [[span] for _, span in prompts]
    oracle = []
    inverted = []
    for attribution in explainer.explain(texts, "random"):
        # Position 3 holds the word that the model copies.
        scores = np.eye(len(attribution))[3]
        oracle.append(replace(attribution, scores=scores))
        inverted.append(replace(attribution, scores=-scores))

    def first_and_rank(attributions):
        summary = explainer.evaluate(attributions, ["deciding_word"], spans=spans).summary
        return summary["deciding_word"]["mean"], summary["deciding_word.rank"]["mean"]

    random_scores = explainer.explain(texts, "random")
    assert first_and_rank(oracle) == (1.0, 1.0)
    # The mean rank of one of seven words in a random order is 4, its deviation over twelve texts 0.6.
    assert 2.0 < first_and_rank(random_scores)[1] < 6.0
    assert first_and_rank(inverted) == (0.0, 7.0)
    # What the model copies is what a method finds.
    assert first_and_rank(explainer.explain(texts, "grad_x_input")) == (1.0, 1.0)
