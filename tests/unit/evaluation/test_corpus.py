"""Views over many texts: how rare tokens are, what classes are made of, and their pictures."""

from __future__ import annotations

import dataclasses
import runpy
from math import log
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.expect import expect_error
from tests.helpers.tiny import tiny_bert, tiny_bert_qa, tiny_tokenizer
from tokenlight import Explainer, Question
from tokenlight.errors import BadInput, DamagedFile, MissingExtra
from tokenlight.evaluation.corpus import DocumentFrequencies
from tokenlight.plots import charts
from tokenlight.plots.charts import select_top_tokens

SCRIPT = runpy.run_path(str(Path(__file__).parents[3] / "benchmarks" / "word_clouds.py"))
class_weights = SCRIPT["class_weights"]
table = SCRIPT["table"]
TOKENIZER = tiny_tokenizer()
EXPLAINER = Explainer(tiny_bert(), TOKENIZER)
TEXTS = ["the film is good", "the plot is dull", "the dog sat on the mat", "a cat"]


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
            target=EXPLAINER._runner.head.resolve(c, attribution.logits, attribution.row)[0],
        )
        for attribution, c, s in zip(attributions, classes, scores, strict=True)
    ]


def test_a_token_counts_once_per_text():
    frequencies = DocumentFrequencies.from_texts(TEXTS, TOKENIZER)
    assert frequencies.num_documents == 4
    assert frequencies.counts["the"] == 3
    assert frequencies.counts["is"] == 2
    assert "[CLS]" not in frequencies.counts
    assert frequencies.idf("the") == pytest.approx(log(4 / 3))
    assert frequencies.idf("never") == pytest.approx(log(4))
    assert frequencies.idf("the", "smooth") == pytest.approx(log(5 / 4) + 1)
    assert frequencies.idf("the", "none") == 1


def test_frequencies_survive_their_file(tmp_path):
    frequencies = DocumentFrequencies.from_texts(TEXTS, TOKENIZER)
    assert DocumentFrequencies.load(frequencies.save(tmp_path / "idf.json")) == frequencies
    with expect_error(BadInput, "empty-corpus"):
        DocumentFrequencies.from_texts([], TOKENIZER)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 9}', '{"format": 1, "counts": 3}'])
def test_a_file_of_something_else_is_refused(tmp_path, content):
    path = tmp_path / "idf.json"
    path.write_text(content)
    with pytest.raises(DamagedFile):
        DocumentFrequencies.load(path)


def test_weights_add_up_by_class_and_type(attributions):
    weights = class_weights(attributions, idf="none")
    assert list(weights) == ["negative", "positive"]
    assert weights["positive"] == {"good": 5, "film": 1, "plot": 1}
    assert weights["negative"] == {"dull": 6, "film": -1}
    assert select_top_tokens(weights["negative"]) == [("dull", 6)]
    assert select_top_tokens(weights["positive"], 2) == [("good", 5), ("film", 1)]


def test_rare_types_weigh_more(attributions):
    weights = class_weights(attributions, DocumentFrequencies(100, {"good": 50, "plot": 2}))
    assert weights["positive"]["good"] == pytest.approx(5 * log(2))
    assert weights["positive"]["plot"] == pytest.approx(log(50))
    values = class_weights(attributions)  # counted in the four texts themselves
    assert values["positive"]["film"] == pytest.approx(log(2))


def test_normalization_gives_every_text_the_same_weight(attributions):
    weights = class_weights(attributions, idf="none", normalize="l1")
    assert weights["positive"]["good"] == pytest.approx(3 / 4 + 2 / 3)


def test_other_targets_than_the_predicted_class_are_refused():
    other = EXPLAINER.explain("good film", "random", target="all")
    with pytest.raises(BadInput, match="needs target='predicted'"):
        class_weights(other)
    question = Question(question="who sat ?", context="the cat sat on the mat .")
    answer = Explainer(tiny_bert_qa(), TOKENIZER).explain(question, "random")
    with pytest.raises(BadInput, match="gathers classes"):
        class_weights([answer])


def test_a_table_shows_classes_side_by_side(attributions):
    lines = table(class_weights(attributions, idf="none"), 3).splitlines()
    assert lines[0] == "| | negative | positive |"
    assert lines[2] == "| 1 | `dull` 6 | `good` 5 |"
    assert lines[3] == "| 2 |  | `film` 1 |"


def test_word_clouds_are_deterministic(attributions, tmp_path):
    pytest.importorskip("wordcloud")
    weights = class_weights(attributions, idf="none")
    first = [p.read_bytes() for p in SCRIPT["save_clouds"](weights, tmp_path / "one", prefix="x_")]
    second = [p.read_bytes() for p in SCRIPT["save_clouds"](weights, tmp_path / "two", prefix="x_")]
    assert first == second
    assert sorted(p.name for p in (tmp_path / "one").iterdir()) == [
        "x_negative.png",
        "x_positive.png",
    ]
    with pytest.raises(BadInput, match="nothing to draw"):
        charts.draw_word_cloud({"film": -1.0})


def test_pieces_are_shown_without_their_marks():
    assert [charts.strip_token_prefix(t) for t in ("##ing", "Ġgood", "▁fine", "plain")] == [
        "ing", "good", "fine", "plain",
    ]  # fmt: skip


def test_a_missing_library_is_named(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "wordcloud", None)
    with pytest.raises(MissingExtra, match=r"tokenlight\[plots\]"):
        charts.draw_word_cloud({"film": 1.0})


def test_the_command_counts_a_corpus(tmp_path, bert_folder):
    from tokenlight.cli.evaluate import idf

    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(TEXTS))
    out = tmp_path / "idf.json"
    idf(corpus=str(corpus), output=out, model=str(bert_folder), text=None, limit=3, split=None)
    assert DocumentFrequencies.load(out).num_documents == 3
