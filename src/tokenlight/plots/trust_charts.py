"""Charts behind a grade of trust: the curve of each removal, and its random partial texts, as SVG paths."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple

from tokenlight.data.attribution import Attribution
from tokenlight.data.trust import is_outdated

WIDTH = 150
HEIGHT = 90


class Dot(NamedTuple):
    """A partial text in a scatter plot: its coordinates, and whether half of the words were removed."""

    x: float
    y: float
    is_half: bool


class RemovalCharts(NamedTuple):
    """The charts of one removal.

    Attributes:
        action: What is done to removed words, such as ``deleted``.
        curve: Path of the probability as words are removed, highest score first.
        band: Path around 90 % of what random words do.
        dots: The partial texts: the sum of the scores that are left, and the log-odds.
    """

    action: str
    curve: str
    band: str
    dots: tuple[Dot, ...]


def build_removal_charts(attribution: Attribution) -> list[RemovalCharts]:
    """Return the charts of each removal; empty without a test, and for files of another version."""
    trust: Any = attribution.extras.get("trust")
    if is_outdated(attribution):
        return []
    try:
        return [_build_charts(removal, trust.get("num_words")) for removal in trust["removals"]]
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return []


def _build_charts(removal: Mapping[str, Any], num_words: int | None) -> RemovalCharts:
    counts = _read_values(removal["counts"])
    values = _read_values(removal["curve"])
    lows = _read_values(removal["random_low"])
    highs = _read_values(removal["random_high"])
    last = float(num_words or counts[-1])
    curve = [_format_point(count, value, last) for count, value in zip(counts, values, strict=True)]
    # Nothing is random before the first word is removed.
    upper = [
        _format_point(count, high, last) for count, high in zip(counts[1:], highs, strict=False)
    ]
    lower = [_format_point(count, low, last) for count, low in zip(counts[1:], lows, strict=False)]
    band = [curve[0], *upper, *reversed(lower)]
    return RemovalCharts(
        str(removal["action"]),
        f"M{'L'.join(curve)}",
        f"M{'L'.join(band)}Z",
        _place_partial_texts(removal["partial_texts"], len(lows)),
    )


def _place_partial_texts(partial_texts: Mapping[str, Any], num_points: int) -> tuple[Dot, ...]:
    sums = _scale(_read_values(partial_texts["sums"]))
    log_odds = _scale(_read_values(partial_texts["log_odds"]))
    # Files of earlier versions do not say how many words were removed: few and half take turns.
    default = [i % num_points for i in range(len(sums))]
    removed = _read_values(partial_texts.get("removed", default))
    dots = []
    for i, (x, y) in enumerate(zip(sums, log_odds, strict=True)):
        is_half = removed[i] > min(removed)
        dots.append(Dot(round(WIDTH * x, 1), round(HEIGHT * (1 - y), 1), is_half))
    return tuple(dots)


def _read_values(values: Sequence[Any]) -> list[float]:
    floats = [float(value) for value in values]
    if not all(map(isfinite, floats)):
        raise ValueError("A chart cannot show NaN or infinity.")
    return floats


def _format_point(count: float, value: float, last: float) -> str:
    return f"{WIDTH * count / last:.1f} {HEIGHT * (1 - value):.1f}"


def _scale(values: Sequence[float]) -> list[float]:
    """Return the values from 0 (the least) to 1 (the largest)."""
    low = min(values)
    size = max(values) - low or 1.0
    return [(value - low) / size for value in values]
