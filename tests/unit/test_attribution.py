"""The result: frozen, complete, and the same after a journey through a file."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from transformers import GPT2LMHeadModel

from tests.tiny import tiny_bert, tiny_tokenizer
from tests.tiny_bytes import tiny_bytes
from tests.unit.test_given_ids import tiny_gpt
from tokenlight import Attribution, Continuation, Explainer, Tokens, load, save
from tokenlight.data.postprocess import (
    absolute,
    difference,
    l1_normalise,
    max_normalise,
    merge_words,
    without_special,
)
from tokenlight.errors import BadInput, DamagedFile, NotFinite, UnknownName
from tokenlight.files.saved import to_pandas

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

    with pytest.raises(NotFinite, match="scores hold NaN or infinity, the first at 2"):
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
            ("{", "not an attribution file"),
            ("{}", "not an attribution of format"),
            ('{"format": 1}', "lacks"),
            ("[1, 2]", "not an attribution of format 1"),
            ('"x"', "not an attribution of format 1"),
            ("null", "not an attribution of format"),
            ("[" * 100_000, "not an attribution file"),
        ],
    )
    def test_a_damaged_file_is_named(self, tmp_path, content, says):
        place = tmp_path / "bad.json"
        place.write_text(content)
        with pytest.raises(DamagedFile, match=says):
            load(place)

    @pytest.mark.parametrize("field", ["row", "target", "prediction", "scores", "notes", "extras"])
    @pytest.mark.parametrize("value", [None, 3, "x", [1]])
    def test_a_field_of_another_kind_is_named(self, tmp_path, field, value):
        if field == "notes" and value in ("x", [1]):
            return  # any list of words will do
        place = tmp_path / "bad.json"
        place.write_text(json.dumps(FOUND.to_dict() | {field: value}))
        with pytest.raises((DamagedFile, BadInput)):
            load(place)

    def test_a_row_whose_lists_do_not_match_is_damaged(self):
        values = FOUND.to_dict()
        values["row"] = values["row"] | {"words": [0]}
        with pytest.raises(DamagedFile, match="one entry a token"):
            Attribution.from_dict(values)

    def test_a_folder_is_no_file(self, tmp_path):
        with pytest.raises(DamagedFile, match="is a folder without explanations"):
            load(tmp_path)

    def test_a_missing_file_and_an_unknown_ending_are_named(self, tmp_path):
        with pytest.raises(DamagedFile, match="does not exist"):
            load(tmp_path / "none.json")
        with pytest.raises(BadInput, match=r"'\.txt' is not one of"):
            FOUND.save(tmp_path / "a.txt")
        for name in ("a.json", "a.csv", "a.parquet", "a.html"):
            with pytest.raises(BadInput, match="nothing to save to .*; give at least one"):
                save([], tmp_path / name)
        assert not [*tmp_path.iterdir()]

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


class TestTableNumbers:
    """``text`` counts texts, ``attribution`` explanations."""

    def numbers(self, *given, **named):
        frame = to_pandas(EXPLAINER.explain(*given, **named))
        pairs = frame[["text", "attribution"]].drop_duplicates()
        assert list(pairs["attribution"]) == list(range(len(pairs)))
        return list(pairs["text"])

    def test_all_explanations_of_a_text_share_its_number(self):
        methods = ["attcat", ("attcat", {"hidden": "output"})]
        found = self.numbers(["good film", "bad film"], methods, target="all")
        assert found == [0] * 6 + [1] * 6

    def test_equal_texts_one_after_the_other_are_two(self):
        assert self.numbers(["good film"] * 3, ["attcat", "gae"]) == [0, 0, 1, 1, 2, 2]
        assert self.numbers(["good film"] * 2, target="all") == [0, 0, 0, 1, 1, 1]

    def test_a_pair_and_a_row_of_ids_are_texts(self):
        assert self.numbers([("good", "film"), ("good", "plot")], ["attcat", "gae"]) == [0, 0, 1, 1]
        ids = Tokens.from_ids([[2, 13, 3], [2, 14, 3], [2, 14, 3]])
        assert self.numbers(ids, ["attcat", "gae"]) == [0, 0, 1, 1, 2, 2]

    def test_the_tokens_of_a_continuation_share_their_text(self):
        explainer = Explainer(tiny_gpt(GPT2LMHeadModel), tiny_bytes("gpt2"))
        found = explainer.explain("the cat", ["attcat", "gae"], Continuation(" sat"))
        assert set(to_pandas(found)["text"]) == {0}
        assert to_pandas(found)["attribution"].nunique() == len(found) > 2

    def test_files_have_both_columns(self, tmp_path):
        both = EXPLAINER.explain("good film", ["attcat", "gae"])
        with save(both, tmp_path / "a.csv").open(newline="", encoding="utf-8") as lines:
            rows = list(csv.DictReader(lines))
        assert {row["text"] for row in rows} == {"0"}
        assert {row["attribution"] for row in rows} == {"0", "1"}
