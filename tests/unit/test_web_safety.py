"""Nothing outside the allow-list is reached, nobody else asks, and no answer shows a path."""

import json
import re
import socket

import httpx
import pytest

from tests.unit.served import TEXT, allow_list, asking, refused, running
from tokenlight import registry
from tokenlight.web import options as allowed
from tokenlight.web.app import PAGE, application
from tokenlight.web.limits import ServerLimits
from tokenlight.web.models import load, shown_name
from tokenlight.web.refusals import Refusal, keep_secret, without_paths
from tokenlight.web.requests import EvaluateAsked, ExplainAsked
from tokenlight.web.server import Guard
from tokenlight.web.tasks import Wanted, check_cost, evaluate, explain_alone, read_row

SECRET = "/etc/passwd"


@pytest.fixture(scope="module")
def client():
    with asking() as made:
        yield made


@pytest.mark.parametrize(
    "asked",
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
def test_no_model_file_or_option_outside_the_list_is_reached(client, asked):
    answer = client.post("/api/explain", json={"text": TEXT, **asked})
    assert answer.status_code in (404, 422), answer.text
    assert "root:" not in answer.text
    assert "/etc" not in answer.text.replace("GET /api", "")


def test_no_option_that_takes_more_than_a_number_or_a_word_is_allowed():
    """The rule is the type, so that an option added later is not let in by being forgotten."""
    for kind in ("methods", "metrics"):
        for name in registry.names(kind):
            for option, (words, _) in registry.options_of(kind, name).items():
                opens = "Any" in words or "str" in words.split(" | ") or "tuple" in words
                if opens:
                    with pytest.raises(Refusal) as caught:
                        allowed.spec(kind, f"{name}:{option}=x")
                    assert caught.value.code == "not_allowed"


def test_a_metric_opens_no_file_either(client):
    asked = {"texts": [TEXT], "metrics": [f"token_overlap:corpus={SECRET}"]}
    refused(client.post("/api/evaluate", json=asked), 422, "not_allowed")


@pytest.mark.parametrize("value", ["99999999999", "1e30", "nan", "inf"])
def test_numbers_without_measure_are_refused(client, value):
    asked = {"text": TEXT, "method": f"shapley:samples={value}"}
    refused(client.post("/api/explain", json=asked), 422, "not_allowed")


def test_what_would_take_minutes_is_refused_before_it_starts(client):
    asked = {"text": TEXT, "method": "shapley:samples=90000"}
    error = refused(client.post("/api/explain", json=asked), 422, "too_costly")
    assert "tokens through the model" in error["message"]


def test_a_text_in_windows_costs_what_all_its_windows_cost(client):
    long = {"text": "good film " * 1500, "long": "stride"}
    for method in ("integrated_gradients", "attention_flow"):
        asked = {**long, "method": method}
        refused(client.post("/api/explain", json=asked), 422, "too_costly")
    answer = client.post("/api/explain", json={**long, "text": "good film " * 100})
    assert "overlapping windows" in answer.json()["attributions"][0]["attribution"]["notes"][-1]


def test_of_a_question_one_window_is_explained_and_counted():
    served = allow_list().named("answers")
    context = "the cat sat . " * 100
    asked = ExplainAsked(question="who?", context=context, method="attcat", long="stride")
    one_window = 3 * served.explainer.max_tokens
    explain_alone(served, Wanted.of(asked, served), one_window)


def test_all_classes_of_many_cost_as_much_as_they_are():
    served = allow_list().named("tiny")
    wanted = Wanted.of(ExplainAsked(text=TEXT, target="all"), served)
    check_cost(wanted, served, [30], 3 * 30 * len(served.labels))
    with pytest.raises(Refusal, match="tokens through the model"):
        check_cost(wanted, served, [30], 3 * 30 * len(served.labels) - 1)


def test_attention_flow_costs_more_than_its_pass():
    method = registry.build("methods", "attention_flow")
    assert allowed.token_passes([method], 128, 1) < ServerLimits().passes  # two seconds
    assert allowed.token_passes([method], 200, 1) > ServerLimits().passes


@pytest.mark.parametrize("metric", ["hiding_game", "revealing_game", "deletion", "insertion"])
def test_a_curve_has_a_few_hundred_points_at_most(metric):
    allowed.spec("metrics", f"{metric}:steps=200")
    with pytest.raises(Refusal) as caught:
        allowed.spec("metrics", f"{metric}:steps=201")
    assert caught.value.hint == "At most 200."


@pytest.mark.parametrize(
    ("metric", "target", "explanations", "changed"),
    [
        ("kendall", "predicted", 1 + 3, 0),
        ("randomisation", "predicted", 1 + 5, 0),  # the head, three blocks, the embeddings
        ("deletion:steps=50", "predicted", 1, 52),
        ("deletion:steps=50", "all", 3, 3 * 52),
    ],
)
def test_an_evaluation_counts_all_that_it_needs(metric, target, explanations, changed):
    served = allow_list().named("tiny")
    tokens = len(read_row(served, TEXT, "error"))
    asked = EvaluateAsked(texts=[TEXT], metrics=[metric], target=target)
    cost = tokens * (3 * explanations + changed)
    evaluate(served, asked, ServerLimits(evaluated_passes=cost))
    with pytest.raises(Refusal, match="tokens through the model"):
        evaluate(served, asked, ServerLimits(evaluated_passes=cost - 1))


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
    for place in re.findall(r'(?:src|href)="(/[^"#]+)"', page.text):
        assert client.get(place).status_code == 200, place
    scripts = [p for p in PAGE.rglob("*.js")]
    for script in scripts:
        served = client.get(f"/page/{script.relative_to(PAGE).as_posix()}")
        assert served.headers["content-type"] == "text/javascript; charset=utf-8"


def test_a_file_that_has_not_changed_is_not_sent_again(client):
    code = client.get("/page/js/main.js")
    assert code.content == (PAGE / "js" / "main.js").read_bytes()
    again = client.get("/page/js/main.js", headers={"if-none-match": code.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("path", ["/", "/healthz", "/api/models", "/nowhere", "/page/none.js"])
def test_every_answer_carries_the_policy(client, path):
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "", "127.0.0.1.evil.example"])
def test_a_name_that_somebody_else_controls_is_refused(client, host):
    refused(client.get("/api/models", headers={"host": host}), 403, "forbidden")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8000", "[::1]:8000", "LOCALHOST:1"])
def test_this_machines_own_names_are_known(client, host):
    assert client.get("/healthz", headers={"host": host}).status_code == 200


def test_bound_to_every_address_it_is_reached_by_number_but_by_no_foreign_name():
    guard = Guard(None, "0.0.0.0", ServerLimits(), bool)
    assert guard.knows("192.168.7.1:8000")
    assert guard.knows(socket.gethostname())
    assert not guard.knows("evil.example")
    assert not Guard(None, "127.0.0.1", ServerLimits(), bool).knows("192.168.7.1")
    assert Guard(None, "box.lan", ServerLimits(), bool).knows("box.lan:8000")


def test_pages_of_other_sites_cannot_ask(client):
    asked = {"text": TEXT}
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1"):
        answer = client.post("/api/explain", json=asked, headers={"origin": origin})
        refused(answer, 403, "forbidden")
    own = str(client.base_url).rstrip("/")
    assert client.post("/api/explain", json=asked, headers={"origin": own}).status_code == 200
    # A form can send these without asking first; none of them is read.
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        answer = client.post(
            "/api/explain", content=json.dumps(asked), headers={"content-type": kind}
        )
        refused(answer, 415, "unsupported_media_type")


def test_a_body_that_is_too_large_is_cut_off(client):
    kind = {"content-type": "application/json"}
    large = b'{"text": "' + b"a" * ServerLimits().body_bytes + b'"}'
    refused(client.post("/api/explain", content=large, headers=kind), 413, "too_large")

    def parts():
        for _ in range(ServerLimits().body_bytes // 1000 + 2):
            yield b" " * 1000

    refused(client.post("/api/explain", content=parts(), headers=kind), 413, "too_large")
    assert client.post("/api/explain", json={"text": TEXT}).status_code == 200


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
def test_what_cannot_be_is_said(client, body, code):
    answer = client.post("/api/explain", content=body, headers={"content-type": "application/json"})
    assert refused(answer, 422, code)["message"]


@pytest.mark.parametrize(
    ("address", "body", "message"),
    [
        (
            "explain",
            b'{"text": "x" "y"}',
            "the body is not valid JSON: Expecting ',' delimiter (character 13",
        ),
        ("explain", b"", "the body is empty"),
        ("explain", b"[]", "give a JSON object"),
        ("explain", b"{}", "give text, text and pair,"),
        (
            "explain",
            b'{"text": "x", "methods": "gae"}',
            "methods: there is no such field.",
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
def test_a_wrong_shape_is_said_in_our_words(client, address, body, message):
    kind = {"content-type": "application/json"}
    answer = client.post(f"/api/{address}", content=body, headers=kind)
    assert refused(answer, 422, "invalid")["message"].startswith(message)


def test_hints_name_every_way_out(client):
    long = client.post("/api/explain", json={"text": "film " * 60})
    hint = refused(long, 422, "text_too_long")["hint"]
    assert "truncate" in hint
    assert "stride" in hint
    token = client.post("/api/explain", json={"text": "film", "target": {"token": "a"}})
    assert "a language model takes one token" in refused(token, 422, "bad_target")["hint"]


def test_unknown_addresses_and_methods_are_json_too(client):
    refused(client.get("/nowhere"), 404, "not_found")
    assert "GET /api/openapi.json" in refused(client.get("/api/nowhere"), 404, "not_found")["hint"]
    refused(client.get("/api/explain"), 405, "method_not_allowed")
    refused(client.get("/api/attribution/unknown-id-000"), 404, "not_found")
    refused(client.get("/api/attribution/x"), 422, "invalid")
    refused(client.post("/api/trust", json={"id": "unknown-id-000"}), 404, "not_found")


def test_a_folder_is_served_by_its_last_part_and_named_nowhere(bert_folder):
    models = load([str(bert_folder)])
    with asking(models) as client:
        assert client.get("/api/models").json()["models"][0]["name"] == "tiny-bert"
        told = [
            client.get("/api/models").text,
            client.post("/api/explain", json={"text": TEXT}).text,
            # It looks for a language model beside the classifier, in the folder.
            client.post("/api/explain", json={"text": TEXT, "method": "decoded_gradcam"}).text,
        ]
    assert "language model" in told[-1]
    for answer in told:
        assert str(bert_folder.parent) not in answer
        assert "/tmp" not in answer


def test_paths_are_cut_to_their_last_name():
    keep_secret(["relative/models/secret"])
    assert without_paths("no file /home/ann/my model/a.json here") == "no file a.json here"
    assert without_paths(r"C:\Users\ann\model.bin is damaged") == "model.bin is damaged"
    assert without_paths("at relative/models/secret: no") == "at secret: no"
    assert without_paths("and/or, 1/2, https links") == "and/or, 1/2, https links"
    assert shown_name("tokenlight/qa") == "tokenlight/qa"
    assert shown_name("/data/models/mine/") == "mine"


def test_what_is_unexpected_is_not_told(monkeypatch):
    models = allow_list()
    app = application(models, trials=False)

    def broken(*_, **__):
        raise RuntimeError("secret /root/place")

    monkeypatch.setattr(models.named("tiny").explainer, "explain", broken)
    with running(app) as address:
        answer = httpx.post(f"{address}/api/explain", json={"text": TEXT}, timeout=60)
        error = refused(answer, 500, "internal")
        assert "secret" not in json.dumps(error)
        assert httpx.get(f"{address}/healthz", timeout=60).status_code == 200
