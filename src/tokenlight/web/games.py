"""The hiding and revealing game: the model's answer after every number of tokens, in one batch.

Tokens are hidden as the metrics hiding_game and revealing_game hide them: [MASK] in their place and
attention 0. The whole curve is made at once, so that a slider asks nobody.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenlight.capture.perturbation import Original, StandIns, stream_logits
from tokenlight.data.attribution import Attribution
from tokenlight.data.chances import softmax
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
    def of(cls, attribution: Attribution, identity: str | None) -> "Play":
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

    def hidden(one: Play, everything: np.ndarray) -> list[np.ndarray]:
        first = [one.order[:count] for count in one.counts]
        return [*first, *(np.setdiff1d(everything, shown, assume_unique=True) for shown in first)]

    found = []
    for one, (watched, logits) in zip(plays, _answers(served, plays, hidden), strict=True):
        table = _probabilities(served, logits, watched)
        points, shares = len(one.counts), np.array(one.counts) / max(one.counts)
        made: dict[str, Any] = {
            "id": one.id,
            "method": one.method,
            "watched": one.target.name,
            "order": [int(place) for place in one.order],
            "counts": one.counts,
            "area": {},
        }
        for side, part in (("hide", slice(points)), ("reveal", slice(points, None))):
            made[side] = {"watched": watched[part].tolist(), "probabilities": table[part]}
            made["area"][side] = _area(watched[part], shares)
        found.append(made)
    return found


def bands(served: Served, plays: Sequence[Play], orders: int, seed: int) -> list[dict[str, Any]]:
    """What random orders do to each text: mean and quartiles at each share of its tokens, since the
    least and the most of many orders would fill the whole chart."""

    def hidden(one: Play, everything: np.ndarray) -> list[np.ndarray]:
        # Equal for equal texts, so that the games of several methods share their changed texts; and
        # an order shares them with its reverse. The engine asks for each once.
        generator = np.random.default_rng([seed, len(one.row), *one.row.ids])
        drawn = [generator.permutation(everything) for _ in range((orders + 1) // 2)]
        both = [order for one in drawn for order in (one, one[::-1])][:orders]
        grid = _grid(len(everything))
        return [
            *(order[:count] for order in both for count in grid),
            *(order[count:] for order in both for count in grid),
        ]

    found = []
    for watched, _ in _answers(served, plays, hidden):
        band: dict[str, Any] = {"orders": orders, "shares": SHARES.tolist(), "area": {}}
        drawn = watched.reshape(2, orders, len(SHARES))
        for side, values in zip(("hide", "reveal"), drawn, strict=True):
            mean, (low, high) = values.mean(axis=0), np.quantile(values, (0.25, 0.75), axis=0)
            band[side] = {"mean": mean.tolist(), "low": low.tolist(), "high": high.tolist()}
            band["area"][side] = _area(mean, SHARES)
        found.append(band)
    return found


def told(one: Play, curve: dict[str, Any], band: dict[str, Any] | None) -> dict[str, Any]:
    """The whole game: its curve, chance beside it, and both in words."""
    hide = curve["hide"]["watched"]
    halved = _halved(hide)
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
        there = _halved(band["hide"]["mean"])
        grid = _grid(sum(not special for special in one.row.special))
        needed = "never" if there is None else f"need about {grid[there]} to"
        says += f"; random orders {needed} halve it"
    return {**curve, "random": band, "says": says}


def labels_of(served: Served) -> list[str]:
    """What the columns of a game's probabilities are."""
    if served.task == "classification" and served.labels:
        return served.labels
    return ["answer" if served.task == "span" else "watched"]


def _answers(
    served: Served,
    plays: Sequence[Play],
    hidden: Callable[[Play, np.ndarray], Sequence[np.ndarray]],
) -> Iterator[tuple[np.ndarray, list[np.ndarray]]]:
    """For each game what is watched and all logits, at each of the sets of tokens that ``hidden``
    makes of all its tokens; in one stream."""
    explainer, asked = served.explainer, []
    head, limit = explainer.live.head, explainer.max_tokens
    needs_probabilities(head, "the game")
    stand_ins = StandIns.of(explainer.live, explainer.tokenizer)
    for one in plays:
        if limit is not None and len(one.row) > limit:
            raise TextTooLong(
                f"the text has {len(one.row)} tokens and the model reads {limit}: a text explained "
                "in windows cannot be played with as a whole."
            )
        original = Original(one.row, stand_ins)
        asked.append([original.hidden(places) for places in hidden(one, original.rankable)])
    flat = [variant for variants in asked for variant in variants]
    stream = stream_logits(explainer.live, flat)
    for one, variants in zip(plays, asked, strict=True):
        logits = [next(stream) for _ in variants]
        pairs = zip(variants, logits, strict=True)
        yield np.array([chance(head, one.target, *pair) for pair in pairs]), logits


def _probabilities(
    served: Served, logits: Sequence[np.ndarray], watched: np.ndarray
) -> list[list[float]]:
    """Every label's probability at every point; of an answer or a next token, the watched one."""
    if served.task != "classification" or not served.labels:
        return [[float(value)] for value in watched]
    multi = served.explainer.live.head.problem == "multi"
    return [(1 / (1 + np.exp(-one)) if multi else softmax(one)).tolist() for one in logits]


def _halved(values: Sequence[float]) -> int | None:
    return next((i for i, value in enumerate(values) if value < values[0] / 2), None)


def _grid(tokens: int) -> list[int]:
    return [int(share * tokens + 0.5) for share in SHARES]


def _area(values: np.ndarray, shares: np.ndarray) -> float:
    return float(np.trapezoid(values, shares))
