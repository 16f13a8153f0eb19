"""Requests of foreign hosts and other sites, and bodies that are too large, are refused."""

import json
import socket

import pytest

from tests.helpers.api_server import TEXT, assert_error
from tokenlight.web.limits import ServerLimits
from tokenlight.web.server import RequestGuard


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "", "127.0.0.1.evil.example"])
def test_a_foreign_host_name_is_refused(client, host):
    assert_error(client.get("/api/models", headers={"host": host}), 403, "forbidden")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8000", "[::1]:8000", "LOCALHOST:1"])
def test_the_machines_own_host_names_are_accepted(client, host):
    assert client.get("/healthz", headers={"host": host}).status_code == 200


def test_a_server_on_all_addresses_accepts_addresses_but_no_foreign_name():
    guard = RequestGuard(None, "0.0.0.0", ServerLimits(), bool)
    assert guard.accepts_host("192.168.7.1:8000")
    assert guard.accepts_host(socket.gethostname())
    assert not guard.accepts_host("evil.example")
    assert not RequestGuard(None, "127.0.0.1", ServerLimits(), bool).accepts_host("192.168.7.1")
    assert RequestGuard(None, "box.lan", ServerLimits(), bool).accepts_host("box.lan:8000")


def test_pages_of_other_sites_cannot_send_requests(client):
    payload = {"text": TEXT}
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1"):
        answer = client.post("/api/explain", json=payload, headers={"origin": origin})
        assert_error(answer, 403, "forbidden")
    own_origin = str(client.base_url).rstrip("/")
    assert (
        client.post("/api/explain", json=payload, headers={"origin": own_origin}).status_code == 200
    )
    # A form can send these without asking first; none of them is read.
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        answer = client.post(
            "/api/explain", content=json.dumps(payload), headers={"content-type": kind}
        )
        assert_error(answer, 415, "unsupported_media_type")


def test_a_body_that_is_too_large_is_cut_off(client):
    kind = {"content-type": "application/json"}
    large = b'{"text": "' + b"a" * ServerLimits().body_bytes + b'"}'
    assert_error(client.post("/api/explain", content=large, headers=kind), 413, "too_large")

    def yield_parts():
        for _ in range(ServerLimits().body_bytes // 1000 + 2):
            yield b" " * 1000

    assert_error(client.post("/api/explain", content=yield_parts(), headers=kind), 413, "too_large")
    assert client.post("/api/explain", json={"text": TEXT}).status_code == 200
