"""The trust score: an explanation against chance, in plain words, and its health."""

from __future__ import annotations

import json
from dataclasses import replace
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import pytest
import torch
from transformers import BertForTokenClassification, BertModel

from tests.helpers.planted_model import (
    compute_oracle_scores,
    make_attribution,
    make_planted_explainer,
)
from tests.helpers.tiny import randomize_weights, tiny_bert, tiny_bert_lm, tiny_bert_qa, tiny_config
from tokenlight import Attribution, Explainer, Question, TokenTarget
from tokenlight.data.postprocess import merge_words
from tokenlight.data.trust import read_trust
from tokenlight.evaluation.grade import (
    JointEvidence,
    assign_grade,
    is_decided,
    judge_removal,
    would_pass_by_positions,
    would_pass_with_top_words_alone,
    would_pass_without_signs,
)
from tokenlight.evaluation.random_partial_texts import ORDER_BLOCKS
from tokenlight.evaluation.removal import RemovalRunner
from tokenlight.evaluation.removal_test import RemovalTest, count_tied
from tokenlight.evaluation.trust import assess_trust, assess_trust_of_all, run_health_checks
from tokenlight.plots.descriptions import get_verdict
from tokenlight.plots.trust_charts import build_removal_charts

WORDS = list(range(10, 26))


def assess_planted(kind, words=WORDS, **options):
    """Assess scores of one kind for a model whose true weights are known."""
    explainer = make_planted_explainer()
    truth = compute_oracle_scores(
        explainer, words, make_attribution(explainer, words, [0] * len(words)).prediction.index
    )
    scores = {
        "oracle": truth,
        "inverted": -truth,
        "random": np.random.default_rng(2).normal(size=len(words)),
    }[kind]
    return assess_trust(explainer, make_attribution(explainer, words, scores), **options).extras[
        "trust"
    ]


def test_the_oracle_is_faithful_under_every_removal():
    trust = assess_planted("oracle")
    assert trust["grade"] == "faithful"
    # The planted text is ids, for which no language model proposes words.
    assert [removal["removal"] for removal in trust["removals"]] == ["delete", "mask"]
    for removal in trust["removals"]:
        assert removal["share_beaten"] > 0.9
        assert removal["correlation"] > 0.9
        assert removal["correlation_rank"] > 0.99


def test_the_inverted_oracle_is_worse_than_chance():
    trust = assess_planted("inverted")
    assert trust["grade"] == "worse than chance"
    for removal in trust["removals"]:
        assert removal["share_beaten"] < 0.1
        assert removal["correlation"] < -0.9


def test_most_random_scores_are_no_better_than_chance_and_few_get_a_good_grade():
    """Chance gives one of twenty random explanations a good grade."""
    explainer = make_planted_explainer()
    draw = np.random.default_rng(2)
    test = RemovalTest(explainer)
    grades = []
    for _ in range(20):
        words = draw.choice(np.arange(5, 40), size=16, replace=False).tolist()
        for _ in range(10):
            attribution = make_attribution(explainer, words, draw.normal(size=len(words)))
            grades.append(test(attribution)["grade"])
    assert grades.count("no better than chance") > 100
    # Of 200 at 5 % each, 18 or fewer in 99 of 100 such draws.
    assert grades.count("faithful") + grades.count("better than chance") <= 18


@pytest.mark.parametrize(
    ("kind", "allowed"),
    [("oracle", {"faithful"}), ("inverted", {"worse than chance"})],
)
def test_the_grade_separates_the_oracle_from_its_inverse_at_any_length(kind, allowed):
    explainer = make_planted_explainer()
    draw = np.random.default_rng(5)
    for length in (8, 12, 20, 30):
        words = draw.choice(np.arange(5, 40), size=length, replace=False).tolist()
        truth = compute_oracle_scores(
            explainer, words, make_attribution(explainer, words, [0] * length).prediction.index
        )
        scores = truth if kind == "oracle" else -truth
        result = assess_trust(explainer, make_attribution(explainer, words, scores)).extras["trust"]
        assert result["grade"] in allowed, (length, result)


class GivenRemoval(NamedTuple):
    """The numbers that a removal is judged by, as a test gives them."""

    share_beaten: float
    correlation_rank: float
    top_fall: float
    half_fall: float
    half_contrast: float
    rest_contrast: float
    half_unit: float


