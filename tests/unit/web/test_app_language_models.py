"""Language models on the page: a prompt, the next token, and why this token rather than that one."""

from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.api_server import assert_error, make_language_model
from tests.helpers.expect import expect_error
from tokenlight import Context, Continuation, Contrast, NextToken
from tokenlight.errors import UnsupportedModel
from tokenlight.plots.descriptions import describe_attention_sink
from tokenlight.plots.prompt_parts import describe_deciding_part
from tokenlight.web.models import AllowList, ServedModel, load_models

PROMPT = "the film was very"


@pytest.fixture(scope="module")
def models():
    return AllowList([ServedModel("writer", make_language_model())])


def test_a_causal_model_is_listed_as_a_language_model(client):
    (facts,) = client.get("/api/models").json()["models"]
    assert facts["task"] == "next token"
    assert facts["inputs"][0] == ["prompt"]
    assert facts["labels"] == []
    assert facts["targets"] == ["predicted", "token", "contrast"]
    assert all("prompt" in example for example in facts["examples"])


@pytest.mark.parametrize(
    ("payload", "target"),
    [
        ("predicted", "predicted"),
        ({"token": "good"}, NextToken("good")),
        ({"for": "good", "rather_than": "bad"}, Contrast("good", "bad")),
    ],
)
def test_the_next_token_is_explained_as_the_library_does(client, models, payload, target):
    answer = client.post(
        "/api/explain", json={"prompt": PROMPT, "target": payload, "method": ["attcat", "gae"]}
    )
    assert answer.status_code == 200, answer.text
    expected = models.get_model("writer").explainer.explain(PROMPT, ["attcat", "gae"], target)
    for entry, attribution in zip(answer.json()["attributions"], expected, strict=True):
        assert entry["target"] == attribution.target.name
        np.testing.assert_allclose(entry["attribution"]["scores"], attribution.scores, atol=1e-12)
    prediction = answer.json()["prediction"]
    assert len(prediction["labels"]) == len(prediction["probabilities"]) == 10


def test_the_game_watches_the_token(client, models):
    payload = {"prompt": PROMPT, "target": {"token": "good"}}
    entry = client.post("/api/explain", json=payload).json()["attributions"][0]
    answer = client.post("/api/perturb", json={"ids": [entry["id"]], "random_orders": 2}).json()
    game = answer["games"][0]
    logits = models.get_model("writer").explainer.explain(PROMPT, target=NextToken("good")).logits
    chances = np.exp(logits - logits.max())
    index = entry["attribution"]["target"]["terms"][0][0][0]
    expected = chances[index] / chances.sum()
    assert game["hide"]["target_probability"][0] == pytest.approx(expected, abs=1e-9)
    assert game["hide"]["probabilities"][0] == [game["hide"]["target_probability"][0]]
    assert answer["labels"] == ["target"]


def test_trust_evaluation_and_opening_work_on_prompts(client):
    entry = client.post("/api/explain", json={"prompt": PROMPT}).json()["attributions"][0]
    trust = client.post("/api/trust", json={"id": entry["id"]}).json()["trust"]
    assert trust["verdict"]
    opened = client.post("/api/open", json=entry["attribution"]).json()
    assert opened["served"] is True
    payload = {"texts": [{"prompt": PROMPT}], "metrics": ["aopc"]}
    measured = client.post("/api/evaluate", json=payload).json()
    assert measured["rows"][0]["aopc"] is not None


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        ({"target": "all"}, "bad_target"),
        ({"target": {"token": "unheard of"}}, "bad_target"),
        ({"question": "who?"}, "invalid"),
    ],
)
def test_bad_targets_of_a_language_model_are_refused(client, payload, code):
    assert_error(client.post("/api/explain", json={"prompt": PROMPT, **payload}), 422, code)


def test_a_classifier_reads_no_prompt(client):
    assert_error(client.post("/api/explain", json={"text": "a", "pair": "b"}), 422, "bad_input")


