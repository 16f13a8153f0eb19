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
    if candidates is None and not refresh:
        kept = _kept().get(key)
        if kept is not None and kept["texts"] >= min(len(texts), SAMPLE):
            chosen = BestMethod(**kept)
            return replace(
                chosen, reason=f"{chosen.reason}; measured earlier, maybe on other texts"
            )
    if not texts:
        raise BadInput("method='best' compares methods on texts; give at least one.")
    sample = list(texts)
    if len(texts) > SAMPLE:
        drawn = np.random.default_rng(seed).choice(len(texts), SAMPLE, replace=False)
        sample = [texts[i] for i in sorted(drawn)]
    choice = _measured(explainer, sample, candidates or CANDIDATES, seed)
    floor = choice.measured.get("random", float("-inf"))
    if candidates is None and choice.texts >= KEPT_FROM and choice.measured[choice.method] > floor:
        content = json.dumps(_kept() | {key: asdict(choice)}, ensure_ascii=False, indent=1)
        with suppress(OSError):  # costs the next run a minute, not this one its answer
            write_text(cache_folder() / "choices.json", content)
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
    # A patch cannot be deleted, only hidden.
    pictures = explainer.live.patches is not None or explainer.live.sight is not None
    hides = {"perturb": "mask"} if pictures else {}
    values: dict[str, list[float]] = {}
    refused: list[str] = []
    for name in dict.fromkeys(("random", *names)):
        try:
            made = explainer.explain(
                list(texts), method=[name], seed=seed, long="truncate", progress=False
            )
            rows = evaluate(explainer, made, [("aopc", hides)], progress=False).rows
        except TokenlightError as reason:
            refused.append(f"{name}: {reason}")
            continue
        values[name] = [np.nan if row["aopc"] is None else row["aopc"] for row in rows]
    found = {name: np.array(own) for name, own in values.items() if not np.isnan(own).all()}
    tried = [name for name in names if name in found]
    if not tried:
        why = "; ".join(refused) or "none was given"
        raise BadInput(f"no method could be measured on these texts: {why}")
    measured = ~np.isnan(list(found.values())).any(axis=0)
    found = {name: own[measured] for name, own in found.items()}
    return _choice(tried, found, seed)


def _choice(tried: Sequence[str], found: Mapping[str, np.ndarray], seed: int) -> BestMethod:
    means = {name: float(own.mean()) for name, own in found.items()}
    first = max(tried, key=lambda name: means[name])
    unseen = EQUAL * max(0.0, means[first] - means.get("random", means[first]))
    ties = [name for name in tried if means[name] >= means[first] - unseen]
    costs = {name: registry.build("methods", name, {}).cost(100) for name in ties}
    passes = {name: cost.forwards + 2 * cost.backwards for name, cost in costs.items()}
    chosen = min(ties, key=lambda name: (passes[name], -means[name]))
    own = mean_interval(found[chosen].tolist(), seed=seed)
    # One text gives no interval: how far another would lie is not known.
    interval = f" [{own.low:.3f}, {own.high:.3f}]" if own.count > 1 else ""
    texts = f"{own.count} texts" if own.count > 1 else "this one text"
    sentence = f"{chosen} has AOPC {own.mean:.3f}{interval} on {texts}"
    others = [f"{name} {means[name]:.3f}" for name in ties if name != chosen]
    if others:
        sentence += f", as good as {', '.join(others)}; of these the cheapest is taken"
    else:
        sentence += f", the highest of {len(tried)} methods"
    after = sorted((name for name in tried if name not in ties), key=lambda name: -means[name])
    beside = [f"{name} {means[name]:.3f}" for name in (*after[:1], "random") if name in means]
    sentence += f" ({'next ' * bool(after)}{', '.join(beside)})" if beside else ""
    if means.get("random", -np.inf) >= means[chosen]:
        sentence += "; no method beats random here, so trust none of them much"
    return BestMethod(chosen, sentence, means, own.count)


def cache_folder() -> Path:
    """Where choices are kept: TOKENLIGHT_CACHE, else the user's cache folder."""
    if own := os.environ.get("TOKENLIGHT_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tokenlight"


def _kept() -> dict[str, Any]:
    """Choices made before; a file that cannot be read is as good as none."""
    try:
        content = json_in(cache_folder() / "choices.json")
    except (OSError, ValueError):
        return {}
    fields = set(BestMethod.__dataclass_fields__)
    known = content.items() if isinstance(content, dict) else ()
    return {key: one for key, one in known if isinstance(one, dict) and set(one) == fields}
