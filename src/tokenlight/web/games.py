"""The masking game: the model's output after every number of masked tokens.

"Hide" masks tokens one after the other in the order of an explanation; "reveal" starts with all masked and
shows them in this order. Tokens are masked as in the metrics hiding_game and revealing_game: [MASK] in
their place and attention 0. The whole curve is computed at once, so a slider needs no further request.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tokenlight.data.probabilities import softmax
from tokenlight.data.ranks import rank_subset
from tokenlight.errors import BadInput, join_first
from tokenlight.evaluation.measure import check_single_window
from tokenlight.metrics.base import check_has_probabilities
from tokenlight.perturb.logits_stream import stream_logits
from tokenlight.perturb.target_probability import compute_target_probability
from tokenlight.perturb.variants import Perturber, ReplacementIds, Variant
from tokenlight.plots.characters import to_single_line
from tokenlight.plots.descriptions import format_percent
from tokenlight.web.attribution_store import StoredAttribution
from tokenlight.web.models import ServedModel
from tokenlight.web.responses import format_method_name

REMOVAL_SHARES = np.arange(11) / 10  # shares of masked tokens at which random orders are evaluated
MAX_CURVE_TOKENS = 12_000  # tokens per side of a curve; a longer text gets fewer points
MIN_CURVE_POINTS = 11
GAME_SIDES = ("hide", "reveal")

# Given an entry and the positions that may be masked: the positions to mask, one array per variant.
SelectMasked = Callable[[StoredAttribution, np.ndarray], Sequence[np.ndarray]]


def compute_games(
    served_model: ServedModel, entries: Sequence[StoredAttribution], num_orders: int, seed: int
) -> None:
    """Compute the curves of masking games in the order of each explanation, then of random orders.

    What an entry has already is not computed again.

    Results are stored in the entries one by one, so that work which is abandoned is not lost.

    Args:
        served_model: The model that made the explanations.
        entries: The explanations.
        num_orders: Number of random orders to compare with; 0 for none.
        seed: Seed of the random orders.
    """
    without_curve = [entry for entry in entries if entry.game_curve is None]
    curves = _compute_curves(served_model, without_curve)
    for entry, curve in zip(without_curve, curves, strict=True):
        entry.game_curve = curve
    if not num_orders:
        return
    key = (num_orders, seed)
    without_band = [entry for entry in entries if key not in entry.game_bands]
    bands = _compute_random_bands(served_model, without_band, num_orders, seed)
    for entry, band in zip(without_band, bands, strict=True):
        entry.add_game_band(key, band)


def has_game(entry: StoredAttribution, num_orders: int, seed: int) -> bool:
    """Return whether the curve of a game and its random orders have been computed.

    Args:
        entry: The explanation.
        num_orders: Number of random orders; 0 for none.
        seed: Seed of the random orders.
    """
    has_band = not num_orders or (num_orders, seed) in entry.game_bands
    return entry.game_curve is not None and has_band


def describe_game(entry: StoredAttribution, num_orders: int, seed: int) -> dict[str, Any]:
    """Return a computed game: its curve, its random orders and a sentence on both.

    Args:
        entry: The explanation, whose game has been computed.
        num_orders: How many random orders the page asked for.
        seed: The seed of the random orders.
    """
    curve = entry.game_curve
    assert curve is not None
    band = entry.game_bands.get((num_orders, seed))
    sentence = _describe_curve(entry, curve)
    if band is not None:
        sentence += f"; {_describe_band(entry, band)}"
    return {**curve, "random": band, "summary": sentence}


def _describe_curve(entry: StoredAttribution, curve: dict[str, Any]) -> str:
    """Say how many tokens have to be masked to halve the probability of the target."""
    target = entry.attribution.target
    probability = "P(answer)" if target.kind == "span" else f"P({target.name})"
    values = curve["hide"]["target_probability"]
    point = _find_halving_point(values)
    if point is None:
        return (
            f"hiding tokens in this order never halves {probability}: from {format_percent(values[0])} it "
            f"falls only to {format_percent(min(values))}"
        )
    count = curve["counts"][point]
    tokens: list[str] = []
    for position in curve["order"][:count]:
        tokens.append(to_single_line(entry.attribution.row.surface_forms[position]))
    plural = "" if count == 1 else "s"
    return (
        f"hiding {count} token{plural} ({join_first(tokens, 3)}) takes {probability} from "
        f"{format_percent(values[0])} to {format_percent(values[point])}"
    )


def _describe_band(entry: StoredAttribution, band: dict[str, Any]) -> str:
    """Say how many tokens random orders need for the same."""
    point = _find_halving_point(band["hide"]["mean"])
    if point is None:
        return "random orders never halve it"
    counts = _compute_counts_at_shares(entry.attribution.row.special_tokens_mask.count(False))
    return f"random orders need about {counts[point]} to halve it"


def get_column_labels(served_model: ServedModel) -> list[str]:
    """Return the labels of the columns of a game's probabilities."""
    if served_model.is_classifier and served_model.labels:
        return served_model.labels
    return ["answer" if served_model.task == "span" else "target"]


