"""The choice of ``method="best"``, and the cache of choices."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.helpers.expect import expect_error
from tests.helpers.tiny import tiny_bert
from tokenlight import Explainer
from tokenlight.errors import BadInput, MissingExtra
from tokenlight.evaluation import choose as choosing

TEXTS = ["the film is not very good", "we love this movie", "a dull plot", "never ever hate it"]
REPEATED_TEXTS = [*TEXTS, *(f"{text} film" for text in TEXTS)] * 2


@pytest.fixture
def explainer(tokenizer):
    return Explainer(tiny_bert(dtype=torch.float32), tokenizer, name="tiny")


def test_the_best_method_is_cached_and_read_from_the_cache(explainer, monkeypatch, tmp_path):
    monkeypatch.setattr(choosing, "DEFAULT_CANDIDATES", ("occlusion", "cat"))
    monkeypatch.setenv("TOKENLIGHT_CACHE", str(tmp_path))
    choice = choosing.choose_best(explainer, REPEATED_TEXTS)
    assert set(choice.mean_aopc) == {"random", "occlusion", "cat"}  # measured in full, by no clock
    assert choice.reason.startswith(f"{choice.method} has AOPC ")
    # The second time nothing is measured.
    monkeypatch.setattr(choosing, "_measure_candidates", None)
    cached_choice = choosing.choose_best(explainer, TEXTS)
    assert cached_choice == replace(choice, reason=cached_choice.reason)
    assert cached_choice.reason == f"{choice.reason}; measured earlier, possibly on other texts"
    cached = json.loads((tmp_path / "choices.json").read_text())
    assert next(iter(cached)).startswith("tiny@")


def test_a_choice_among_named_candidates_is_not_cached(explainer, monkeypatch, tmp_path):
    monkeypatch.setenv("TOKENLIGHT_CACHE", str(tmp_path))
    choice = choosing.choose_best(explainer, TEXTS, candidates=["cat", "raw_att"])
    assert set(choice.mean_aopc) == {"random", "cat", "raw_att"}
    assert not (tmp_path / "choices.json").exists()


def test_a_damaged_cache_of_choices_is_ignored(explainer, monkeypatch, tmp_path):
    monkeypatch.setattr(choosing, "DEFAULT_CANDIDATES", ("occlusion", "cat"))
    monkeypatch.setenv("TOKENLIGHT_CACHE", str(tmp_path))
    (tmp_path / "choices.json").write_text("{half")
    assert choosing.choose_best(explainer, REPEATED_TEXTS).method
    assert json.loads((tmp_path / "choices.json").read_text())


def test_a_cached_choice_on_fewer_texts_is_remeasured(explainer, monkeypatch, tmp_path):
    monkeypatch.setattr(choosing, "DEFAULT_CANDIDATES", ("occlusion", "cat"))
    monkeypatch.setenv("TOKENLIGHT_CACHE", str(tmp_path))
    choice_on_few = choosing.choose_best(explainer, REPEATED_TEXTS[:8])
    more = choosing.choose_best(explainer, REPEATED_TEXTS)
    assert (choice_on_few.num_texts, more.num_texts) == (8, len(REPEATED_TEXTS))
    assert choosing.choose_best(explainer, TEXTS[:1]).num_texts == more.num_texts


def test_a_choice_on_few_texts_or_no_better_than_random_is_not_cached(
    explainer, monkeypatch, tmp_path
):
    monkeypatch.setenv("TOKENLIGHT_CACHE", str(tmp_path))
    choosing.choose_best(explainer, REPEATED_TEXTS[:7])
    assert not (tmp_path / "choices.json").exists()

    def chance(*_):
        return choosing.BestMethod("cat", "by chance", {"cat": 0.1, "random": 0.1}, 24)

    monkeypatch.setattr(choosing, "_measure_candidates", chance)
    assert choosing.choose_best(explainer, REPEATED_TEXTS).method == "cat"
    assert not (tmp_path / "choices.json").exists()


def test_ties_are_announced_and_the_cheapest_of_them_is_taken():
    draw = np.random.default_rng(0)
    first = 0.5 + draw.normal(size=24) / 10
    aopc_by_method = {
        "integrated_gradients": first,
        "attnlrp": first
        + draw.normal(size=24) / 100
        - 0.001,  # not told apart, at a 25th of the cost
        "cat": first - 0.1,
        "random": first - 0.3,
    }
    choice = choosing._pick_best(["integrated_gradients", "attnlrp", "cat"], aopc_by_method, 0)
    assert choice.method == "attnlrp"
    means = {name: f"{sample.mean():.3f}" for name, sample in aopc_by_method.items()}
    assert (
        f", as good as integrated_gradients {means['integrated_gradients']}; the cheapest of"
        in (choice.reason)
    )
    assert choice.reason.endswith(f"(random {means['random']})")
    clear = choosing._pick_best(["integrated_gradients", "cat"], aopc_by_method, 0)
    assert clear.method == "integrated_gradients"
    assert ", the highest of 2 methods (random " in clear.reason
    single = choosing._pick_best(["cat"], {"cat": first[:1], "random": first[:1] + 1}, 0)
    assert single.reason == (
        f"cat has AOPC {first[0]:.3f} on this one text, the highest of 1 methods (random "
        f"{first[0] + 1:.3f}); no method beats random here, so do not rely on any of them"
    )


def test_a_missing_library_is_named_before_anything_is_measured(explainer, monkeypatch):
    monkeypatch.setattr("tokenlight.errors.find_spec", lambda _: None)
    explained = explainer.explain(TEXTS[:1], "rollout")
    monkeypatch.setattr(explainer, "explain", None)
    for measures in (
        lambda: choosing.choose_best(explainer, TEXTS),
        lambda: explainer.evaluate(explained, "aopc"),
    ):
        with pytest.raises(MissingExtra, match="scipy.*tokenlight.bench"):
            measures()


def test_the_explanation_notes_which_method_was_best_and_why(explainer, monkeypatch, tmp_path):
    monkeypatch.setenv("TOKENLIGHT_CACHE", str(tmp_path))
    monkeypatch.setattr(choosing, "DEFAULT_CANDIDATES", ("occlusion", "cat"))
    attribution = choosing.explain_best(explainer, TEXTS[0], "predicted")
    assert attribution.notes[-1].startswith(f"method='best': {attribution.method} has AOPC ")
    assert len(choosing.explain_best(explainer, TEXTS, "predicted")) == 4
    with expect_error(BadInput, "best-with-iterator"):
        choosing.explain_best(explainer, iter(TEXTS), "predicted")


def test_choosing_fails_if_no_candidate_can_be_measured(tokenizer):
    single = Explainer(tiny_bert(id2label={0: "x"}, label2id={"x": 0}), tokenizer)
    with expect_error(BadInput, "no-method-measured"):
        choosing.choose_best(single, TEXTS, candidates=["attcat"])
