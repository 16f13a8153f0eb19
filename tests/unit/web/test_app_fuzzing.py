"""Whatever is thrown at the API, it answers in its own words; and every text comes back as it was."""

import json

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.helpers.api_server import TEXT, make_allow_list, run_server
from tests.helpers.deadlines import DEADLINE_SECONDS
from tokenlight import Attribution
from tokenlight.web.app import create_app
from tokenlight.web.limits import ServerLimits

# Texts go through a tiny model, so that hundreds of them take seconds.
FAST = ServerLimits(gather_seconds=0.0)


@pytest.fixture(scope="module")
def address():
    with run_server(
        create_app(make_allow_list(), limits=FAST, try_methods=False)
    ) as running_address:
        yield running_address


@pytest.fixture(scope="module")
def client(address):
    with httpx.Client(base_url=address, timeout=DEADLINE_SECONDS) as running_client:
        yield running_client


@pytest.fixture(scope="module")
def identity(client):
    return client.post("/api/explain", json={"text": TEXT}).json()["attributions"][0]["id"]


CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


def test_fuzzed_requests_get_valid_responses(address):
    """Every address of the schema, with bodies and parameters that fit it and that do not."""
    schema = schemathesis.openapi.from_url(f"{address}/api/openapi.json")
    tried = []
    for operation_result in schema.get_all_operations():
        operation = operation_result.ok()
        fitting = operation.as_strategy()
        odd = operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)

        @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
        @given(case=fitting | odd if operation.body or operation.query else fitting)
        def ask(case):
            answer = case.call(timeout=DEADLINE_SECONDS)
            case.validate_response(answer, checks=CHECKS)
            if answer.status_code >= 400:
                assert set(answer.json()["error"]) == {"code", "message", "hint"}

        ask()
        tried.append(operation.label)
    assert len(tried) >= 13


# Requests that are right in shape and wrong in meaning go deeper than random ones.
NAMES = st.sampled_from(
    ["attcat", "gae", "rollout:start_layer=1", "transatt", "lrp:rules=chefer_orig", "gradcam:layer=2",
     "integrated_gradients:num_steps=2", "random:seed=5", "lime:num_samples=3,width=0.5", "nope", ":", "=",
     "attcat:", "attcat:a", "occlusion:window=0", "shapley:num_samples=0", "smooth:noise=-1,num_samples=1",
     "lime:mask_probability=2", "gradient_shap:baseline=-5", "decoded_simple:layer=all",
     "mask_lrp:mask=syntactic", "mask_lrp:heads=given,corruption=7,mask=corrupted"]
)  # fmt: skip
TARGETS = st.one_of(
    st.sampled_from(["predicted", "all", "positive", "2", "-1", "nobody", ""]),
    st.integers(-3, 5),
    st.fixed_dictionaries(
        {
            "for": st.sampled_from(["positive", 0, "x"]),
            "rather_than": st.sampled_from(["neutral", 0]),
        }
    ),
    st.just({"token": "film"}),
)
TEXTS = st.one_of(
    st.fixed_dictionaries({"text": st.text(max_size=30)}),
    st.fixed_dictionaries({"text": st.just("good film"), "pair": st.text(max_size=20)}),
    st.fixed_dictionaries({"question": st.text(max_size=20), "context": st.text(max_size=30)}),
    st.fixed_dictionaries({"prompt": st.text(max_size=20)}),
)
REQUESTS = st.tuples(
    TEXTS,
    st.fixed_dictionaries(
        {},
        optional={
            "method": NAMES | st.lists(NAMES, max_size=3),
            "target": TARGETS,
            "words": st.booleans(),
            "layers": st.booleans(),
            "long": st.sampled_from(["error", "truncate", "stride", "never"]),
            "seed": st.integers(-1, 2**31),
            "model": st.sampled_from(["tiny", "answers", "other"]),
        },
    ),
).map(lambda parts: {**parts[0], **parts[1]})


@settings(max_examples=60)
@given(payload=REQUESTS)
def test_fuzzed_explain_requests_get_valid_responses(client, payload):
    answer = client.post("/api/explain", content=json.dumps(payload), headers=JSON)
    assert answer.status_code in (200, 404, 422), (payload, answer.text)


@settings(max_examples=40)
@given(
    order=st.lists(st.integers(-1, 14), max_size=6),
    orders=st.integers(-1, 17),
    own_text=st.booleans(),
    target=TARGETS,
)
def test_fuzzed_game_requests_get_valid_responses(
    client, identity, order, orders, own_text, target
):
    payload = {"random_orders": orders}
    payload |= {"text": TEXT, "order": order, "target": target} if own_text else {"ids": [identity]}
    answer = client.post("/api/perturb", json=payload)
    assert answer.status_code in (200, 422), (payload, answer.text)


JSON = {"content-type": "application/json"}
NAMED = ("aopc", "lodds:perturb=mask", "comprehensiveness", "kendall", "rationale", "randomisation",
         "hiding_game:num_steps=3,target=predicted", "token_overlap", "precision_at_k", "x")  # fmt: skip


@settings(max_examples=12)
@given(
    texts=st.lists(st.sampled_from(["good", "bad film", " ", "the plot was dull"]), max_size=2),
    metrics=st.lists(st.sampled_from(NAMED), max_size=2),
    labels=st.none() | st.lists(st.sampled_from(["positive", None, "x", 1]), max_size=2),
)
def test_fuzzed_evaluate_requests_get_valid_responses(client, texts, metrics, labels):
    payload = {"texts": texts, "metrics": metrics, "labels": labels, "method": "attcat"}
    answer = client.post("/api/evaluate", json=payload)
    assert answer.status_code in (200, 422), (payload, answer.text)


UNICODE = st.text(
    st.characters(exclude_categories=("Cs",))
    | st.sampled_from("film \ufe0f\u200d\u202e\u00e9\u0301\x00"),
    min_size=1,
    max_size=40,
)


@settings(max_examples=100)
@given(text=UNICODE)
def test_any_unicode_text_is_returned_unchanged(client, text):
    answer = client.post("/api/explain", content=json.dumps({"text": text}), headers=JSON)
    if answer.status_code == 422:
        # Nothing but blanks and signs that the tokenizer drops, or too many pieces for it.
        assert answer.json()["error"]["code"] in ("bad_input", "text_too_long")
        return
    (entry,) = answer.json()["attributions"]
    row = entry["attribution"]["row"]
    assert row["texts"] == [text]
    for span, segment in zip(row["spans"], row["segments"], strict=True):
        assert (span is None) == (segment is None)
        assert span is None or 0 <= span[0] <= span[1] <= len(text)
    for word in entry["words"]:
        assert word["text"] == text[word["start"] : word["end"]] or word["start"] == word["end"]
    # What was answered can be saved, opened and explained again to the same numbers.
    attribution = Attribution.from_dict(entry["attribution"])
    opened = client.post("/api/open", content=json.dumps(attribution.to_dict()), headers=JSON)
    assert opened.status_code == 200, opened.text
    repeated = client.post("/api/explain", content=json.dumps({"text": text}), headers=JSON).json()
    assert repeated["attributions"][0]["attribution"]["scores"] == pytest.approx(
        entry["attribution"]["scores"], abs=1e-9
    )
