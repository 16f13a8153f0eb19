"""``method="best"``: choose the method that is measured to be most faithful for this model."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tokenlight import registry
from tokenlight.data.attribution import Attribution, AttributionList
from tokenlight.data.intervals import Interval, bootstrap_mean
from tokenlight.data.target import TargetLike
from tokenlight.errors import BadInput, MissingExtra, TokenlightError
from tokenlight.errors.arguments import Seed, checked
from tokenlight.evaluation.digests import digest_weights
from tokenlight.evaluation.evaluate import evaluate_attributions
from tokenlight.explainer import Explainer
from tokenlight.explaining.explain_options import list_texts
from tokenlight.files.parsing import read_json
from tokenlight.files.user_cache import find_cache_folder
from tokenlight.files.write import write_text

# Methods that are compared by default: the families that measured well on some model.
DEFAULT_CANDIDATES = (
    "attnlrp", "cp_lrp", "integrated_gradients", "grad_x_input", "attcat", "cat", "gae", "transatt",
)  # fmt: skip
SAMPLE_SIZE = 24  # texts on which the methods are compared
MIN_TEXTS_TO_CACHE = 8  # with fewer texts, a choice says more about the texts than about the model
TIE_FRACTION = 0.1  # share of the gap between random and the best mean that counts as a tie
# Length of a text, in tokens, for which the costs of methods are compared.
COST_LENGTH = 100
_CACHE_KEYS = {"method", "reason", "measured", "texts"}


@dataclass(frozen=True, slots=True)
class BestMethod:
    """The chosen method, and why.

    Attributes:
        method: Name of the method.
        reason: Why it was chosen, as one sentence.
        mean_aopc: Mean AOPC of every method that was tried.
        num_texts: Number of texts on which all of them were measured.
    """

    method: str
    reason: str
    mean_aopc: dict[str, float]
    num_texts: int


@checked
def choose_best(
    explainer: Explainer,
    texts: Sequence[Any],
    *,
    candidates: Sequence[str] | None = None,
    seed: Seed = 0,
    refresh: bool = False,
) -> BestMethod:
    """Choose a method by its mean AOPC on a sample of ``texts``.

    Every candidate explains every text of the sample, which may take minutes. Methods whose mean is less than
    a tenth of the gap between random scores and the highest mean below that mean tie with the best, and the
    cheapest of them is chosen.

    A choice among the default candidates, on at least eight texts and better than random, is cached in a
    file under the name and weights of the model. It is used again unless more texts are given than it was
    made on.

    Args:
        explainer: The model to explain.
        texts: Typical inputs; up to 24 are drawn.
        candidates: Names of the methods to compare; by default one of each family.
        seed: Seed of the sample and of the methods.
        refresh: Whether to ignore a cached choice.

    Returns:
        The chosen method with the reason and all means.

    Raises:
        BadInput: No text is given, or no candidate could be measured.

    Example:
        >>> from tokenlight import Explainer
        >>> from tokenlight.evaluation.choose import choose_best
        >>> explainer = Explainer.from_pretrained("tokenlight/sentiment")
        >>> texts = ["A warm and funny film.", "Dull, and far too long."]
        >>> choose_best(explainer, texts, candidates=["attcat"]).method
        'attcat'
    """
    MissingExtra.check_installed(
        ["scipy"], "bench", "method='best', which computes confidence intervals,"
    )
    # The digest of the weights makes a retrained model another entry.
    cache_key = f"{explainer.name}@{digest_weights(explainer)}"
    if candidates is None and not refresh:
        cached_choice = _find_cached(cache_key, len(texts))
        if cached_choice is not None:
            return cached_choice
    if not len(texts):
        raise BadInput(
            "method='best' compares methods on texts, but none were given. Give at least one.",
            code="best-without-texts",
        )
    sample = _draw_sample(texts, seed)
    names = candidates if candidates is not None and len(candidates) else DEFAULT_CANDIDATES
    choice = _measure_candidates(explainer, sample, names, seed)
    if candidates is None and _is_worth_caching(choice):
        _write_cache(cache_key, choice)
    return choice


def explain_best(
    explainer: Explainer, inputs: Any, target: TargetLike | Sequence[TargetLike], **options: Any
) -> Attribution | list[Attribution]:
    """Explain with the best method for this model; each Attribution notes which was chosen and why."""
    if isinstance(inputs, Iterator):
        raise BadInput(
            "method='best' compares methods on a sample of the texts, but got an iterator. Give a list.",
            code="best-with-iterator",
        )
    texts, _ = list_texts(inputs)
    choice = choose_best(explainer, texts, seed=options.get("seed", 0))
    explained = explainer.explain(inputs, choice.method, target, **options)
    note = f"method='best': {choice.reason}"
    if isinstance(explained, Attribution):
        return _add_note(explained, note)
    return AttributionList(_add_note(attribution, note) for attribution in explained)


def _draw_sample(texts: Sequence[Any], seed: int) -> list[Any]:
    """Draw up to SAMPLE_SIZE texts, in their order."""
    sample_size = min(len(texts), SAMPLE_SIZE)
    indices = np.random.default_rng(seed).choice(len(texts), sample_size, replace=False)
    return [texts[i] for i in sorted(indices)]


def _add_note(attribution: Attribution, note: str) -> Attribution:
    return replace(attribution, notes=(*attribution.notes, note))


def _measure_candidates(
    explainer: Explainer, texts: Sequence[Any], candidates: Sequence[str], seed: int
) -> BestMethod:
    """Measure random scores and every candidate, and pick the best on the texts that all could measure."""
    aopc_by_method: dict[str, np.ndarray] = {}
    refusals: list[str] = []
    for name in dict.fromkeys(("random", *candidates)):
        try:
            values = _measure_aopc(explainer, texts, name, seed)
        except TokenlightError as error:
            refusals.append(f"{name}: {error}")
            continue
        if not np.isnan(values).all():
            aopc_by_method[name] = values
    measured = [name for name in candidates if name in aopc_by_method]
    if not measured:
        raise BadInput(
            f"No method could be measured on these texts: {'; '.join(refusals) or 'none was given.'}",
            code="no-method-measured",
        )
    is_missing = np.isnan(list(aopc_by_method.values()))  # method text
    is_complete = ~is_missing.any(axis=0)
    complete = {name: values[is_complete] for name, values in aopc_by_method.items()}
    return _pick_best(measured, complete, seed)


def _measure_aopc(explainer: Explainer, texts: Sequence[Any], method: str, seed: int) -> np.ndarray:
    """Return the AOPC of each text, NaN where it could not be measured."""
    options: dict[str, Any] = {"seed": seed, "long": "truncate", "progress": False}
    attributions = explainer.explain(list(texts), method=[method], **options)
    rows = evaluate_attributions(explainer, attributions, "aopc", progress=False).rows
    return np.array([row["aopc"] for row in rows], dtype=float)  # None becomes NaN


def _pick_best(
    candidates: Sequence[str], aopc_by_method: Mapping[str, np.ndarray], seed: int
) -> BestMethod:
    """Pick the cheapest of the candidates that tie with the highest mean."""
    means = {name: float(values.mean()) for name, values in aopc_by_method.items()}
    highest = max(means[name] for name in candidates)
    tie_margin = TIE_FRACTION * max(0.0, highest - means.get("random", highest))
    ties = [name for name in candidates if means[name] >= highest - tie_margin]
    chosen = min(ties, key=lambda name: (_estimate_cost(name), -means[name]))
    interval = bootstrap_mean(aopc_by_method[chosen].tolist(), seed=seed)
    reason = _describe_choice(chosen, interval, ties, means, len(candidates))
    return BestMethod(method=chosen, reason=reason, mean_aopc=means, num_texts=interval.count)


def _estimate_cost(method: str) -> float:
    """Return the cost of a method in forward passes; a backward pass costs about two."""
    cost = registry.build("methods", method, {}).count_passes(COST_LENGTH)
    return float(cost.forwards + 2 * cost.backwards)


def _describe_choice(
    chosen: str,
    interval: Interval,
    ties: Sequence[str],
    means: Mapping[str, float],
    num_candidates: int,
) -> str:
    # One text has no interval.
    basis = " on this one text"
    if interval.count > 1:
        basis = f" [{interval.low:.3f}, {interval.high:.3f}] on {interval.count} texts"
    tied = [f"{name} {means[name]:.3f}" for name in ties if name != chosen]
    rank = f"the highest of {num_candidates} methods"
    if tied:
        rank = f"as good as {', '.join(tied)}; the cheapest of these was chosen"
    reason = f"{chosen} has AOPC {interval.mean:.3f}{basis}, {rank}"
    if "random" not in means:
        return reason
    reason += f" (random {means['random']:.3f})"
    if means["random"] >= means[chosen]:
        reason += "; no method beats random here, so do not rely on any of them"
    return reason


def _is_worth_caching(choice: BestMethod) -> bool:
    """Return whether a choice rests on enough texts and beats random."""
    random_mean = choice.mean_aopc.get("random", float("-inf"))
    is_better_than_random = choice.mean_aopc[choice.method] > random_mean
    return choice.num_texts >= MIN_TEXTS_TO_CACHE and is_better_than_random


def _cache_path() -> Path | None:
    """Return the cache file; None if the user turned caching off."""
    folder = find_cache_folder()
    return None if folder is None else folder / "choices.json"


def _read_cache() -> dict[str, Any]:
    """Return the valid entries of the cache; an unreadable file counts as empty."""
    path = _cache_path()
    if path is None:
        return {}
    try:
        entries = {**read_json(path)}
    except (OSError, ValueError, TypeError):
        return {}
    valid = {}
    for key, entry in entries.items():
        if isinstance(entry, dict) and entry.keys() == _CACHE_KEYS:
            valid[key] = entry
    return valid


def _write_cache(key: str, choice: BestMethod) -> None:
    path = _cache_path()
    if path is None:
        return
    entry = {
        "method": choice.method,
        "reason": choice.reason,
        "measured": choice.mean_aopc,
        "texts": choice.num_texts,
    }
    content = json.dumps(_read_cache() | {key: entry}, ensure_ascii=False, indent=1)
    # Without the cache the next call measures again; this one still has its answer.
    with suppress(OSError):
        write_text(path, content)


def _find_cached(key: str, num_texts: int) -> BestMethod | None:
    """Return the cached choice of a model, unless it rests on fewer texts than are given now."""
    entry = _read_cache().get(key)
    if entry is None or entry["texts"] < min(num_texts, SAMPLE_SIZE):
        return None
    reason = f"{entry['reason']}; measured earlier, possibly on other texts"
    return BestMethod(
        method=entry["method"], reason=reason, mean_aopc=entry["measured"], num_texts=entry["texts"]
    )
