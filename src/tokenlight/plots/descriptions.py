"""Facts about an explanation besides its scores: prediction, trust, provenance."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np

from tokenlight import registry
from tokenlight.data.attribution import Attribution
from tokenlight.data.probabilities import softmax
from tokenlight.data.trust import read_trust
from tokenlight.data.units import SegmentShare
from tokenlight.plots.continuations import is_continuation

MAX_LABELS = 8  # bars of a prediction
SPECIAL_SHARE_THRESHOLD = 0.5  # a larger share of the scores on special tokens is worth a warning
# What a method draws, by its name in ``extras["sampling"]``.
SAMPLE_NOUNS = {"samples": "partial texts", "orders": "orders"}
# A larger share of the scores on the first token of a prompt with at least MIN_SINK_TOKENS is worth a note.
SINK_SHARE_THRESHOLD = 1 / 3
MIN_SINK_TOKENS = 4
# Of integrated gradients and its kin: a smaller gap is not worth a remark.
MIN_SHOWN_GAP_PERCENT = 0.1
MAX_CHIPS = 5  # alternatives of a token that a picture shows
SCALING_NOTE = "each scaled to Σ|score| = 1 over all tokens"  # how two explanations are subtracted


class AlternativeChip(NamedTuple):
    """An alternative of the explained token: its text, its probability in words, and how to ask for it."""

    name: str
    percent: str
    hint: str


class PredictionBar(NamedTuple):
    """One label of a prediction: its name, its probability in words, its width in percent, its classes."""

    name: str
    percent: str
    width: float
    css_classes: str


@dataclass(frozen=True, slots=True)
class RoundedShare(SegmentShare):
    """The share of a segment, and the same as a whole percentage that sums to 100 with the others."""

    percent: int = 0


def format_score(value: float) -> str:
    """Format a score with its sign, three digits, and a minus as wide as the plus; 0 has no sign."""
    if not value:
        return "0"
    return f"{value:+.3g}".replace("-", "−")


def format_correlation(correlation: float) -> str:
    """Format a correlation with two decimals and a minus as wide as a plus; −0.00 becomes 0.00."""
    return f"{correlation:z.2f}".replace("-", "−")


def format_error(value: float) -> str:
    """Format a standard error with two digits: ``± 0.041``."""
    return f"± {value:.2g}"


def format_percent(probability: float) -> str:
    """Format a probability in percent, never rounding to 0 or 100."""
    if 0.9995 <= probability < 1:
        return ">99.9 %"
    if 0 < probability < 0.0005:
        return "<0.1 %"
    return f"{100 * probability:.1f} %"


def round_to_percents(shares: Sequence[float]) -> list[int]:
    """Round shares that are shown together to whole percentages, by the largest-remainder method.

    Rounded one by one, three shares of 33.5 %, 33.5 % and 33 % would sum to 101 %.

    Args:
        shares: Parts of one whole, each at least 0; their sum is at most 1.

    Returns:
        One percentage per share; they sum to the rounded sum of the shares.

    Example:
        >>> round_to_percents([0.335, 0.335, 0.33])
        [34, 33, 33]
    """
    percents = []
    remainders = []
    for share in shares:
        percent = math.floor(100 * share)
        percents.append(percent)
        # Rounded, so that shares that differ by a floating-point error count as equal.
        remainders.append(round(100 * share - percent, 9))
    num_missing = round(100 * sum(shares)) - sum(percents)
    by_remainder = sorted(range(len(shares)), key=lambda index: -remainders[index])
    for index in by_remainder[:num_missing]:
        percents[index] += 1
    return percents


def round_segment_shares(attribution: Attribution) -> list[RoundedShare]:
    """Return the share of every segment with its percentage, special tokens last."""
    parts = attribution.segment_shares()
    percents = round_to_percents([part.share for part in parts])
    rounded = []
    for part, percent in zip(parts, percents, strict=True):
        rounded.append(RoundedShare(part.name, part.segment, part.share, part.total, percent))
    return rounded


def describe_share(part: RoundedShare) -> str:
    """Say what share of the scores falls on a segment, and their signed sum."""
    return f"{part.percent} % of the total score, sum {format_score(part.total)}"


def describe_special_share(attribution: Attribution, special_share: RoundedShare) -> str:
    """Say what share of the scores falls on special tokens; name them if it is most of all.

    Args:
        attribution: The explanation.
        special_share: The share of its special tokens.
    """
    if special_share.share <= SPECIAL_SHARE_THRESHOLD:
        return f"{special_share.percent} % of the total score falls on special tokens, which are not words"
    row = attribution.row
    names: dict[str, None] = {}  # in order, each once
    for position, is_special in enumerate(row.special_tokens_mask):
        if is_special and attribution.scores[position]:
            names[row.pieces[position]] = None
    *others, last = names
    listed = f"{', '.join(others)} and {last}" if others else last
    if "difference" in attribution.steps:
        return f"{special_share.percent} % of this difference falls on {listed}"
    return f"{special_share.percent} % of {attribution.method}'s total score falls on {listed}"


def describe_attention_sink(attribution: Attribution) -> str:
    """Say how much of the score falls on the first token of a prompt, if it is more than a third."""
    row = attribution.row
    if not _is_explained_at_end_of_prompt(attribution) or not _reads_model(attribution):
        return ""
    if sum(row.attention_mask) < MIN_SINK_TOKENS:
        return ""
    magnitudes = np.abs(attribution.scores)
    share = float(magnitudes[0] / (magnitudes.sum() or 1.0))
    if share <= SINK_SHARE_THRESHOLD:
        return ""
    first_token = attribution.tokens[0].strip() or row.pieces[0]
    return (
        f"{100 * share:.0f} % of the total score falls on the first token, ‘{first_token}’, an attention "
        "sink: many causal models put attention there that they do not need, so compare the other words"
    )


def _is_explained_at_end_of_prompt(attribution: Attribution) -> bool:
    """Return whether this explains the token that a causal model writes after a prompt of text alone."""
    row = attribution.row
    is_prompt = bool(attribution.prediction.ids) or is_continuation(attribution)
    has_other_position = row.target_position is not None or row.source_length is not None
    is_difference = "difference" in attribution.steps
    return is_prompt and not has_other_position and row.image is None and not is_difference


def _reads_model(attribution: Attribution) -> bool:
    """Return whether the scores come from inside the model: attention, gradients or relevance."""
    if not registry.is_available("methods", attribution.method):
        return True
    method: Any = registry.load_class("methods", attribution.method)
    return bool(getattr(method, "needs", True))


def describe_null_answer(attribution: Attribution) -> str:
    """Say how a span head scores "no answer"; empty if its input has no token for it."""
    prediction = attribution.prediction
    if prediction.is_unanswered is None:
        return ""
    scores = (
        f"“no answer” scores {prediction.null_score:.2f}, the answer {prediction.answer_score:.2f}"
    )
    scores = scores.replace("-", "−")
    if prediction.is_unanswered:
        return f"{scores}: a model trained on unanswerable questions gives no answer here"
    return scores


def quote_labels(attribution: Attribution) -> tuple[str, ...]:
    """Return the labels of the prediction; tokens of a vocabulary in quotes.

    The space that begins a word is dropped, unless another label would then look the same.
    """
    prediction = attribution.prediction
    if not prediction.ids:
        return prediction.labels
    stripped = [label.strip(" ") or label for label in prediction.labels]
    quoted = []
    for label, name in zip(prediction.labels, stripped, strict=True):
        is_ambiguous = stripped.count(name) > 1
        quoted.append(f"‘{label if is_ambiguous else name}’")
    return tuple(quoted)


def build_prediction_bars(
    attribution: Attribution, targets: Sequence[str]
) -> tuple[list[PredictionBar], int]:
    """Return bars of the most probable labels, and the number of labels left out.

    Args:
        attribution: Any explanation of the text.
        targets: Names of the labels that are explained.
    """
    prediction = attribution.prediction
    names = quote_labels(attribution)
    ranked = sorted(enumerate(prediction.probabilities), key=lambda pair: -pair[1])
    bars = []
    for index, probability in ranked[:MAX_LABELS]:
        css_classes = []
        if index == prediction.label_position:
            css_classes.append("predicted")
        if prediction.labels[index] in targets:
            css_classes.append("explained")
        percent = format_percent(probability)
        width = round(100 * probability, 2)
        bars.append(PredictionBar(names[index], percent, width, " ".join(css_classes)))
    return bars, max(0, len(ranked) - MAX_LABELS)


def build_chips(attribution: Attribution) -> list[AlternativeChip]:
    """Return the likeliest alternatives of an explained token; empty for other targets."""
    chips = []
    for alternative in attribution.alternatives[:MAX_CHIPS]:
        percent = ""
        if alternative.probability is not None:
            percent = format_percent(alternative.probability)
        name = alternative.token
        has_letter = any(character.isalpha() for character in name)
        if name != name.strip() or not has_letter:
            # So that blanks are seen, and a number is not read as a part of the percentage.
            name = f"‘{name}’"
        hint = f"token {alternative.id}; to contrast with it alone: against=[{alternative.id}]"
        chips.append(AlternativeChip(name, percent, hint))
    return chips


def describe_question(attribution: Attribution) -> str:
    """Return the question as a heading over the chips, which name the alternatives of a token."""
    target = attribution.target
    if not target.alternatives:
        return attribution.question
    is_complete = len(target.alternatives) == len(target.terms) - 1
    others = "its likely alternatives" if is_complete else "anything else"
    return f"{target.name} rather than {others}"


def describe_chips(
    attribution: Attribution, max_chips: int = MAX_CHIPS, *, with_percents: bool = True
) -> str:
    """List the likeliest alternatives on one line; empty for targets that have none.

    Args:
        attribution: Any explanation.
        max_chips: The most alternatives to list.
        with_percents: Whether each has its probability.

    Returns:
        A line such as ``rather than: the 3.1 % · London 1.4 % · Le 0.9 % · 17 more``.
    """
    chips = build_chips(attribution)[:max_chips]
    if not chips:
        return ""
    listed = []
    for chip in chips:
        has_percent = with_percents and chip.percent
        listed.append(f"{chip.name} {chip.percent}" if has_percent else chip.name)
    num_others = len(attribution.target.terms) - 1 - len(chips)
    if num_others:
        listed.append(f"{num_others:,} more")
    return f"rather than: {' · '.join(listed)}"


def describe_omitted_labels(attribution: Attribution, num_omitted: int) -> str:
    """Say how much a list of likely labels leaves out; a vocabulary is not counted.

    Args:
        attribution: The explanation.
        num_omitted: How many labels the list leaves out.
    """
    if attribution.prediction.ids:
        return "and other tokens"
    return f"and {num_omitted} less probable" if num_omitted else ""


def describe_token_probability(attribution: Attribution) -> str:
    """Say how likely a written token was, and which one was likelier; empty for any other target."""
    index = attribution.target.index
    prediction = attribution.prediction
    if not is_continuation(attribution) or index is None or not prediction.ids:
        return ""
    probabilities = dict(zip(prediction.ids, prediction.probabilities, strict=True))
    # A prediction lists only the likeliest tokens; the logits, which files do not hold, have them all.
    if index not in probabilities and attribution.logits.size:
        probabilities[index] = float(softmax(attribution.logits)[index])
    likelihood = f"not among the {len(prediction.ids)} most likely"
    if index in probabilities:
        likelihood = f"{format_percent(probabilities[index])} likely"
    if index == prediction.index:
        return likelihood
    best_label = prediction.label.strip() or prediction.label
    best_percent = format_percent(prediction.probabilities[0])
    return f"{likelihood}; most likely: ‘{best_label}’ {best_percent}"


def describe_score_kind(attribution: Attribution) -> str:
    """Say what the scores cannot tell (the sign, one class from another), or how they were scaled."""
    if "difference" in attribution.steps:
        return SCALING_NOTE
    if not registry.is_available("methods", attribution.method):
        return ""
    method: Any = registry.load_class("methods", attribution.method)
    limits = []
    if not getattr(method, "signed", True):
        limits.append("no sign")
    if getattr(method, "class_agnostic", False):
        has_classes = attribution.target.kind == "class" and not attribution.prediction.ids
        limits.append("same for every class" if has_classes else "same for every target")
    return ", ".join(limits)


def get_grade(attribution: Attribution) -> str:
    """Return the grade of the removal test in a word; empty if it was not run."""
    trust = read_trust(attribution)
    return "" if trust is None else trust.grade


def get_verdict(attribution: Attribution) -> str:
    """Return the verdict of the removal test, grade first; empty if it was not run."""
    trust = read_trust(attribution)
    if trust is None:
        return ""
    # Without a test there is no grade to put first.
    if not trust.verdict or trust.grade == "untested":
        return trust.verdict
    return f"{trust.grade}: {trust.verdict.removesuffix(f': {trust.grade}')}"


def list_trust_findings(attribution: Attribution) -> list[str]:
    """Return the findings behind the grade; empty in files of earlier versions and without a test."""
    trust = read_trust(attribution)
    return [] if trust is None else list(trust.findings)


def build_badges(attribution: Attribution) -> tuple[str, ...]:
    """Return short remarks on an explanation: limits of its scores, probability, trust, accuracy."""
    badges = [
        describe_score_kind(attribution),
        describe_uncertainty(attribution),
        describe_stability(attribution),
        describe_token_probability(attribution),
        get_verdict(attribution),
        _describe_conservation(attribution),
    ]
    convergence: Any = attribution.extras.get("convergence")
    gap_percent = convergence.get("gap_percent", 0.0) if isinstance(convergence, dict) else 0.0
    if gap_percent >= MIN_SHOWN_GAP_PERCENT:
        badges.append(f"sum of the scores off by {gap_percent:.2g} %")
    return tuple(filter(None, badges))


def _describe_conservation(attribution: Attribution) -> str:
    """Say how much relevance each layer conserves; empty for methods without that meter."""
    shares: Any = attribution.extras.get("conservation")
    if not isinstance(shares, list) or not shares:
        return ""
    largest_loss = max(abs(share - 1) for share in shares)
    if largest_loss < 0.0005:
        return "all of the target's relevance arrives at every layer"
    return (
        f"{100 * min(shares):.1f} % to {100 * max(shares):.1f} % of the target's relevance is left, "
        "by layer: biases and the softmax absorb or add the rest"
    )


def describe_uncertainty(attribution: Attribution) -> str:
    """Say what ± means and how many scores could be 0; empty for methods without standard errors."""
    if attribution.standard_errors is None:
        return ""
    is_regular = ~np.array(attribution.row.special_tokens_mask)
    num_uncertain = int(attribution.uncertain_mask[is_regular].sum())
    sampling: Any = attribution.extras.get("sampling")
    source = ""
    if isinstance(sampling, dict):
        for name, noun in SAMPLE_NOUNS.items():
            if name in sampling:
                source = f" over {sampling[name]} {noun}"
    return f"± one standard error{source}; {num_uncertain} of {int(is_regular.sum())} could be 0"


def describe_stability(attribution: Attribution) -> str:
    """Say how far the strongest tokens depend on the draws; empty if that was not measured."""
    sampling: Any = attribution.extras.get("sampling")
    if not isinstance(sampling, dict) or not isinstance(sampling.get("stability"), float):
        return ""
    percent = format_percent(sampling["stability"])
    return f"{percent} of the top {sampling['top_k']} tokens would be named again by other draws"


def shorten_model_name(name: str) -> str:
    """Return the name of a model without the folders above it, which say nothing and belong to nobody else.

    Two parts stay, since checkpoints of several runs have the same names; :func:`list_provenance` has the
    whole path.

    Example:
        >>> shorten_model_name("/home/anna/runs/first/checkpoint-500")
        '…/first/checkpoint-500'
        >>> shorten_model_name("tokenlight/sentiment")
        'tokenlight/sentiment'
    """
    path = PurePath(name)
    if not path.is_absolute() or len(path.parts) <= 3:
        return name
    return f"…/{'/'.join(path.parts[-2:])}"


def list_provenance(attribution: Attribution) -> tuple[tuple[str, str], ...]:
    """Return all that is needed to compute the explanation again, as pairs of name and value."""
    options = ", ".join(f"{name}={value}" for name, value in attribution.options.items())
    versions = ", ".join(f"{name} {version}" for name, version in attribution.versions.items())
    provenance = {
        "method": attribution.method,
        "options": options or "defaults",
        "target": attribution.target.name,
        "model": attribution.model,
        "tokens": str(len(attribution)),
        "seed": str(attribution.seed),
        "steps": ", ".join(attribution.steps),
        "versions": versions,
    }
    return tuple((name, value) for name, value in provenance.items() if value)
