"""A list of texts explained into one report."""

import pytest

from tests.helpers.api_server import (
    assert_error,
    connect_client,
    make_allow_list,
    make_language_model,
)
from tokenlight.web.limits import ServerLimits
from tokenlight.web.models import AllowList, ServedModel


@pytest.fixture(scope="module")
def client():
    models = [*make_allow_list().values(), ServedModel("writer", make_language_model())]
    with connect_client(AllowList(models), limits=ServerLimits(stored_reports=1)) as running_client:
        yield running_client


def test_a_list_becomes_a_page_that_cannot_reach_the_server(client):
    body = {"model": "tiny", "texts": ["we love this movie", "dull"], "labels": ["positive", None]}
    answer = client.post("/api/texts", json=body)
    assert answer.status_code == 200, answer.text
    assert (answer.json()["texts"], answer.json()["explained"]) == (2, 2)
    page = client.get(answer.json()["address"])
    assert "sandbox allow-scripts allow-downloads" in page.headers["content-security-policy"]
    assert "allow-same-origin" not in page.headers["content-security-policy"]
    assert "we" in page.text
    assert '"label":"positive"' in page.text
    assert "line 2 of the list" in page.text


def test_labels_are_named_as_the_model_does_and_refused_if_it_has_none_of_them(client):
    body = {"model": "tiny", "texts": ["we love this movie", "dull"], "labels": ["1", "Negative"]}
    page = client.get(client.post("/api/texts", json=body).json()["address"])
    names = client.get("/api/models").json()["models"][0]["labels"]
    assert f'"label":"{names[1]}"' in page.text
    assert '"label":"negative"' in page.text
    answer = client.post("/api/texts", json={**body, "labels": ["pos", None]})
    assert_error(answer, 422, "bad_input")
    assert "they are pos, but the model predicts negative" in answer.json()["error"]["message"]


def test_texts_can_be_tested_and_prompts_listed(client):
    body = {"model": "tiny", "texts": ["we love this dull old movie"], "trust": True}
    page = client.get(client.post("/api/texts", json=body).json()["address"])
    assert '"grade":' in page.text
    answer = client.post("/api/texts", json={"model": "writer", "texts": ["the film was very"]})
    assert answer.json()["explained"] == 1


def test_a_text_that_fails_is_named_and_the_others_are_explained(client):
    body = {"model": "tiny", "texts": ["we love this movie", " "]}
    answer = client.post("/api/texts", json=body).json()
    assert answer["explained"] == 1
    assert "1 of 2 texts (line 2:" in client.get(answer["address"]).text
    assert_error(
        client.post("/api/texts", json={"model": "tiny", "texts": [" "]}), 422, "bad_input"
    )


def test_old_reports_are_dropped_and_models_without_texts_refuse(client):
    body = {"model": "tiny", "texts": ["dull"]}
    first, second = (client.post("/api/texts", json=body).json()["address"] for _ in range(2))
    assert client.get(second).status_code == 200
    assert client.get(first).status_code == 404
    assert client.get("/api/texts/12345678/report.html").status_code == 404
    assert_error(
        client.post("/api/texts", json={"model": "answers", "texts": ["dull"]}), 422, "bad_input"
    )
    body = {"model": "tiny", "texts": ["dull"], "labels": []}
    assert_error(client.post("/api/texts", json=body), 422, "invalid")
