"""Views over many texts: how rare tokens are, what classes are made of, and their pictures."""

from __future__ import annotations

import dataclasses
import runpy
from math import log
from pathlib import Path

import numpy as np
import pytest

from tests.tiny import tiny_bert, tiny_bert_qa, tiny_tokenizer
from tokenlight import Explainer, Question
from tokenlight.errors import BadInput, DamagedFile, MissingExtra
from tokenlight.evaluation.corpus import Frequencies
from tokenlight.plots import charts
from tokenlight.plots.charts import top_tokens

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "word_clouds.py"))
class_weights, table = SCRIPT["class_weights"], SCRIPT["table"]
TOKENIZER = tiny_tokenizer()
EXPLAINER = Explainer(tiny_bert(), TOKENIZER)
TEXTS = ["the film is good", "the plot is dull", "the dog sat on the mat", "a cat"]


@pytest.fixture
def attributions():
    """Two texts of each of two classes, with scores that can be added in the head."""
    found = EXPLAINER.explain(["good film", "good plot", "dull film", "dull dull"], "random")
    classes = (2, 2, 0, 0)
    scores = ([0, 3, 1, 0], [0, 2, 1, 0], [0, 4, -1, 0], [0, 1, 1, 0])
    return [
        dataclasses.replace(
            a,
            scores=np.array(s, float),
            prediction=dataclasses.replace(a.prediction, index=c, label=EXPLAINER.labels[c]),
            target=EXPLAINER.live.head.resolve(c, a.logits, a.row)[0],
        )
        for a, c, s in zip(found, classes, scores, strict=True)
    ]


def test_a_token_counts_once_a_text():
    found = Frequencies.of(TEXTS, TOKENIZER)
    assert found.documents == 4
    assert found.counts["the"] == 3
    assert found.counts["is"] == 2
    assert "[CLS]" not in found.counts
    assert found.idf("the") == pytest.approx(log(4 / 3))
    assert found.idf("never") == pytest.approx(log(4))
    assert found.idf("the", "smooth") == pytest.approx(log(5 / 4) + 1)
    assert found.idf("the", "none") == 1


def test_frequencies_survive_their_file(tmp_path):
    found = Frequencies.of(TEXTS, TOKENIZER)
    assert Frequencies.load(found.save(tmp_path / "idf.json")) == found
    with pytest.raises(BadInput, match="no text"):
        Frequencies.of([], TOKENIZER)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 9}', '{"format": 1, "counts": 3}'])
def test_a_file_of_something_else_is_refused(tmp_path, content):
    place = tmp_path / "idf.json"
    place.write_text(content)
    with pytest.raises(DamagedFile):
        Frequencies.load(place)


def test_weights_add_up_by_class_and_type(attributions):
    found = class_weights(attributions, idf="none")
    assert list(found) == ["negative", "positive"]
    assert found["positive"] == {"good": 5, "film": 1, "plot": 1}
    assert found["negative"] == {"dull": 6, "film": -1}
    assert top_tokens(found["negative"]) == [("dull", 6)]
    assert top_tokens(found["positive"], 2) == [("good", 5), ("film", 1)]


def test_rare_types_weigh_more(attributions):
    found = class_weights(attributions, Frequencies(100, {"good": 50, "plot": 2}))
    assert found["positive"]["good"] == pytest.approx(5 * log(2))
    assert found["positive"]["plot"] == pytest.approx(log(50))
    own = class_weights(attributions)  # counted in the four texts themselves
    assert own["positive"]["film"] == pytest.approx(log(2))


def test_every_text_weighs_the_same_once_normalised(attributions):
    found = class_weights(attributions, idf="none", normalize="l1")
    assert found["positive"]["good"] == pytest.approx(3 / 4 + 2 / 3)


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


def test_clouds_are_drawn_the_same_each_time(attributions, tmp_path):
    pytest.importorskip("wordcloud")
    weights = class_weights(attributions, idf="none")
    first = [p.read_bytes() for p in SCRIPT["save_clouds"](weights, tmp_path / "one", prefix="x_")]
    again = [p.read_bytes() for p in SCRIPT["save_clouds"](weights, tmp_path / "two", prefix="x_")]
    assert first == again
    assert sorted(p.name for p in (tmp_path / "one").iterdir()) == [
        "x_negative.png",
        "x_positive.png",
    ]
    with pytest.raises(BadInput, match="nothing to draw"):
        charts.cloud({"film": -1.0})


def test_pieces_are_shown_without_their_marks():
    assert [charts.shown(t) for t in ("##ing", "Ġgood", "▁fine", "plain")] == [
        "ing", "good", "fine", "plain",
    ]  # fmt: skip


def test_a_missing_library_is_named(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "wordcloud", None)
    with pytest.raises(MissingExtra, match=r"tokenlight\[plots\]"):
        charts.cloud({"film": 1.0})


def test_the_command_counts_a_corpus(tmp_path, bert_folder):
    from tokenlight.cli.evaluate import idf

    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(TEXTS))
    out = tmp_path / "idf.json"
    idf(corpus=str(corpus), output=out, model=str(bert_folder), text=None, limit=3, split=None)
    assert Frequencies.load(out).documents == 3
