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

from tests.tiny import tiny_bert, tiny_tokenizer
from tokenlight import Explainer
from tokenlight.errors import BadInput, DamagedFile
from tokenlight.evaluation import run as resuming
from tokenlight.evaluation.run import Experiment, evaluate_file, finished
from tokenlight.evaluation.weights import tokenizer_digest, weight_digest
from tokenlight.files.tables import Example

TEXTS = [Example(f"we love this movie {'very ' * i}") for i in range(5)]
JOB = Experiment(["attcat", "random"], ["aopc"])


def made(**changes):
    return Explainer(tiny_bert(dtype=torch.float32, **changes), tiny_tokenizer(), name="tiny")


@pytest.fixture
def explainer():
    return made()


def test_the_same_model_loaded_anew_goes_on(explainer, tmp_path):
    one, _ = evaluate_file(explainer, TEXTS, JOB, tmp_path)
    again = made()
    again.tokenizer(["a", "b c"], padding=True, truncation=True, max_length=4)  # leaves its mark
    two, _ = evaluate_file(again, TEXTS, JOB, tmp_path)
    assert one.to_dict() == two.to_dict()


def from_its_end(explainer):
    """All but the first numbers of a matrix negated."""
    with torch.no_grad():
        explainer.model.classifier.weight.view(-1)[16:] *= -1


def in_its_middle(explainer):
    """One number of the largest matrix."""
    largest = max(explainer.model.parameters(), key=lambda p: p.numel())
    with torch.no_grad():
        largest.view(-1)[largest.numel() // 2 + 1] += 1.0


def without_normaliser(explainer):
    explainer.tokenizer.backend_tokenizer.normalizer = None


def shorter(explainer):
    explainer.tokenizer.model_max_length = 6


def relabelled(explainer):
    explainer.model.config.id2label = {0: "positive", 1: "neutral", 2: "negative"}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (from_its_end, r"weights \(was"),
        (in_its_middle, r"weights \(was"),
        (without_normaliser, r"tokenizer \(was"),
        (shorter, r"longest text \(was 48, now 6\)"),
        (
            relabelled,
            r"labels \(was negative, neutral, positive, now positive, neutral, negative\)",
        ),
    ],
)
def test_a_change_under_the_same_name_is_refused(explainer, tmp_path, change, told):
    evaluate_file(explainer, TEXTS, JOB, tmp_path)
    changed = made()
    change(changed)
    changed = Explainer(changed.model, changed.tokenizer, name="tiny")
    with pytest.raises(BadInput, match=told):
        evaluate_file(changed, TEXTS, JOB, tmp_path)


@pytest.mark.parametrize("where", ["method", "metric"])
def test_a_file_that_an_option_names_may_not_change_on_the_way(explainer, tmp_path, where):
    place = tmp_path / "named.json"
    mask = np.zeros((3, 4), dtype=int)

    def write(number):
        mask[:] = number
        heads = {"syntactic": mask.tolist(), "positional": mask.tolist()}
        texts = [{"text": f"the film {number}"}]
        place.write_text(json.dumps({"format": 1, "mask": heads} if where == "method" else texts))

    job = (
        Experiment([("mask_lrp", {"heads": str(place)})], ["aopc"])
        if where == "method"
        else Experiment(["attcat"], [("token_overlap", {"corpus": str(place)})])
    )
    write(1)
    out = tmp_path / "out"
    evaluate_file(explainer, TEXTS, job, out)
    evaluate_file(explainer, TEXTS, job, out)
    write(2)
    with pytest.raises(BadInput, match=r"files \(was"):
        evaluate_file(explainer, TEXTS, job, out)


def test_a_word_that_is_no_file_is_none(explainer, tmp_path, monkeypatch):
    """An option's word may be the name of a folder at hand: only a model's folder is read."""
    (tmp_path / "output").mkdir()
    (tmp_path / "output" / "x").write_text("x")
    monkeypatch.chdir(tmp_path)
    job = Experiment([("attcat", {"hidden": "output"})], ["aopc"])
    evaluate_file(explainer, TEXTS, job, tmp_path / "out")
    settings = json.loads((tmp_path / "out" / "settings.json").read_text())
    assert settings["files"] == ""