def test_a_head_without_a_view_is_refused_at_start(tmp_path, tokenizer):
    from tests.helpers.tiny import tiny_bert_lm

    tiny_bert_lm().save_pretrained(tmp_path / "filler")
    tokenizer.save_pretrained(tmp_path / "filler")
    with expect_error(UnsupportedModel, "model-not-servable", mentions="filler"):
        load_models([str(tmp_path / "filler")])


ABOUT = {"question": "what film is it", "documents": "the red film\n\na blue cat\n \na dog"}


@pytest.mark.parametrize("answer", ["very good", None])
def test_documents_a_question_and_an_answer_are_explained_as_a_whole(client, models, answer):
    answer_fields = {} if answer is None else {"answer": answer}
    payload = {**ABOUT, **answer_fields, "method": ["grad_x_input", "gae"]}
    response = client.post("/api/explain", json=payload)
    assert response.status_code == 200, response.text
    context = Context(["the red film", "a blue cat", "a dog"], ABOUT["question"])
    continuation = Continuation(None if answer is None else " very good", 16, joint=True)
    explainer = models.get_model("writer").explainer
    expected = explainer.explain(context, ["grad_x_input", "gae"], continuation)
    for entry, attribution in zip(response.json()["attributions"], expected, strict=True):
        assert entry["target"] == attribution.target.name
        names = [*(f"document {number}" for number in (1, 2, 3)), "question"]
        assert entry["attribution"]["row"]["names"][:4] == names
        np.testing.assert_allclose(entry["attribution"]["scores"], attribution.scores, atol=1e-12)
    entry = response.json()["attributions"][0]
    trust = client.post("/api/trust", json={"id": entry["id"]}).json()["trust"]
    assert trust["verdict"]
    game = client.post("/api/perturb", json={"ids": [entry["id"]], "random_orders": 1})
    assert game.status_code == 200, game.text


def test_what_pictures_remark_is_an_entry_of_the_page(client, models):
    payload = {**ABOUT, "answer": "very good", "method": "gae"}
    entry = client.post("/api/explain", json=payload).json()["attributions"][0]
    context = Context(["the red film", "a blue cat", "a dog"], ABOUT["question"])
    continuation = Continuation(" very good", joint=True)
    (attribution,) = models.get_model("writer").explainer.explain(context, "gae", continuation)
    assert entry["deciding_part"] == describe_deciding_part(attribution) != ""
    assert entry["remarks"] == [note for note in [describe_attention_sink(attribution)] if note]


def test_documents_are_a_message_where_the_model_has_a_chat_template():
    explainer = make_language_model()
    served_model = ServedModel("writer", explainer)
    context = Context(["the red film", "a dog"], ABOUT["question"])
    assert served_model.format_documents(context) is context
    explainer.tokenizer.chat_template = "{{ messages[0].content }}"
    assert served_model.format_documents(context) == replace(context, template="chat")
    assert served_model.format_documents(PROMPT) == PROMPT


def test_documents_without_a_question_are_refused(client):
    answer = client.post("/api/explain", json={"documents": "a cat"})
    assert answer.status_code == 422
    assert "question and documents (and answer)" in answer.text


def test_each_of_the_next_tokens_is_explained(client, models):
    answer = client.post(
        "/api/explain",
        json={"prompt": PROMPT, "target": {"generate": 3}, "method": ["attnlrp", "grad_x_input"]},
    )
    assert answer.status_code == 200, answer.text
    explainer = models.get_model("writer").explainer
    expected = explainer.explain(PROMPT, ["attnlrp", "grad_x_input"], Continuation(None, 3))
    entries = answer.json()["attributions"]
    assert len(entries) == len(expected) == 6
    for entry, attribution in zip(entries, expected, strict=True):
        assert entry["question"] == attribution.question
        np.testing.assert_allclose(entry["attribution"]["scores"], attribution.scores, atol=1e-9)
    too_many = {"prompt": PROMPT, "target": {"generate": 99}}
    assert client.post("/api/explain", json=too_many).status_code == 422
