"""Rank tokens and methods, compare two rankings, and find the tokens that a person marked."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.data.ranks import compute_midranks
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import BadInput, MissingExtra
from tokenlight.metrics._interval import Interval
from tokenlight.metrics.base import CharacterSpan, Metric
from tokenlight.perturb.engine import ReplacementIds

RankOrder = Literal["top", "bottom"]
RankCorrelation = Literal["spearman", "kendall"]
PAPER_GRID = tuple(step / 10 for step in range(11))
MIN_TAU = 0.6  # two orders with a smaller Kendall's tau count as different
MIN_METHODS = 3  # an order of fewer methods says nothing
# How tokens are removed, by the option ``perturb`` or the token that replaces them.
PERTURB_PHRASES = {
    "delete": "deleted",
    "pad": "replaced by [PAD]",
    "mask": "replaced by [MASK]",
    "unk": "replaced by the unknown token",
    "eos": "replaced by the end-of-text token",
    "patch": "hidden",
}


def rank_positions(scores: Sequence[float] | np.ndarray, order: RankOrder = "top") -> np.ndarray:
    """Return the positions by score, highest first (``bottom``: lowest first).

    Equal scores keep the order of the text, and NaN comes last either way. The official codes of papers sort
    unstably, so their order of equal scores is arbitrary.
    """
    values = np.asarray(scores, dtype=np.float64)
    return np.argsort(-values if order == "top" else values, kind="stable")


def rank_subset(scores: np.ndarray, positions: np.ndarray, order: RankOrder = "top") -> np.ndarray:
    """Return ``positions`` ordered by their scores; see :func:`rank_positions`.

    Args:
        scores: Scores of all tokens.
        positions: The tokens to rank.
        order: ``"top"``: the highest score first; for the others see :func:`rank_positions`.
    """
    return np.asarray(positions[rank_positions(scores[positions], order)])


def shares_to_counts(shares: Sequence[float], num_tokens: int) -> list[int]:
    """Convert shares of ``num_tokens`` to counts, with Python's ``round``: halves go to even."""
    return [round(share * num_tokens) for share in shares]


def _is_constant(scores: np.ndarray) -> bool:
    """Return whether the scores rank no token above another."""
    return len(scores) < 2 or float(np.ptp(scores)) == 0.0


def check_rankable(scores: np.ndarray) -> None:
    """Raise :class:`BadInput` if the scores rank no token above another."""
    if _is_constant(scores):
        raise BadInput(
            "A rank correlation is not defined, because all scores of this text are equal (or it has one "
            "token).",
            code="equal-scores",
        )


def rank_correlation(first: np.ndarray, second: np.ndarray, kind: RankCorrelation) -> float:
    """Return a rank correlation in [−1, 1]: Spearman's rho, or Kendall's tau-b (scipy).

    Args:
        first: One value per item.
        second: Values of the same items.
        kind: ``"spearman"`` or ``"kendall"``. Equal values share a rank in both.

    Raises:
        BadInput: All values of one side are equal.
    """
    check_rankable(first)
    check_rankable(second)
    if kind == "spearman":
        return float(np.corrcoef(compute_midranks(first), compute_midranks(second))[0, 1])
    stats = MissingExtra.import_or_raise("scipy.stats", "bench", "Kendall's tau")
    return float(stats.kendalltau(first, second).statistic)


def find_annotated_tokens(row: TokenRow, spans: Sequence[CharacterSpan]) -> np.ndarray:
    """Return a mask of shape ``token``: true where a token shares a character with a span."""
    is_annotated = np.zeros(len(row), dtype=bool)
    for i, (segment, token_span) in enumerate(zip(row.segments, row.spans, strict=True)):
        if token_span is None:
            continue
        token_start, token_end = token_span
        for span_segment, start, end in spans:
            if segment == span_segment and token_start < end and start < token_end:
                is_annotated[i] = True
                break
    return is_annotated


def visible_share(row: TokenRow, spans: Sequence[CharacterSpan]) -> float:
    """Return the share of the marked characters that a truncated text still contains."""
    if not row.num_truncated:
        return 1.0
    # The last visible character of each segment.
    segment_ends: dict[int | None, int] = {}
    for segment, token_span in zip(row.segments, row.spans, strict=True):
        token_end = token_span[1] if token_span else 0
        segment_ends[segment] = max(segment_ends.get(segment, 0), token_end)
    num_marked = 0
    num_visible = 0
    for segment, start, end in spans:
        num_marked += end - start
        num_visible += max(0, min(end, segment_ends.get(segment, 0)) - start)
    return num_visible / num_marked if num_marked else 0.0


@dataclass(frozen=True, slots=True)
class Agreement:
    """The mean rank correlation between every two methods.

    Attributes:
        methods: Names of the methods.
        pairs: Two methods to the mean over texts with its interval.
    """

    methods: tuple[str, ...]
    pairs: Mapping[tuple[str, str], Interval]

    @property
    def matrix(self) -> np.ndarray:
        """The means, of shape ``method method``, with 1 on the diagonal; NaN if no text can be compared."""
        matrix = np.full((len(self.methods), len(self.methods)), np.nan)
        np.fill_diagonal(matrix, 1.0)
        for (first, second), interval in self.pairs.items():
            i = self.methods.index(first)
            j = self.methods.index(second)
            matrix[i, j] = interval.mean
            matrix[j, i] = interval.mean
        return matrix


