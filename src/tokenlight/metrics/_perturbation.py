"""Metrics that remove ranked tokens from a text and measure the probability of a target."""

from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal

import numpy as np

from tokenlight.data.ranks import RankOrder, rank_subset
from tokenlight.data.target import ResolvedTarget
from tokenlight.data.units import Unit, find_removable_units
from tokenlight.errors import BadInput
from tokenlight.errors.arguments import Count
from tokenlight.metrics.base import Case, Direction, Measurement, Metric, VariantOutputs
from tokenlight.perturb.target_probability import compute_target_probability
from tokenlight.perturb.variants import Perturber, Variant

Perturb = Literal["delete", "pad", "mask"]
MeasuredTarget = Literal["explained", "predicted", "label"]
PAPER_GRID = tuple(step / 10 for step in range(11))
MIN_PROBABILITY = 1e-12  # smaller probabilities are clipped to this before their logarithm


class PerturbationMetric(Metric, abstract=True):
    """Mean fall of the probability over texts without some of the ranked tokens.

    At each step the first tokens of the ranking are removed or, if ``keeps_top``, all tokens after them.
    Special tokens stay if ``protect_special``.
    """

    perturb: Perturb
    protect_special: bool
    keeps_top = False
    needs_probability = True

    @property
    def removal_order(self) -> RankOrder:
        """Which tokens are removed first: the option ``order``, if the metric has one."""
        return getattr(self, "order", "top")

    @property
    def direction(self) -> Direction:
        if self.removal_order == "top":
            return self.better
        return "lower" if self.better == "higher" else "higher"

    @property
    def needs_labels(self) -> bool:
        return bool(getattr(self, "target", "") == "label")

    @property
    def masks_attention(self) -> bool:
        """Whether replaced tokens have attention 0, so that no other token sees the replacement."""
        return bool(getattr(self, "mask_pad_attention", False))

    def rank_removable(self, case: Case) -> np.ndarray:
        """Return the positions that may be removed, in the order of their removal."""
        positions = np.arange(len(case.perturber))
        if self.protect_special:
            positions = case.perturber.rankable_positions
        return rank_subset(case.attribution.scores, positions, self.removal_order)

    def split_order(self, order: np.ndarray, counts: Iterable[int]) -> list[np.ndarray]:
        """Return the positions that are removed at each step, from the order of removal.

        Args:
            order: Positions in the order of their removal.
            counts: How many positions of ``order`` each step removes or, if ``keeps_top``, keeps.
        """
        if self.keeps_top:
            return [order[count:] for count in counts]
        return [order[:count] for count in counts]

    def count_ranked(self, num_tokens: int) -> Iterable[int]:
        """Return how many of the first ranked tokens each step removes or, if ``keeps_top``, keeps."""
        return convert_shares_to_counts(self.curve_points, num_tokens)

    def select_removed_positions(self, case: Case) -> Iterable[np.ndarray]:
        """Return the positions that each perturbed text lacks."""
        order = self.rank_removable(case)
        return self.split_order(order, self.count_ranked(len(order)))

    def remove_positions(self, perturber: Perturber, positions: np.ndarray) -> Variant:
        """Return the text without some positions.

        They are deleted (patches of an image, which would lose its grid, are occluded), or replaced by [PAD]
        or [MASK]. Replacements are attended to unless ``masks_attention``.
        """
        if self.perturb == "delete":
            return perturber.remove_tokens(positions)
        replacement_id = perturber.replacement_ids.mask_id
        if self.perturb == "pad":
            replacement_id = perturber.replacement_ids.pad_id
        if self.masks_attention:
            return perturber.hide_tokens(positions, replacement_id)
        return perturber.replace_tokens(positions, replacement_id)

    def build_variants(self, case: Case) -> list[Variant]:
        variants = [case.perturber.make_unperturbed()]
        for positions in self.select_removed_positions(case):
            variants.append(self.remove_positions(case.perturber, positions))
        return variants

    def measure(self, case: Case, outputs: VariantOutputs) -> Measurement:
        measured_target: MeasuredTarget = getattr(self, "target", "explained")
        probabilities = compute_target_probabilities(case, outputs, measured_target)
        curve = self.compute_curve(float(probabilities[0]), probabilities[1:])
        return Measurement(self.reduce_curve(curve), tuple(map(float, curve)))

    def compute_curve(self, original: float, perturbed: np.ndarray) -> np.ndarray:
        """Return the curve from the probabilities of the original and the perturbed texts: the fall."""
        return original - perturbed

    def reduce_curve(self, curve: np.ndarray) -> float:
        """Return the number from the curve: its mean."""
        return float(curve.mean())


