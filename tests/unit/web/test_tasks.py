"""Explaining and measuring for a request: the numbers that the library gives."""

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2ForSequenceClassification

from tests.helpers.api_server import (
    TEXT,
    assert_error,
    connect_client,
    get_scores,
    make_allow_list,
    request_explanation,
)
from tests.helpers.deadlines import DEADLINE_SECONDS
from tests.helpers.families import GPT
from tests.helpers.tiny import tiny_tokenizer
from tokenlight import Attribution, Contrast, Explainer
from tokenlight.data.tokens import Question
from tokenlight.web.limits import ServerLimits
from tokenlight.web.models import ServedModel
from tokenlight.web.requests import ExplainBody
from tokenlight.web.tasks import ExplainRequest, explain_batch

QUESTION = {"question": "who sat on the mat?", "context": "the cat sat on the mat in town."}


def test_an_explanation_equals_the_librarys(client, models):
    response = request_explanation(client, method=["attcat", "rollout:start_layer=1"], layers=True)
    expected = models.get_model("tiny").explainer.explain(
        TEXT, ["attcat", ("rollout", {"start_layer": 1})]
    )
    assert [entry["method"] for entry in response["attributions"]] == [
        "attcat",
        "rollout(start_layer=1)",
    ]
    for entry, attribution in zip(response["attributions"], expected, strict=True):
        np.testing.assert_allclose(get_scores(entry), attribution.scores, atol=1e-12)
        assert entry["target"] == attribution.target.name
        loaded = Attribution.from_dict(entry["attribution"])
        assert loaded.row == attribution.row
        assert loaded.prediction.label == attribution.prediction.label
    np.testing.assert_allclose(
        response["attributions"][0]["attribution"]["layers"], expected[0].layers, atol=1e-12
    )
    assert response["refused"] == []


def test_layers_and_words_are_included_on_request(client):
    (plain,) = request_explanation(client, method="attcat")["attributions"]
    assert plain["has_layers"]
    assert plain["attribution"]["layers"] is None
    (merged,) = request_explanation(client, text="slower charming film", words=True)["attributions"]
    assert merged["attribution"]["tokens"][1:-1] == ["slower", "charming", "film"]
    assert [word["text"] for word in merged["words"]] == ["slower", "charming", "film"]


def test_words_have_the_sum_of_their_tokens_and_their_span(client):
    text = "slower  charming film"
    (entry,) = request_explanation(client, text=text)["attributions"]
    for word in entry["words"]:
        assert text[word["start"] : word["end"]] == word["text"]
        assert word["score"] == pytest.approx(get_scores(entry)[word["positions"]].sum())
    assert [len(word["positions"]) for word in entry["words"]] == [2, 2, 1]


@pytest.mark.parametrize(
    ("requested", "target"),
    [
        ("positive", "positive"),
        (0, 0),
        ({"for": "positive", "rather_than": "negative"}, Contrast("positive", "negative")),
    ],
)
def test_the_requested_target_is_explained(client, models, requested, target):
    (entry,) = request_explanation(client, target=requested)["attributions"]
    expected = models.get_model("tiny").explainer.explain(TEXT, target=target)
    assert entry["target"] == expected.target.name
    np.testing.assert_allclose(get_scores(entry), expected.scores, atol=1e-12)


def test_all_classes_are_ordered_by_method(client):
    entries = request_explanation(client, method=["attcat", "gae"], target="all")["attributions"]
    assert [(entry["method"], entry["target"]) for entry in entries] == [
        (method, label)
        for method in ("attcat", "gae")
        for label in ("negative", "neutral", "positive")
    ]


def test_questions_and_pairs_find_the_model_that_reads_them(client, models):
    answer = client.post("/api/explain", json=QUESTION).json()
    assert answer["model"] == "answers"
    expected = models.get_model("answers").explainer.explain(Question(**QUESTION))
    np.testing.assert_allclose(get_scores(answer["attributions"][0]), expected.scores, atol=1e-12)
    pair = request_explanation(client, pair="we love this film")
    assert pair["model"] == "tiny"
    assert set(pair["attributions"][0]["attribution"]["row"]["segments"]) == {None, 0, 1}


def test_a_failing_method_does_not_affect_the_others(client):
    response = request_explanation(client, method=["attcat", "gradcam:layer=99", "gae"])
    assert [entry["method"] for entry in response["attributions"]] == ["attcat", "gae"]
    (why,) = response["refused"]
    assert why["method"] == "gradcam:layer=99"
    assert "layer=99" in why["error"]["message"]
    alone = client.post("/api/explain", json={"text": TEXT, "method": "gradcam:layer=99"})
    assert "layer=99" in assert_error(alone, 422, "bad_input")["message"]


def test_agreement_is_spearmans_correlation_over_the_texts_own_tokens(client):
    from scipy.stats import spearmanr

    response = request_explanation(client, method=["attcat", "gae", "rollout"])
    is_word = ~np.array(response["attributions"][0]["attribution"]["row"]["special"])
    first, second, _ = (get_scores(entry)[is_word] for entry in response["attributions"])
    matrix = response["agreement"]["matrix"]
    assert matrix[0][1] == pytest.approx(spearmanr(first, second).statistic, abs=1e-6)
    assert matrix[0][1] == matrix[1][0]
    assert matrix[2][2] == 1
    assert request_explanation(client)["agreement"] is None


