"""A device that others fill up for a while costs no text its row; one without room says so."""

from __future__ import annotations

import pytest
import torch

from tests.tiny import tiny_bert
from tests.tolerance import close
from tokenlight import Explainer
from tokenlight.evaluation import run
from tokenlight.evaluation.run import Experiment, explained, measured
from tokenlight.files.tables import Example
from tokenlight.metrics.aopc import AreaOverPerturbationCurve

TEXTS = [Example("we love this movie"), Example("the film is not very good")]


@pytest.fixture
def explainer(tokenizer):
    explainer = Explainer(tiny_bert(), tokenizer)
    explainer.explain("a dull plot")  # what is found out on first use is found out here
    return explainer


def full(explainer, times):
    """Let the next ``times`` passes of the model find no room."""
    left = iter(range(times))

    def refuse(_module, _given):
        if next(left, None) is not None:
            raise torch.OutOfMemoryError("no room")

    return explainer.live.model.register_forward_pre_hook(refuse)


@pytest.fixture
def pauses(monkeypatch):
    slept = []
    monkeypatch.setattr(run.time, "sleep", slept.append)
    return slept


def test_a_device_full_for_a_while_costs_nothing(explainer, pauses):
    job = Experiment(["attcat"], [])
    whole, _ = explained(explainer, TEXTS, job)
    # Both together, the first half of them, that with blocks computed again; each text alone in both
    # ways, and then the first one twice more.
    with full(explainer, 11):
        made, refused = explained(explainer, TEXTS, job)
    assert refused == []
    assert pauses == list(run.PAUSES)
    for i, found in made.items():
        close(found[0].scores, whole[i][0].scores)


def test_a_text_without_room_is_told_in_words(explainer, pauses):
    with full(explainer, 10**6):
        made, refused = explained(explainer, TEXTS, Experiment(["attcat"], []))
    assert made == {0: [], 1: []}
    assert [one.text for one in refused] == [0, 1]
    assert all("no room for this text" in one.reason for one in refused)
    assert pauses == [*run.PAUSES] * 2


def test_measuring_waits_for_room_too(explainer, pauses):
    made, _ = explained(explainer, TEXTS, Experiment(["attcat"], []))
    whole, _ = measured(explainer, TEXTS, made, {"aopc": AreaOverPerturbationCurve()})
    # Wider packs are halved until one text is left, which then finds no room: begin with one.
    alone = {0: made[0]}
    with full(explainer, 10**6):
        records, refused = measured(
            explainer, TEXTS[:1], alone, {"aopc": AreaOverPerturbationCurve()}
        )
    assert records == []
    assert "no room" in refused[0].reason
    assert pauses == list(run.PAUSES)
    again, none = measured(explainer, TEXTS[:1], alone, {"aopc": AreaOverPerturbationCurve()})
    assert none == []
    close(again[0].measured["aopc"].value, whole[0].measured["aopc"].value)
