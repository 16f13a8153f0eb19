"""Split targets of several logits into parts that are explained one after the other."""

from collections.abc import Callable, Sequence

from tokenlight.data.target import ResolvedTarget
from tokenlight.model.objective import ArgmaxTargets

# The parts of a target, each with its weight.
WeightedParts = list[tuple[float, ResolvedTarget]]
SplitTarget = Callable[[ResolvedTarget], WeightedParts]


def split_terms(target: ResolvedTarget) -> WeightedParts:
    """Split a target into its logits; the alternatives of a token are one part."""
    return [*target.logit_parts]


def split_sides(target: ResolvedTarget) -> WeightedParts:
    """Split an answer into its start and its end; any other target has one side."""
    return [(1.0, side) for side in target.sides]


def split_predicted(
    targets: ArgmaxTargets, split: SplitTarget
) -> list[tuple[float, Sequence[ResolvedTarget]]]:
    """Split targets that are chosen on the device, without waiting for their logits."""
    if split is split_terms:
        return targets.parts
    return [(1.0, targets)]


def split_into_rounds(
    targets: Sequence[ResolvedTarget], split: SplitTarget
) -> list[tuple[list[float], tuple[ResolvedTarget, ...]]]:
    """Split the targets of a batch, and group their parts by position.

    Args:
        targets: One per example.
        split: Returns the parts of a target.

    Returns:
        Rounds of one weight and one target per example. A target with fewer parts than others repeats its
        last one with weight 0.
    """
    parts_by_example = [split(target) for target in targets]
    num_rounds = max(len(parts) for parts in parts_by_example)
    rounds: list[tuple[list[float], tuple[ResolvedTarget, ...]]] = []
    for round_index in range(num_rounds):
        weights: list[float] = []
        part_targets: list[ResolvedTarget] = []
        for parts in parts_by_example:
            is_repeated = round_index >= len(parts)
            weight, target = parts[-1] if is_repeated else parts[round_index]
            weights.append(0.0 if is_repeated else weight)
            part_targets.append(target)
        rounds.append((weights, tuple(part_targets)))
    return rounds