GOOD = GivenRemoval(
    share_beaten=0.99,
    correlation_rank=0.99,
    top_fall=0.5,
    half_fall=0.6,
    half_contrast=2.0,
    rest_contrast=1.0,
    half_unit=1.0,
)
CHANCE = GOOD._replace(
    share_beaten=0.5, correlation_rank=0.5, half_contrast=-0.1, rest_contrast=-0.1
)


def join_results(*removals, joint_rank=0.995, zero_shift=0.1, num_words=16, special_share=0.0):
    return JointEvidence(removals, joint_rank, zero_shift, 0.05, num_words, special_share)


def test_a_good_grade_needs_every_removal():
    assert assign_grade(join_results(GOOD, GOOD, GOOD))[0] == "faithful"
    grade, judgments = assign_grade(join_results(GOOD, CHANCE, GOOD))
    assert grade == "cannot tell"
    assert judgments == ["better than chance", "no better than chance", "better than chance"]
    chance = join_results(CHANCE, CHANCE, joint_rank=0.5)
    assert assign_grade(chance)[0] == "no better than chance"


def test_scores_that_say_no_more_than_positions_get_no_good_grade():
    result = join_results(GOOD, GOOD, GOOD)._replace(position_rank=0.5)
    assert assign_grade(result)[0] == "cannot tell"
    assert would_pass_by_positions(result)
    assert not would_pass_by_positions(result._replace(position_rank=0.9))
    chance = join_results(CHANCE, CHANCE, joint_rank=0.5)._replace(position_rank=0.5)
    assert not would_pass_by_positions(chance)


def test_one_passed_test_is_inconclusive():
    top_words = GOOD._replace(correlation_rank=0.5)
    sums = GOOD._replace(share_beaten=0.5)
    assert judge_removal(top_words) == "top words alone"
    assert judge_removal(sums) == "sums alone"
    only_top_words = join_results(top_words, top_words, joint_rank=0.5)
    assert assign_grade(only_top_words)[0] == "cannot tell"
    assert assign_grade(join_results(sums, sums))[0] == "cannot tell"


def test_a_weak_test_is_outweighed_by_clear_ones():
    weak_rank = join_results(GOOD, GOOD, joint_rank=0.8)
    assert weak_rank.points == pytest.approx(2.0 + NormalDist().inv_cdf(0.8) + 2 * 0.49)
    assert assign_grade(weak_rank)[0] == "better than chance"
    weak_share = GOOD._replace(share_beaten=0.6)
    assert assign_grade(join_results(weak_share, weak_share))[0] == "faithful"
    both = join_results(weak_share, weak_share, joint_rank=0.8)
    assert assign_grade(both)[0] == "cannot tell"


def test_a_removal_whose_random_halves_hardly_differ_counts_little():
    """Few random halves may be alike by chance; what is divided by their difference is then large."""
    tiny = GOOD._replace(half_contrast=30.0, half_unit=0.1)
    assert join_results(GOOD, tiny).half_contrast == pytest.approx((2.0 + 3.0) / 1.1)


@pytest.mark.parametrize(
    ("kind", "is_good"), [("oracle", True), ("inverted", False), ("random", False)]
)
def test_a_clear_grade_does_not_depend_on_the_seed(kind, is_good):
    grades = {assess_planted(kind, seed=seed, repeat=False)["grade"] for seed in range(8)}
    assert {grade in ("faithful", "better than chance") for grade in grades} == {is_good}


def test_words_that_hardly_move_the_model_are_not_called_good():
    still = GOOD._replace(top_fall=0.001, half_fall=0.001)
    assert judge_removal(still) == "no better than chance"
    assert assign_grade(join_results(still, still))[0] == "no better than chance"


def test_top_words_without_a_visible_fall_are_not_called_faithful():
    still = GOOD._replace(top_fall=0.001)
    assert assign_grade(join_results(GOOD, still))[0] == "better than chance"


def test_an_unconfirmed_rest_is_not_called_faithful():
    unconfirmed = GOOD._replace(rest_contrast=-0.1)
    assert assign_grade(join_results(unconfirmed, unconfirmed))[0] == "better than chance"


