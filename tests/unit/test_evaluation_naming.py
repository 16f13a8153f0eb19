"""A method's numbers stand under its own name, whichever of its siblings was refused, and where."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import typer
from typer.testing import CliRunner

from tests.tiny import tiny_bert
from tests.tolerance import close
from tests.unit.served import asking
from tokenlight import Explainer, registry
from tokenlight.cli.evaluate import evaluate
from tokenlight.errors import NotFinite
from tokenlight.evaluation import run as resuming
from tokenlight.evaluation.run import Experiment, evaluate_file
from tokenlight.files.tables import Example

PLAIN, OTHER = ("transatt", {}), ("transatt", {"row_normalize": False})
GOOD, BAD = "we love this movie", "a bad film"
app = typer.Typer()
app.command()(evaluate)


@pytest.fixture
def explainer(tokenizer):
    return Explainer(tiny_bert(), tokenizer, name="tiny")


def test_a_variant_refused_in_one_shard_leaves_its_name_to_nobody(explainer, tmp_path, monkeypatch):
    real = explainer.explain

    def failing(texts, methods, **how):
        if PLAIN in methods and any("bad" in one.text for one in texts):
            raise NotFinite("transatt gives NaN")
        return real(texts, methods, **how)

    monkeypatch.setattr(explainer, "explain", failing)
    monkeypatch.setattr(resuming, "SHARD", 2)
    given = [Example(text) for text in (GOOD, GOOD, BAD, BAD)]
    job = Experiment([PLAIN, OTHER], ["aopc"])
    found, refused = evaluate_file(explainer, given, job, tmp_path)
    texts = {
        name: [r.text for r in part.records] for name, part in found.by_method.items()
    }  # fmt: skip
    assert texts == {"transatt": [0, 1], "transatt(row_normalize=False)": [0, 1, 2, 3]}
    assert {one.method for one in refused} == {"transatt"}
    assert found.by_method["transatt"].notes == (
        "2 of 4 texts were not explained by transatt: transatt gives NaN",
    )
    monkeypatch.undo()
    alone = explainer.evaluate(real([BAD], [OTHER]), "aopc").rows[0]["aopc"]
    row = next(r for r in found.rows if (r["text"], r["method"][-6:]) == (2, "False)"))
    close(row["aopc"], alone)


def test_the_command_line_names_what_was_measured(bert_folder, tmp_path):
    data, heads = tmp_path / "texts.jsonl", tmp_path / "bad.json"
    data.write_text(json.dumps({"text": GOOD}))
    heads.write_text(json.dumps({"format": 1, "mask": {"syntactic": [[1]], "positional": [[1]]}}))
    given = ["-x", f"mask_lrp:heads={heads}", "-x", "mask_lrp:mask=none", "--metric", "aopc"]
    out = tmp_path / "out"
    done = CliRunner().invoke(app, [str(data), "-m", str(bert_folder), "-o", str(out), *given])
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[1].split()[0] == "mask_lrp(mask=none)"
    assert f"1 of 1 text was not explained by mask_lrp(heads={heads}):" in done.stderr


def test_what_is_refused_and_what_is_measured_have_one_spelling(explainer, tmp_path):
    """A preset is told by its options wherever it stands."""
    job = Experiment([("attcat", {"preset": "paper"}), ("attcat", {})], ["aopc"])
    found, refused = evaluate_file(explainer, [Example(GOOD), Example("  ")], job, tmp_path)
    assert [one.method for one in refused] == list(found.methods) == [
        "attcat(hidden=output)", "attcat",
    ]  # fmt: skip
    assert all(len(part.notes) == 1 for part in found.by_method.values())


def test_a_method_that_was_built_may_be_refused_too(explainer, tmp_path):
    job = Experiment([registry.build("methods", "attcat")], ["aopc"])
    found, refused = evaluate_file(explainer, [Example(GOOD), Example("  ")], job, tmp_path)
    assert found.methods == ("attcat",)
    assert [(one.text, one.method) for one in refused] == [(1, "attcat")]


def test_a_method_that_cannot_be_built_is_named_as_it_was_asked_for(explainer, tmp_path):
    job = Experiment([("attcat", {"hidden": "nowhere"}), ("attcat", {})], ["aopc"])
    found, refused = evaluate_file(explainer, [Example(GOOD)], job, tmp_path)
    assert found.methods == ("attcat",)
    assert [one.method for one in refused] == ["attcat(hidden=nowhere)"]


def test_the_page_names_variants_and_tells_what_was_left_out():
    asked = {
        "texts": [GOOD, "  "],
        "method": ["gradcam:layer=99", "gradcam:layer=1"],
        "metrics": ["aopc"],
    }
    with asking() as client:
        answer = client.post("/api/evaluate", json=asked).json()
    assert {row["method"] for row in answer["rows"]} == {"gradcam(layer=1)"}
    told = [(one["method"], one["metric"], one["texts"]) for one in answer["left_out"]]
    assert told == [
        ("gradcam(layer=99)", None, 1),
        ("gradcam(layer=99)", None, 1),
        ("gradcam(layer=1)", None, 1),
    ]
    assert answer["cut"]["of"] == 2


def test_a_name_with_brackets_of_its_own_stays_whole(explainer):
    made = explainer.explain(GOOD, "attcat")
    named = [replace(made, method=name) for name in ("theirs (v1)", "theirs (v2)")]
    assert explainer.evaluate(named, "aopc").methods == ("theirs (v1)", "theirs (v2)")
