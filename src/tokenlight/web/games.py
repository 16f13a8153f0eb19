"""The hiding and revealing game: the model's answer after every number of tokens, in one batch.

Tokens are hidden as the metrics hiding_game and revealing_game hide them: [MASK] in their place and
attention 0. The whole curve is made at once, so that a slider asks nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenlight.capture.perturbation import Original, StandIns, Variant, stream_logits
from tokenlight.data.attribution import Attribution
from tokenlight.data.target import ResolvedTarget
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import BadInput, TextTooLong
from tokenlight.metrics._chance import chance, needs_probabilities
from tokenlight.metrics._ranking import ranked_among
from tokenlight.plots.characters import in_line
from tokenlight.web.models import Served
from tokenlight.web.responses import method_name

SHARES = np.arange(11) / 10  # of the tokens, where random orders are looked at
CURVE_TOKENS = 12_000  # of one side of one curve; a longer text has fewer points
FEWEST_POINTS = 11


@dataclass(frozen=True, eq=False)
class Play:
    """What is played: a text, the order its tokens vanish in, and the probability watched."""

    row: TokenRow
    order: np.ndarray
    target: ResolvedTarget
    method: str
    id: str | None = None

    @classmethod
    def of(cls, attribution: Attribution, identity: str | None) -> Play:
        """Tokens that are not special, highest score first."""
        if any(step.startswith("merge_words") for step in attribution.steps):
            raise BadInput(
                "these are scores of words, whose tokens are not kept; play with tokens."
            )
        allowed = np.flatnonzero(~np.array(attribution.row.special, dtype=bool))
        order = ranked_among(attribution.scores, allowed)
        return cls(attribution.row, order, attribution.target, method_name(attribution), identity)

    @property
    def counts(self) -> list[int]:
        """How many tokens are gone at each point: every number, or evenly fewer of a long text."""
        tokens, points = len(self.order), max(FEWEST_POINTS, CURVE_TOKENS // len(self.row))
        if tokens + 1 <= points:
            return list(range(tokens + 1))
        return sorted({round(step * tokens / (points - 1)) for step in range(points)})

    @property
    def watched(self) -> str:
        """The probability in words."""
        return "P(answer)" if self.target.kind == "span" else f"P({self.target.name})"


def own_order(row: TokenRow, order: Sequence[int]) -> np.ndarray:
    """An order that a person chose: places of tokens, none twice, none special."""
    allowed = {i for i, special in enumerate(row.special) if not special}
    if len(set(order)) != len(order) or not set(order) <= allowed:
        raise BadInput(
            f"an order names tokens of the text, each once and none special: of "
            f"{min(allowed)} to {max(allowed)} here."
        )
    return np.array(order, dtype=np.int64)


def curves(served: Served, plays: Sequence[Play]) -> list[dict[str, Any]]:
    """Each game by its own order: hidden one by one, and shown one by one."""
    asked = []
    for one in plays:
        original = _original(served, one)
        everything = original.rankable
        asked.append(
            [
                *(original.hidden(one.order[:count]) for count in one.counts),
                *(original.hidden(_others(everything, one.order[:count])) for count in one.counts),
            ]
        )
    found = []
    for one, variants, logits in zip(plays, asked, _answers(served, asked), strict=True):
        watched = _watched(served, one, variants, logits)
        table = _probabilities(served, logits, watched)
        points, shares = len(one.counts), np.array(one.counts) / max(one.counts)
        hide, reveal = watched[:points], watched[points:]
        found.append(
            {
                "id": one.id,
                "method": one.method,
                "watched": one.target.name,
                "order": [int(place) for place in one.order],
                "counts": one.counts,
                "hide": {"watched": hide.tolist(), "probabilities": table[:points]},
                "reveal": {"watched": reveal.tolist(), "probabilities": table[points:]},
                "area": {"hide": _area(hide, shares), "reveal": _area(reveal, shares)},
            }
        )
    return found


def bands(served: Served, plays: Sequence[Play], orders: int, seed: int) -> list[dict[str, Any]]:
    """What random orders do to each text: mean and quartiles at each share of its tokens."""
    asked = []
    for one in plays:
        original = _original(served, one)
        places = original.rankable
        # Equal for equal texts, so that the games of several methods share their changed texts; and
        # an order shares them with its reverse. The engine asks for each once.
        generator = np.random.default_rng([seed, len(one.row), *one.row.ids])
        drawn = [generator.permutation(places) for _ in range((orders + 1) // 2)]
        both = [order for one in drawn for order in (one, one[::-1])][:orders]
        grid = _grid(len(places))
        asked.append(
            [
                *(original.hidden(order[:count]) for order in both for count in grid),
                *(original.hidden(order[count:]) for order in both for count in grid),
            ]
        )
    found = []
    for one, variants, logits in zip(plays, asked, _answers(served, asked), strict=True):
        watched = _watched(served, one, variants, logits).reshape(2, orders, len(SHARES))
        hide, reveal = _band(watched[0]), _band(watched[1])
        found.append(
            {
                "orders": orders,
                "shares": SHARES.tolist(),
                "hide": hide,
                "reveal": reveal,
                "area": {
                    "hide": _area(np.array(hide["mean"]), SHARES),
                    "reveal": _area(np.array(reveal["mean"]), SHARES),
                },
            }
        )
    return found


def told(one: Play, curve: dict[str, Any], band: dict[str, Any] | None) -> dict[str, Any]:
    """The whole game: its curve, chance beside it, and both in words."""
    hide = curve["hide"]["watched"]
    halved = next((i for i, p in enumerate(hide) if p < hide[0] / 2), None)
    if halved is None:
        says = (
            f"hiding tokens in this order never halves {one.watched}: from {hide[0]:.2f} it falls to "
            f"{min(hide):.2f} at most"
        )
    else:
        count = one.counts[halved]
        names = ", ".join(in_line(one.row.surface[place]) for place in one.order[: min(count, 3)])
        says = (
            f"hiding {count} token{'s' * (count != 1)} ({names}{' …' if count > 3 else ''}) takes "
            f"{one.watched} from {hide[0]:.2f} to {hide[halved]:.2f}"
        )
    if band is not None:
        mean = band["hide"]["mean"]
        there = next((i for i, p in enumerate(mean) if p < mean[0] / 2), None)
        needed = None if there is None else _grid(sum(not s for s in one.row.special))[there]
        says += (
            "; random orders never halve it"
            if needed is None
            else f"; random orders need about {needed} to halve it"
        )
    return {**curve, "random": band, "says": says}


def labels_of(served: Served) -> list[str]:
    """What the columns of a game's probabilities are."""
    if served.task == "classification" and served.labels:
        return served.labels
    return ["answer" if served.task == "span" else "watched"]


