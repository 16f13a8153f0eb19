"""The API answers what was asked, with the numbers that the library gives."""

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2ForSequenceClassification

from tests.families import GPT
from tests.tiny import tiny_tokenizer
from tests.unit.served import TEXT, allow_list, asking, refused
from tokenlight import Attribution, Contrast, Explainer, registry
from tokenlight.data.tokens import Question
from tokenlight.web.limits import ServerLimits
from tokenlight.web.models import Served
from tokenlight.web.requests import ExplainAsked
from tokenlight.web.tasks import Wanted, explain_batch

QUESTION = {"question": "who sat on the mat?", "context": "the cat sat on the mat in town."}


@pytest.fixture(scope="module")
def models():
    return allow_list()


@pytest.fixture(scope="module")
def client(models):
    with asking(models) as made:
        yield made


def explained(client, **asked):
    answer = client.post("/api/explain", json={"text": TEXT, **asked})
    assert answer.status_code == 200, answer.text
    return answer.json()


def scores(entry):
    return np.array(entry["attribution"]["scores"])


def test_models_are_listed_with_all_a_page_needs(client):
    listed = client.get("/api/models").json()
    tiny, answers = listed["models"]
    assert tiny["name"] == "tiny"
    assert tiny["labels"] == ["negative", "neutral", "positive"]
    assert tiny["inputs"][0] == ["text"]
    assert tiny["max_tokens"] == 48
    assert (tiny["layers"], tiny["heads"], tiny["head_map"]) == (3, 4, True)
    assert answers["task"] == "span"
    assert answers["inputs"] == [["question", "context"]]
    assert all("title" in example for example in tiny["examples"] + answers["examples"])
    assert listed["limits"]["characters"] == ServerLimits().characters


def test_every_method_is_listed_and_no_option_that_opens_a_file(client):
    listed = client.get("/api/methods").json()
    assert [one["name"] for one in listed["methods"]] == registry.names("methods")
    assert {one["group"] for one in listed["methods"]} <= set(listed["groups"])
    assert all(one["about"] and one["cost"] for one in listed["methods"])
    options = {one["name"]: [o["name"] for o in one["options"]] for one in listed["methods"]}
    assert "lm" not in options["decoded_gradcam"]
    assert "hidden" in options["attcat"]
    metrics = {one["name"]: one for one in listed["metrics"]}
    assert metrics["hiding_game"]["needs"] == ["labels"]
    assert "corpus" not in [o["name"] for o in metrics["token_overlap"]["options"]]


def test_an_explanation_equals_the_librarys(client, models):
    found = explained(client, method=["attcat", "rollout:start_layer=1"], layers=True)
    wanted = models.named("tiny").explainer.explain(
        TEXT, ["attcat", ("rollout", {"start_layer": 1})]
    )
    assert [one["method"] for one in found["attributions"]] == ["attcat", "rollout(start_layer=1)"]
    for entry, attribution in zip(found["attributions"], wanted, strict=True):
        np.testing.assert_allclose(scores(entry), attribution.scores, atol=1e-12)
        assert entry["target"] == attribution.target.name
        again = Attribution.from_dict(entry["attribution"])
        assert again.row == attribution.row
        assert again.prediction.label == attribution.prediction.label
    np.testing.assert_allclose(
        found["attributions"][0]["attribution"]["layers"], wanted[0].layers, atol=1e-12
    )
    assert found["refused"] == []


def test_layers_and_words_come_when_asked_for(client):
    (plain,) = explained(client, method="attcat")["attributions"]
    assert plain["has_layers"]
    assert plain["attribution"]["layers"] is None
    (merged,) = explained(client, text="slower charming film", words=True)["attributions"]
    assert merged["attribution"]["tokens"][1:-1] == ["slower", "charming", "film"]
    assert [word["text"] for word in merged["words"]] == ["slower", "charming", "film"]


def test_words_are_the_sums_of_their_tokens_at_their_places(client):
    text = "slower  charming film"
    (entry,) = explained(client, text=text)["attributions"]
    for word in entry["words"]:
        assert text[word["start"] : word["end"]] == word["text"]
        assert word["score"] == pytest.approx(scores(entry)[word["positions"]].sum())
    assert [len(word["positions"]) for word in entry["words"]] == [2, 2, 1]


