"""The trust score: an explanation against chance, in plain words, and its health."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import BertForTokenClassification, BertModel

from tests.planted import oracle, planted, scored
from tests.tiny import randomised, tiny_bert, tiny_bert_lm, tiny_bert_qa, tiny_config
from tests.tolerance import close
from tokenlight import Attribution, Explainer, Question, TokenTarget
from tokenlight.data.postprocess import merge_words
from tokenlight.evaluation.grade import graded
from tokenlight.evaluation.removal import RemovalTest
from tokenlight.evaluation.trust import all_trusted, health, trusted

WORDS = list(range(10, 26))


def of(kind, words=WORDS, **how):
    explainer = planted()
    truth = oracle(explainer, words, scored(explainer, words, [0] * len(words)).prediction.index)
    scores = {
        "oracle": truth,
        "inverted": -truth,
        "random": np.random.default_rng(2).normal(size=len(words)),
    }[kind]
    return trusted(explainer, scored(explainer, words, scores), **how).extras["trust"]


def test_the_oracle_is_faithful_and_beats_chance():
    trust = of("oracle")
    assert trust["grade"] == "faithful"
    assert trust["percentile"] > 95
    assert trust["aopc"] > trust["random"]


def test_the_inverted_oracle_is_worse_than_chance():
    trust = of("inverted")
    assert trust["grade"] == "worse than chance"
    assert trust["percentile"] < 5
    assert trust["aopc"] < trust["random"]


def test_random_scores_are_no_better_than_chance():
    """Of many, few are graded better; the verdict says how the order did before the words."""
    explainer, draw = planted(), np.random.default_rng(2)
    test, grades = RemovalTest(explainer), []
    for _ in range(20):
        words = draw.choice(np.arange(5, 40), size=16, replace=False).tolist()
        for _ in range(10):
            attribution = scored(explainer, words, draw.normal(size=len(words)))
            found = test(attribution)
            grades.append(found["grade"])
            said = found["verdict"].removeprefix(f"{found['weak']}; ")
            assert said.startswith("its order beats ")
    assert grades.count("no better than chance") > 150
    # Of 200 at 5 % each, 18 or fewer in 99 of 100 such draws.
    assert grades.count("faithful") + grades.count("better than chance") <= 18


@pytest.mark.parametrize(
    ("kind", "allowed"),
    [("oracle", {"faithful"}), ("inverted", {"worse than chance"})],
)
def test_the_grade_knows_the_oracle_from_its_inverse_in_texts_of_any_length(kind, allowed):
    explainer, draw = planted(), np.random.default_rng(5)
    for length in (8, 12, 20, 30):
        words = draw.choice(np.arange(5, 40), size=length, replace=False).tolist()
        truth = oracle(explainer, words, scored(explainer, words, [0] * length).prediction.index)
        scores = truth if kind == "oracle" else -truth
        found = trusted(explainer, scored(explainer, words, scores)).extras["trust"]
        assert found["grade"] in allowed, (length, found)


def test_tests_that_disagree_cannot_tell():
    found = graded(0.99, 0.61, 0.0, 16)
    assert found == ("cannot tell", "its order beats chance, its top words do not")
    assert graded(0.5, 0.99, 0.0, 16)[1] == "its top words beat chance, its order does not"


def test_the_oracle_with_most_weight_on_special_tokens_is_not_called_faithful():
    explainer = planted()
    truth = oracle(explainer, WORDS, scored(explainer, WORDS, [0] * len(WORDS)).prediction.index)
    made = scored(explainer, WORDS, truth)
    scores = made.scores.copy()
    scores[[0, -1]] = np.abs(truth).sum()  # two thirds of the weight
    trust = trusted(explainer, replace(made, scores=scores)).extras["trust"]
    assert trust["special"] == pytest.approx(2 / 3)
    assert trust["grade"] == "better than chance"
    assert trust["verdict"].startswith("most of its weight lies on special tokens, which are not ")


def test_weight_on_special_tokens_and_short_texts_are_never_called_faithful():
    assert graded(0.99, 0.99, 0.3, 16) == ("faithful", "")
    grade, weak = graded(0.99, 0.99, 0.7, 16)
    assert grade == "better than chance"
    assert weak == "most of its weight lies on special tokens, which are not words"
    assert graded(0.99, 0.99, 0.0, 3) == (
        "cannot tell",
        "one text of 3 words is too short to tell",
    )


def test_the_verdict_says_what_removing_the_top_words_does():
    trust = of("oracle")
    before, after = f"{trust['before']:.2f}", f"{trust['after']:.2f}"
    named = ", ".join(trust["top_words"])
    order, removal, others = trust["verdict"].split("; ")
    assert order.endswith(("% of random orders", "all 50 random orders tried"))
    assert removal == (
        f"removing the 3 top words ({named}) drops P(LABEL_{_predicted()}) from {before} to {after}"
    )
    assert others.endswith("% of random choices do less")
    assert trust["choices_less"] > 0.95
    assert len(trust["top_words"]) == 3


def _predicted():
    return scored(planted(), WORDS, [0] * len(WORDS)).prediction.index


def test_removing_words_against_the_class_raises_its_probability():
    assert " raises P(" in of("inverted")["verdict"]


def test_top_words_that_do_not_move_the_model_are_said_not_to_decide():
    weights = np.zeros((40, 2))
    weights[WORDS[0], 0] = 3.0
    explainer = planted(weights)
    scores = np.arange(len(WORDS))  # the word that decides comes last
    trust = trusted(explainer, scored(explainer, WORDS, scores)).extras["trust"]
    assert trust["verdict"].endswith(" so they alone do not decide")


@pytest.mark.parametrize("weight", [0.0, 0.002])
def test_a_model_that_no_word_moves_has_nothing_to_test(weight):
    """An order can beat every other by the last digits of a model that has learned nothing."""
    weights = np.zeros((40, 2))
    weights[WORDS, 0] = weight * np.arange(1, len(WORDS) + 1) / len(WORDS)
    explainer = planted(weights)
    trust = trusted(explainer, scored(explainer, WORDS, range(len(WORDS)))).extras["trust"]
    assert trust["grade"] == "untested"
    assert trust["verdict"] == (
        "no choice of words moves P(LABEL_0) by 0.01, so there is nothing to test"
    )


def test_words_of_which_each_suffices_move_the_model_only_together(monkeypatch):
    """What the choices of words move counts as much as what the orders do."""
    explainer = planted()

    def needs_two(_head, _target, variant, _logits):
        return 0.4 if len(variant.ids) == len(WORDS) + 2 - 3 else 0.9

    monkeypatch.setattr("tokenlight.evaluation.removal.chance", needs_two)
    monkeypatch.setattr("tokenlight.evaluation.removal.PAPER_GRID", (0.0, 1.0))
    trust = trusted(explainer, scored(explainer, WORDS, range(len(WORDS)))).extras["trust"]
    assert trust["before"] - trust["after"] == pytest.approx(0.5)
    assert trust["moved"] == pytest.approx(0.5)
    assert trust["grade"] != "untested"


def test_few_words_are_all_tried():
    trust = of("oracle", [10, 11, 12, 13])
    assert trust["choices"] == 5  # pairs of four words, but the chosen one
    assert "2 top words" in trust["verdict"]
    assert trust["verdict"].endswith("other choices do less")


@pytest.mark.parametrize(
    ("words", "orders", "says"),
    [
        ([10, 11], 1, "its order beats every other; "),
        ([10, 11, 12], 5, "its order beats every other; "),
        ([10, 11, 12, 13], 23, "its order beats every other; "),
        ([10, 11, 12, 13, 14, 15, 16, 17], 50, "its order beats all 50 random orders tried; "),
    ],
)
def test_few_orders_are_all_tried_and_too_few_cannot_tell(words, orders, says):
    weights = np.zeros((40, 2))
    weights[words, 0] = 0.03 * 2.0 ** np.arange(len(words))  # no choice saturates the probability
    explainer = planted(weights)
    trust = trusted(explainer, scored(explainer, words, weights[words, 0])).extras["trust"]
    assert trust["orders"] == orders
    short = len(words) < 5
    weak = f"one text of {len(words)} words is too short to tell; " if short else ""
    assert trust["verdict"].startswith(weak + says)
    assert trust["grade"] == ("cannot tell" if short else "faithful")
    last = trusted(explainer, scored(explainer, words, -weights[words, 0])).extras["trust"]
    assert last["grade"] == ("cannot tell" if short else "worse than chance")


def test_one_word_has_nothing_to_rank():
    trust = of("oracle", [10])
    assert trust["verdict"] == "the text has one word, so there is nothing to rank"
    assert trust["grade"] == "untested"


def test_equal_scores_rank_nothing():
    explainer = planted()
    trust = trusted(explainer, scored(explainer, WORDS, [1] * len(WORDS))).extras["trust"]
    assert trust["verdict"] == "all words have the same score, so the explanation ranks nothing"
    assert trust["grade"] == "untested"
    assert {"check": "ties", "state": "bad", "says": "all scores are equal"} in trust["health"]


def test_the_same_seed_gives_the_same_trust():
    assert of("random", seed=3) == of("random", seed=3)
    assert of("random", seed=3)["percentile"] != of("random", seed=4)["percentile"]


def test_several_explanations_of_a_text_are_each_tested_and_share_what_is_asked(tokenizer):
    explainer = Explainer(tiny_bert(), tokenizer)
    texts = ["the film is not very good and we love this movie", "a dull plot"]
    made = explainer.explain(texts, ["attcat", "gae", "random"])
    asked = []
    explainer.live.model.register_forward_pre_hook(
        lambda _module, _args, given: asked.append(len(given["input_ids"])), with_kwargs=True
    )
    alone = [trusted(explainer, attribution) for attribution in made]
    one_by_one = sum(asked)
    asked.clear()
    together = all_trusted(explainer, made)
    for one, other in zip(together, alone, strict=True):
        found, wanted = one.extras["trust"], other.extras["trust"]
        assert found["verdict"] == wanted["verdict"]
        assert found["percentile"] == wanted["percentile"]
        close(found["aopc"], wanted["aopc"])
    assert sum(asked) < 0.7 * one_by_one


def test_words_of_several_tokens_are_removed_whole(tokenizer):
    explainer = Explainer(tiny_bert(), tokenizer)
    a = trusted(explainer, explainer.explain("charming slower film was fun and good", "attcat"))
    words = set(a.extras["trust"]["top_words"])
    assert words <= set(["charming", "slower", "film", "was", "fun", "and", "good"])


def test_trust_survives_a_file(tokenizer, tmp_path):
    explainer = Explainer(tiny_bert(), tokenizer)
    a = trusted(explainer, explainer.explain("the film is not very good", "attcat"))
    json.dumps(a.extras["trust"], allow_nan=False)
    assert Attribution.load(a.save(tmp_path / "a.json")).extras["trust"] == a.extras["trust"]


def test_a_model_without_probabilities_is_not_tested_and_says_so(tokenizer):
    explainer = Explainer(tiny_bert(id2label={0: "score"}, label2id={"score": 0}), tokenizer)
    trust = trusted(explainer, explainer.explain("good film", "attcat")).extras["trust"]
    assert trust["grade"] == "untested"
    assert trust["verdict"].startswith("not tested: the removal test watches a probability")
    assert trust["health_line"]


def test_scores_of_words_are_not_tested(tokenizer):
    explainer = Explainer(tiny_bert(), tokenizer)
    a = merge_words(explainer.explain("charming slower film", "attcat"))
    assert "scores of words" in trusted(explainer, a).extras["trust"]["verdict"]


def test_the_answer_of_a_question_is_tested(tokenizer):
    explainer = Explainer(tiny_bert_qa(), tokenizer)
    a = explainer.explain(Question(question="who sat", context="the cat sat on the mat"), "attcat")
    assert "P(answer)" in trusted(explainer, a).extras["trust"]["verdict"]


def test_health_of_a_sound_explanation(tokenizer):
    explainer = Explainer(tiny_bert(), tokenizer)
    a = explainer.explain(("the film is not very good", "we love it"), "attcat")
    trust = trusted(explainer, a).extras["trust"]
    assert trust["health_line"] == "same alone and in a batch · nothing cut off · no ties"
    assert all(check["state"] == "good" for check in trust["health"])
    quick = trusted(explainer, a, repeat=False).extras["trust"]
    assert [check["check"] for check in quick["health"]] == ["truncation", "ties"]


def test_health_of_one_token_among_many_and_of_two_texts(tokenizer):
    tagger = BertForTokenClassification(tiny_config())
    embedder = BertModel(tiny_config(), add_pooling_layer=False)
    for model, text, target, repeated in (
        (tiny_bert_lm(), "the film was [MASK] and slow", "predicted", "good"),
        (randomised(tagger, torch.float64), "the film was charming", TokenTarget("film"), "good"),
        # Each of the two is explained alone, so there is no batch to change its scores.
        (randomised(embedder, torch.float64), ("the film", "a fun movie"), "predicted", None),
    ):
        explainer = Explainer(model, tokenizer)
        a = explainer.explain(text, "attcat", target)
        states = {check["check"]: check["state"] for check in health(explainer, a, repeat=True)}
        assert states.get("batch") == repeated


def test_health_shows_a_cut_ties_and_lost_relevance(tokenizer):
    explainer = Explainer(tiny_bert(), tokenizer)
    a = explainer.explain("good film . " * 30, "attcat", long="truncate")
    trust = trusted(explainer, replace(a, extras={"conservation": [1.0, 0.91]})).extras["trust"]
    says = {check["check"]: check for check in trust["health"]}
    assert says["truncation"]["says"] == f"{a.row.cut} of {a.row.cut + len(a)} tokens cut off"
    assert says["conservation"] == {
        "check": "conservation",
        "state": "doubtful",
        "says": "relevance kept to 0.910, biases and the softmax take or add the rest",
    }


def test_health_notices_scores_that_a_neighbour_changes(tokenizer):
    explainer = Explainer(tiny_bert(), tokenizer)
    a = explainer.explain("the film is good", "attcat")
    moved = replace(a, scores=a.scores + np.linspace(0, 1, len(a)), layers=None)
    (batch,) = (
        c for c in trusted(explainer, moved).extras["trust"]["health"] if c["check"] == "batch"
    )
    assert batch["state"] == "bad"
    assert "beside another text" in batch["says"]


def test_the_explanation_itself_stays(tokenizer):
    explainer = Explainer(tiny_bert(), tokenizer)
    a = explainer.explain("the film is good", "attcat")
    b = trusted(explainer, a)
    np.testing.assert_array_equal(a.scores, b.scores)
    assert "trust" not in a.extras
    assert torch.is_grad_enabled()
