"""Hard cases, each with a stated behaviour: NaN, ties, one token, one class, no labels, long texts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.helpers.expect import expect_error
from tests.helpers.planted_model import make_attribution, make_planted_explainer
from tests.helpers.tiny import tiny_bert
from tokenlight import Explainer, registry
from tokenlight.data.intervals import (
    bootstrap_curve,
    bootstrap_mean,
    bootstrap_statistic,
    to_json_value,
)
from tokenlight.data.postprocess import absolute, merge_words
from tokenlight.data.ranks import rank_correlation
from tokenlight.errors import BadInput, BadTarget, NotFinite, TokenlightError

MODEL_METRICS = (
    "aopc",
    "lodds",
    "comprehensiveness",
    "sufficiency",
    "hiding_game",
    "revealing_game",
)


def test_nan_scores_cannot_become_an_explanation():
    explainer = make_planted_explainer()
    with pytest.raises(NotFinite, match="scores hold NaN or infinity, first at index 2"):
        make_attribution(explainer, [10, 11, 12], [1.0, np.nan, 2.0])


def test_non_finite_logits_skip_the_metric_with_a_reason():
    explainer = make_planted_explainer()
    good, bad = (
        make_attribution(explainer, words, [3, 2, 1]) for words in ([10, 11, 12], [20, 21, 22])
    )
    with torch.no_grad():
        explainer.model.words.weight[21] = torch.nan
    evaluation = explainer.evaluate([good, bad], list(MODEL_METRICS), labels=[0, 1])
    for name in MODEL_METRICS:
        assert evaluation.rows[0][name] is not None
        assert evaluation.rows[1][name] is None
        assert "returns NaN or infinity for a" in evaluation.rows[1][f"{name}.skipped"]
        assert evaluation.summary[name]["count"] == 1


@pytest.mark.parametrize("name", MODEL_METRICS)
def test_scores_that_are_all_equal_rank_in_the_order_of_the_text(name):
    explainer = make_planted_explainer()
    words = [10, 11, 12, 13, 14]
    equal = make_attribution(explainer, words, [1] * 5)
    falling = make_attribution(explainer, words, [5, 4, 3, 2, 1])
    rows = explainer.evaluate([equal, falling], name, labels=[0, 0]).rows
    assert rows[0][name] == rows[1][name]


@pytest.mark.parametrize("name", ["kendall", "randomisation"])
def test_a_rank_correlation_of_equal_scores_is_left_out_with_its_reason(name, tokenizer):
    explainer = Explainer(tiny_bert(), tokenizer)
    attribution = explainer.explain("the film is good", "attcat")
    flat = type(attribution)(
        **{**_list_fields(attribution), "scores": np.ones(len(attribution)), "layers": None}
    )
    evaluation = explainer.evaluate([flat], name)
    assert evaluation.rows[0][name] is None
    assert "all scores of this text are equal" in evaluation.rows[0][f"{name}.skipped"]
    assert np.isnan(evaluation.summary[name]["mean"])
    assert evaluation.summary[name]["count"] == 0
    assert list(evaluation.summary[name]["skipped"].values()) == [1]


@pytest.mark.parametrize("name", MODEL_METRICS)
def test_a_text_of_one_token_is_measured(name):
    explainer = make_planted_explainer()
    attribution = make_attribution(explainer, [10], [1])
    summary = explainer.evaluate(attribution, name, labels=[0]).summary[name]
    assert np.isfinite(summary["mean"])
    assert (summary["low"], summary["high"], summary["count"]) == (
        summary["mean"],
        summary["mean"],
        1,
    )


def test_a_text_without_special_tokens_can_lose_them_all():
    explainer = make_planted_explainer()
    attribution = make_attribution(explainer, [10, 11], [1, 2], special=False)
    curve = explainer.evaluate(attribution, "aopc").rows[0]["aopc.curve"]
    assert np.isfinite(curve).all()


@pytest.mark.parametrize("name", ["aopc", "lodds", "comprehensiveness", "sufficiency"])
def test_a_model_with_one_output_is_refused_before_any_work(name, tokenizer):
    explainer = Explainer(tiny_bert(id2label={0: "score"}, label2id={"score": 0}), tokenizer)
    attribution = explainer.explain("good film", "attcat")
    with expect_error(BadTarget, "no-probabilities", mentions="(score)"):
        explainer.evaluate(attribution, name)


@pytest.mark.parametrize("name", ["deletion", "hiding_game"])
def test_metrics_suggested_for_a_model_with_one_output_measure_it(name, tokenizer):
    explainer = Explainer(tiny_bert(id2label={0: "score"}, label2id={"score": 0}), tokenizer)
    attribution = explainer.explain("good film", "attcat")
    with pytest.raises(TokenlightError) as refused:
        explainer.evaluate(attribution, name, labels=[0])
    suggested = [
        metric
        for metric in registry.list_names("metrics")
        if metric != name and metric in str(refused.value)
    ]
    assert len(suggested) > 1
    for metric in suggested:
        evaluation = explainer.evaluate(attribution, metric, labels=[0], spans=[[(0, 4)]])
        assert evaluation.summary[metric]["count"] == 1


def test_a_classifier_with_one_class_is_refused_since_its_probability_is_always_one(tokenizer):
    model = tiny_bert(id2label={0: "only"}, label2id={"only": 0})
    model.config.problem_type = "single_label_classification"
    explainer = Explainer(model, tokenizer)
    attribution = explainer.explain("good film", "attcat")
    with expect_error(BadTarget, "no-probabilities", mentions="(only)"):
        explainer.evaluate(attribution, "aopc")
    with expect_error(BadTarget, "no-probabilities"):
        explainer.evaluate(attribution, "hiding_game", labels=[0])
    for name in ("kendall", "token_overlap"):
        with expect_error(BadTarget, "no-classes"):
            explainer.evaluate(attribution, name)


@pytest.mark.parametrize("name", ["hiding_game", "revealing_game"])
def test_an_accuracy_game_without_labels_is_refused_with_what_to_give(name):
    explainer = make_planted_explainer()
    with expect_error(BadInput, "labels-or-reference-required"):
        explainer.evaluate(make_attribution(explainer, [10], [1]), name)


def test_one_text_without_label_is_left_out_of_the_game_and_kept_elsewhere():
    explainer = make_planted_explainer()
    attributions = [make_attribution(explainer, [10 + i, 20], [1, 2]) for i in range(3)]
    evaluation = explainer.evaluate(attributions, ["hiding_game", "aopc"], labels=[0, None, 1])
    assert [row["hiding_game"] is None for row in evaluation.rows] == [False, True, False]
    assert (
        evaluation.rows[1]["hiding_game.skipped"]
        == "The text has no label. Give one, or use target=predicted."
    )
    assert evaluation.summary["aopc"]["count"] == 3


@pytest.mark.parametrize("name", ["rationale", "precision_at_k"])
def test_missing_spans_are_refused_with_what_to_give(name):
    explainer = make_planted_explainer()
    with expect_error(BadInput, "spans-required"):
        explainer.evaluate(make_attribution(explainer, [10], [1]), name)


def test_scores_of_words_are_not_measured_as_if_they_were_of_tokens(tokenizer):
    explainer = Explainer(tiny_bert(), tokenizer)
    attribution = merge_words(explainer.explain("charming slower film", "attcat"))
    row = explainer.evaluate(attribution, "aopc").rows[0]
    assert row["aopc"] is None
    assert "these are word scores" in row["aopc.skipped"]


def test_further_explanations_repeat_the_postprocessing(tokenizer):
    explainer = Explainer(tiny_bert(), tokenizer)
    attribution = explainer.explain("the film is not very good", "attcat")
    signed = explainer.evaluate(attribution, "kendall").summary["kendall"]["mean"]
    magnitude = explainer.evaluate(absolute(attribution), "kendall").summary["kendall"]["mean"]
    by_hand = [
        rank_correlation(np.abs(attribution.scores), np.abs(other.scores), "kendall")
        for other in explainer.explain("the film is not very good", "attcat", target="all")
        if other.target != attribution.target
    ]
    assert magnitude == pytest.approx(np.mean(by_hand))
    assert magnitude != signed


def test_an_imported_explanation_cannot_be_recomputed():
    explainer = make_planted_explainer()
    attribution = make_attribution(explainer, [10, 11], [1, 2], method="somebody's")
    row = explainer.evaluate(attribution, "kendall").rows[0]
    assert 'further explanations by "somebody\'s"' in row["kendall.skipped"]


def test_metrics_that_run_the_model_leave_out_texts_explained_in_windows(tokenizer):
    explainer = Explainer(tiny_bert(), tokenizer)
    attribution = explainer.explain("good film . " * 30, "attcat", long="stride")
    row = explainer.evaluate(attribution, ["aopc", "rationale"], spans=[[(0, 4)]]).rows[0]
    assert "was read in windows" in row["aopc.skipped"]
    assert row["rationale"] is not None


def test_short_texts_are_left_out_where_the_official_code_leaves_them_out():
    explainer = make_planted_explainer()
    attribution = make_attribution(explainer, [10, 11], [1, 2])
    row = explainer.evaluate(attribution, ("aopc", {"preset": "attcat"}), labels=[0]).rows[0]
    assert "fewer than min_tokens=10" in row["aopc.skipped"]
    low = ("aopc", {"min_probability": 1.0})
    assert "below min_probability" in explainer.evaluate(attribution, low).rows[0]["aopc.skipped"]


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (
            ("hiding_game", {"num_steps": 0}),
            "num_steps=0 of hiding_game is not valid. Give a number from 1",
        ),
        (("token_overlap", {"k": 0}), "k=0 of token_overlap is not valid. Give a number from 1"),
        (("precision_at_k", {"k": 0}), "k=0 of precision_at_k is not valid. Give a number from 1"),
        ("aopcc", "Did you mean 'aopc'"),
        (("aopc", {"perturbs": "pad"}), "Did you mean 'perturb'"),
        (("aopc", {"preset": "attkat"}), "Did you mean 'attcat'"),
        ([], "No metric was given"),
        (["aopc", "aopc"], "given twice"),
    ],
)
def test_a_wrong_metric_is_named(metric, message):
    explainer = make_planted_explainer()
    with pytest.raises(Exception, match=message):
        explainer.evaluate(make_attribution(explainer, [10], [1]), metric, labels=[0])


def test_an_empty_sample_has_no_interval():
    assert np.isnan(bootstrap_mean([]).mean)
    assert to_json_value(bootstrap_mean([])) == {
        "mean": None,
        "low": None,
        "high": None,
        "count": 0,
    }
    assert bootstrap_curve([(), ()]) == ()
    assert bootstrap_statistic(0, lambda _: 1.0).count == 0


def test_the_interval_of_equal_values_is_that_value():
    single = bootstrap_mean([0.3])
    assert (single.mean, single.low, single.high, single.count) == (0.3, 0.3, 0.3, 1)
    same = bootstrap_mean([0.3] * 9)
    assert (same.low, same.high) == (same.mean, same.mean)


def test_the_interval_of_an_outlier_or_of_two_values_contains_the_mean():
    outlier = bootstrap_mean([0.0] * 50 + [1.0])
    assert np.isfinite([outlier.low, outlier.high]).all()
    assert outlier.low <= outlier.mean <= outlier.high
    of_two = bootstrap_mean([0.0, 1.0])
    assert of_two.low <= 0.5 <= of_two.high


def test_an_interval_covers_the_true_mean_at_its_nominal_rate():
    generator = np.random.default_rng(0)
    held = 0
    for trial in range(120):
        interval = bootstrap_mean(generator.exponential(size=60), seed=trial)
        held += interval.low <= 1.0 <= interval.high
    assert 0.88 <= held / 120 <= 0.99


def test_a_curve_interval_equals_the_intervals_of_its_points():
    table = np.random.default_rng(1).normal(size=(40, 3))
    for interval, column in zip(bootstrap_curve(table), table.T, strict=True):
        single = bootstrap_mean(column)
        assert interval.mean == pytest.approx(single.mean)
        assert interval.low == pytest.approx(single.low, abs=0.06)
        assert interval.high == pytest.approx(single.high, abs=0.06)


def _list_fields(attribution):
    return {name: getattr(attribution, name) for name in attribution.__dataclass_fields__}
