"""Nothing outside the allow-list is reached, and the page serves no other file."""

import re

import httpx
import pytest

from tests.helpers.api_server import TEXT, assert_error
from tokenlight.web.app import PAGE_FOLDER

SECRET = "/etc/passwd"


@pytest.mark.parametrize(
    "payload",
    [
        {"model": SECRET},
        {"model": "../tiny"},
        {"model": "tokenlight/sentiment"},
        {"method": f"mask_lrp:heads={SECRET}"},
        {"method": f"decoded_gradcam:lm={SECRET}"},
        {"method": SECRET},
        {"method": "_method"},
        {"method": "attcat:hidden=/etc/shadow"},
        {"method": f"attcat:{SECRET}=1"},
        {"method": f"attcat:preset={SECRET}"},
        {"target": SECRET},
    ],
)
def test_no_model_file_or_option_outside_the_list_is_reached(client, payload):
    answer = client.post("/api/explain", json={"text": TEXT, **payload})
    assert answer.status_code in (404, 422), answer.text
    assert "root:" not in answer.text
    assert "/etc" not in answer.text.replace("GET /api", "")


def test_an_option_of_a_metric_cannot_open_a_file(client):
    payload = {"texts": [TEXT], "metrics": [f"token_overlap:corpus={SECRET}"]}
    assert_error(client.post("/api/evaluate", json=payload), 422, "not_allowed")


@pytest.mark.parametrize("value", ["99999999999", "1e30", "nan", "inf"])
def test_huge_numbers_are_refused(client, value):
    payload = {"text": TEXT, "method": f"shapley:num_samples={value}"}
    assert_error(client.post("/api/explain", json=payload), 422, "not_allowed")


@pytest.mark.parametrize(
    "path",
    [
        "/page/../app.py",
        "/page/%2e%2e/app.py",
        "/page/..%2f..%2fapp.py",
        "/page//etc/passwd",
        "/page/%2fetc%2fpasswd",
        "/page/app.py",
        "/api/attribution/..%2f..%2fetc%2fpasswd",
        "/api/opened/..%2f..%2fetc/report",
        "/docs",
        "/.git/config",
    ],
)
def test_no_file_but_the_pages_own_is_served(client, path):
    answer = client.get(httpx.URL(str(client.base_url).rstrip("/") + path))
    assert answer.status_code in (404, 422), answer.text
    assert set(answer.json()["error"]) == {"code", "message", "hint"}


def test_the_page_names_no_other_address_and_its_files_are_served(client):
    page = client.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert not re.search(r"https?://", page.text)
    assert not re.search(r"<script(?![^>]*\bsrc=)", page.text)
    for address in re.findall(r'(?:src|href)="(/[^"#]+)"', page.text):
        assert client.get(address).status_code == 200, address
    scripts = [p for p in PAGE_FOLDER.rglob("*.js")]
    for script in scripts:
        served = client.get(f"/page/{script.relative_to(PAGE_FOLDER).as_posix()}")
        assert served.headers["content-type"] == "text/javascript; charset=utf-8"


def test_a_file_that_has_not_changed_is_not_sent_again(client):
    code = client.get("/page/js/main.js")
    assert code.content == (PAGE_FOLDER / "js" / "main.js").read_bytes()
    unchanged = client.get("/page/js/main.js", headers={"if-none-match": code.headers["etag"]})
    assert (unchanged.status_code, unchanged.content) == (304, b"")


@pytest.mark.parametrize("path", ["/", "/healthz", "/api/models", "/nowhere", "/page/none.js"])
def test_every_response_has_the_security_headers(client, path):
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert "access-control-allow-origin" not in headers