def _compute_curves(
    served_model: ServedModel, entries: Sequence[StoredAttribution]
) -> Iterator[dict[str, Any]]:
    """Yield the curves of each entry's own order: tokens masked one by one, and revealed one by one."""

    def select_masked(entry: StoredAttribution, maskable: np.ndarray) -> list[np.ndarray]:
        order = _choose_masking_order(entry)
        prefixes = [order[:count] for count in _choose_removal_counts(order, entry)]
        rests = [np.setdiff1d(maskable, prefix, assume_unique=True) for prefix in prefixes]
        return [*prefixes, *rests]

    outputs = _compute_outputs(served_model, entries, select_masked)
    for entry, (target_values, logits) in zip(entries, outputs, strict=True):
        order = _choose_masking_order(entry)
        counts = _choose_removal_counts(order, entry)
        probabilities = _build_probability_table(served_model, target_values, logits)
        method = "your order"
        if entry.order is None:
            method = format_method_name(entry.attribution)
        curve: dict[str, Any] = {
            "id": entry.id or None,
            "method": method,
            "target": entry.attribution.target.name,
            "order": order.tolist(),
            "counts": counts,
            "area": {},
        }
        # The variants of the first side come first, then as many of the second.
        for side, start in zip(GAME_SIDES, (0, len(counts)), strict=True):
            points = slice(start, start + len(counts))
            values = target_values[points]
            curve[side] = {
                "target_probability": values.tolist(),
                "probabilities": probabilities[points],
            }
            curve["area"][side] = _compute_area_under_curve(values, np.array(counts) / max(counts))
        yield curve


def _build_probability_table(
    served_model: ServedModel, target_values: np.ndarray, logits: Sequence[np.ndarray]
) -> list[list[float]]:
    """Return a row per variant: the probability of every label, or of the target if labels are not listed."""
    if not served_model.is_classifier or not served_model.labels:
        return [[float(value)] for value in target_values]
    if served_model.explainer.runner.head.problem_type == "multi":
        return [(1 / (1 + np.exp(-row))).tolist() for row in logits]
    return [softmax(row).tolist() for row in logits]


def _compute_random_bands(
    served_model: ServedModel, entries: Sequence[StoredAttribution], num_orders: int, seed: int
) -> Iterator[dict[str, Any]]:
    """Yield mean and quartiles over random orders for each entry, at each share of masked tokens."""

    def select_masked(entry: StoredAttribution, maskable: np.ndarray) -> list[np.ndarray]:
        orders = _draw_orders(entry, maskable, num_orders, seed)
        counts = _compute_counts_at_shares(len(maskable))
        prefixes: list[np.ndarray] = []
        rests: list[np.ndarray] = []
        for order in orders:
            for count in counts:
                prefixes.append(order[:count])
                rests.append(order[count:])
        return [*prefixes, *rests]

    for target_values, _ in _compute_outputs(served_model, entries, select_masked):
        band: dict[str, Any] = {"orders": num_orders, "shares": REMOVAL_SHARES.tolist(), "area": {}}
        # ``side order share``
        values_by_side = target_values.reshape(2, num_orders, len(REMOVAL_SHARES))
        for side, values in zip(GAME_SIDES, values_by_side, strict=True):
            mean = values.mean(axis=0)
            low, high = np.quantile(values, (0.25, 0.75), axis=0)
            band[side] = {"mean": mean.tolist(), "low": low.tolist(), "high": high.tolist()}
            band["area"][side] = _compute_area_under_curve(mean, REMOVAL_SHARES)
        yield band


