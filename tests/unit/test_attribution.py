"""The result: frozen, complete, and the same after a journey through a file."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from tests.tiny import tiny_bert, tiny_tokenizer
from tokenlight import Attribution, Explainer, load, save
from tokenlight.errors import BadInput, DamagedFile, NotFinite, UnknownName
from tokenlight.postprocess import (
    absolute,
    difference,
    l1_normalise,
    max_normalise,
    merge_words,
    without_special,
)

EXPLAINER = Explainer(tiny_bert(), tiny_tokenizer())
FOUND = EXPLAINER.explain("Charming film , but slower", "attcat")
PAIR = EXPLAINER.explain(("good film", "bad film"), "attcat")


def test_scores_cannot_be_changed_in_place():
    with pytest.raises(ValueError, match="read-only"):
        FOUND.scores[0] = 1.0
    with pytest.raises(AttributeError):
        FOUND.method = "other"


def test_top_leaves_special_tokens_out_and_keeps_signs():
    best = FOUND.top(3)
    assert len(best) == 3
    assert not {token for token, _ in best} & {"[CLS]", "[SEP]"}
    sizes = [abs(score) for _, score in best]
    assert sizes == sorted(sizes, reverse=True)


def test_words_are_sums_of_their_tokens():
    words = dict(FOUND.words())
    tokens = dict(zip(FOUND.tokens, FOUND.scores, strict=True))
    assert words["Charming"] == pytest.approx(tokens["Charm"] + tokens["ing"])
    assert words["slower"] == pytest.approx(tokens["slow"] + tokens["er"])
    assert list(words) == ["Charming", "film", ",", "but", "slower"]


@pytest.mark.parametrize(("how", "expected"), [("sum", -1.0), ("mean", -0.5), ("max", -3.0)])
def test_words_merge_as_asked(how, expected):
    from dataclasses import replace

    scores = np.zeros(len(FOUND))
    scores[1:3] = 2.0, -3.0  # Charm, ing
    merged = merge_words(replace(FOUND, scores=scores, layers=None), how=how)
    assert merged.scores[1] == expected
    with pytest.raises(UnknownName, match="way to merge words"):
        merge_words(FOUND, how="median")


def test_merging_keeps_segments_apart():
    merged = merge_words(PAIR)
    assert [s for s in merged.row.segments if s is not None] == [0, 0, 1, 1]


def test_shares_of_segments_sum_to_one():
    shares = PAIR.segment_shares()
    assert [(part.name, part.segment) for part in shares] == [
        ("first", 0), ("second", 1), ("special", None)
    ]  # fmt: skip
    assert sum(part.share for part in shares) == pytest.approx(1.0)
    assert sum(part.total for part in shares) == pytest.approx(PAIR.scores.sum())


def test_steps_leave_the_raw_scores_alone_and_their_name_behind():
    before = FOUND.scores.copy()
    made = l1_normalise(absolute(FOUND))
    assert made.steps == ("absolute", "l1_normalise")
    assert made.scores.sum() == pytest.approx(1.0)
    assert np.abs(max_normalise(FOUND).scores).max() == pytest.approx(1.0)
    assert without_special(FOUND).scores[0] == 0
    np.testing.assert_array_equal(FOUND.scores, before)


def test_a_difference_needs_one_text():
    other = EXPLAINER.explain("Charming film , but slower", "gae")
    assert difference(FOUND, other).method == "attcat − gae"
    with pytest.raises(BadInput, match="two explanations of one text"):
        difference(FOUND, PAIR)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_never_becomes_a_score(bad):
    from dataclasses import replace

    with pytest.raises(NotFinite, match="score of token 2"):
        replace(FOUND, scores=np.array([0, 1, bad, *[0.0] * (len(FOUND) - 3)]))
    with pytest.raises(BadInput, match="one score a token"):
        replace(FOUND, scores=np.zeros(2))


class TestFiles:
    def test_several_go_into_one_file(self, tmp_path):
        place = save([FOUND, PAIR], tmp_path / "deep" / "two.json")
        again = load(place)
        assert [a.text for a in again] == [FOUND.text, PAIR.text]
        with pytest.raises(BadInput, match="holds 2 attributions"):
            Attribution.load(place)

    def test_json_is_plain(self, tmp_path):
        content = json.loads(FOUND.save(tmp_path / "a.json").read_text())
        assert content["tokens"] == list(FOUND.tokens)
        assert content["scores"] == FOUND.scores.tolist()

    @pytest.mark.parametrize("text", ["日本 <script>", "quote \" and ' and \\", "🎉 é́", "שלום"])
    def test_any_text_comes_back(self, tmp_path, text):
        found = EXPLAINER.explain(f"good {text} film", "cat")
        assert Attribution.load(found.save(tmp_path / "a.json")).text == f"good {text} film"

    def test_tables_have_a_line_a_token(self, tmp_path):
        with FOUND.save(tmp_path / "a.csv").open(newline="", encoding="utf-8") as lines:
            rows = list(csv.DictReader(lines))
        assert [row["token"] for row in rows] == list(FOUND.tokens)
        assert [float(row["score"]) for row in rows] == FOUND.scores.tolist()
        assert list(FOUND.to_pandas()["score"]) == FOUND.scores.tolist()
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(FOUND.save(tmp_path / "a.parquet"))
        assert table.column("score").to_pylist() == FOUND.scores.tolist()

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            ("{", "no attribution file"),
            ("{}", "no attribution of format"),
            ('{"format": 1}', "lacks"),
        ],
    )
    def test_a_damaged_file_is_named(self, tmp_path, content, says):
        place = tmp_path / "bad.json"
        place.write_text(content)
        with pytest.raises(DamagedFile, match=says):
            load(place)

    def test_a_missing_file_and_an_unknown_ending_are_named(self, tmp_path):
        with pytest.raises(DamagedFile, match="does not exist"):
            load(tmp_path / "none.json")
        with pytest.raises(BadInput, match=r"'\.txt' is none of"):
            FOUND.save(tmp_path / "a.txt")

    def test_a_failed_write_leaves_the_old_file(self, tmp_path, monkeypatch):
        from pathlib import Path

        place = FOUND.save(tmp_path / "a.json")
        before = place.read_bytes()

        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Path, "open", full)
        with pytest.raises(OSError, match="No space"):
            PAIR.save(place)
        monkeypatch.undo()
        assert place.read_bytes() == before
        assert list(tmp_path.iterdir()) == [place]
