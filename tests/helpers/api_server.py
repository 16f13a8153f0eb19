"""A real server on loopback with tiny models, for tests of the API."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from tests.helpers.deadlines import DEADLINE_SECONDS
from tests.helpers.families import GPT
from tests.helpers.tiny import tiny_bert, tiny_bert_qa, tiny_tokenizer
from tokenlight import Explainer
from tokenlight.web.app import create_app
from tokenlight.web.limits import ServerLimits
from tokenlight.web.models import AllowList, ServedModel
from tokenlight.web.saved_files import OpenedFiles
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


def make_allow_list(heads: Any = HEADS) -> AllowList:
    """Return an allow list with a tiny classifier and a tiny question-answering model."""
    tokenizer = tiny_tokenizer()
    return AllowList(
        [
            ServedModel("tiny", Explainer(tiny_bert(), tokenizer, name="tiny"), "for tests", heads),
            ServedModel("answers", Explainer(tiny_bert_qa(), tokenizer, name="answers")),
        ]
    )


class Address(str):
    """The address of a server, with the server."""

    server: Server


@contextmanager
def run_server(app: Any, limits: ServerLimits | None = None) -> Iterator[Address]:
    """Run a server within the block; yield its address."""
    server = Server(app, limits or ServerLimits(), port=0, log_level="error")
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until = time.monotonic() + DEADLINE_SECONDS
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
        thread.join(DEADLINE_SECONDS)
        assert not thread.is_alive(), "the server does not end"


@contextmanager
def connect_client(
    models: AllowList | None = None,
    opened_files: OpenedFiles | None = None,
    limits: ServerLimits | None = None,
    **app_options: Any,
) -> Iterator[httpx.Client]:
    """Run a server within the block; yield a client of it."""
    served = make_allow_list() if models is None else models
    app = create_app(served, opened_files, limits=limits, try_methods=False, **app_options)
    with (
        run_server(app, limits) as address,
        httpx.Client(base_url=address, timeout=DEADLINE_SECONDS) as client,
    ):
        yield client


def assert_error(answer: httpx.Response, status: int, code: str) -> dict[str, str]:
    """Assert that a response is an error with this status and code; return the error."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert set(error) == {"code", "message", "hint"}
    assert error["code"] == code, error
    assert all(isinstance(part, str) for part in error.values())
    return error


def request_explanation(client: httpx.Client, **payload: Any) -> dict[str, Any]:
    """Request an explanation of ``TEXT``, or of what the payload has; return the answer."""
    answer = client.post("/api/explain", json={"text": TEXT, **payload})
    assert answer.status_code == 200, answer.text
    return answer.json()


def get_scores(entry: dict[str, Any]) -> np.ndarray:
    """Return the scores of one entry of an answer."""
    return np.array(entry["attribution"]["scores"])


def make_language_model() -> Explainer:
    """Return a language model with known random weights."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(**{**GPT, "vocab_size": 150}))
    with torch.no_grad():  # far enough from zero that tokens matter
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
    return Explainer(model.double().eval(), tiny_tokenizer(), name="writer")


def start_server_process(*arguments: Any, before: str = "") -> subprocess.Popen[str]:
    """Start ``tokenlight serve`` in a process; ``before`` is Python code to run first."""
    code = f"import sys\n{before}\nfrom tokenlight.cli import main\nmain(sys.argv[1:])"
    return subprocess.Popen(
        [sys.executable, "-c", code, "serve", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": "1"},
    )
