"""The ways to remove words: which a text has, what they put there, and that no two are the same."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.tiny import tiny_bert
from tokenlight import Explainer
from tokenlight.evaluation.random_partial_texts import NUM_EXPLANATION_DRAWS, RandomPartialTexts
from tokenlight.evaluation.removal import AppliedRemoval, RemovalRunner, list_removals
from tokenlight.perturb.variants import ReplacementIds

TEXT = "A charming film, and often very funny."


@pytest.fixture(scope="module")
def sentiment():
    return Explainer.from_pretrained("tokenlight/sentiment")


def list_for(explainer, attribution, seed=0):
    words = RemovalRunner(explainer, attribution, {}).words
    return words, list_removals(explainer, attribution.row, words, np.random.default_rng(seed))


def test_words_are_deleted_masked_and_replaced_by_likely_words(sentiment):
    attribution = sentiment.explain(TEXT, "random")
    words, removals = list_for(sentiment, attribution)
    assert [removal.name for removal in removals] == ["delete", "mask", "infill"]
    row = attribution.row
    removed = np.concatenate(words[1:3])
    special_ids = RemovalRunner(sentiment, attribution, {}).special_ids
    deleted, masked, replaced = (
        AppliedRemoval(removal, removed).build(special_ids, np.empty(0, int))
        for removal in removals
    )
    assert len(deleted) == len(row) - len(removed)
    assert set(masked.ids[removed]) == {sentiment.tokenizer.mask_token_id}
    assert len(replaced) == len(row)
    # No word is replaced by itself, and no other token changes.
    assert (replaced.ids[removed] != np.array(row.ids)[removed]).all()
    kept_positions = np.setdiff1d(np.arange(len(row)), removed)
    np.testing.assert_array_equal(replaced.ids[kept_positions], np.array(row.ids)[kept_positions])
    is_special = np.isin(replaced.ids[removed], sentiment.tokenizer.all_special_ids)
    assert not is_special.any()


def test_the_same_seed_draws_the_same_words(sentiment):
    attribution = sentiment.explain(TEXT, "random")
    _, first = list_for(sentiment, attribution)
    _, second = list_for(sentiment, attribution)
    _, other = list_for(sentiment, attribution, seed=1)
    np.testing.assert_array_equal(first[2].replacement_ids, second[2].replacement_ids)
    assert (first[2].replacement_ids != other[2].replacement_ids).any()


def test_a_replacement_of_the_mask_token_is_named(tokenizer, monkeypatch):
    """Case 4: a tokenizer without [MASK] masks by [PAD], says so, and does so once."""
    explainer = Explainer(tiny_bert(), tokenizer)
    attribution = explainer.explain("the film is not very good", "random")
    special_ids = ReplacementIds(0, 0, "pad", "pad")
    monkeypatch.setattr(ReplacementIds, "from_model", lambda *_: special_ids)
    _, removals = list_for(explainer, attribution)
    assert [removal.action for removal in removals] == [
        "deleted",
        "replaced by [PAD]",
        "replaced by likely words",
    ]


def test_random_partial_texts_are_run_once(sentiment):
    attribution = sentiment.explain(TEXT, "random")
    cache = {}
    removal_runner = RemovalRunner(sentiment, attribution, cache)
    _, removals = list_for(sentiment, attribution)
    partial_texts = RandomPartialTexts(removal_runner, removals, np.random.default_rng(0))
    first = partial_texts.measure(attribution.scores, 2)
    num_texts = len(cache)
    again = partial_texts.measure(attribution.scores, 2)
    assert len(cache) == num_texts
    for item, same in zip(first, again, strict=True):
        assert item.to_dict() == same.to_dict()
    partial_texts.measure(-attribution.scores, 2)
    # Each half of the inverted order is the other half of the first, and known. Its top words, and those
    # with its lowest words, were missing: deleted, masked, and replaced by several draws of likely words.
    assert num_texts < len(cache) <= num_texts + 2 * (1 + 1 + NUM_EXPLANATION_DRAWS)


def test_the_correlation_equals_numpys_of_few_words_and_of_halves(sentiment):
    attribution = sentiment.explain(TEXT, "random")
    removal_runner = RemovalRunner(sentiment, attribution, {})
    _, removals = list_for(sentiment, attribution)
    partial_texts = RandomPartialTexts(removal_runner, removals, np.random.default_rng(0))
    evidence = partial_texts.measure(attribution.scores, 6)[0]
    log_odds = np.log(evidence.random_probabilities / (1 - evidence.random_probabilities))
    few = np.corrcoef(evidence.random_kept_sums[:, 0], log_odds[:, 0])[0, 1]
    # Which half of an order comes first is arbitrary: each difference counts in both directions.
    sums_between_halves = evidence.random_kept_sums[:, 1] - evidence.random_kept_sums[:, 2]
    log_odds_between_halves = log_odds[:, 1] - log_odds[:, 2]
    halves = np.corrcoef(
        np.concatenate([sums_between_halves, -sums_between_halves]),
        np.concatenate([log_odds_between_halves, -log_odds_between_halves]),
    )[0, 1]
    assert evidence.correlation == pytest.approx((few + halves) / 2)