def test_an_inverted_rest_is_inconclusive_and_blamed_only_where_all_else_is_good():
    inverted = GOOD._replace(rest_contrast=-1.0)
    assert assign_grade(join_results(inverted, inverted))[0] == "cannot tell"
    assert would_pass_with_top_words_alone(join_results(inverted, inverted))
    assert not would_pass_with_top_words_alone(join_results(GOOD, GOOD))
    assert not would_pass_with_top_words_alone(join_results(inverted, CHANCE))


def test_signs_with_a_wrong_zero_are_inconclusive_and_missing_signs_are_not():
    assert assign_grade(join_results(GOOD, GOOD, zero_shift=3.0))[0] == "cannot tell"
    assert assign_grade(join_results(GOOD, GOOD, zero_shift=-3.0))[0] == "cannot tell"
    assert assign_grade(join_results(GOOD, GOOD, zero_shift=None))[0] == "faithful"


def test_signs_are_blamed_only_where_all_else_is_good():
    """A verdict that blames the signs also says that the order holds."""
    wrong_zero = join_results(GOOD, GOOD, zero_shift=3.0)
    assert would_pass_without_signs(wrong_zero)
    assert would_pass_without_signs(wrong_zero._replace(zero_shift=float("inf")))
    assert not would_pass_without_signs(join_results(GOOD, GOOD))
    assert not would_pass_without_signs(join_results(GOOD, GOOD, zero_shift=None))
    mixed = join_results(GOOD, CHANCE, zero_shift=3.0)
    assert assign_grade(mixed)[0] == "cannot tell"
    assert not would_pass_without_signs(mixed)


def test_clear_cases_are_decided_early_and_others_are_not():
    assert is_decided(join_results(GOOD, GOOD))
    assert is_decided(join_results(CHANCE, CHANCE, joint_rank=0.5))
    assert not is_decided(join_results(GOOD, GOOD, joint_rank=0.96))
    assert not is_decided(join_results(GOOD, CHANCE, joint_rank=0.9))


@pytest.mark.parametrize("shift", [-1.0, 1.0])
def test_a_constant_added_to_every_word_is_not_called_good(shift):
    explainer = make_planted_explainer()
    truth = compute_oracle_scores(explainer, WORDS, _predict_label())
    shifted = truth + shift * np.abs(truth).max()
    trust = assess_trust(explainer, make_attribution(explainer, WORDS, shifted)).extras["trust"]
    assert trust["grade"] == "cannot tell"
    assert trust["zero_shift"] == pytest.approx(-shift * np.abs(truth).max() / truth.std(), abs=0.6)
    direction = "high" if shift > 0 else "low"
    assert (
        f"the signs and sizes of its scores are not: all scores are too {direction} by "
        in trust["verdict"]
    )


def test_right_top_words_with_an_inverted_rest_are_not_called_good():
    explainer = make_planted_explainer()
    truth = compute_oracle_scores(explainer, WORDS, _predict_label())
    order = np.argsort(-truth)
    rest = order[3:]
    scores = truth.copy()
    scores[rest] = truth[rest[::-1]]
    trust = assess_trust(explainer, make_attribution(explainer, WORDS, scores)).extras["trust"]
    assert trust["grade"] not in ("faithful", "better than chance")


@pytest.mark.parametrize(("other_weight", "is_minor"), [(0.01, True), (1.0, False)])
def test_words_that_do_little_beside_the_top_words_are_told_from_others(other_weight, is_minor):
    weights = np.zeros((40, 2))
    weights[WORDS, 0] = other_weight * np.linspace(0.5, 1.0, len(WORDS))
    weights[WORDS[:3], 0] = 2.0
    explainer = make_planted_explainer(weights)
    attribution = make_attribution(explainer, WORDS, weights[WORDS, 0], target=0)
    trust = assess_trust(explainer, attribution).extras["trust"]
    assert (trust["rest_effect"] < 0.25) == is_minor


def test_a_grade_does_not_outlive_its_scores(tmp_path):
    explainer = make_planted_explainer()
    truth = compute_oracle_scores(explainer, WORDS, _predict_label())
    graded = assess_trust(explainer, make_attribution(explainer, WORDS, truth))
    assert read_trust(graded).grade == "faithful"
    assert read_trust(Attribution.load(graded.save(tmp_path / "a.json"))).grade == "faithful"
    edited = replace(graded, scores=-graded.scores)
    trust = read_trust(edited)
    assert trust.is_outdated
    assert trust.grade == "untested"
    assert get_verdict(edited) == trust.verdict
    assert trust.verdict.startswith("not graded: the scores, the text or the target changed")
    assert build_removal_charts(edited) == []


