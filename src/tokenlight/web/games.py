"""The hiding and revealing game: the model's answer after every number of tokens, in one batch.

Tokens are hidden as the metrics hiding_game and revealing_game hide them: [MASK] in their place and
attention 0. The whole curve is made at once, so that a slider asks nobody.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tokenlight.capture.perturbation import Original, StandIns, stream_logits
from tokenlight.data.answers import softmax
from tokenlight.errors import BadInput, few
from tokenlight.evaluation.measure import needs_one_piece
from tokenlight.metrics._erasing import chance
from tokenlight.metrics._metric import needs_probabilities
from tokenlight.metrics._ranking import ranked_among
from tokenlight.plots.characters import in_line
from tokenlight.web.models import Served
from tokenlight.web.responses import method_name
from tokenlight.web.store import Entry

SHARES = np.arange(11) / 10  # of the tokens, where random orders are looked at
CURVE_TOKENS = 12_000  # of one side of one curve; a longer text has fewer points
FEWEST_POINTS = 11
SIDES = ("hide", "reveal")


def play(served: Served, entries: Sequence[Entry], orders: int, seed: int) -> None:
    """Play these games as far as they are not yet: each by its own order, then by random ones."""
    new = [entry for entry in entries if None not in entry.played]
    for entry, curve in zip(new, _curves(served, new), strict=True):
        entry.remember(None, curve)
    new = [entry for entry in entries if orders and (orders, seed) not in entry.played]
    for entry, band in zip(new, _bands(served, new, orders, seed), strict=True):
        entry.remember((orders, seed), band)


def told(entry: Entry, orders: int, seed: int) -> dict[str, Any] | None:
    """The whole game: its curve, chance beside it, and both in words; None where it was not played."""
    curve, band = entry.played.get(None), entry.played.get((orders, seed))
    if curve is None or (orders and band is None):
        return None
    row, target = entry.attribution.row, entry.attribution.target
    watched = "P(answer)" if target.kind == "span" else f"P({target.name})"
    hide = curve["hide"]["watched"]
    halved = _halved(hide)
    if halved is None:
        fall = f"from {hide[0]:.2f} it falls to {min(hide):.2f} at most"
        says = f"hiding tokens in this order never halves {watched}: {fall}"
    else:
        count, fall = curve["counts"][halved], f"from {hide[0]:.2f} to {hide[halved]:.2f}"
        hidden = [in_line(row.surface[place]) for place in curve["order"][:count]]
        says = f"hiding {count} token{'s' * (count != 1)} ({few(hidden, 3)}) takes {watched} {fall}"
    if band is not None:
        there, grid = _halved(band["hide"]["mean"]), _grid(row.special.count(False))
        needed = "never" if there is None else f"need about {grid[there]} to"
        says += f"; random orders {needed} halve it"
    return {**curve, "random": band, "says": says}


def labels_of(served: Served) -> list[str]:
    """What the columns of a game's probabilities are."""
    if served.task == "classification" and served.labels:
        return served.labels
    return ["answer" if served.task == "span" else "watched"]


def _curves(served: Served, entries: Sequence[Entry]) -> Iterator[dict[str, Any]]:
    """Each game by its own order: hidden one by one, and shown one by one."""
    multi = served.explainer.live.head.problem == "multi"

    def hidden(entry: Entry, everything: np.ndarray) -> list[np.ndarray]:
        order = _order(entry)
        first = [order[:count] for count in _counts(order, entry)]
        return [*first, *(np.setdiff1d(everything, shown, assume_unique=True) for shown in first)]

    for entry, (watched, logits) in zip(entries, _answers(served, entries, hidden), strict=True):
        order = _order(entry)
        counts = _counts(order, entry)
        # Every label's probability at every point; of an answer or a next token, the watched one.
        table = [[float(value)] for value in watched]
        if served.task == "classification" and served.labels:
            table = [(1 / (1 + np.exp(-one)) if multi else softmax(one)).tolist() for one in logits]
        made: dict[str, Any] = {
            "id": entry.id or None,
            "method": method_name(entry.attribution) if entry.order is None else "your order",
            "watched": entry.attribution.target.name,
            "order": order.tolist(),
            "counts": counts,
            "area": {},
        }
        for side, first in zip(SIDES, (0, len(counts)), strict=True):
            part = slice(first, first + len(counts))
            made[side] = {"watched": watched[part].tolist(), "probabilities": table[part]}
            made["area"][side] = _area(watched[part], np.array(counts) / max(counts))
        yield made


