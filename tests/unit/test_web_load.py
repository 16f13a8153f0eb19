"""Sixty-four clients at once for five seconds: no answer is wrong, none is an error of the server."""

import asyncio
import importlib.util
import sys
from pathlib import Path

import pytest

from tests.unit.served import allow_list, running
from tokenlight.web.app import application
from tokenlight.web.limits import ServerLimits

PLACE = Path(__file__).parents[2] / "benchmarks" / "serve_load.py"


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("serve_load", PLACE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["serve_load"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["serve_load"]


@pytest.fixture(scope="module")
def pairs(bench):
    asked = [{**one, "model": "tiny"} for one in bench.requests(60, longest=12)]
    return list(
        zip(asked, bench.references(allow_list().named("tiny").explainer, asked), strict=True)
    )


def test_sixty_four_clients_get_their_own_answers(bench, pairs):
    with running(application(allow_list(), trials=False)) as address:
        tally = asyncio.run(bench.load(address, pairs, clients=64, seconds=5))
    assert tally.wrong == []
    assert set(tally.statuses) == {200}
    assert tally.statuses[200] >= 64


def test_over_capacity_is_429_and_every_other_answer_right(bench, pairs):
    limits = ServerLimits(waiting=(4, 4, 4))
    with running(application(allow_list(), limits=limits, trials=False)) as address:
        tally = asyncio.run(bench.load(address, pairs, clients=64, seconds=2, again=False))
    assert tally.wrong == []
    assert set(tally.statuses) == {200, 429}


def test_a_wrong_answer_would_be_noticed(bench, pairs):
    """The check itself: the answer to another question is a fault."""
    (asked, mine), (_, other) = pairs[:2]
    answer = lambda wanted: {"attributions": [{"attribution": wanted}]}  # noqa: E731
    assert bench.fault(asked, answer(mine), mine) is None
    assert bench.fault(asked, answer(other), mine)
    moved = {**mine, "scores": [mine["scores"][0] + 1e-2, *mine["scores"][1:]]}
    assert "scores off" in bench.fault(asked, answer(moved), mine)