def test_merged_words_keep_their_grade(tokenizer):
    explainer = Explainer(tiny_bert(), tokenizer)
    graded = assess_trust(explainer, explainer.explain("charming slower film was fun", "attcat"))
    assert not read_trust(merge_words(graded)).is_outdated


def test_results_of_earlier_versions_are_still_read(tokenizer):
    attribution = Explainer(tiny_bert(), tokenizer).explain("good film", "attcat")
    extras = {"trust": {"grade": "faithful", "verdict": "with the top word deleted …"}}
    trust = read_trust(replace(attribution, extras=extras))
    assert trust.grade == "faithful"
    assert trust.num_words is None
    assert read_trust(attribution) is None


def test_a_clear_text_takes_fewer_random_orders():
    assert assess_planted("oracle")["num_orders"] == ORDER_BLOCKS[0]


def test_too_few_random_orders_are_inconclusive():
    for num_orders, tried in (
        (1, "only 1 random order was tried"),
        (2, "only 2 random orders were"),
    ):
        trust = assess_planted("oracle", max_orders=num_orders)
        assert trust["num_orders"] == num_orders
        assert trust["grade"] == "cannot tell"
        assert trust["verdict"].startswith(tried)


def test_the_oracle_with_most_weight_on_special_tokens_is_not_called_faithful():
    explainer = make_planted_explainer()
    truth = compute_oracle_scores(
        explainer, WORDS, make_attribution(explainer, WORDS, [0] * len(WORDS)).prediction.index
    )
    attribution = make_attribution(explainer, WORDS, truth)
    scores = attribution.scores.copy()
    scores[[0, -1]] = np.abs(truth).sum()  # two thirds of the weight
    trust = assess_trust(explainer, replace(attribution, scores=scores)).extras["trust"]
    assert trust["special_share"] == pytest.approx(2 / 3)
    assert trust["grade"] == "better than chance"
    assert trust["verdict"].startswith("most of its total score falls on special tokens; ")


def test_weight_on_special_tokens_and_short_texts_are_never_called_faithful():
    assert assign_grade(join_results(GOOD, GOOD, special_share=0.3))[0] == "faithful"
    assert assign_grade(join_results(GOOD, GOOD, special_share=0.7))[0] == "better than chance"
    assert assign_grade(join_results(GOOD, GOOD, num_words=3))[0] == "cannot tell"


def test_the_verdict_states_the_effect_of_every_removal():
    trust = assess_planted("oracle")
    top_words = ", ".join(trust["top_words"])
    effect, same, random, evidence = trust["verdict"].split("; ")
    label = f"the probability of LABEL_{_predict_label()}"
    assert effect.startswith(f"with the 3 top words ({top_words}) deleted, {label} falls from ")
    assert same == "it also falls when they are masked"
    num_random = 2 * trust["num_orders"]  # of each removal
    assert (
        random
        == f"removing 3 random words instead lowers it as much or more in none of {num_random} tries"
    )
    assert len(trust["findings"]) == 5
    assert evidence.startswith("all tests together give ")
    assert evidence.endswith(" points (chance gives 0, “faithful” needs 4.5)")
    assert trust["findings"][0].startswith("faithful: all tests together give ")
    assert trust["findings"][3].startswith("order after the top words: ")
    assert trust["findings"][4].startswith("signs: ")
    assert trust["findings"][2].startswith("words masked: without the 3 top words, ")


def _predict_label():
    return make_attribution(make_planted_explainer(), WORDS, [0] * len(WORDS)).prediction.index


def test_removing_words_against_the_class_raises_its_probability():
    assert " rises from " in assess_planted("inverted")["verdict"]


def test_a_target_with_a_small_probability_is_not_tested():
    """Case 1: the true label of a wrong prediction, at 1 %."""
    weights = np.zeros((40, 2))
    weights[WORDS, 0] = np.linspace(0.1, 0.5, len(WORDS))
    explainer = make_planted_explainer(weights)
    attribution = make_attribution(explainer, WORDS, -weights[WORDS, 0], target=1)
    trust = assess_trust(explainer, attribution).extras["trust"]
    assert trust["grade"] == "untested"
    assert (
        trust["verdict"]
        == "the model gives LABEL_1 a probability of only 0.8 %, too low for a fall to be measured"
    )


