"""Sixty-four clients at once for five seconds: no answer is wrong, none is an error of the server."""

import asyncio
import importlib.util
import sys
from pathlib import Path

import pytest

from tests.helpers.api_server import make_allow_list, run_server
from tokenlight.web.app import create_app
from tokenlight.web.limits import ServerLimits

SCRIPT_PATH = Path(__file__).parents[2] / "benchmarks" / "serve_load.py"


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("serve_load", SCRIPT_PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["serve_load"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["serve_load"]


@pytest.fixture(scope="module")
def pairs(bench):
    requests = [{**request, "model": "tiny"} for request in bench.draw_requests(60, max_words=12)]
    return list(
        zip(
            requests,
            bench.compute_references(make_allow_list().get_model("tiny").explainer, requests),
            strict=True,
        )
    )


def test_sixty_four_clients_get_their_own_answers(bench, pairs):
    # The queue holds all clients. How long they wait depends on the machine, so it has no limit here.
    limits = ServerLimits(max_waiting=(64, 32, 8), wait_seconds=float("inf"))
    with run_server(create_app(make_allow_list(), limits=limits, try_methods=False)) as address:
        tally = asyncio.run(bench.run_load(address, pairs, clients=64, seconds=5))
    assert tally.problems == []
    assert set(tally.statuses) == {200}
    assert tally.statuses[200] >= 64


def test_requests_over_capacity_get_429_and_all_others_the_right_answer(bench, pairs):
    limits = ServerLimits(max_waiting=(4, 4, 4))
    with run_server(create_app(make_allow_list(), limits=limits, try_methods=False)) as address:
        tally = asyncio.run(bench.run_load(address, pairs, clients=64, seconds=2, waits=False))
    assert tally.problems == []
    assert set(tally.statuses) == {200, 429}


def test_a_wrong_answer_would_be_noticed(bench, pairs):
    """The check itself: the answer to another question is a fault."""
    (request, mine), (_, other) = pairs[:2]
    answer = lambda attribution: {"attributions": [{"attribution": attribution}]}  # noqa: E731
    assert bench.find_fault(request, answer(mine), mine) is None
    assert bench.find_fault(request, answer(other), mine)
    moved = {**mine, "scores": [mine["scores"][0] + 1e-2, *mine["scores"][1:]]}
    assert "scores off" in bench.find_fault(request, answer(moved), mine)
