"""Searches that ask the model step by step: those of all texts go on together, a step at a time."""

from collections.abc import Sequence
from itertools import islice
from weakref import WeakKeyDictionary

from tokenlight.capture.perturbation import stream_logits
from tokenlight.errors import TokenlightError
from tokenlight.explainer import Explainer
from tokenlight.metrics._metric import Bounds, Case, Metric

MOST = 100_000  # searches remembered for one explainer
Key = tuple[str, str, str, bytes]
_found: WeakKeyDictionary[Explainer, dict[Key, Bounds | TokenlightError]] = WeakKeyDictionary()


def _key(case: Case, metric: Metric) -> Key:
    """Equal for explanations of one target of one text. The logits tell a model whose weights have
    changed; rounded, since another batch gives other last digits."""
    one = case.attribution
    return metric.label, one.row.fingerprint, one.target.name, one.logits.round(1).tobytes()


def extremes(
    explainer: Explainer, cases: Sequence[Case], metric: Metric, batch_tokens: int | None
) -> list[Bounds | TokenlightError]:
    """What the metric's search finds for each case; once for all explanations of one target."""
    keys = [_key(case, metric) for case in cases]
    found = _found.setdefault(explainer, {})
    if len(found) > MOST:
        found.clear()
    searches = {
        key: metric.search(case) for key, case in zip(keys, cases, strict=True) if key not in found
    }
    asked = {}
    for key, search in searches.items():
        try:
            asked[key] = next(search)
        except TokenlightError as refused:
            found[key] = refused
    while asked:
        rows = (variant for variants in asked.values() for variant in variants)
        logits = stream_logits(explainer.live, rows, batch_tokens=batch_tokens)
        following = {}
        for key, variants in asked.items():
            answers = list(zip(variants, islice(logits, len(variants)), strict=True))
            try:
                following[key] = searches[key].send(answers)
            except StopIteration as done:
                found[key] = done.value
            except TokenlightError as refused:
                found[key] = refused
        asked = following
    return [found[key] for key in keys]