def _original(served: Served, one: Play) -> Original:
    explainer = served.explainer
    needs_probabilities(explainer.live.head, "the game")
    if explainer.max_tokens is not None and len(one.row) > explainer.max_tokens:
        raise TextTooLong(
            f"the text has {len(one.row)} tokens and the model reads {explainer.max_tokens}: a text "
            "explained in windows cannot be played with as a whole."
        )
    return Original(one.row, StandIns.of(explainer.live, explainer.tokenizer))


def _answers(served: Served, asked: Sequence[Sequence[Variant]]) -> list[list[np.ndarray]]:
    """The logits of all changed texts, in one stream."""
    flat = [variant for variants in asked for variant in variants]
    stream = stream_logits(served.explainer.live, flat, progress=False)
    return [[next(stream) for _ in variants] for variants in asked]


def _watched(
    served: Served, one: Play, variants: Sequence[Variant], logits: Sequence[np.ndarray]
) -> np.ndarray:
    head = served.explainer.live.head
    pairs = zip(variants, logits, strict=True)
    return np.array([chance(head, one.target, variant, values) for variant, values in pairs])


def _probabilities(
    served: Served, logits: Sequence[np.ndarray], watched: np.ndarray
) -> list[list[float]]:
    """Every label's probability at every point; of an answer or a next token, the watched one."""
    if served.task != "classification" or not served.labels:
        return [[float(value)] for value in watched]
    values = np.stack(logits)
    if served.explainer.live.head.problem == "multi":
        shares = 1 / (1 + np.exp(-values))
    else:
        powers = np.exp(values - values.max(axis=1, keepdims=True))
        shares = powers / powers.sum(axis=1, keepdims=True)
    return [[float(share) for share in row] for row in shares]


def _grid(tokens: int) -> list[int]:
    return [int(share * tokens + 0.5) for share in SHARES]


def _others(everything: np.ndarray, shown: np.ndarray) -> np.ndarray:
    return np.setdiff1d(everything, shown, assume_unique=True)


def _area(values: np.ndarray, shares: np.ndarray) -> float:
    return float(np.trapezoid(values, shares))


def _band(drawn: np.ndarray) -> dict[str, list[float]]:
    """Mean and quartiles: the least and the most of many orders would fill the whole chart."""
    low, high = np.quantile(drawn, (0.25, 0.75), axis=0)
    return {"mean": drawn.mean(axis=0).tolist(), "low": low.tolist(), "high": high.tolist()}
