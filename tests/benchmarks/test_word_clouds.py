"""What classes are made of: weights of words by class, their table and their pictures."""

from __future__ import annotations

import dataclasses
from math import log

import numpy as np
import pytest
from word_clouds import compute_class_weights, format_table, save_clouds

from tests.helpers.tiny import tiny_bert, tiny_bert_qa, tiny_tokenizer
from tokenlight import Explainer, Question
from tokenlight.errors import BadInput
from tokenlight.evaluation.corpus import DocumentFrequencies
from tokenlight.plots.charts import select_top_tokens

TOKENIZER = tiny_tokenizer()
EXPLAINER = Explainer(tiny_bert(), TOKENIZER)


@pytest.fixture
def attributions():
    """Two texts of each of two classes, with scores that can be added in the head."""
    attributions = EXPLAINER.explain(["good film", "good plot", "dull film", "dull dull"], "random")
    classes = (2, 2, 0, 0)
    scores = ([0, 3, 1, 0], [0, 2, 1, 0], [0, 4, -1, 0], [0, 1, 1, 0])
    return [
        dataclasses.replace(
            attribution,
            scores=np.array(s, float),
            prediction=dataclasses.replace(
                attribution.prediction, index=c, label=EXPLAINER.labels[c]
            ),
            target=EXPLAINER.runner.head.resolve(c, attribution.logits, attribution.row)[0],
        )
        for attribution, c, s in zip(attributions, classes, scores, strict=True)
    ]


def test_weights_add_up_by_class_and_type(attributions):
    weights = compute_class_weights(attributions, idf="none")
    assert list(weights) == ["negative", "positive"]
    assert weights["positive"] == {"good": 5, "film": 1, "plot": 1}
    assert weights["negative"] == {"dull": 6, "film": -1}
    assert select_top_tokens(weights["negative"]) == [("dull", 6)]
    assert select_top_tokens(weights["positive"], 2) == [("good", 5), ("film", 1)]


def test_rare_types_weigh_more(attributions):
    weights = compute_class_weights(attributions, DocumentFrequencies(100, {"good": 50, "plot": 2}))
    assert weights["positive"]["good"] == pytest.approx(5 * log(2))
    assert weights["positive"]["plot"] == pytest.approx(log(50))
    values = compute_class_weights(attributions)  # counted in the four texts themselves
    assert values["positive"]["film"] == pytest.approx(log(2))


def test_normalization_gives_every_text_the_same_weight(attributions):
    weights = compute_class_weights(attributions, idf="none", normalize="l1")
    assert weights["positive"]["good"] == pytest.approx(3 / 4 + 2 / 3)


def test_other_targets_than_the_predicted_class_are_refused():
    other = EXPLAINER.explain("good film", "random", target="all")
    with pytest.raises(BadInput, match="needs target='predicted'"):
        compute_class_weights(other)
    question = Question(question="who sat ?", context="the cat sat on the mat .")
    answer = Explainer(tiny_bert_qa(), TOKENIZER).explain(question, "random")
    with pytest.raises(BadInput, match="gathers classes"):
        compute_class_weights([answer])


def test_a_table_shows_classes_side_by_side(attributions):
    lines = format_table(compute_class_weights(attributions, idf="none"), 3).splitlines()
    assert lines[0] == "| | negative | positive |"
    assert lines[2] == "| 1 | `dull` 6 | `good` 5 |"
    assert lines[3] == "| 2 |  | `film` 1 |"


def test_word_clouds_are_deterministic(attributions, tmp_path):
    pytest.importorskip("wordcloud")
    weights = compute_class_weights(attributions, idf="none")
    first = [p.read_bytes() for p in save_clouds(weights, tmp_path / "one", prefix="x_")]
    second = [p.read_bytes() for p in save_clouds(weights, tmp_path / "two", prefix="x_")]
    assert first == second
    assert sorted(p.name for p in (tmp_path / "one").iterdir()) == [
        "x_negative.png",
        "x_positive.png",
    ]
