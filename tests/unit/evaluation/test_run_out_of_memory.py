"""A device that others fill up for a while costs no text its row; one without room says so."""

from __future__ import annotations

import pytest
import torch

from tests.helpers.tiny import tiny_bert
from tests.helpers.tolerance import assert_close
from tokenlight import Explainer
from tokenlight.evaluation import run
from tokenlight.evaluation.run import Experiment, explain_part, measure_part
from tokenlight.files.tables import Example
from tokenlight.metrics.aopc import AreaOverPerturbationCurve

TEXTS = [Example("we love this movie"), Example("the film is not very good")]


@pytest.fixture
def explainer(tokenizer):
    explainer = Explainer(tiny_bert(), tokenizer)
    explainer.explain("a dull plot")  # what is found out on first use is found out here
    return explainer


def raise_out_of_memory(explainer, times):
    """Let the next ``times`` passes of the model find no room."""
    remaining = iter(range(times))

    def refuse(_module, _arguments):
        if next(remaining, None) is not None:
            raise torch.OutOfMemoryError("no room")

    return explainer.runner.model.register_forward_pre_hook(refuse)


@pytest.fixture
def pauses(monkeypatch):
    slept = []
    monkeypatch.setattr(run.time, "sleep", slept.append)
    return slept


def test_explaining_is_retried_when_out_of_memory(explainer, pauses):
    job = Experiment(["attcat"], [])
    expected, _ = explain_part(explainer, TEXTS, job)
    # Both together, the first half of them, that with blocks computed again; each text alone in both
    # ways, and then the first one twice more.
    with raise_out_of_memory(explainer, 11):
        recovered, refused = explain_part(explainer, TEXTS, job)
    assert refused == []
    assert pauses == list(run.RETRY_DELAYS_SECONDS)
    for i, repeated in recovered.items():
        assert_close(repeated[0].scores, expected[i][0].scores)


def test_a_text_that_does_not_fit_into_memory_is_a_failure(explainer, pauses):
    with raise_out_of_memory(explainer, 10**6):
        attributions, refused = explain_part(explainer, TEXTS, Experiment(["attcat"], []))
    assert attributions == {0: [], 1: []}
    assert [failure.text_index for failure in refused] == [0, 1]
    assert all("out of memory for this text" in failure.reason for failure in refused)
    assert pauses == [*run.RETRY_DELAYS_SECONDS] * 2


def test_measuring_is_retried_when_out_of_memory(explainer, pauses):
    attributions, _ = explain_part(explainer, TEXTS, Experiment(["attcat"], []))
    original, _ = measure_part(
        explainer, TEXTS, attributions, {"aopc": AreaOverPerturbationCurve()}
    )
    # Wider packs are halved until one text is left, which then finds no room: begin with one.
    alone = {0: attributions[0]}
    with raise_out_of_memory(explainer, 10**6):
        records, refused = measure_part(
            explainer, TEXTS[:1], alone, {"aopc": AreaOverPerturbationCurve()}
        )
    assert records == []
    assert "out of memory" in refused[0].reason
    assert pauses == list(run.RETRY_DELAYS_SECONDS)
    measured_again, none = measure_part(
        explainer, TEXTS[:1], alone, {"aopc": AreaOverPerturbationCurve()}
    )
    assert none == []
    assert_close(
        measured_again[0].measurements["aopc"].value, original[0].measurements["aopc"].value
    )
