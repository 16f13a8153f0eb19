"""Explanations in files: saved, loaded, and refused where a file is damaged."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import pytest
from transformers import GPT2LMHeadModel

from tests.helpers.expect import expect_error
from tests.helpers.tiny import tiny_bert, tiny_gpt, tiny_tokenizer
from tests.helpers.tiny_byte_tokenizers import tiny_byte_tokenizer
from tokenlight import Attribution, Continuation, Explainer, Tokens, load, save
from tokenlight.errors import BadInput, DamagedFile, MissingFile
from tokenlight.files.saved import to_pandas

EXPLAINER = Explainer(tiny_bert(), tiny_tokenizer())

ATTRIBUTION = EXPLAINER.explain("Charming film , but slower", "attcat")
PAIR = EXPLAINER.explain(("good film", "bad film"), "attcat")


class TestFiles:
    def test_several_attributions_are_saved_in_one_file(self, tmp_path):
        path = save([ATTRIBUTION, PAIR], tmp_path / "deep" / "two.json")
        loaded = load(path)
        assert [attribution.text for attribution in loaded] == [ATTRIBUTION.text, PAIR.text]
        with expect_error(BadInput, "several-attributions", mentions="holds 2"):
            Attribution.load(path)

    def test_tables_of_tested_explanations_have_a_column_for_the_grade(self, tmp_path):
        tested = replace(ATTRIBUTION, extras={"trust": {"grade": "faithful"}})
        path = save([tested, PAIR], tmp_path / "graded.csv")
        with path.open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert [row["grade"] for row in rows] == ["faithful"] * len(tested) + [""] * len(PAIR)
        path = save([PAIR], tmp_path / "plain.csv")
        assert "grade" not in path.read_text(encoding="utf-8").splitlines()[0].split(",")

    def test_saved_json_holds_plain_values(self, tmp_path):
        content = json.loads(ATTRIBUTION.save(tmp_path / "a.json").read_text())
        assert content["tokens"] == list(ATTRIBUTION.tokens)
        assert content["scores"] == ATTRIBUTION.scores.tolist()

    @pytest.mark.parametrize("text", ["日本 <script>", "quote \" and ' and \\", "🎉 é́", "שלום"])
    def test_any_text_survives_saving(self, tmp_path, text):
        attribution = EXPLAINER.explain(f"good {text} film", "cat")
        assert Attribution.load(attribution.save(tmp_path / "a.json")).text == f"good {text} film"

    def test_tables_have_one_line_per_token(self, tmp_path):
        with ATTRIBUTION.save(tmp_path / "a.csv").open(newline="", encoding="utf-8") as lines:
            rows = list(csv.DictReader(lines))
        assert [row["token"] for row in rows] == list(ATTRIBUTION.tokens)
        assert [float(row["score"]) for row in rows] == ATTRIBUTION.scores.tolist()
        assert list(ATTRIBUTION.to_pandas()["score"]) == ATTRIBUTION.scores.tolist()
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(ATTRIBUTION.save(tmp_path / "a.parquet"))
        assert table.column("score").to_pylist() == ATTRIBUTION.scores.tolist()

    @pytest.mark.parametrize(
        ("content", "mentions"),
        [
            ("{", "not an attribution file"),
            ("{}", "not an attribution of format"),
            ('{"format": 1}', "lacks a field"),
            ("[1, 2]", "not an attribution of format 1"),
            ('"x"', "not an attribution of format 1"),
            ("null", "not an attribution of format"),
            ("[" * 100_000, "not an attribution file"),
        ],
    )
    def test_a_damaged_file_is_named(self, tmp_path, content, mentions):
        path = tmp_path / "bad.json"
        path.write_text(content)
        with expect_error(DamagedFile, "attribution-file-damaged", mentions=mentions):
            load(path)

    @pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.html"])
    def test_a_file_for_other_programs_is_not_called_damaged(self, tmp_path, name):
        path = ATTRIBUTION.save(tmp_path / name)
        with expect_error(BadInput, "attribution-file-not-json", mentions=".json"):
            load(path)

    @pytest.mark.parametrize("field", ["row", "target", "prediction", "scores", "notes", "extras"])
    @pytest.mark.parametrize("value", [None, 3, "x", [1]])
    def test_a_field_of_another_kind_is_named(self, tmp_path, field, value):
        if field == "notes" and value in ("x", [1]):
            return  # any list of words will do
        path = tmp_path / "bad.json"
        path.write_text(json.dumps(ATTRIBUTION.to_dict() | {field: value}))
        with pytest.raises((DamagedFile, BadInput)):
            load(path)

    def test_a_row_whose_lists_do_not_match_is_damaged(self):
        values = ATTRIBUTION.to_dict()
        values["row"] = values["row"] | {"words": [0]}
        with expect_error(DamagedFile, "value-inconsistent", mentions="one entry per token"):
            Attribution.from_dict(values)

    def test_saving_to_a_folder_is_refused(self, tmp_path):
        with expect_error(DamagedFile, "explanations-folder"):
            load(tmp_path)

    def test_a_missing_file_and_an_unknown_ending_are_named(self, tmp_path):
        with expect_error(MissingFile, "attribution-file-missing", mentions="none.json") as missing:
            load(tmp_path / "none.json")
        assert isinstance(missing.value, FileNotFoundError)
        with expect_error(BadInput, "output-extension", mentions="'.txt'"):
            ATTRIBUTION.save(tmp_path / "a.txt")
        for name in ("a.json", "a.csv", "a.parquet", "a.html"):
            with expect_error(BadInput, "nothing-to-save"):
                save([], tmp_path / name)
        assert not [*tmp_path.iterdir()]

    def test_a_failed_write_leaves_the_old_file(self, tmp_path, monkeypatch):
        from pathlib import Path

        path = ATTRIBUTION.save(tmp_path / "a.json")
        before = path.read_bytes()

        def raise_disk_full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Path, "open", raise_disk_full)
        with pytest.raises(OSError, match="No space"):
            PAIR.save(path)
        monkeypatch.undo()
        assert path.read_bytes() == before
        assert list(tmp_path.iterdir()) == [path]


class TestTableNumbers:
    """``text_id`` counts texts, ``attribution`` explanations."""

    def numbers(self, *inputs, **named):
        frame = to_pandas(EXPLAINER.explain(*inputs, **named))
        pairs = frame[["text_id", "attribution"]].drop_duplicates()
        assert list(pairs["attribution"]) == list(range(len(pairs)))
        return list(pairs["text_id"])

    def test_all_explanations_of_a_text_share_its_number(self):
        methods = ["attcat", ("attcat", {"hidden": "output"})]
        result = self.numbers(["good film", "bad film"], methods, target="all")
        assert result == [0] * 6 + [1] * 6

    def test_equal_consecutive_texts_have_different_numbers(self):
        assert self.numbers(["good film"] * 3, ["attcat", "gae"]) == [0, 0, 1, 1, 2, 2]
        assert self.numbers(["good film"] * 2, target="all") == [0, 0, 0, 1, 1, 1]

    def test_a_pair_and_a_row_of_ids_are_texts(self):
        assert self.numbers([("good", "film"), ("good", "plot")], ["attcat", "gae"]) == [0, 0, 1, 1]
        ids = Tokens.from_ids([[2, 13, 3], [2, 14, 3], [2, 14, 3]])
        assert self.numbers(ids, ["attcat", "gae"]) == [0, 0, 1, 1, 2, 2]

    def test_the_tokens_of_a_continuation_share_their_text(self):
        explainer = Explainer(tiny_gpt(GPT2LMHeadModel), tiny_byte_tokenizer("gpt2"))
        attribution = explainer.explain("the cat", ["attcat", "gae"], Continuation(" sat"))
        assert set(to_pandas(attribution)["text_id"]) == {0}
        assert to_pandas(attribution)["attribution"].nunique() == len(attribution) > 2

    def test_every_row_has_its_text_and_the_second_one_of_a_pair(self):
        frame = to_pandas(EXPLAINER.explain(["good film", "bad film"], "attcat"))
        assert set(frame["text"]) == {"good film", "bad film"}
        assert "second_text" not in frame
        frame = to_pandas(EXPLAINER.explain([("good", "film"), "bad film"], "attcat"))
        texts = frame[["text", "second_text"]].drop_duplicates().values.tolist()
        assert texts[0] == ["good", "film"]
        assert texts[1][0] == "bad film"
        assert not isinstance(texts[1][1], str)

    def test_saved_tables_have_both_columns(self, tmp_path):
        joint = EXPLAINER.explain("good film", ["attcat", "gae"])
        with save(joint, tmp_path / "a.csv").open(newline="", encoding="utf-8") as lines:
            rows = list(csv.DictReader(lines))
        assert {row["text_id"] for row in rows} == {"0"}
        assert {row["attribution"] for row in rows} == {"0", "1"}