@pytest.mark.parametrize(
    ("asked", "target"),
    [
        ("positive", "positive"),
        (0, 0),
        ({"for": "positive", "rather_than": "negative"}, Contrast("positive", "negative")),
    ],
)
def test_the_target_asked_for_is_explained(client, models, asked, target):
    (entry,) = explained(client, target=asked)["attributions"]
    wanted = models.named("tiny").explainer.explain(TEXT, target=target)
    assert entry["target"] == wanted.target.name
    np.testing.assert_allclose(scores(entry), wanted.scores, atol=1e-12)


def test_all_classes_come_method_by_method(client):
    found = explained(client, method=["attcat", "gae"], target="all")["attributions"]
    assert [(one["method"], one["target"]) for one in found] == [
        (method, label)
        for method in ("attcat", "gae")
        for label in ("negative", "neutral", "positive")
    ]


def test_questions_and_pairs_find_the_model_that_reads_them(client, models):
    answer = client.post("/api/explain", json=QUESTION).json()
    assert answer["model"] == "answers"
    wanted = models.named("answers").explainer.explain(Question(**QUESTION))
    np.testing.assert_allclose(scores(answer["attributions"][0]), wanted.scores, atol=1e-12)
    pair = explained(client, pair="we love this film")
    assert pair["model"] == "tiny"
    assert set(pair["attributions"][0]["attribution"]["row"]["segments"]) == {None, 0, 1}


def test_a_method_that_cannot_leaves_the_others_their_answer(client):
    found = explained(client, method=["attcat", "gradcam:layer=99", "gae"])
    assert [one["method"] for one in found["attributions"]] == ["attcat", "gae"]
    (why,) = found["refused"]
    assert why["method"] == "gradcam:layer=99"
    assert "layer=99 does not exist" in why["error"]["message"]
    alone = client.post("/api/explain", json={"text": TEXT, "method": "gradcam:layer=99"})
    assert "layer=99" in refused(alone, 422, "bad_input")["message"]


def test_agreement_is_spearmans_correlation_over_the_texts_own_tokens(client):
    from scipy.stats import spearmanr

    found = explained(client, method=["attcat", "gae", "rollout"])
    own = ~np.array(found["attributions"][0]["attribution"]["row"]["special"])
    one, other, _ = (scores(entry)[own] for entry in found["attributions"])
    matrix = found["agreement"]["matrix"]
    assert matrix[0][1] == pytest.approx(spearmanr(one, other).statistic, abs=1e-6)
    assert matrix[0][1] == matrix[1][0]
    assert matrix[2][2] == 1
    assert explained(client)["agreement"] is None


def test_trust_is_measured_and_kept_with_the_explanation(client):
    identity = explained(client, text="good film, bad plot")["attributions"][0]["id"]
    trust = client.post("/api/trust", json={"id": identity}).json()["trust"]
    assert trust["verdict"].startswith(("its order beats", "all words"))
    assert trust["grade"]
    assert trust["health_line"]
    kept = client.get(f"/api/attribution/{identity}").json()
    assert kept["extras"]["trust"] == trust
    answer = explained(client, text="good film, bad plot", trust=True)
    assert answer["untested"] == []
    (asked,) = answer["attributions"]
    assert asked["attribution"]["extras"]["trust"]["verdict"] == trust["verdict"]


def test_an_evaluation_equals_the_librarys(client, models):
    texts = ["the film is good", "a dull plot and bad acting"]
    asked = {"texts": texts, "method": ["attcat", "random"], "metrics": ["aopc", "lodds"]}
    answer = client.post("/api/evaluate", json=asked)
    assert answer.status_code == 200, answer.text
    explainer = models.named("tiny").explainer
    wanted = explainer.evaluate(explainer.explain(texts, ["attcat", "random"]), ["aopc", "lodds"])
    for method in ("attcat", "random"):
        for metric in ("aopc", "lodds"):
            mine = answer.json()["methods"][method][metric]
            theirs = wanted.by_method[method].summary[metric]
            for part in ("mean", "low", "high"):
                assert mine[part] == pytest.approx(theirs[part], abs=1e-9)
    assert [row["text"] for row in answer.json()["rows"]] == [0, 0, 1, 1]


def test_an_evaluation_with_labels_and_a_text_that_cannot_be(client):
    asked = {
        "texts": ["the film is good", "  ", "bad plot"],
        "labels": ["positive", None, "negative"],
        "metrics": ["hiding_game:steps=4"],
    }
    answer = client.post("/api/evaluate", json=asked).json()
    assert {row["text"] for row in answer["rows"]} == {0, 2}
    assert [(one["text"], one["error"]["code"]) for one in answer["refused"]] == [(1, "bad_input")]
    del asked["labels"]
    error = refused(client.post("/api/evaluate", json=asked), 422, "bad_input")
    assert "true labels" in error["message"]


