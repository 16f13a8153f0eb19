"""method="best": the method whose explanations of this model are measured to be most faithful."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenlight import registry
from tokenlight.data.attribution import Attribution
from tokenlight.data.target import TargetLike
from tokenlight.errors import BadInput, MissingExtra, TokenlightError
from tokenlight.evaluation.results import evaluate
from tokenlight.evaluation.weights import weight_digest
from tokenlight.explaining.options import listed
from tokenlight.files.documents import json_in

if TYPE_CHECKING:
    from tokenlight.explainer import Explainer

SAMPLE = 24  # texts the methods are compared on
BUDGET = 60.0  # seconds
KEPT_FROM = 8  # texts from which a choice says more of the model than of the texts


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
    budget: float = BUDGET,
    seed: int = 0,
    refresh: bool = False,
) -> BestMethod:
    """Choose by mean AOPC on a sample of ``texts``, within about ``budget`` seconds.

    Methods marked slow and the random baseline are no candidates unless named. A choice among the
    default candidates on eight texts or more, one of which beats random, is kept in a file under the
    model's name and read from there the next time, unless more texts are at hand than it was made on
    (``refresh=True`` measures anew).
    """
    MissingExtra.check(["scipy"], "bench", "method='best', which measures with intervals,")
    key = f"{explainer.name}@{weight_digest(explainer)}"  # a retrained model is chosen for anew
    if candidates is None and not refresh:
        kept = _kept().get(key)
        if kept is not None and kept["texts"] >= min(len(texts), SAMPLE):
            chosen = BestMethod(**kept)
            return replace(
                chosen, reason=f"{chosen.reason}; measured earlier, maybe on other texts"
            )
    choice = _measured(explainer, _sample(texts, seed), candidates, budget, seed)
    floor = choice.measured.get("random", float("-inf"))
    if candidates is None and choice.texts >= KEPT_FROM and choice.measured[choice.method] > floor:
        _keep(key, choice)
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
    if isinstance(found, Attribution):
        return _noted(found, choice)
    return [_noted(one, choice) for one in found]


def _noted(attribution: Attribution, choice: BestMethod) -> Attribution:
    return replace(attribution, notes=(*attribution.notes, f"method='best': {choice.reason}"))


def _sample(texts: Sequence[Any], seed: int) -> list[Any]:
    if not texts:
        raise BadInput("method='best' compares methods on texts; give at least one.")
    if len(texts) <= SAMPLE:
        return list(texts)
    chosen = np.random.default_rng(seed).choice(len(texts), SAMPLE, replace=False)
    return [texts[i] for i in sorted(chosen)]


def _candidates() -> list[str]:
    return [
        name
        for name in registry.usable("methods")
        if name != "random" and not getattr(registry.find("methods", name), "slow", False)
    ]


def _measured(
    explainer: Explainer,
    texts: Sequence[Any],
    candidates: Sequence[str] | None,
    budget: float,
    seed: int,
) -> BestMethod:
    begun = time.monotonic()
    names = list(candidates) if candidates is not None else _candidates()
    found: dict[str, Any] = {}
    refused: dict[str, str] = {}
    for name in ("random", *names):
        if len(found) > 1 and time.monotonic() - begun > budget:
            break
        try:
            made = explainer.explain(
                list(texts), method=[name], seed=seed, long="truncate", progress=False
            )
            # A patch cannot be deleted, only hidden.
            hides = {"perturb": "mask"} if explainer.live.patches is not None else {}
            measured = evaluate(explainer, made, [("aopc", hides)], progress=False)
            numbers = measured.summary["aopc"]
        except TokenlightError as reason:
            refused[name] = str(reason)
            continue
        if numbers["count"]:
            found[name] = numbers
    tried = {name: numbers for name, numbers in found.items() if name != "random"}
    if not tried:
        raise BadInput(
            "no method could be measured on these texts: "
            + ("; ".join(f"{name}: {why}" for name, why in refused.items()) or "none was given")
        )
    ranked = sorted(tried, key=lambda name: -tried[name]["mean"])
    means = {name: float(numbers["mean"]) for name, numbers in found.items()}
    left = len(names) - len(tried) - len(set(refused) & set(names))
    return BestMethod(ranked[0], _reason(ranked, found, len(texts), left), means, len(texts))


def _reason(ranked: Sequence[str], found: dict[str, Any], texts: int, left: int) -> str:
    first = found[ranked[0]]
    # One text gives no interval: how far another would lie is not known.
    interval = f" [{first['low']:.3f}, {first['high']:.3f}]" if texts > 1 else ""
    alike = [name for name in ranked[1:] if found[name]["mean"] > first["mean"] - 5e-4]
    shares = f"shares the highest AOPC with {_some(alike)}" if alike else "has the highest AOPC"
    sentence = (
        f"{ranked[0]} {shares}, {first['mean']:.3f}{interval}, of {len(ranked)} methods "
        f"on {f'{texts} texts' if texts > 1 else 'this one text'}"
    )
    after = ranked[len(alike) + 1 :]
    others = [f"next {after[0]} {found[after[0]]['mean']:.3f}"] if after else []
    if "random" in found:
        others.append(f"random {found['random']['mean']:.3f}")
    sentence += f" ({', '.join(others)})" if others else ""
    if "random" in found and found["random"]["mean"] >= first["mean"]:
        sentence += "; no method beats random here, so trust none of them much"
    return sentence + (f"; time ran out before {left} others" if left > 0 else "")


def _some(names: Sequence[str]) -> str:
    few = list(names[:2])
    return " and ".join(few) if len(names) <= 2 else f"{', '.join(few)} and {len(names) - 2} others"


def cache_folder() -> Path:
    """Where choices are kept: TOKENLIGHT_CACHE, else the user's cache folder."""
    own = os.environ.get("TOKENLIGHT_CACHE")
    if own:
        return Path(own)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "tokenlight"


def _kept() -> dict[str, Any]:
    """Choices made before; a file that cannot be read is as good as none."""
    try:
        content = json_in(cache_folder() / "choices.json")
    except (OSError, ValueError):
        return {}
    if not isinstance(content, dict):
        return {}
    fields = set(BestMethod.__dataclass_fields__)
    return {
        key: one for key, one in content.items() if isinstance(one, dict) and set(one) == fields
    }


def _keep(key: str, choice: BestMethod) -> None:
    from tokenlight.files.write import write_text

    place = cache_folder() / "choices.json"
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_text(place, json.dumps(_kept() | {key: asdict(choice)}, ensure_ascii=False, indent=1))
    except OSError:
        return  # a folder that cannot be written costs the next run a minute, not this one its answer