def _bands(
    served: Served, entries: Sequence[Entry], orders: int, seed: int
) -> Iterator[dict[str, Any]]:
    """What random orders do to each text: mean and quartiles at each share of its tokens."""

    def hidden(entry: Entry, everything: np.ndarray) -> list[np.ndarray]:
        # Equal for equal texts, so that the games of several methods share their changed texts; and
        # an order shares them with its reverse. The engine asks for each once.
        row, grid = entry.attribution.row, _grid(len(everything))
        generator = np.random.default_rng([seed, len(row), *row.ids])
        drawn = [generator.permutation(everything) for _ in range((orders + 1) // 2)]
        both = [order for one in drawn for order in (one, one[::-1])][:orders]
        first = [order[:count] for order in both for count in grid]
        return [*first, *(order[count:] for order in both for count in grid)]

    for watched, _ in _answers(served, entries, hidden):
        band: dict[str, Any] = {"orders": orders, "shares": SHARES.tolist(), "area": {}}
        for side, values in zip(SIDES, watched.reshape(2, orders, len(SHARES)), strict=True):
            mean, (low, high) = values.mean(axis=0), np.quantile(values, (0.25, 0.75), axis=0)
            band[side] = {"mean": mean.tolist(), "low": low.tolist(), "high": high.tolist()}
            band["area"][side] = _area(mean, SHARES)
        yield band


def _order(entry: Entry) -> np.ndarray:
    """The one that a person chose, or tokens that are not special, highest score first."""
    allowed = np.flatnonzero(~np.array(entry.attribution.row.special, dtype=bool))
    if entry.order is None:
        return ranked_among(entry.attribution.scores, allowed)
    if len(set(entry.order)) != len(entry.order) or not {*entry.order} <= {*allowed.tolist()}:
        span = f"{min(allowed)} to {max(allowed)}"
        raise BadInput(f"an order names tokens of the text, each once and none special: of {span}.")
    return np.array(entry.order, dtype=np.int64)


def _counts(order: np.ndarray, entry: Entry) -> list[int]:
    """How many tokens are gone at each point: every number, or evenly fewer of a long text."""
    tokens, points = len(order), max(FEWEST_POINTS, CURVE_TOKENS // len(entry.attribution))
    if tokens + 1 <= points:
        return list(range(tokens + 1))
    return sorted({round(step * tokens / (points - 1)) for step in range(points)})


def _answers(
    served: Served,
    entries: Sequence[Entry],
    hidden: Callable[[Entry, np.ndarray], Sequence[np.ndarray]],
) -> Iterator[tuple[np.ndarray, list[np.ndarray]]]:
    """For each game what is watched and all logits, where ``hidden`` says which tokens are gone."""
    explainer, head, asked = served.explainer, served.explainer.live.head, []
    needs_probabilities(head, "the game")
    stand_ins = StandIns.of(explainer.live, explainer.tokenizer)
    for entry in entries:
        attribution = entry.attribution
        if any(step.startswith("merge_words") for step in attribution.steps):
            raise BadInput("these are scores of words, whose tokens are gone; play with tokens.")
        needs_one_piece(explainer, attribution, "the game")
        original = Original(attribution.row, stand_ins)
        asked.append([original.hidden(places) for places in hidden(entry, original.rankable)])
    stream = stream_logits(explainer.live, [one for variants in asked for one in variants])
    for entry, variants in zip(entries, asked, strict=True):
        logits, target = [next(stream) for _ in variants], entry.attribution.target
        pairs = zip(variants, logits, strict=True)
        yield np.array([chance(head, target, *pair) for pair in pairs]), logits


def _halved(values: Sequence[float]) -> int | None:
    return next((i for i, value in enumerate(values) if value < values[0] / 2), None)


def _grid(tokens: int) -> list[int]:
    return [int(share * tokens + 0.5) for share in SHARES]


def _area(values: np.ndarray, shares: np.ndarray) -> float:
    return float(np.trapezoid(values, shares))
