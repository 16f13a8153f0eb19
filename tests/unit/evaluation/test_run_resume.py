"""A folder goes on only with what it was begun with, and only from parts that are whole."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tokenlight import Explainer
from tokenlight.errors import BadInput, DamagedFile
from tokenlight.evaluation import run as resuming
from tokenlight.evaluation.run import (
    Experiment,
    check_evaluation,
    count_finished_texts,
    evaluate_file,
)
from tokenlight.explaining.text_result import TextResult
from tokenlight.files.tables import Example

TEXTS = [Example(f"we love this movie {'very ' * i}") for i in range(5)]
JOB = Experiment(["attcat", "random"], ["aopc"])


def load_explainer(**changes):
    return Explainer(tiny_bert(dtype=torch.float32, **changes), tiny_tokenizer(), name="tiny")


@pytest.fixture
def explainer():
    return load_explainer()


def test_a_run_resumes_with_the_same_model_loaded_again(explainer, tmp_path):
    evaluation, _ = evaluate_file(explainer, TEXTS, JOB, tmp_path)
    reloaded = load_explainer()
    reloaded.tokenizer(["a", "b c"], padding=True, truncation=True, max_length=4)  # leaves its mark
    two, _ = evaluate_file(reloaded, TEXTS, JOB, tmp_path)
    assert evaluation.to_dict() == two.to_dict()


def negate_all_but_the_first(explainer):
    """All but the first numbers of a matrix negated."""
    with torch.no_grad():
        explainer.model.classifier.weight.view(-1)[16:] *= -1


def change_one_weight(explainer):
    """One number of the largest matrix."""
    largest = max(explainer.model.parameters(), key=lambda p: p.numel())
    with torch.no_grad():
        largest.view(-1)[largest.numel() // 2 + 1] += 1.0


def remove_normalizer(explainer):
    explainer.tokenizer.backend_tokenizer.normalizer = None


def shorten_max_length(explainer):
    explainer.tokenizer.model_max_length = 6


def relabel(explainer):
    explainer.model.config.id2label = {0: "positive", 1: "neutral", 2: "negative"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (negate_all_but_the_first, r"weights \(was"),
        (change_one_weight, r"weights \(was"),
        (remove_normalizer, r"tokenizer \(was"),
        (shorten_max_length, r"longest text \(was 48, now 6\)"),
        (
            relabel,
            r"labels \(was negative, neutral, positive, now positive, neutral, negative\)",
        ),
    ],
)
def test_a_change_under_the_same_name_is_refused(explainer, tmp_path, change, message):
    evaluate_file(explainer, TEXTS, JOB, tmp_path)
    changed = load_explainer()
    change(changed)
    changed = Explainer(changed.model, changed.tokenizer, name="tiny")
    with pytest.raises(BadInput, match=message):
        evaluate_file(changed, TEXTS, JOB, tmp_path)


@pytest.mark.parametrize("where", ["method", "metric"])
def test_a_file_named_by_an_option_may_not_change_during_a_run(explainer, tmp_path, where):
    path = tmp_path / "named.json"
    mask = np.zeros((3, 4), dtype=int)

    def write(number):
        mask[:] = number
        heads = {"syntactic": mask.tolist(), "positional": mask.tolist()}
        texts = [{"text": f"the film {number}"}]
        path.write_text(json.dumps({"format": 1, "mask": heads} if where == "method" else texts))

    job = (
        Experiment([("mask_lrp", {"heads": str(path)})], ["aopc"])
        if where == "method"
        else Experiment(["attcat"], [("token_overlap", {"corpus": str(path)})])
    )
    write(1)
    out = tmp_path / "out"
    evaluate_file(explainer, TEXTS, job, out)
    evaluate_file(explainer, TEXTS, job, out)
    write(2)
    with pytest.raises(BadInput, match=r"files \(was"):
        evaluate_file(explainer, TEXTS, job, out)


def test_an_option_that_names_no_file_has_no_digest(explainer, tmp_path, monkeypatch):
    """An option's word may be the name of a folder at hand: only a model's folder is read."""
    (tmp_path / "output").mkdir()
    (tmp_path / "output" / "x").write_text("x")
    monkeypatch.chdir(tmp_path)
    job = Experiment([("attcat", {"hidden": "output"})], ["aopc"])
    evaluate_file(explainer, TEXTS, job, tmp_path / "out")
    settings = json.loads((tmp_path / "out" / "settings.json").read_text())
    assert settings["files"] == ""


def list_parts(folder):
    return sorted((folder / "parts").iterdir())


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: "",
        lambda text: "\n".join(text.splitlines()[:-2]) + "\n",
        lambda text: text.rpartition("{")[0],
        lambda text: text.splitlines()[-1],
        lambda text: text.replace('"text": 1', '"text": 7'),
        lambda text: re.sub(r'"value": -?[0-9.e-]+', '"value": 0.75', text, count=1),
        lambda text: "[]\n" + text,
        lambda text: "5\n" + text,
    ],
)
def test_a_damaged_part_is_recomputed(explainer, tmp_path, monkeypatch, damage):
    monkeypatch.setattr(resuming, "PART_SIZE", 2)
    evaluation, _ = evaluate_file(explainer, TEXTS, JOB, tmp_path)
    assert count_finished_texts(tmp_path) == 5
    path = list_parts(tmp_path)[0]
    content = path.read_text()
    assert damage(content) != content
    path.write_text(damage(content))
    assert count_finished_texts(tmp_path) == 3
    resumed, _ = evaluate_file(explainer, TEXTS, JOB, tmp_path)
    assert resumed.to_dict() == evaluation.to_dict()
    shutil.copy(list_parts(tmp_path)[1], path)  # whole, and of other texts
    resumed, _ = evaluate_file(explainer, TEXTS, JOB, tmp_path)
    assert resumed.to_dict() == evaluation.to_dict()


def test_texts_that_every_method_refuses_are_in_their_part(explainer, tmp_path):
    examples = [Example("  "), Example(" ")]
    for _ in range(2):
        _, refused = evaluate_file(explainer, examples, JOB, tmp_path)
        assert {(failure.text_index, failure.method) for failure in refused} == {
            (text, method) for text in (0, 1) for method in ("attcat", "random")
        }


def test_a_text_with_nothing_to_explain_is_a_failure(explainer, tmp_path, monkeypatch):
    def explain_nothing(texts, *_, **__):
        return [TextResult(text) for text in texts]

    monkeypatch.setattr(explainer, "explain_texts", explain_nothing)
    for _ in range(2):
        evaluation, _ = evaluate_file(explainer, TEXTS[:1], JOB, tmp_path)
        (note,) = evaluation.notes
        reason = "The text has nothing to explain. Leave it out."
        assert note == f"1 of 1 text was not explained by attcat, random: {reason}"


def test_parts_and_settings_are_synced_before_they_are_renamed(explainer, tmp_path, monkeypatch):
    calls = []
    fsync = os.fsync
    replace = Path.replace
    monkeypatch.setattr(os, "fsync", lambda file: (calls.append("synced"), fsync(file)))
    monkeypatch.setattr(
        Path, "replace", lambda source, other: (calls.append("named"), replace(source, other))[1]
    )
    evaluate_file(explainer, TEXTS, JOB, tmp_path)
    assert len(TEXTS) == 5
    assert calls == ["synced", "named"] * 2  # settings, and a shard


@pytest.mark.parametrize("content", ["[]", "5", "null", ""])
def test_damaged_settings_are_named(explainer, tmp_path, content):
    evaluate_file(explainer, TEXTS, JOB, tmp_path)
    (part,) = list_parts(tmp_path)
    before = part.stat()
    (tmp_path / "settings.json").write_text(content)
    with pytest.raises(DamagedFile, match="Delete this file and run the command again"):
        evaluate_file(explainer, TEXTS, JOB, tmp_path)
    (tmp_path / "settings.json").unlink()
    evaluate_file(explainer, TEXTS, JOB, tmp_path)
    assert part.stat() == before  # kept, not made again


def test_an_evaluation_is_verified_part_by_part(explainer, tmp_path, monkeypatch):
    monkeypatch.setattr(resuming, "PART_SIZE", 2)
    evaluation, _ = evaluate_file(explainer, TEXTS, JOB, tmp_path)
    assert not check_evaluation(tmp_path).is_whole  # its results are not written yet
    evaluation.save(tmp_path)
    check = check_evaluation(tmp_path)
    assert (check.is_whole, check.num_whole, check.num_parts) == (True, 3, 3)
    first, second, _ = list_parts(tmp_path)
    first.write_text(first.read_text().replace('"text": 1', '"text": 7'))
    second.unlink()
    check = check_evaluation(tmp_path)
    assert (check.is_whole, check.num_whole, check.num_missing) == (False, 1, 1)
    assert [f"{first} is damaged" in problem for problem in check.problems] == [True]
    evaluate_file(explainer, TEXTS, JOB, tmp_path)
    assert check_evaluation(tmp_path).is_whole
    (tmp_path / "settings.json").write_text("[]")
    with pytest.raises(DamagedFile, match="settings.json is damaged"):
        check_evaluation(tmp_path)