def test_removals_that_differ_are_named(monkeypatch):
    """Case 2: what holds for deleted words need not hold for masked ones."""
    weights = np.random.default_rng(0).normal(size=(40, 2))
    weights[:4] = 0.0
    explainer = make_planted_explainer(weights)
    truth = compute_oracle_scores(
        explainer, WORDS, make_attribution(explainer, WORDS, [0] * len(WORDS)).prediction.index
    )
    real = RemovalRunner.run

    def reverses_masks(self, texts):
        """Do the opposite wherever words are masked."""
        values = real(self, texts)
        for i, text in enumerate(texts):
            if text.removal.name == "mask":
                values[i] = 1 - values[i]
        return values

    monkeypatch.setattr(RemovalRunner, "run", reverses_masks)
    trust = assess_trust(explainer, make_attribution(explainer, WORDS, truth)).extras["trust"]
    assert trust["grade"] == "cannot tell"
    assert trust["verdict"].startswith(
        "clearly better than chance when words are deleted, but not when they are masked; with the 3"
    )


@pytest.mark.parametrize("weight", [0.0, 0.002])
def test_a_model_that_ignores_its_words_is_not_tested(weight):
    """An order can beat every other by the last digits of a model that has learned nothing."""
    weights = np.zeros((40, 2))
    weights[WORDS, 0] = weight * np.arange(1, len(WORDS) + 1) / len(WORDS)
    explainer = make_planted_explainer(weights)
    trust = assess_trust(explainer, make_attribution(explainer, WORDS, range(len(WORDS)))).extras[
        "trust"
    ]
    assert trust["grade"] == "untested"
    assert trust["verdict"].startswith(
        "whatever words are removed, the probability of LABEL_0 stays within "
    )
    assert trust["verdict"].endswith(", so there is no effect to test")


@pytest.mark.parametrize("num_words", [2, 3, 4])
def test_a_short_text_is_inconclusive(num_words):
    words = WORDS[:num_words]
    weights = np.zeros((40, 2))
    weights[words, 0] = 0.5 * 2.0 ** np.arange(num_words)
    explainer = make_planted_explainer(weights)
    trust = assess_trust(explainer, make_attribution(explainer, words, weights[words, 0])).extras[
        "trust"
    ]
    assert trust["grade"] == "cannot tell"
    assert trust["verdict"].startswith(
        f"one text of {num_words} words is too short for a verdict; with the "
    )


def test_a_text_of_one_word_is_not_tested():
    trust = assess_planted("oracle", [10])
    assert trust["verdict"] == "the text has one word, so there is nothing to rank"
    assert trust["grade"] == "untested"


def test_equal_scores_are_not_tested():
    explainer = make_planted_explainer()
    trust = assess_trust(explainer, make_attribution(explainer, WORDS, [1] * len(WORDS))).extras[
        "trust"
    ]
    assert trust["verdict"] == "all words have the same score, so the explanation ranks nothing"
    assert trust["grade"] == "untested"
    assert {"check": "ties", "state": "bad", "finding": "all scores are equal"} in trust["health"]


def test_equal_token_scores_of_unequal_words_are_not_tested(tokenizer):
    """Case 4: a word of two tokens has twice the sum of a word of one, and still no order."""
    explainer = Explainer(tiny_bert(), tokenizer)
    attribution = explainer.explain("charming slower film was fun and good", "attcat")
    assert len(attribution) - 2 > len(attribution.words())
    constant = replace(attribution, scores=np.ones(len(attribution)), layers=None)
    assert assess_trust(explainer, constant).extras["trust"]["grade"] == "untested"


def test_mostly_tied_scores_are_inconclusive():
    explainer = make_planted_explainer()
    truth = compute_oracle_scores(explainer, WORDS, _predict_label())
    scores = np.where(truth == truth.max(), 1.0, 0.0)
    trust = assess_trust(explainer, make_attribution(explainer, WORDS, scores)).extras["trust"]
    assert trust["grade"] == "cannot tell"
    assert trust["verdict"].startswith(
        "15 of 16 tokens have the same score, so there is hardly any"
    )


