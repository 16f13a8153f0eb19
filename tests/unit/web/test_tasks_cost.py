"""Requests that cost too much are refused before they start."""

import pytest

from tests.helpers.api_server import TEXT, assert_error, make_allow_list
from tokenlight import Explainer
from tokenlight.evaluation.removal import AppliedRemoval
from tokenlight.evaluation.removal_test import RemovalTest
from tokenlight.web.api_errors import ApiError
from tokenlight.web.limits import ServerLimits
from tokenlight.web.requests import EvaluateBody, ExplainBody
from tokenlight.web.tasks import (
    TRUST_ORDERS,
    ExplainRequest,
    check_cost,
    count_trust_passes,
    encode_row,
    evaluate,
    explain_alone,
)


def test_costly_requests_are_refused_before_they_start(client):
    payload = {"text": TEXT, "method": "shapley:num_samples=90000"}
    error = assert_error(client.post("/api/explain", json=payload), 422, "too_costly")
    assert "tokens through the model" in error["message"]


def test_the_cost_of_a_text_in_windows_is_the_sum_over_windows(client):
    long = {"text": "good film " * 1500, "long": "stride"}
    for method in ("integrated_gradients", "attention_flow"):
        payload = {**long, "method": method}
        assert_error(client.post("/api/explain", json=payload), 422, "too_costly")
    answer = client.post("/api/explain", json={**long, "text": "good film " * 100})
    assert "overlapping windows" in answer.json()["attributions"][0]["attribution"]["notes"][-1]


def test_the_cost_of_a_question_counts_one_window():
    served = make_allow_list().get_model("answers")
    context = "the cat sat . " * 100
    payload = ExplainBody(question="who?", context=context, method="attcat", long="stride")
    one_window = 3 * served.explainer.max_tokens
    explain_alone(served, ExplainRequest.from_body(payload, served), one_window)


def test_the_cost_of_all_classes_counts_each_class():
    served = make_allow_list().get_model("tiny")
    request = ExplainRequest.from_body(ExplainBody(text=TEXT, target="all"), served)
    check_cost(request, served, [30], 3 * 30 * len(served.labels))
    with pytest.raises(ApiError, match="tokens through the model"):
        check_cost(request, served, [30], 3 * 30 * len(served.labels) - 1)


@pytest.mark.parametrize("max_orders", TRUST_ORDERS)
def test_the_cost_of_a_trust_test_is_the_most_partial_texts_it_runs(max_orders):
    explainer = Explainer.from_pretrained("tokenlight/sentiment")
    words = [
        f"{first} {second}" for first in ("warm", "dull", "long") for second in ("film", "plot")
    ]
    (attribution,) = explainer.explain([", ".join(words)], "random")
    test = RemovalTest(explainer, max_orders=max_orders)
    partial_texts = test.get_partial_texts(attribution)
    assert len(partial_texts.removals) == 3
    run_texts = list[AppliedRemoval]()
    run = partial_texts.removal_runner.run

    def run_and_count(texts):
        run_texts.extend(texts)
        return run(texts)

    partial_texts.removal_runner.run = run_and_count
    partial_texts.prefetch([attribution.scores], max_orders)
    assert len(run_texts) == count_trust_passes(max_orders)


@pytest.mark.parametrize(
    ("metric", "target", "explanations", "changed"),
    [
        ("kendall", "predicted", 1 + 3, 0),
        ("randomisation", "predicted", 1 + 5, 0),  # the head, three blocks, the embeddings
        ("deletion:num_steps=50", "predicted", 1, 52),
        ("deletion:num_steps=50", "all", 3, 3 * 52),
    ],
)
def test_the_cost_of_an_evaluation_counts_all_passes(metric, target, explanations, changed):
    served = make_allow_list().get_model("tiny")
    tokens = len(encode_row(served, TEXT, "error"))
    payload = EvaluateBody(texts=[TEXT], metrics=[metric], target=target)
    cost = tokens * (3 * explanations + changed)
    evaluate(served, payload, ServerLimits(evaluation_token_passes=cost))
    with pytest.raises(ApiError, match="tokens through the model"):
        evaluate(served, payload, ServerLimits(evaluation_token_passes=cost - 1))