class AreaMetric(PerturbationMetric, abstract=True):
    """Area under a curve by the trapezoid rule, as the ranked tokens are removed share by share."""

    num_steps: Count
    better: ClassVar[Direction] = "lower"

    @property
    def curve_points(self) -> tuple[float, ...]:
        return tuple(step / self.num_steps for step in range(self.num_steps + 1))

    def compute_curve(self, original: float, perturbed: np.ndarray) -> np.ndarray:  # noqa: ARG002 - not a fall
        return perturbed

    def reduce_curve(self, curve: np.ndarray) -> float:
        return float(np.trapezoid(curve, self.curve_points))


def convert_shares_to_counts(shares: Sequence[float], num_tokens: int) -> list[int]:
    """Convert shares of ``num_tokens`` to counts, with Python's ``round``: halves go to even."""
    return [round(share * num_tokens) for share in shares]


def find_scored_units(case: Case, unit: Unit) -> tuple[list[np.ndarray], np.ndarray]:
    """Find the units of a text that may be removed, with their scores; question and answer are not among
    them.

    Args:
        case: The explanation under test.
        unit: The kind of unit, such as ``sentence``.

    Returns:
        The token positions of each unit, and the sum of its scores.

    Raises:
        BadInput: The target is a span, or the text has no such unit.
    """
    if case.attribution.target.kind == "span":
        raise BadInput(
            "This metric deletes sources, which would move an answer that is a span of the text. Use aopc or "
            "comprehensiveness.",
            code="sources-of-span",
        )
    row = case.attribution.row
    scores = case.attribution.scores
    # Special tokens, the question and the continuation are not sources.
    is_fixed = np.ones(len(row), dtype=bool)
    is_fixed[case.perturber.rankable_positions] = False
    units = find_removable_units(row, unit, is_fixed)
    if not units:
        raise BadInput(
            f"The text has no {unit} that could be removed. Choose other units, or leave the text out.",
            code="no-removable-unit",
        )
    return units, np.array([scores[positions].sum() for positions in units])


def remove_units(case: Case, units: list[np.ndarray], is_removed: np.ndarray) -> list[Variant]:
    """Return the text without some of its units.

    Args:
        case: The explanation under test.
        units: Token positions of each unit.
        is_removed: Which units each variant lacks, of shape ``sample unit``.
    """
    variants = []
    for sample in is_removed:
        # An empty array first: a sample may remove nothing.
        positions = [np.empty(0, dtype=int)]
        for unit_positions, is_unit_removed in zip(units, sample, strict=True):
            if is_unit_removed:
                positions.append(unit_positions)
        variants.append(case.perturber.remove_tokens(np.concatenate(positions)))
    return variants


def compute_target_probabilities(
    case: Case, outputs: VariantOutputs, measured_target: MeasuredTarget = "explained"
) -> np.ndarray:
    """Compute the probability of a target in each perturbed text.

    Args:
        case: The explanation under test.
        outputs: The perturbed texts with their logits.
        measured_target: The explained target, the predicted class, or the true label. A span or continuation
            is always the explained one.

    Raises:
        BadInput: The true label is measured and not known.
    """
    target: ResolvedTarget = case.attribution.target
    has_classes = target.kind != "span" and not case.attribution.row.continuation_ids
    if measured_target != "explained" and has_classes:
        index: int | None = case.attribution.prediction.index
        if measured_target == "label":
            index = case.label
        if index is None:
            raise BadInput(
                "target='label' needs the true label of every text, but this one has none. Give labels=….",
                code="true-label-required",
            )
        # The class as a target of its own: one logit with weight 1.
        target = ResolvedTarget("class", case.head.labels[index], (((index,), 1.0),))
    probabilities = []
    for variant, logits in outputs:
        probabilities.append(compute_target_probability(case.head, target, variant, logits))
    return np.array(probabilities)
