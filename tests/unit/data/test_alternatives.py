"""Why this token rather than the likely others: what a soft contrast is made of."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tests.helpers.expect import expect_error
from tests.helpers.tiny import tiny_tokenizer
from tokenlight import Continuation, Contrast, NextToken
from tokenlight.data.alternatives import choose_alternatives, name_tokens
from tokenlight.data.head import Head
from tokenlight.data.odds import compute_target_log_odds, compute_target_log_probability
from tokenlight.data.target import ResolvedTarget
from tokenlight.errors import BadTarget
from tokenlight.inputs.encode import encode_text

ROW = encode_text("the film was", tiny_tokenizer(), max_tokens=None)
HEAD = Head("text-generation", (" Paris", " the", " London", "Paris", "\n", " Le"))
LOGITS = np.array([4.0, 2.0, 3.0, 1.0, 0.0, -1.0])
ALL_LOGITS = arrays.arrays(
    np.float64, st.integers(2, 40), elements=st.floats(-20, 20, allow_subnormal=False)
)


def resolve(target) -> ResolvedTarget:
    (resolved,) = HEAD.resolve(target, LOGITS, ROW)
    return resolved


def compute_log_odds(logits: np.ndarray, index: int) -> float:
    return float(logits[index] - np.logaddexp.reduce(np.delete(logits, index)))


class TestTheSoftContrast:
    def test_the_default_subtracts_the_mean_of_the_others_by_their_probabilities(self):
        target = resolve("predicted")
        others = LOGITS[1:]
        weights = np.exp(others) / np.exp(others).sum()
        assert target.kind == "token"
        assert target.index == 0
        assert target.compute_value(LOGITS) == pytest.approx(4.0 - weights @ others, rel=1e-12)

    def test_the_weights_of_alternatives_are_the_probabilities_of_the_text(self):
        """Held constant: other logits are weighted as the original ones are."""
        target = resolve(NextToken("predicted", against=2))
        weights = np.exp([3.0, 2.0]) / np.exp([3.0, 2.0]).sum()
        changed = np.array([1.0, 5.0, 7.0, 9.0, 9.0, 9.0])
        assert target.compute_value(changed) == pytest.approx(1.0 - weights @ [7.0, 5.0], rel=1e-12)

    def test_a_number_selects_that_many_likeliest_alternatives(self):
        target = resolve(NextToken(1, against=2))
        assert [index for (index,), _ in target.terms] == [1, 0, 2]
        assert target.alternatives == ("Paris", "London")

    def test_the_plain_logit_is_requested_by_name_or_by_none(self):
        expected = HEAD.build_class_target(0)
        assert resolve("logit") == expected
        assert resolve(NextToken("predicted", against=None)) == expected
        assert expected.compute_value(LOGITS) == 4.0

    def test_named_alternatives_are_weighted_by_their_probabilities(self):
        target = resolve(NextToken(0, against=[1, 5]))
        weights = np.exp([2.0, -1.0]) / np.exp([2.0, -1.0]).sum()
        assert target.name == "‘Paris’ rather than ‘the’ or ‘Le’"
        assert target.compute_value(LOGITS) == pytest.approx(4 - weights @ [2.0, -1.0], rel=1e-12)

    def test_one_named_alternative_is_the_contrast_of_two(self):
        assert resolve(NextToken(0, against=[2])) == resolve(Contrast(0, 2))

    def test_a_vocabulary_of_one_token_has_no_alternative(self):
        head = replace(HEAD, labels=(" Paris",))
        assert head.resolve("predicted", np.array([1.0]), ROW) == (head.build_class_target(0),)

    def test_equally_likely_tokens_come_in_the_order_of_their_ids(self):
        others, weights = choose_alternatives(np.array([1.0, 2.0, 1.0, 2.0, 1.0]), 3, 3)
        assert others == [1, 0, 2]
        assert weights[1] == weights[2]

    @settings(deadline=None)
    @given(ALL_LOGITS, st.data())
    def test_all_alternatives_have_the_gradient_of_the_log_odds(self, logits, data):
        index = data.draw(st.integers(0, len(logits) - 1))
        others, weights = choose_alternatives(logits, index, "all")
        gradient = np.zeros(len(logits))
        gradient[others] = weights
        # d/dz_j of ln Σ_{i≠t} exp z_i is exp z_j over that sum.
        exponentials = np.exp(logits - np.delete(logits, index).max())
        exponentials[index] = 0.0
        expected = exponentials / exponentials.sum()
        # What is left out holds less than a millionth, which is shared by the others.
        np.testing.assert_allclose(gradient, expected, rtol=0, atol=2e-6)
        assert sum(weights) == pytest.approx(1.0, rel=1e-12)

    @settings(deadline=None)
    @given(ALL_LOGITS, st.integers(1, 50))
    def test_no_likelier_token_is_left_out(self, logits, count):
        index = int(np.argmax(logits))
        others, weights = choose_alternatives(logits, index, count)
        assert len(others) == min(count, len(logits) - 1)
        assert index not in others
        left_out = [i for i in range(len(logits)) if i not in others and i != index]
        assert not left_out or logits[left_out].max() <= logits[others].min()
        assert weights == sorted(weights, reverse=True)


class TestTheQuestion:
    def test_the_title_names_the_likeliest_alternatives(self):
        assert resolve(NextToken(5)).title == "‘Le’ rather than ‘ Paris’, ‘London’, ‘the’ …"

    def test_a_token_that_looks_like_another_keeps_its_space(self):
        assert name_tokens(HEAD.labels, 1, [0, 3, 4]) == (" Paris", "Paris", "\n")

    def test_a_few_alternatives_are_all_named(self):
        assert resolve(NextToken(1, against=2)).title == "‘the’ rather than ‘Paris’, ‘London’"

    def test_a_whole_vocabulary_is_not_listed(self):
        labels = tuple(f"w{i}" for i in range(60))
        head = replace(HEAD, labels=labels)
        logits = -0.01 * np.arange(60.0)
        (target,) = head.resolve(NextToken("predicted", against="all"), logits, ROW)
        assert len(target.terms) == 60
        assert len(target.alternatives) == 20
        assert target.title == "‘w0’ rather than anything else (‘w1’, ‘w2’, ‘w3’ …)"


class TestOdds:
    def test_the_probability_of_a_token_is_over_the_whole_vocabulary(self):
        """Whatever it was contrasted with: a changed text may turn to any other token."""
        target = resolve(NextToken(0, against=2))
        expected = compute_log_odds(LOGITS, 0)
        assert compute_target_log_odds(HEAD, target, LOGITS) == pytest.approx(expected, rel=1e-12)
        probability = np.exp(compute_target_log_probability(HEAD, target, LOGITS))
        assert probability == pytest.approx(np.exp(4.0) / np.exp(LOGITS).sum(), rel=1e-12)

    def test_named_alternatives_share_the_probability_with_the_token(self):
        target = resolve(NextToken(0, against=[1, 5]))
        expected = compute_log_odds(LOGITS[[0, 1, 5]], 0)
        assert compute_target_log_odds(HEAD, target, LOGITS) == pytest.approx(expected, rel=1e-12)


class TestParts:
    def test_a_token_and_the_mean_of_its_alternatives_are_its_two_parts(self):
        target = resolve("predicted")
        (token_weight, token), (mean_weight, mean) = target.logit_parts
        value = token_weight * token.compute_value(LOGITS) + mean_weight * mean.compute_value(
            LOGITS
        )
        assert value == pytest.approx(target.compute_value(LOGITS), rel=1e-12)
        assert (token_weight, mean_weight) == (1.0, -1.0)
        assert token.terms == (((0,), 1.0),)

    def test_a_contrast_has_one_part_per_logit(self):
        parts = resolve(Contrast(0, 2)).logit_parts
        assert [(weight, part.terms) for weight, part in parts] == [
            (1.0, (((0,), 1.0),)),
            (-1.0, (((2,), 1.0),)),
        ]


class TestRefusals:
    @pytest.mark.parametrize("against", [0, -3, True, 1.5, "", [], [True], [None], {"a"}])
    def test_an_invalid_alternative_is_refused(self, against):
        with expect_error(BadTarget, "against-invalid"):
            NextToken("Paris", against=against)

    @pytest.mark.parametrize("against", [0, "London", ["London"]])
    def test_a_continuation_is_contrasted_with_a_number_or_all(self, against):
        with pytest.raises(BadTarget):
            Continuation(" Paris", against=against)

    def test_a_token_is_not_contrasted_with_itself(self):
        with expect_error(BadTarget, "contrast-of-equal-tokens"):
            resolve(NextToken(0, against=[2, 0]))

    @pytest.mark.parametrize(
        ("target", "depends"),
        [
            ("predicted", True),
            ("logit", True),
            (NextToken(0), True),
            (NextToken(0, against="all"), True),
            (NextToken(0, against=[1, 2]), True),
            (NextToken(0, against=None), False),
            (Contrast(0, 1), False),
        ],
    )
    def test_targets_with_weighted_alternatives_depend_on_the_logits(self, target, depends):
        assert HEAD.depends_on_logits(target) is depends
