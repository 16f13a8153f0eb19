"""method="best": the method whose explanations of this model are measured to be most faithful."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tokenlight import registry
from tokenlight.data.attribution import Attribution, Attributions
from tokenlight.data.target import TargetLike
from tokenlight.errors import BadInput, MissingExtra, TokenlightError
from tokenlight.evaluation.results import evaluate
from tokenlight.evaluation.weights import weight_digest
from tokenlight.explainer import Explainer
from tokenlight.explaining.options import listed
from tokenlight.files.documents import json_in
from tokenlight.files.write import write_text
from tokenlight.metrics._interval import mean_interval

# What is compared unless others are named: the families whose order measured well somewhere.
CANDIDATES = (
    "attnlrp", "cp_lrp", "integrated_gradients", "grad_x_input", "attcat", "cat", "gae", "transatt",
)  # fmt: skip
SAMPLE = 24  # texts the methods are compared on
KEPT_FROM = 8  # texts from which a choice says more of the model than of the texts
EQUAL = 0.1  # of the way from chance to the best: less than that nobody sees


@dataclass(frozen=True, slots=True)
class BestMethod:
    """The chosen method, why, and the mean AOPC of every method that was tried."""

    method: str
    reason: str
    measured: dict[str, float]
    texts: int


def best(
    explainer: Explainer,
    texts: Sequence[Any],
    *,
    candidates: Sequence[str] | None = None,
    seed: int = 0,
    refresh: bool = False,
) -> BestMethod:
    """Choose by mean AOPC on a sample of ``texts``: every candidate on every text, however long it takes.

    Methods that fall short of the highest mean by less than a tenth of what lies between it and random
    scores tie with it, and the cheapest of them is taken. A choice among the default
    candidates on eight texts or more, one of which beats random, is kept in a file under the model's name
    and read from there the next time, unless more texts are at hand than it was made on
    (``refresh=True`` measures anew).
    """
    MissingExtra.check(["scipy"], "bench", "method='best', which measures with intervals,")
    key = f"{explainer.name}@{weight_digest(explainer)}"  # a retrained model is chosen for anew
    kept = _kept().get(key) if candidates is None and not refresh else None
    if kept is not None and kept["texts"] >= min(len(texts), SAMPLE):
        chosen = BestMethod(**kept)
        return replace(chosen, reason=f"{chosen.reason}; measured earlier, maybe on other texts")
    if not texts:
        raise BadInput("method='best' compares methods on texts; give at least one.")
    count = min(len(texts), SAMPLE)
    drawn = np.random.default_rng(seed).choice(len(texts), count, replace=False)
    sample = [texts[i] for i in sorted(drawn)]
    choice = _measured(explainer, sample, candidates or CANDIDATES, seed)
    floor = choice.measured.get("random", float("-inf"))
    if candidates is None and choice.texts >= KEPT_FROM and choice.measured[choice.method] > floor:
        content = json.dumps(_kept() | {key: asdict(choice)}, ensure_ascii=False, indent=1)
        with suppress(OSError):  # costs the next run a minute, not this one its answer
            write_text(_place(), content)
    return choice


def explain_best(
    explainer: Explainer, inputs: Any, target: TargetLike | Sequence[TargetLike], **how: Any
) -> Attribution | list[Attribution]:
    """explain() with the best method for this model; each Attribution notes what was chosen."""
    if isinstance(inputs, Iterator):
        raise BadInput("method='best' looks at a sample of the texts; give a list, no iterator.")
    texts, _ = listed(inputs)
    choice = best(explainer, texts, seed=how.get("seed", 0))
    found = explainer.explain(inputs, choice.method, target, **how)
    single, note = isinstance(found, Attribution), f"method='best': {choice.reason}"
    noted = [replace(one, notes=(*one.notes, note)) for one in ([found] if single else found)]
    return noted[0] if single else Attributions(noted)


def _measured(
    explainer: Explainer, texts: Sequence[Any], names: Sequence[str], seed: int
) -> BestMethod:
    found: dict[str, np.ndarray] = {}
    refused: list[str] = []
    how: dict[str, Any] = {"seed": seed, "long": "truncate", "progress": False}
    for name in dict.fromkeys(("random", *names)):
        try:
            made = explainer.explain(list(texts), method=[name], **how)
            rows = evaluate(explainer, made, "aopc", progress=False).rows
        except TokenlightError as reason:
            refused.append(f"{name}: {reason}")
            continue
        values = np.array([row["aopc"] for row in rows], dtype=float)  # None becomes NaN
        if not np.isnan(values).all():
            found[name] = values
    tried = [name for name in names if name in found]
    if not tried:
        why = "; ".join(refused) or "none was given"
        raise BadInput(f"no method could be measured on these texts: {why}")
    measured = ~np.isnan(list(found.values())).any(axis=0)
    return _choice(tried, {name: own[measured] for name, own in found.items()}, seed)


def _choice(tried: Sequence[str], found: Mapping[str, np.ndarray], seed: int) -> BestMethod:
    means = {name: float(own.mean()) for name, own in found.items()}
    highest = max(means[name] for name in tried)
    chance = means.get("random", -np.inf)
    unseen = EQUAL * max(0.0, highest - means.get("random", highest))
    ties = [name for name in tried if means[name] >= highest - unseen]
    costs = {name: registry.build("methods", name, {}).cost(100) for name in ties}
    passes = {name: cost.forwards + 2 * cost.backwards for name, cost in costs.items()}
    chosen = min(ties, key=lambda name: (passes[name], -means[name]))
    own = mean_interval(found[chosen].tolist(), seed=seed)
    # One text gives no interval: how far another would lie is not known.
    interval = f" [{own.low:.3f}, {own.high:.3f}] on {own.count} texts"
    why = f"{chosen} has AOPC {own.mean:.3f}{interval if own.count > 1 else ' on this one text'}"
    others = [f"{name} {means[name]:.3f}" for name in ties if name != chosen]
    why += f", as good as {', '.join(others)}; of these the cheapest is taken" if others else ""
    why += "" if others else f", the highest of {len(tried)} methods"
    why += f" (random {chance:.3f})" if "random" in means else ""
    if chance >= means[chosen]:
        why += "; no method beats random here, so trust none of them much"
    return BestMethod(chosen, why, means, own.count)


def _place() -> Path:
    """Where choices are kept: in TOKENLIGHT_CACHE, else in the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("TOKENLIGHT_CACHE") or Path(cache, "tokenlight"), "choices.json")


def _kept() -> dict[str, Any]:
    """Choices made before; a file that cannot be read is as good as none."""
    try:
        known = {**json_in(_place())}
    except (OSError, ValueError, TypeError):
        return {}
    fields = set(BestMethod.__dataclass_fields__)
    return {key: one for key, one in known.items() if isinstance(one, dict) and {*one} == fields}