def test_trust_is_measured_and_kept_with_the_explanation(client):
    identity = request_explanation(client, text="good film, bad plot")["attributions"][0]["id"]
    trust = client.post("/api/trust", json={"id": identity}).json()["trust"]
    assert trust["verdict"]
    assert trust["grade"]
    assert trust["health_line"]
    stored = client.get(f"/api/attribution/{identity}").json()
    assert stored["extras"]["trust"] == trust
    answer = request_explanation(client, text="good film, bad plot", trust=True)
    assert answer["untested"] == []
    (entry,) = answer["attributions"]
    assert entry["attribution"]["extras"]["trust"]["verdict"] == trust["verdict"]


def test_an_evaluation_equals_the_librarys(client, models):
    texts = ["the film is good", "a dull plot and bad acting"]
    payload = {"texts": texts, "method": ["attcat", "random"], "metrics": ["aopc", "lodds"]}
    answer = client.post("/api/evaluate", json=payload)
    assert answer.status_code == 200, answer.text
    explainer = models.get_model("tiny").explainer
    expected = explainer.evaluate(explainer.explain(texts, ["attcat", "random"]), ["aopc", "lodds"])
    for method in ("attcat", "random"):
        for metric in ("aopc", "lodds"):
            mine = answer.json()["methods"][method][metric]
            reference = expected.by_method[method].summary[metric]
            for part in ("mean", "low", "high"):
                assert mine[part] == pytest.approx(reference[part], abs=1e-9)
    assert [row["text"] for row in answer.json()["rows"]] == [0, 0, 1, 1]


def test_an_evaluation_with_labels_reports_an_empty_text(client):
    payload = {
        "texts": ["the film is good", "  ", "bad plot"],
        "labels": ["positive", None, "negative"],
        "metrics": ["hiding_game:num_steps=4"],
    }
    answer = client.post("/api/evaluate", json=payload).json()
    assert {row["text"] for row in answer["rows"]} == {0, 2}
    assert [(refusal["text"], refusal["error"]["code"]) for refusal in answer["refused"]] == [
        (1, "bad_input")
    ]
    del payload["labels"]
    error = assert_error(client.post("/api/evaluate", json=payload), 422, "bad_input")
    assert "true labels" in error["message"]


def test_the_map_of_one_head_is_the_models_own(client, models):
    import torch

    served = models.get_model("tiny")
    answer = client.post("/api/attention", json={"text": TEXT, "layer": 1, "head": 2}).json()
    encoded = served.explainer.tokenizer(TEXT, return_tensors="pt")
    eager = type(served.explainer.model)._from_config(
        served.explainer.model.config, attn_implementation="eager"
    )
    eager.load_state_dict(served.explainer.model.state_dict())
    with torch.no_grad():
        maps = eager.double().eval()(**encoded, output_attentions=True).attentions
    np.testing.assert_allclose(answer["weights"], maps[1][0, 2], atol=1e-6)
    assert len(answer["tokens"]) == len(answer["weights"])
    mean = client.post("/api/attention", json={"text": TEXT, "layer": 1}).json()
    np.testing.assert_allclose(mean["weights"], maps[1][0].mean(0), atol=1e-6)
    beyond = client.post("/api/attention", json={"text": TEXT, "layer": 3, "head": 0})
    assert "layers 0 to 2" in assert_error(beyond, 422, "bad_input")["message"]


def test_methods_are_tried_in_the_background():
    import time

    import httpx

    from tests.helpers.api_server import run_server
    from tokenlight.web.app import create_app

    models = make_allow_list()
    app = create_app(models, limits=ServerLimits(idle_seconds=0.0))
    with run_server(app) as address:
        until = time.monotonic() + DEADLINE_SECONDS
        # Not until all are tried: what each method does with each model is tested elsewhere.
        while not {"attcat", "decoded_gradcam"} <= models.get_model("tiny").trial_results.keys():
            assert time.monotonic() < until
            time.sleep(0.05)
        methods = httpx.get(f"{address}/api/methods", timeout=DEADLINE_SECONDS).json()["methods"]
    support_by_method = {method["name"]: method["models"] for method in methods}
    assert support_by_method["attcat"]["tiny"]["is_supported"] is True
    assert support_by_method["decoded_gradcam"]["tiny"]["is_supported"] is False
    assert "language model" in support_by_method["decoded_gradcam"]["tiny"]["reason"]


def test_a_preset_is_resolved_for_the_model():
    torch.manual_seed(0)
    config = GPT2Config(**GPT | {"vocab_size": 200})
    explainer = Explainer(GPT2ForSequenceClassification(config).double().eval(), tiny_tokenizer())
    served = ServedModel("writer", explainer)
    payload = ExplainBody(text="good film", method="transatt:preset=official")
    (result,) = explain_batch(
        served, [ExplainRequest.from_body(payload, served)], ServerLimits().explain_token_passes
    )
    expected = explainer.explain("good film", ("transatt", {"preset": "official"}))
    assert result.attributions[0].options == expected.options
    assert expected.options["rules"] == "mask_lrp_gpt2"
    np.testing.assert_allclose(result.attributions[0].scores, expected.scores, atol=1e-12)


def test_an_explanation_whose_trust_costs_too_much_is_not_lost(models):
    with connect_client(models, limits=ServerLimits(trust_token_passes=10)) as client:
        response = request_explanation(client, trust=True)
        (entry,) = response["attributions"]
        assert len(entry["attribution"]["scores"]) == len(entry["attribution"]["row"]["ids"])
        (missing,) = response["untested"]
        assert missing["id"] == entry["id"]
        assert missing["error"]["code"] == "too_costly"
        assert "keep this server busy" in missing["error"]["message"]
        assert client.get(f"/api/attribution/{entry['id']}").status_code == 200