def test_scores_that_cancel_within_words_are_inconclusive(tokenizer):
    """Found by distrust: the sums of words are right, and what a reader sees of their tokens is not."""
    explainer = Explainer(randomize_weights(tiny_bert(), torch.float32), tokenizer)
    attribution = explainer.explain("charming slower film was fun and good", "attcat")
    test = RemovalTest(explainer)
    scores = attribution.scores.copy()
    for positions in test.get_partial_texts(attribution).words:
        if len(positions) > 1:
            scores[positions[:2]] += np.array([100.0, -100.0]) * np.abs(attribution.scores).max()
    assert not np.array_equal(scores, attribution.scores)
    trust = test(replace(attribution, scores=scores))
    assert trust["grade"] == "cannot tell"
    assert trust["verdict"].startswith("most of its scores cancel out within words")


def test_top_words_that_do_less_than_most_random_ones_have_no_effect():
    """Found by distrust: a good grade whose own sentence says that random words do more."""
    trust = assess_planted("oracle")
    for removal in trust["removals"]:
        assert 2 * removal["num_stronger"] < trust["num_orders"]
    inverted = assess_planted("inverted")
    for removal in inverted["removals"]:
        assert 2 * removal["num_stronger"] >= inverted["num_orders"]


def test_the_largest_group_of_ties_is_counted():
    assert count_tied(np.array([1.0, 2.0, 1.0, 3.0, 1.0]), 0.0) == 3
    assert count_tied(np.array([1.0, 2.0]), 0.5) == 0
    assert count_tied(np.array([1.0, 1.4, 1.8, 2.2]), 0.5) == 2
    assert count_tied(np.array([]), 0.0) == 0


def test_scores_that_differ_by_rounding_are_not_tested():
    explainer = make_planted_explainer()
    scores = 1 + 1e-7 * np.random.default_rng(0).normal(size=len(WORDS))
    trust = assess_trust(explainer, make_attribution(explainer, WORDS, scores)).extras["trust"]
    assert trust["grade"] == "untested"


def test_the_same_seed_gives_the_same_trust():
    first = assess_planted("random", seed=3)
    assert first == assess_planted("random", seed=3)
    assert first["removals"] != assess_planted("random", seed=4)["removals"]


def test_explanations_of_one_text_share_their_random_partial_texts(tokenizer):
    explainer = Explainer(tiny_bert(), tokenizer)
    texts = ["the film is not very good and we love this movie", "a dull plot"]
    attributions = explainer.explain(texts, ["attcat", "gae", "random"])
    batch_sizes = []
    explainer.runner.model.register_forward_pre_hook(
        lambda _module, _args, inputs: batch_sizes.append(len(inputs["input_ids"])),
        with_kwargs=True,
    )
    alone = [assess_trust(explainer, attribution) for attribution in attributions]
    one_by_one = sum(batch_sizes)
    batch_sizes.clear()
    together = assess_trust_of_all(explainer, attributions)
    for assessed, other in zip(together, alone, strict=True):
        trust = assessed.extras["trust"]
        expected = other.extras["trust"]
        assert trust["verdict"] == expected["verdict"]
        assert trust.get("num_orders") == expected.get("num_orders")
    assert sum(batch_sizes) < 0.8 * one_by_one


def test_words_of_several_tokens_are_removed_whole(tokenizer):
    explainer = Explainer(tiny_bert(), tokenizer)
    attribution = assess_trust(
        explainer, explainer.explain("charming slower film was fun and good", "attcat")
    )
    words = set(attribution.extras["trust"].get("top_words", ()))
    assert words
    assert words <= set(["charming", "slower", "film", "was", "fun", "and", "good"])


def test_trust_survives_a_file(tokenizer, tmp_path):
    explainer = Explainer(tiny_bert(), tokenizer)
    attribution = assess_trust(explainer, explainer.explain("the film is not very good", "attcat"))
    json.dumps(attribution.extras["trust"], allow_nan=False)
    assert (
        Attribution.load(attribution.save(tmp_path / "a.json")).extras["trust"]
        == attribution.extras["trust"]
    )