def test_downloads_are_files_of_their_kind(client):
    first, second = explained(client, method=["attcat", "gae"])["attributions"]
    address = f"/api/attribution/{first['id']}"
    one = client.get(address)
    assert Attribution.from_dict(one.json()).layers is not None
    assert one.headers["content-disposition"] == 'attachment; filename="attribution.json"'
    both = client.get(address, params={"also": [second["id"]]}).json()
    assert [entry["method"] for entry in both] == ["attcat", "gae"]
    page = client.get(address, params={"format": "html", "also": second["id"]})
    assert page.text.startswith("<!doctype html>")
    assert "gae" in page.text
    assert "'self'" not in page.headers["content-security-policy"]
    assert "sandbox" in page.headers["content-security-policy"]
    assert b"<svg" in client.get(address, params={"format": "svg"}).content
    for figure in ("bars", "layers"):
        drawn = client.get(address, params={"format": "png", "figure": figure})
        assert drawn.content.startswith(b"\x89PNG")
    flat = client.get(
        f"/api/attribution/{second['id']}", params={"format": "svg", "figure": "layers"}
    )
    refused(flat, 422, "bad_input")


def test_the_head_map_is_shown_and_can_be_used(client):
    found = client.get("/api/heads/tiny").json()
    assert (found["layers"], found["heads"]) == (3, 4)
    assert found["syntactic"][1] == [0, 0, 2, 0]
    refused(client.get("/api/heads/answers"), 404, "not_found")
    given = explained(client, method=["mask_lrp:heads=given", "mask_lrp"])["attributions"]
    assert given[0]["method"] == "mask_lrp(heads=given)"
    assert np.abs(scores(given[0]) - scores(given[1])).max() > 0
    without = {"question": "who?", "context": "the cat.", "method": "mask_lrp:heads=given"}
    refused(client.post("/api/explain", json=without), 422, "not_allowed")


def test_the_map_of_one_head_is_the_models_own(client, models):
    import torch

    served = models.named("tiny")
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
    assert "layers 0 to 2" in refused(beyond, 422, "bad_input")["message"]


def test_the_schema_and_the_health_are_served(client):
    schema = client.get("/api/openapi.json").json()
    assert {"/api/explain", "/api/perturb", "/api/evaluate", "/api/models"} <= set(schema["paths"])
    assert client.get("/healthz").json()["status"] == "ok"


def test_which_methods_work_is_found_out_in_the_background():
    import time

    import httpx

    from tests.unit.served import running
    from tokenlight.web.app import application

    models = allow_list()
    app = application(models, limits=ServerLimits(idle_seconds=0.0))
    with running(app) as address:
        until = time.monotonic() + 120
        while len(models.named("answers").works) < len(registry.names("methods")):
            assert time.monotonic() < until
            time.sleep(0.05)
        methods = httpx.get(f"{address}/api/methods", timeout=60).json()["methods"]
    found = {one["name"]: one["models"] for one in methods}
    assert found["attcat"]["tiny"]["works"] is True
    assert found["decoded_gradcam"]["tiny"]["works"] is False
    assert "language model" in found["decoded_gradcam"]["tiny"]["why"]


def test_a_preset_means_what_it_means_for_this_kind_of_model():
    torch.manual_seed(0)
    config = GPT2Config(**GPT | {"vocab_size": 200})
    explainer = Explainer(GPT2ForSequenceClassification(config).double().eval(), tiny_tokenizer())
    served = Served("writer", explainer)
    asked = ExplainAsked(text="good film", method="transatt:preset=official")
    (found,) = explain_batch(served, [Wanted.of(asked, served)], ServerLimits().passes)
    wanted = explainer.explain("good film", ("transatt", {"preset": "official"}))
    assert found.attributions[0].options == wanted.options
    assert wanted.options["rules"] == "gpt2_official"
    np.testing.assert_allclose(found.attributions[0].scores, wanted.scores, atol=1e-12)


def test_an_explanation_whose_trust_costs_too_much_is_not_lost(models):
    with asking(models, limits=ServerLimits(trust_passes=10)) as client:
        found = explained(client, trust=True)
        (entry,) = found["attributions"]
        assert len(entry["attribution"]["scores"]) == len(entry["attribution"]["row"]["ids"])
        (missing,) = found["untested"]
        assert missing["id"] == entry["id"]
        assert missing["error"]["code"] == "too_costly"
        assert "keep this server busy" in missing["error"]["message"]
        assert client.get(f"/api/attribution/{entry['id']}").status_code == 200
