"""Errors of the API: a code, a message, and no path."""

import json

import httpx
import pytest

from tests.helpers.api_server import TEXT, assert_error, make_allow_list, run_server
from tests.helpers.deadlines import DEADLINE_SECONDS
from tokenlight.web.api_errors import hide_paths, strip_paths
from tokenlight.web.app import create_app
from tokenlight.web.models import make_public_name


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid"),
        (b"{", "invalid"),
        (b"[]", "invalid"),
        (b"\xff\xfe", "invalid"),
        (b'{"text": "\\ud800"}', "invalid"),
        (b'{"text": NaN}', "invalid"),
        (b'{"text": "a", "unknown": 1}', "invalid"),
        (b'{"text": "a", "question": "b"}', "invalid"),
        (b'{"pair": "a"}', "invalid"),
        (b'{"text": "film", "seed": 1e400}', "invalid"),
        (b'{"text": "   "}', "bad_input"),
        (b'{"text": "' + b"film " * 60 + b'"}', "text_too_long"),
        (b'{"text": "' + b"a" * 20001 + b'"}', "invalid"),
        (b'{"text": "film", "method": []}', "invalid"),
        (b'{"text": "film", "target": "nobody"}', "unknown_name"),
        (b'{"text": "film", "target": 77}', "bad_target"),
        (b'{"text": "film", "method": "attcat:hidden"}', "bad_input"),
        (b'{"text": "film", "target": {"token": "a"}}', "bad_target"),
    ],
)
def test_bad_requests_have_a_code_and_a_message(client, body, code):
    answer = client.post("/api/explain", content=body, headers={"content-type": "application/json"})
    assert assert_error(answer, 422, code)["message"]


@pytest.mark.parametrize(
    ("address", "body", "message"),
    [
        (
            "explain",
            b'{"text": "x" "y"}',
            "The body is not valid JSON: Expecting ',' delimiter (character 13",
        ),
        ("explain", b"", "The body is empty"),
        ("explain", b"[]", "Give a JSON object"),
        ("explain", b"{}", "Give text, text and pair,"),
        (
            "explain",
            b'{"text": "x", "methods": "gae"}',
            "methods: There is no such field.",
        ),
        (
            "perturb",
            b'{"ids": ["!"]}',
            "ids.0: String should match pattern",
        ),
        ("evaluate", b'{"texts": ["x", 3]}', "texts.1: Input should be a valid string"),
        (
            "explain",
            b'{"text": "x", "target": {"foe": 1}}',
            "target: Input should be a valid string",
        ),
    ],
)
def test_a_request_of_a_wrong_shape_gets_a_message(client, address, body, message):
    kind = {"content-type": "application/json"}
    answer = client.post(f"/api/{address}", content=body, headers=kind)
    assert assert_error(answer, 422, "invalid")["message"].startswith(message)


def test_hints_list_the_alternatives(client):
    long = client.post("/api/explain", json={"text": "film " * 60})
    hint = assert_error(long, 422, "text_too_long")["hint"]
    assert "truncate" in hint
    assert "stride" in hint
    token = client.post("/api/explain", json={"text": "film", "target": {"token": "a"}})
    assert "a language model takes one token" in assert_error(token, 422, "bad_target")["hint"]


def test_unknown_addresses_and_methods_are_json_too(client):
    assert_error(client.get("/nowhere"), 404, "not_found")
    assert (
        "GET /api/openapi.json"
        in assert_error(client.get("/api/nowhere"), 404, "not_found")["hint"]
    )
    assert_error(client.get("/api/explain"), 405, "method_not_allowed")
    assert_error(client.get("/api/attribution/unknown-id-000"), 404, "not_found")
    assert_error(client.get("/api/attribution/x"), 422, "invalid")
    assert_error(client.post("/api/trust", json={"id": "unknown-id-000"}), 404, "not_found")


def test_paths_are_cut_to_their_last_name():
    hide_paths(["relative/models/secret"])
    assert strip_paths("no file /home/ann/my model/a.json here") == "no file a.json here"
    assert strip_paths(r"C:\Users\ann\model.bin is damaged") == "model.bin is damaged"
    assert strip_paths("at relative/models/secret: no") == "at secret: no"
    assert strip_paths("and/or, 1/2, https links") == "and/or, 1/2, https links"
    assert make_public_name("tokenlight/qa") == "tokenlight/qa"
    assert make_public_name("/data/models/mine/") == "mine"


def test_unexpected_errors_are_not_disclosed(monkeypatch):
    models = make_allow_list()
    app = create_app(models, try_methods=False)

    def raise_error(*_, **__):
        raise RuntimeError("secret /root/place")

    explainer = models.get_model("tiny").explainer
    monkeypatch.setattr(explainer, "explain", raise_error)
    monkeypatch.setattr(explainer, "explain_texts", raise_error)
    with run_server(app) as address:
        answer = httpx.post(f"{address}/api/explain", json={"text": TEXT}, timeout=DEADLINE_SECONDS)
        error = assert_error(answer, 500, "internal")
        assert "secret" not in json.dumps(error)
        assert httpx.get(f"{address}/healthz", timeout=DEADLINE_SECONDS).status_code == 200
