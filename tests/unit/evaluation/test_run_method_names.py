"""A method's numbers stand under its own name, whichever of its siblings was refused, and where."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import typer
from typer.testing import CliRunner

from tests.helpers.api_server import connect_client as asking
from tests.helpers.tiny import tiny_bert
from tests.helpers.tolerance import assert_close
from tokenlight import Explainer, registry
from tokenlight.cli.evaluate import evaluate
from tokenlight.errors import NotFinite
from tokenlight.evaluation import run as resuming
from tokenlight.evaluation.run import Experiment, evaluate_file
from tokenlight.files.tables import Example

PLAIN = ("transatt", {})
OTHER = ("transatt", {"row_normalize": False})
GOOD = "we love this movie"
BAD = "a bad film"
app = typer.Typer()
app.command()(evaluate)


@pytest.fixture
def explainer(tokenizer):
    return Explainer(tiny_bert(), tokenizer, name="tiny")


def test_a_variant_that_fails_in_one_shard_keeps_its_full_name(explainer, tmp_path, monkeypatch):
    real = explainer.explain_texts

    def fail_on_bad_texts(texts, methods, **options):
        if PLAIN in methods and any("bad" in failure.text for failure in texts):
            raise NotFinite("transatt gives NaN")
        return real(texts, methods, **options)

    monkeypatch.setattr(explainer, "explain_texts", fail_on_bad_texts)
    monkeypatch.setattr(resuming, "PART_SIZE", 2)
    examples = [Example(text) for text in (GOOD, GOOD, BAD, BAD)]
    job = Experiment([PLAIN, OTHER], ["aopc"])
    evaluation, refused = evaluate_file(explainer, examples, job, tmp_path)
    texts = {
        name: [r.text_index for r in part.records] for name, part in evaluation.by_method.items()
    }  # fmt: skip
    assert texts == {"transatt": [0, 1], "transatt(row_normalize=False)": [0, 1, 2, 3]}
    assert {failure.method for failure in refused} == {"transatt"}
    assert evaluation.by_method["transatt"].notes == (
        "2 of 4 texts were not explained by transatt: transatt gives NaN",
    )
    monkeypatch.undo()
    alone = explainer.evaluate(explainer.explain([BAD], [OTHER]), "aopc").rows[0]["aopc"]
    row = next(r for r in evaluation.rows if (r["text"], r["method"][-6:]) == (2, "False)"))
    assert_close(row["aopc"], alone)


def test_the_command_line_names_what_was_measured(bert_folder, tmp_path):
    data = tmp_path / "texts.jsonl"
    heads = tmp_path / "bad.json"
    data.write_text(json.dumps({"text": GOOD}))
    heads.write_text(json.dumps({"format": 1, "mask": {"syntactic": [[1]], "positional": [[1]]}}))
    arguments = ["-x", f"mask_lrp:heads={heads}", "-x", "mask_lrp:mask=none", "--metric", "aopc"]
    out = tmp_path / "out"
    outcome = CliRunner().invoke(
        app, [str(data), "-m", str(bert_folder), "-o", str(out), *arguments]
    )
    assert outcome.exit_code == 0, outcome.output
    assert outcome.stdout.splitlines()[1].split()[0] == "mask_lrp(mask=none)"
    assert f"1 of 1 text was not explained by mask_lrp(heads={heads}):" in outcome.stderr


def test_refused_and_measured_methods_are_spelled_alike(explainer, tmp_path):
    """A preset is told by its options wherever it stands."""
    job = Experiment([("attcat", {"preset": "paper"}), ("attcat", {})], ["aopc"])
    evaluation, refused = evaluate_file(explainer, [Example(GOOD), Example("  ")], job, tmp_path)
    assert [failure.method for failure in refused] == list(evaluation.methods) == [
        "attcat(hidden=output)", "attcat",
    ]  # fmt: skip
    assert all(len(part.notes) == 1 for part in evaluation.by_method.values())


def test_a_method_that_was_built_may_be_refused_too(explainer, tmp_path):
    job = Experiment([registry.build("methods", "attcat")], ["aopc"])
    evaluation, refused = evaluate_file(explainer, [Example(GOOD), Example("  ")], job, tmp_path)
    assert evaluation.methods == ("attcat",)
    assert [(failure.text_index, failure.method) for failure in refused] == [(1, "attcat")]


def test_a_method_that_cannot_be_built_is_named_as_requested(explainer, tmp_path):
    job = Experiment([("attcat", {"hidden": "nowhere"}), ("attcat", {})], ["aopc"])
    evaluation, refused = evaluate_file(explainer, [Example(GOOD)], job, tmp_path)
    assert evaluation.methods == ("attcat",)
    assert [failure.method for failure in refused] == ["attcat(hidden=nowhere)"]


def test_the_page_names_variants_and_lists_what_was_left_out():
    requests = {
        "texts": [GOOD, "  "],
        "method": ["gradcam:layer=99", "gradcam:layer=1"],
        "metrics": ["aopc"],
    }
    with asking() as client:
        answer = client.post("/api/evaluate", json=requests).json()
    assert {row["method"] for row in answer["rows"]} == {"gradcam(layer=1)"}
    omissions = [
        (omission["method"], omission["metric"], omission["num_omitted"])
        for omission in answer["omissions"]
    ]
    assert omissions == [
        ("gradcam(layer=99)", None, 1),
        ("gradcam(layer=99)", None, 1),
        ("gradcam(layer=1)", None, 1),
    ]
    assert answer["truncation"]["num_texts"] == 2


def test_a_method_name_with_parentheses_is_not_shortened(explainer):
    attributions = explainer.explain(GOOD, "attcat")
    renamed_attributions = [
        replace(attributions, method=name) for name in ("theirs (v1)", "theirs (v2)")
    ]
    assert explainer.evaluate(renamed_attributions, "aopc").methods == (
        "theirs (v1)",
        "theirs (v2)",
    )