def normalized_ranks(attribution: Attribution) -> np.ndarray | None:
    """Return the ranks of the tokens that are not special, centered and of length 1.

    The dot product of two such vectors is Spearman's correlation. None if all scores are equal.
    """
    is_special = np.array(attribution.row.special_tokens_mask, dtype=bool)
    scores = attribution.scores[~is_special]
    if _is_constant(scores):
        return None
    ranks = compute_midranks(scores)
    ranks = ranks - ranks.mean()
    return np.asarray(ranks / np.sqrt(ranks @ ranks))


def removals_by_metric(metrics: Mapping[str, Metric]) -> dict[Metric, dict[str, str]]:
    """Group metrics that differ only in the option ``perturb``.

    Returns:
        The metric with ``perturb="delete"``, to each value of ``perturb`` with the key of its metric.
    """
    groups: dict[Metric, dict[str, str]] = {}
    for key, metric in metrics.items():
        component: Any = metric
        if "perturb" in component.__dataclass_fields__:
            base_metric = replace(component, perturb="delete")
            groups.setdefault(base_metric, {})[component.perturb] = key
    return groups


def _different_removals(
    keys_by_perturb: Mapping[str, str], replacement_ids: ReplacementIds | None
) -> dict[str, str]:
    """Return the phrase of each removal to the key of its metric; equal removals are listed once."""
    if replacement_ids is None:
        return {PERTURB_PHRASES[perturb]: key for perturb, key in keys_by_perturb.items()}
    # A model without [PAD] or [MASK] uses another token, which the phrase names.
    token_names = {"pad": replacement_ids.pad_name, "mask": replacement_ids.mask_name}
    phrases_and_keys: dict[str | int, tuple[str, str]] = {}
    for perturb, key in keys_by_perturb.items():
        phrase = PERTURB_PHRASES[token_names.get(perturb, perturb)]
        phrases_and_keys.setdefault(replacement_ids.removal(perturb), (phrase, key))
    return dict(phrases_and_keys.values())


def compare_removal_orders(
    metrics: Mapping[str, Metric],
    means: Mapping[str, Mapping[str, float]],
    replacement_ids: ReplacementIds | None = None,
) -> Iterator[tuple[bool, str]]:
    """Check whether the order of methods depends on how tokens are removed.

    Each metric that is given with several values of ``perturb`` and the same other options is checked. The
    order is stable if Kendall's tau between every two removals is high and the same method is first.

    Args:
        metrics: Metrics by key.
        means: Key of the metric to method to mean.
        replacement_ids: Replacement tokens of the model. Removals that are the same for it are not compared.

    Yields:
        Whether the order is stable, and a sentence that says so.
    """
    for metric, keys_by_perturb in removals_by_metric(metrics).items():
        removals = _different_removals(keys_by_perturb, replacement_ids)
        methods, goodness = _collect_goodness(metric, removals, means)
        if len(removals) < 2 or len(methods) < MIN_METHODS:
            continue
        # A removal under which all methods are equally good orders nothing.
        if any(_is_constant(row) for row in goodness.values()):
            continue
        yield _describe_stability(metric, methods, goodness)


def _collect_goodness(
    metric: Metric, removals: Mapping[str, str], means: Mapping[str, Mapping[str, float]]
) -> tuple[list[str], dict[str, np.ndarray]]:
    """Return the methods that all removals measured, and their means by removal; higher is better."""
    means_by_removal = {phrase: means.get(key, {}) for phrase, key in removals.items()}
    first_means = next(iter(means_by_removal.values()))
    methods = []
    for method in first_means:
        values = [row.get(method, np.nan) for row in means_by_removal.values()]
        if np.isfinite(values).all():
            methods.append(method)
    # A metric for which lower is better is negated.
    sign = -1.0 if metric.direction == "lower" else 1.0
    goodness = {}
    for phrase, row in means_by_removal.items():
        goodness[phrase] = sign * np.array([row[method] for method in methods])
    return methods, goodness


def _describe_stability(
    metric: Metric, methods: Sequence[str], goodness: Mapping[str, np.ndarray]
) -> tuple[bool, str]:
    """Return whether the order of the methods is stable, and a sentence that says so."""
    # Kendall's tau of every two removals, and the best method of each.
    taus = {}
    for (phrase_a, row_a), (phrase_b, row_b) in combinations(goodness.items(), 2):
        taus[phrase_a, phrase_b] = rank_correlation(row_a, row_b, "kendall")
    best_methods = {phrase: methods[int(row.argmax())] for phrase, row in goodness.items()}
    lowest_pair = min(taus, key=taus.__getitem__)
    first, second = lowest_pair
    tau = f"Kendall's tau {taus[lowest_pair]:.2f} between tokens {first} and {second}"
    has_one_best = len(set(best_methods.values())) == 1
    if taus[lowest_pair] >= MIN_TAU and has_one_best:
        return True, (
            f"{metric.name} orders the {len(methods)} methods alike however tokens are removed (lowest: "
            f"{tau}); {best_methods[first]} is first."
        )
    listed = ", ".join(f"“{method}” ({phrase})" for phrase, method in best_methods.items())
    return False, (
        f"The order of the {len(methods)} methods by {metric.name} depends on how tokens are removed: {tau}; "
        f"first is {listed}. Do not rank methods by one of these alone."
    )
