"""A real server on loopback over tiny models, for the tests of the page's API."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from tests.families import GPT
from tests.tiny import tiny_bert, tiny_bert_qa, tiny_tokenizer
from tokenlight import Explainer
from tokenlight.web.app import application
from tokenlight.web.limits import ServerLimits
from tokenlight.web.models import AllowList, Served
from tokenlight.web.opened import Shelf
from tokenlight.web.server import Server

TEXT = "the film is not bad, but the plot was dull."
HEADS = {
    "format": 1,
    "mask": {
        "syntactic": [[0, 1, 0, 0], [0, 0, 2, 0], [0, 0, 0, 0]],
        "positional": [[1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]],
    },
    "relations": {},
    "sentences": 3,
}


def allow_list(heads: Any = HEADS) -> AllowList:
    tokenizer = tiny_tokenizer()
    return AllowList(
        [
            Served("tiny", Explainer(tiny_bert(), tokenizer, name="tiny"), "for tests", heads),
            Served("answers", Explainer(tiny_bert_qa(), tokenizer, name="answers")),
        ]
    )


class Address(str):
    """Where a server listens, and the server."""

    server: Server


@contextmanager
def running(app: Any, limits: ServerLimits | None = None) -> Iterator[Address]:
    """The address of a server that runs while the block does."""
    server = Server(app, limits or ServerLimits(), port=0, log_level="error")
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until = time.monotonic() + 60
    while not server.started:
        assert thread.is_alive(), "the server ended while it started"
        assert time.monotonic() < until, "the server does not start"
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    address = Address(f"http://127.0.0.1:{port}")
    address.server = server
    try:
        yield address
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive(), "the server does not end"


@contextmanager
def asking(
    models: AllowList | None = None,
    shelf: Shelf | None = None,
    limits: ServerLimits | None = None,
    **how: Any,
) -> Iterator[httpx.Client]:
    """A client of such a server."""
    served = allow_list() if models is None else models
    app = application(served, shelf, limits=limits, trials=False, **how)
    with running(app, limits) as address, httpx.Client(base_url=address, timeout=60) as client:
        yield client


def refused(answer: httpx.Response, status: int, code: str) -> dict[str, str]:
    """The error of an answer that must be one."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert set(error) == {"code", "message", "hint"}
    assert error["code"] == code, error
    assert all(isinstance(part, str) for part in error.values())
    return error


def tiny_writer() -> Explainer:
    """A language model with known random weights."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(**{**GPT, "vocab_size": 150}))
    with torch.no_grad():  # far enough from zero that tokens matter
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
    return Explainer(model.double().eval(), tiny_tokenizer(), name="writer")
