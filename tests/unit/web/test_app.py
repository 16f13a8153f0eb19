"""The addresses of the API: lists of models and methods, downloads, head maps, schema and health."""

import numpy as np
import pytest

from tests.helpers.api_server import (
    assert_error,
    get_scores,
    request_explanation,
)
from tokenlight import Attribution, registry
from tokenlight.web.limits import ServerLimits


def test_a_classifier_is_listed_with_labels_inputs_and_sizes(client):
    classifier, _ = client.get("/api/models").json()["models"]
    assert classifier["name"] == "tiny"
    assert classifier["labels"] == ["negative", "neutral", "positive"]
    assert classifier["inputs"][0] == ["text"]
    assert classifier["max_tokens"] == 48
    assert (classifier["layers"], classifier["heads"], classifier["head_map"]) == (3, 4, True)


def test_a_question_answering_model_is_listed_with_its_task_and_inputs(client):
    _, answers = client.get("/api/models").json()["models"]
    assert answers["task"] == "span"
    assert answers["inputs"] == [["question", "context"]]


def test_the_list_of_models_has_titled_examples_and_the_limits(client):
    answer = client.get("/api/models").json()
    examples = [example for model in answer["models"] for example in model["examples"]]
    assert examples
    assert all("title" in example for example in examples)
    assert answer["limits"]["characters"] == ServerLimits().characters


def test_every_method_is_listed_and_no_option_that_opens_a_file(client):
    listed = client.get("/api/methods").json()
    assert [method["name"] for method in listed["methods"]] == registry.list_names("methods")
    assert {method["group"] for method in listed["methods"]} <= set(listed["groups"])
    assert all(method["about"] and method["cost"] for method in listed["methods"])
    options = {
        method["name"]: [o["name"] for o in method["options"]] for method in listed["methods"]
    }
    assert "lm" not in options["decoded_gradcam"]
    assert "hidden" in options["attcat"]
    metrics = {metric["name"]: metric for metric in listed["metrics"]}
    assert metrics["hiding_game"]["needs"] == ["labels"]
    assert "corpus" not in [o["name"] for o in metrics["token_overlap"]["options"]]


@pytest.fixture(scope="module")
def two_attributions(client):
    """Return the entries of one text by attcat and by gae."""
    return request_explanation(client, method=["attcat", "gae"])["attributions"]


def test_attributions_can_be_downloaded_as_json(client, two_attributions):
    first, second = two_attributions
    address = f"/api/attribution/{first['id']}"
    single = client.get(address)
    assert Attribution.from_dict(single.json()).layers is not None
    assert single.headers["content-disposition"] == 'attachment; filename="attribution.json"'
    several = client.get(address, params={"also": [second["id"]]}).json()
    assert [attribution["method"] for attribution in several] == ["attcat", "gae"]


def test_attributions_can_be_downloaded_as_a_sandboxed_page(client, two_attributions):
    first, second = two_attributions
    address = f"/api/attribution/{first['id']}"
    page = client.get(address, params={"format": "html", "also": second["id"]})
    assert page.text.startswith("<!doctype html>")
    assert "gae" in page.text
    assert "'self'" not in page.headers["content-security-policy"]
    assert "sandbox" in page.headers["content-security-policy"]


def test_attributions_can_be_downloaded_as_figures(client, two_attributions):
    first, second = two_attributions
    address = f"/api/attribution/{first['id']}"
    assert b"<svg" in client.get(address, params={"format": "svg"}).content
    for figure in ("bars", "layers"):
        picture_response = client.get(address, params={"format": "png", "figure": figure})
        assert picture_response.content.startswith(b"\x89PNG")
    without_layers = client.get(
        f"/api/attribution/{second['id']}", params={"format": "svg", "figure": "layers"}
    )
    assert_error(without_layers, 422, "bad_input")


def test_the_head_map_is_shown_and_can_be_used(client):
    heads = client.get("/api/heads/tiny").json()
    assert (heads["layers"], heads["heads"]) == (3, 4)
    assert heads["syntactic"][1] == [0, 0, 2, 0]
    assert_error(client.get("/api/heads/answers"), 404, "not_found")
    entries = request_explanation(client, method=["mask_lrp:heads=given", "mask_lrp"])[
        "attributions"
    ]
    assert entries[0]["method"] == "mask_lrp(heads=given)"
    assert np.abs(get_scores(entries[0]) - get_scores(entries[1])).max() > 0
    without = {"question": "who?", "context": "the cat.", "method": "mask_lrp:heads=given"}
    assert_error(client.post("/api/explain", json=without), 422, "not_allowed")


def test_the_schema_and_the_health_are_served(client):
    schema = client.get("/api/openapi.json").json()
    assert {"/api/explain", "/api/perturb", "/api/evaluate", "/api/models"} <= set(schema["paths"])
    assert client.get("/healthz").json()["status"] == "ok"
