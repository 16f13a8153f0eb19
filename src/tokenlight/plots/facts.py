"""What is known of an explanation beside its scores, in words: prediction, trust, provenance."""

from collections.abc import Sequence
from typing import Any

from tokenlight import registry
from tokenlight.data.answers import softmax
from tokenlight.data.attribution import Attribution
from tokenlight.data.units import SegmentShare
from tokenlight.plots.passages import is_continuation

MOST_LABELS = 8
HALF = 0.5  # of the weight on special tokens is worth saying
SCALED = "each scaled to Σ|score| = 1 over all tokens"  # what a difference is taken of
Bar = tuple[str, str, float, str]  # a name, a number in words, a width in per cent, a look


def number(value: float) -> str:
    """A score with its sign, three digits, and the minus that is as wide as the plus; 0 has none."""
    return f"{value:+.3g}".replace("-", "−") if value else "0"


def percent(chance: float) -> str:
    """A probability in per cent that never claims a certainty it does not have."""
    if 0.999 < chance < 1:
        return ">99.9 %"
    return "<0.1 %" if 0 < chance < 0.001 else f"{100 * chance:.1f} %"


def weight(part: SegmentShare) -> str:
    """What a part of the input weighs, in words."""
    return f"{part.share:.0%} of the weight, sum {number(part.total)}".replace("%", " %")


def null_line(attribution: Attribution) -> str:
    """What a span head says of there being no answer; empty where its input has no token for it."""
    said = attribution.prediction
    if said.unanswered is None:
        return ""
    none = ": a model trained on unanswerable questions says that there is none"
    scores = f"“no answer” scores {said.null_score:.2f}, the answer {said.answer_score:.2f}"
    return scores.replace("-", "−") + none * said.unanswered


def predicted_labels(attribution: Attribution) -> tuple[str, ...]:
    """What the model chooses among; tokens in quotes, with their blank only where it tells two apart."""
    said = attribution.prediction
    if not said.ids:
        return said.labels
    short = [label.strip(" ") or label for label in said.labels]
    pairs = zip(said.labels, short, strict=True)
    return tuple(f"‘{label if short.count(name) > 1 else name}’" for label, name in pairs)


def prediction_bars(first: Attribution, targets: Sequence[str]) -> tuple[list[Bar], int]:
    """Bars, most probable first, and how many are left out; ``targets``: those that are explained."""
    prediction, shown = first.prediction, predicted_labels(first)
    ranked = sorted(enumerate(prediction.probabilities), key=lambda pair: -pair[1])
    bars = []
    for index, chance in ranked[:MOST_LABELS]:
        looks = ["predicted"] * (index == prediction.place)
        looks += ["explained"] * (prediction.labels[index] in targets)
        bars.append((shown[index], percent(chance), round(100 * chance, 2), " ".join(looks)))
    return bars, max(0, len(ranked) - MOST_LABELS)


def chance_of_written(attribution: Attribution) -> str:
    """How likely the model found a written token, and what it held likelier; else empty."""
    index, said = attribution.target.index, attribution.prediction
    if not is_continuation(attribution) or index is None or not said.ids:
        return ""
    chances = dict(zip(said.ids, said.probabilities, strict=True))
    if index not in chances and attribution.logits.size:  # a file keeps only the likeliest
        chances[index] = float(softmax(attribution.logits)[index])
    among = f"not among the {len(said.ids)} likeliest"
    likely = f"{percent(chances[index])} likely" if index in chances else among
    best = f"; likeliest: ‘{said.label.strip() or said.label}’ {percent(said.probabilities[0])}"
    return likely if index == said.index else likely + best


def special_line(attribution: Attribution, own: SegmentShare) -> str:
    """What special tokens weigh, in words where it is most of all."""
    if own.share <= HALF:
        return f"{100 * own.share:.0f} % of the weight lies on special tokens, which are not words"
    row = attribution.row
    places = [i for i, special in enumerate(row.special) if special and attribution.scores[i]]
    *others, last = dict.fromkeys(row.pieces[i] for i in places)
    named = f"{', '.join(others)} and {last}, which are not" if others else f"{last}, which is not"
    said = f"{named} {'words' if others else 'a word'}"
    alone = "difference" in attribution.steps
    whole = "this difference" if alone else f"what {attribution.method} sees"
    return f"most of {whole} ({100 * own.share:.0f} %) lies on {said}"


def kind_of_scores(attribution: Attribution) -> str:
    """What the scores cannot tell (the sign, one class from another), or how a difference was scaled."""
    if "difference" in attribution.steps:
        return SCALED
    if not registry.has("methods", attribution.method):
        return ""
    method: Any = registry.find("methods", attribution.method)
    classes = attribution.target.kind == "class" and not attribution.prediction.ids
    said = [] if getattr(method, "signed", True) else ["no sign"]
    if getattr(method, "class_agnostic", False):
        said.append(f"same for every {'class' if classes else 'target'}")
    return ", ".join(said)


def grade(attribution: Attribution) -> str:
    """What the removal test came to, in a word; empty where it was not made."""
    trust: Any = attribution.extras.get("trust")
    return str(trust.get("grade", "untested")) if isinstance(trust, dict) else ""


def verdict(attribution: Attribution) -> str:
    """What came of the removal test, its grade first; empty where it was not made."""
    given = grade(attribution)
    said = str(attribution.extras["trust"].get("verdict") or "") if given else ""
    if not said or given == "untested":
        return said  # nothing was ranked, which a grade would belie
    return f"{given}: {said.removesuffix(f': {given}')}"


def badges(attribution: Attribution) -> tuple[str, ...]:
    """What the scores cannot tell, how likely a written token was, and how far they may be trusted."""
    told = [kind_of_scores(attribution), chance_of_written(attribution), verdict(attribution)]
    kept: Any = attribution.extras.get("conservation")
    if isinstance(kept, list) and kept:
        low, high = (f"{100 * share:.1f} %" for share in (min(kept), max(kept)))
        some = f"{low} to {high} of the target's relevance is left, by layer"
        told.append(f"{some}: biases and the softmax take or add the rest")
        if max(abs(share - 1) for share in kept) < 0.0005:
            told[-1] = "all of the target's relevance arrives at every layer"
    path: Any = attribution.extras.get("convergence")
    if isinstance(path, dict) and "gap_percent" in path:
        told.append(f"sum of the scores off by {path['gap_percent']:.2g} %")
    return tuple(filter(None, told))


def provenance(attribution: Attribution) -> tuple[tuple[str, str], ...]:
    """All that is needed to make it again, as name and value."""
    a = attribution
    options = ", ".join(f"{name}={value}" for name, value in a.options.items())
    versions = ", ".join(f"{name} {version}" for name, version in a.versions.items())
    given = {"method": a.method, "options": options or "defaults", "target": a.target.name}
    given |= {"model": a.model, "tokens": str(len(a)), "seed": str(a.seed)}
    given |= {"steps": ", ".join(a.steps), "versions": versions}
    return tuple((name, value) for name, value in given.items() if value)