def _draw_orders(
    entry: StoredAttribution, positions: np.ndarray, num_orders: int, seed: int
) -> list[np.ndarray]:
    """Draw random orders, each followed by its reverse.

    They are equal for equal texts, so the games of several methods share their variants, and an order
    shares them with its reverse. The engine runs equal variants once.
    """
    row = entry.attribution.row
    generator = np.random.default_rng([seed, len(row), *row.ids])
    orders: list[np.ndarray] = []
    for _ in range((num_orders + 1) // 2):
        order = generator.permutation(positions)
        orders += [order, order[::-1]]
    return orders[:num_orders]


def _choose_masking_order(entry: StoredAttribution) -> np.ndarray:
    """Return the user's order, or all tokens that are not special, highest score first."""
    special_tokens_mask = np.array(entry.attribution.row.special_tokens_mask, dtype=bool)
    maskable = np.flatnonzero(~special_tokens_mask)
    if entry.order is None:
        return rank_subset(entry.attribution.scores, maskable)
    has_duplicates = len(set(entry.order)) != len(entry.order)
    if has_duplicates or not set(entry.order) <= set(maskable.tolist()):
        raise BadInput(
            f"An order lists positions of tokens from {min(maskable)} to {max(maskable)}, each once "
            "and without special tokens. Correct the order.",
            code="game-order",
        )
    return np.array(entry.order, dtype=np.int64)


def _choose_removal_counts(order: np.ndarray, entry: StoredAttribution) -> list[int]:
    """Return how many tokens are masked at each point: every number, or evenly fewer for a long text."""
    num_tokens = len(order)
    max_points = max(MIN_CURVE_POINTS, MAX_CURVE_TOKENS // len(entry.attribution))
    if num_tokens + 1 <= max_points:
        return list(range(num_tokens + 1))
    return sorted({round(step * num_tokens / (max_points - 1)) for step in range(max_points)})


def _compute_outputs(
    served_model: ServedModel, entries: Sequence[StoredAttribution], select_masked: SelectMasked
) -> Iterator[tuple[np.ndarray, list[np.ndarray]]]:
    """Yield, per entry, the probability of its target and the logits of each of its variants."""
    runner = served_model.explainer.runner
    check_has_probabilities(runner.head, "The game")
    replacement_ids = ReplacementIds.from_model(runner, served_model.explainer.tokenizer)
    variants_by_entry: list[list[Variant]] = []
    all_variants: list[Variant] = []
    for entry in entries:
        _check_playable(served_model, entry)
        perturber = Perturber(entry.attribution.row, replacement_ids)
        masked_positions = select_masked(entry, perturber.rankable_positions)
        variants = [perturber.hide_tokens(positions) for positions in masked_positions]
        variants_by_entry.append(variants)
        all_variants += variants
    # One stream over all games, so that they share batches.
    logits_stream = stream_logits(runner, all_variants)
    for entry, variants in zip(entries, variants_by_entry, strict=True):
        logits = [next(logits_stream) for _ in variants]
        target_values: list[float] = []
        for variant, row in zip(variants, logits, strict=True):
            value = compute_target_probability(runner.head, entry.attribution.target, variant, row)
            target_values.append(value)
        yield np.array(target_values), logits


def _check_playable(served_model: ServedModel, entry: StoredAttribution) -> None:
    """Refuse explanations that cannot be perturbed token by token."""
    if any(step.startswith("merge_words") for step in entry.attribution.steps):
        raise BadInput(
            "This explanation has word scores, but the game masks tokens. Explain the text without "
            "merging words.",
            code="game-of-words",
        )
    check_single_window(served_model.explainer, entry.attribution, "The game")


def _find_halving_point(values: Sequence[float]) -> int | None:
    """Return the first point at which the value is less than half of the first one."""
    for point, value in enumerate(values):
        if value < values[0] / 2:
            return point
    return None


def _compute_counts_at_shares(num_tokens: int) -> list[int]:
    return [int(share * num_tokens + 0.5) for share in REMOVAL_SHARES]


def _compute_area_under_curve(values: np.ndarray, shares: np.ndarray) -> float:
    return float(np.trapezoid(values, shares))
