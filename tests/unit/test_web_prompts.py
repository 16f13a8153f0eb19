"""Language models on the page: a prompt, the next token, and why this token rather than that one."""

import numpy as np
import pytest

from tests.unit.served import asking, refused, tiny_writer
from tokenlight import Context, Continuation, Contrast, NextToken
from tokenlight.errors import UnsupportedModel
from tokenlight.web.models import AllowList, Served, load

PROMPT = "the film was very"


@pytest.fixture(scope="module")
def models():
    return AllowList([Served("writer", tiny_writer())])


@pytest.fixture(scope="module")
def client(models):
    with asking(models) as made:
        yield made


def test_it_is_listed_as_a_model_that_writes_on(client):
    (facts,) = client.get("/api/models").json()["models"]
    assert facts["task"] == "next token"
    assert facts["inputs"][0] == ["prompt"]
    assert facts["labels"] == []
    assert facts["targets"] == ["predicted", "token", "contrast"]
    assert all("prompt" in example for example in facts["examples"])


@pytest.mark.parametrize(
    ("asked", "target"),
    [
        ("predicted", "predicted"),
        ({"token": "good"}, NextToken("good")),
        ({"for": "good", "rather_than": "bad"}, Contrast("good", "bad")),
    ],
)
def test_the_next_token_is_explained_as_the_library_does(client, models, asked, target):
    answer = client.post(
        "/api/explain", json={"prompt": PROMPT, "target": asked, "method": ["attcat", "gae"]}
    )
    assert answer.status_code == 200, answer.text
    wanted = models.named("writer").explainer.explain(PROMPT, ["attcat", "gae"], target)
    for entry, attribution in zip(answer.json()["attributions"], wanted, strict=True):
        assert entry["target"] == attribution.target.name
        np.testing.assert_allclose(entry["attribution"]["scores"], attribution.scores, atol=1e-12)
    said = answer.json()["prediction"]
    assert len(said["labels"]) == len(said["probabilities"]) == 10


def test_the_game_watches_the_token(client, models):
    asked = {"prompt": PROMPT, "target": {"token": "good"}}
    entry = client.post("/api/explain", json=asked).json()["attributions"][0]
    answer = client.post("/api/perturb", json={"ids": [entry["id"]], "random_orders": 2}).json()
    game = answer["games"][0]
    logits = models.named("writer").explainer.explain(PROMPT, target=NextToken("good")).logits
    chances = np.exp(logits - logits.max())
    index = entry["attribution"]["target"]["terms"][0][0][0]
    wanted = chances[index] / chances.sum()
    assert game["hide"]["watched"][0] == pytest.approx(wanted, abs=1e-9)
    assert game["hide"]["probabilities"][0] == [game["hide"]["watched"][0]]
    assert answer["labels"] == ["watched"]


def test_trust_evaluation_and_opening_work_on_prompts(client):
    entry = client.post("/api/explain", json={"prompt": PROMPT}).json()["attributions"][0]
    trust = client.post("/api/trust", json={"id": entry["id"]}).json()["trust"]
    assert trust["verdict"]
    opened = client.post("/api/open", json=entry["attribution"]).json()
    assert opened["served"] is True
    asked = {"texts": [{"prompt": PROMPT}], "metrics": ["aopc"]}
    measured = client.post("/api/evaluate", json=asked).json()
    assert measured["rows"][0]["aopc"] is not None


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"target": "all"}, "bad_target"),
        ({"target": {"token": "unheard of"}}, "bad_target"),
        ({"question": "who?"}, "invalid"),
    ],
)
def test_what_a_language_model_cannot_is_said(client, asked, code):
    refused(client.post("/api/explain", json={"prompt": PROMPT, **asked}), 422, code)


def test_a_classifier_reads_no_prompt(client):
    refused(client.post("/api/explain", json={"text": "a", "pair": "b"}), 422, "bad_input")


def test_a_head_the_page_has_no_place_for_is_refused_at_start(tmp_path, tokenizer):
    from tests.tiny import tiny_bert_lm

    tiny_bert_lm().save_pretrained(tmp_path / "filler")
    tokenizer.save_pretrained(tmp_path / "filler")
    with pytest.raises(UnsupportedModel, match="filler cannot be served"):
        load([str(tmp_path / "filler")])


ABOUT = {"question": "what film is it", "documents": "the red film\n\na blue cat\n \na dog"}


@pytest.mark.parametrize("answer", ["very good", None])
def test_documents_a_question_and_an_answer_are_explained_as_a_whole(client, models, answer):
    given = {} if answer is None else {"answer": answer}
    asked = {**ABOUT, **given, "method": ["grad_x_input", "gae"]}
    made = client.post("/api/explain", json=asked)
    assert made.status_code == 200, made.text
    context = Context(["the red film", "a blue cat", "a dog"], ABOUT["question"])
    written = Continuation(None if answer is None else " very good", 16, together=True)
    explainer = models.named("writer").explainer
    wanted = explainer.explain(context, ["grad_x_input", "gae"], written)
    for entry, attribution in zip(made.json()["attributions"], wanted, strict=True):
        assert entry["target"] == attribution.target.name
        names = [*(f"document {number}" for number in (1, 2, 3)), "question"]
        assert entry["attribution"]["row"]["names"][:4] == names
        np.testing.assert_allclose(entry["attribution"]["scores"], attribution.scores, atol=1e-12)
    entry = made.json()["attributions"][0]
    trust = client.post("/api/trust", json={"id": entry["id"]}).json()["trust"]
    assert trust["verdict"]
    game = client.post("/api/perturb", json={"ids": [entry["id"]], "random_orders": 1})
    assert game.status_code == 200, game.text


def test_documents_without_a_question_are_refused(client):
    answer = client.post("/api/explain", json={"documents": "a cat"})
    assert answer.status_code == 422
    assert "question and documents (and answer)" in answer.text