def test_a_digest_of_weights_does_not_depend_on_how_they_are_summed(explainer, monkeypatch):
    from tokenlight.evaluation import weights

    whole = weight_digest(explainer)
    assert whole == weight_digest(made())
    torch.set_num_threads(2)
    try:
        assert weight_digest(explainer) == whole
    finally:
        torch.set_num_threads(1)
    monkeypatch.setattr(weights, "PIECE", 1 << 30)
    assert weight_digest(explainer) == whole  # every matrix here is one piece
    assert weight_digest(made(num_hidden_layers=2)) != whole


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_weights_of_every_precision_have_a_digest(dtype, explainer):
    explainer.model.to(dtype)
    before = weight_digest(explainer)
    from_its_end(explainer)
    assert weight_digest(explainer) != before


def test_what_is_no_fast_tokenizer_has_a_digest_too():
    class Slow:
        def __init__(self, **words):
            self.get_vocab = lambda: words

    assert tokenizer_digest(Slow(a=1)) == tokenizer_digest(Slow(a=1))
    assert tokenizer_digest(Slow(a=1)) != tokenizer_digest(Slow(a=2))
    assert tokenizer_digest(None).startswith("NoneType")


def parts_of(folder):
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
def test_a_part_that_is_not_as_it_was_written_is_made_again(
    explainer, tmp_path, monkeypatch, damage
):
    monkeypatch.setattr(resuming, "SHARD", 2)
    whole, _ = evaluate_file(explainer, TEXTS, JOB, tmp_path)
    assert finished(tmp_path) == 5
    place = parts_of(tmp_path)[0]
    written = place.read_text()
    assert damage(written) != written
    place.write_text(damage(written))
    assert finished(tmp_path) == 3
    again, _ = evaluate_file(explainer, TEXTS, JOB, tmp_path)
    assert again.to_dict() == whole.to_dict()
    shutil.copy(parts_of(tmp_path)[1], place)  # whole, and of other texts
    again, _ = evaluate_file(explainer, TEXTS, JOB, tmp_path)
    assert again.to_dict() == whole.to_dict()


def test_texts_that_every_method_refuses_are_in_their_part(explainer, tmp_path):
    given = [Example("  "), Example(" ")]
    for _ in range(2):
        _, refused = evaluate_file(explainer, given, JOB, tmp_path)
        assert {(one.text, one.method) for one in refused} == {
            (text, method) for text in (0, 1) for method in ("attcat", "random")
        }


def test_a_text_without_anything_to_explain_is_told(explainer, tmp_path, monkeypatch):
    monkeypatch.setattr(explainer, "explain", lambda *_, **__: [])
    for _ in range(2):
        found, _ = evaluate_file(explainer, TEXTS[:1], JOB, tmp_path)
        note = "1 of 1 text was not explained by attcat, random: it has nothing to explain."
        assert found.notes == (note,)


def test_parts_and_settings_are_on_the_disk_before_their_names_are(
    explainer, tmp_path, monkeypatch
):
    done, fsync, renamed = [], os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda file: (done.append("synced"), fsync(file)))
    monkeypatch.setattr(
        Path, "replace", lambda one, other: (done.append("named"), renamed(one, other))[1]
    )
    evaluate_file(explainer, TEXTS, JOB, tmp_path)
    assert len(TEXTS) == 5
    assert done == ["synced", "named"] * 2  # settings, and a shard


@pytest.mark.parametrize("content", ["[]", "5", "null", ""])
def test_damaged_settings_are_named(explainer, tmp_path, content):
    evaluate_file(explainer, TEXTS, JOB, tmp_path)
    (tmp_path / "settings.json").write_text(content)
    with pytest.raises(DamagedFile, match="delete the folder to begin anew"):
        evaluate_file(explainer, TEXTS, JOB, tmp_path)
