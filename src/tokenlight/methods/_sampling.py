"""Scores that are means over random samples: their standard errors, their stability and a self-test."""

from typing import Any

import numpy as np

from tokenlight.data.tokens import TokenRow

NUM_STABILITY_DRAWS = 100  # of scores within their errors
NUM_SPLITS = 20  # random halves of the samples in the self-test
# Streams of random numbers besides those of the partial texts, which are numbered by round.
STABILITY_STREAM = (0, 1)
SELF_TEST_STREAM = (0, 2)
MIN_SELF_TEST_SAMPLES = 4  # with fewer, half of them say nothing


class ScoreSamples:
    """The scores of one text in random partial texts, and what they say of the mean.

    Args:
        row: The whole text.
        seed: Seed of the self-test and of the stability.
    """

    def __init__(self, row: TokenRow, seed: int) -> None:
        self._row = row
        self._seed = seed
        self._whole_scores = np.zeros(len(row))
        # ``token`` of each partial text, 0 where a token is missing.
        self._scores: list[np.ndarray] = []
        self._is_present: list[np.ndarray] = []
        self._values: list[float] = []
        # Dropped when another partial text is added.
        self._stacked: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def num_samples(self) -> int:
        """The number of partial texts."""
        return len(self._scores)

    def set_whole_scores(self, scores: np.ndarray) -> None:
        """Set the scores of the whole text, ``token``, which counts as one more sample."""
        self._whole_scores = scores

    def add(self, positions: np.ndarray, scores: np.ndarray, value: float) -> None:
        """Add a partial text.

        Args:
            positions: Where its tokens stand in the whole text.
            scores: Their scores.
            value: The target of the partial text.
        """
        is_present = np.zeros(len(self._row), dtype=bool)
        is_present[positions] = True
        all_scores = np.zeros(len(self._row))
        all_scores[positions] = scores
        self._is_present.append(is_present)
        self._scores.append(all_scores)
        self._values.append(value)
        self._stacked = None

    @property
    def mean(self) -> np.ndarray:
        """``token``: the mean over the whole text and the partial texts that hold the token."""
        scores, is_present = self._stack()
        total = self._whole_scores + scores.sum(axis=0)
        mean: np.ndarray = total / (1 + is_present.sum(axis=0))
        return mean

    def _stack(self) -> tuple[np.ndarray, np.ndarray]:
        """Return ``sample token``: the scores, and 1 where a token is present."""
        if self._stacked is None:
            shape = (self.num_samples, len(self._row))
            scores = np.array(self._scores).reshape(shape)
            is_present = np.array(self._is_present, dtype=float).reshape(shape)
            self._stacked = scores, is_present
        return self._stacked

    @property
    def standard_errors(self) -> np.ndarray:
        r"""``token``: the standard error of each mean, :math:`\hat\sigma_i \sqrt{n_i} / (1 + n_i)`.

        :math:`\hat\sigma_i` is the deviation over the :math:`n_i` partial texts that hold the token; the
        score of the whole text is no random draw. A token of a single partial text takes its deviation from
        that and the whole text. A token of none has the largest error of all.
        """
        scores, is_present = self._stack()
        count = is_present.sum(axis=0)
        # A token of one partial text has no deviation without a second value.
        is_single = count == 1
        scores = np.concatenate((scores, self._whole_scores[None]))
        is_present = np.concatenate((is_present, is_single[None]))
        num_values = np.maximum(is_present.sum(axis=0), 1)
        center = (scores * is_present).sum(axis=0) / num_values
        squares = (is_present * (scores - center) ** 2).sum(axis=0)
        deviation = np.sqrt(squares / np.maximum(num_values - 1, 1))
        errors: np.ndarray = deviation * np.sqrt(count) / (1 + count)
        return np.where(count == 0, errors.max(initial=0.0), errors)

    def compute_stability(self, top_k: int) -> float:
        """Return the expected share of the top tokens that other draws would name again.

        Scores are drawn from normal distributions with the means and standard errors found here.

        Args:
            top_k: The number of tokens; special tokens are none of them.
        """
        is_regular = ~np.array(self._row.special_tokens_mask)
        scores = self.mean[is_regular]
        if len(scores) <= top_k:
            return 1.0
        generator = self._row.make_generator(self._seed, *STABILITY_STREAM)
        noise = generator.standard_normal((NUM_STABILITY_DRAWS, len(scores)))
        draws = scores + noise * self.standard_errors[is_regular]
        is_top = np.zeros(len(scores), dtype=bool)
        is_top[_find_top(scores, top_k)] = True
        return float(is_top[_find_top(draws, top_k)].mean())

    def test_prediction(self) -> dict[str, Any] | None:
        """Measure how well sums of scores predict the target of partial texts that did not give the scores.

        The partial texts are split into random halves. Scores from the whole text and one half predict, for
        each partial text of the other half, its target as the sum of the scores of its tokens, up to a
        constant.

        Returns:
            ``correlation`` between prediction and target within halves, over all splits, and ``samples``,
            the number of partial texts; None if they are too few or do not differ.
        """
        count = self.num_samples
        if count < MIN_SELF_TEST_SAMPLES:
            return None
        scores, is_present = self._stack()
        is_fitted = self._draw_halves()
        total = self._whole_scores + is_fitted @ scores
        means = total / (1 + is_fitted @ is_present)
        is_tested = 1 - is_fitted
        predicted = _center(means @ is_present.T, is_tested)
        observed = _center(np.tile(self._values, (len(is_tested), 1)), is_tested)
        scale = float(np.sqrt((predicted**2).sum() * (observed**2).sum()))
        if scale == 0:
            return None
        return {"correlation": float((predicted * observed).sum()) / scale, "samples": count}

    def _draw_halves(self) -> np.ndarray:
        """Return ``half sample``: 1 where a sample belongs to a half; first halves, then the others."""
        count = self.num_samples
        generator = self._row.make_generator(self._seed, *SELF_TEST_STREAM)
        orders = generator.permuted(np.tile(np.arange(count), (NUM_SPLITS, 1)), axis=1)
        first_halves = orders < count // 2
        return np.concatenate((first_halves, ~first_halves)).astype(float)

    def to_extras(self, top_k: int) -> dict[str, Any]:
        """Return standard errors, stability and self-test as JSON values."""
        sampling: dict[str, Any] = {
            "samples": self.num_samples,
            "top_k": top_k,
            "stability": self.compute_stability(top_k),
            "self_test": self.test_prediction(),
        }
        return {"standard_errors": self.standard_errors.tolist(), "sampling": sampling}


def _find_top(scores: np.ndarray, top_k: int) -> np.ndarray:
    """Return the indices of the largest magnitudes along the last axis, in no order."""
    return np.argpartition(-np.abs(scores), top_k - 1, axis=-1)[..., :top_k]


def _center(values: np.ndarray, is_member: np.ndarray) -> np.ndarray:
    """Subtract from the members of each row their mean; all others become 0."""
    means = (values * is_member).sum(axis=1) / is_member.sum(axis=1)
    centered: np.ndarray = (values - means[:, None]) * is_member
    return centered