def test_a_model_without_probabilities_is_not_tested(tokenizer):
    explainer = Explainer(tiny_bert(id2label={0: "score"}, label2id={"score": 0}), tokenizer)
    trust = assess_trust(explainer, explainer.explain("good film", "attcat")).extras["trust"]
    assert trust["grade"] == "untested"
    assert trust["verdict"].startswith("not tested: The removal test needs a probability")
    assert trust["health_line"]


def test_scores_of_words_are_not_tested(tokenizer):
    explainer = Explainer(tiny_bert(), tokenizer)
    attribution = merge_words(explainer.explain("charming slower film", "attcat"))
    assert (
        "these are word scores" in assess_trust(explainer, attribution).extras["trust"]["verdict"]
    )


def test_the_answer_of_a_question_is_tested(tokenizer):
    explainer = Explainer(tiny_bert_qa(), tokenizer)
    attribution = explainer.explain(
        Question(question="who sat", context="the cat sat on the mat"), "attcat"
    )
    trust = assess_trust(explainer, attribution).extras["trust"]
    assert (
        trust["verdict"]
        == "the model gives the answer a probability of only 1.4 %, too low for a fall to be measured"
    )


def test_a_sound_explanation_passes_every_health_check(tokenizer):
    explainer = Explainer(tiny_bert(), tokenizer)
    attribution = explainer.explain(("the film is not very good", "we love it"), "attcat")
    trust = assess_trust(explainer, attribution).extras["trust"]
    assert trust["health_line"] == "same alone and in a batch · nothing cut off · no ties"
    assert all(check["state"] == "good" for check in trust["health"])
    quick = assess_trust(explainer, attribution, repeat=False).extras["trust"]
    assert [check["check"] for check in quick["health"]] == ["truncation", "ties"]


def test_health_reports_one_dominant_token_and_the_shares_of_two_texts(tokenizer):
    tagger = BertForTokenClassification(tiny_config())
    embedder = BertModel(tiny_config(), add_pooling_layer=False)
    for model, text, target, repeated in (
        (tiny_bert_lm(), "the film was [MASK] and slow", "predicted", "good"),
        (
            randomize_weights(tagger, torch.float64),
            "the film was charming",
            TokenTarget("film"),
            "good",
        ),
        # Each of the two is explained alone, so there is no batch to change its scores.
        (
            randomize_weights(embedder, torch.float64),
            ("the film", "a fun movie"),
            "predicted",
            None,
        ),
    ):
        explainer = Explainer(model, tokenizer)
        attribution = explainer.explain(text, "attcat", target)
        states = {
            check["check"]: check["state"]
            for check in run_health_checks(explainer, attribution, repeat=True)
        }
        assert states.get("batch") == repeated


def test_health_shows_a_cut_ties_and_lost_relevance(tokenizer):
    explainer = Explainer(tiny_bert(), tokenizer)
    attribution = explainer.explain("good film . " * 30, "attcat", long="truncate")
    trust = assess_trust(
        explainer, replace(attribution, extras={"conservation": [1.0, 0.91]})
    ).extras["trust"]
    checks = {check["check"]: check for check in trust["health"]}
    num_truncated = attribution.row.num_truncated
    num_tokens = num_truncated + len(attribution)
    assert checks["truncation"]["finding"] == f"{num_truncated} of {num_tokens} tokens cut off"
    assert checks["conservation"] == {
        "check": "conservation",
        "state": "doubtful",
        "finding": "0.910 of the relevance kept; biases and the softmax absorb or add the rest",
    }


def test_health_detects_scores_that_other_texts_of_a_batch_change(tokenizer):
    explainer = Explainer(tiny_bert(), tokenizer)
    attribution = explainer.explain("the film is good", "attcat")
    moved = replace(
        attribution, scores=attribution.scores + np.linspace(0, 1, len(attribution)), layers=None
    )
    (batch,) = (
        c for c in assess_trust(explainer, moved).extras["trust"]["health"] if c["check"] == "batch"
    )
    assert batch["state"] == "bad"
    assert "batched with another text" in batch["finding"]


def test_the_explanation_itself_is_unchanged(tokenizer):
    explainer = Explainer(tiny_bert(), tokenizer)
    attribution = explainer.explain("the film is good", "attcat")
    b = assess_trust(explainer, attribution)
    np.testing.assert_array_equal(attribution.scores, b.scores)
    assert "trust" not in attribution.extras
    assert torch.is_grad_enabled()
