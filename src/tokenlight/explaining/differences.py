"""Why this rather than that: the difference of two explanations.

Two passages for one query, or two texts written after one prompt, are explained by ``y = y(A) − y(B)``.
Tokens that both passes read score ``s(A) − s(B)``, tokens only in A ``s(A)``, tokens only in B ``−s(B)``.
For a gradient this is exactly the gradient of ``y``.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.data.prediction import Prediction
from tokenlight.data.target import (
    Continuation,
    Contrast,
    RankedAbove,
    ResolvedTarget,
)
from tokenlight.data.tokens import TokenRow
from tokenlight.data.units import CONTINUATION_SEGMENT
from tokenlight.errors import BadInput, BadTarget, join_first, truncate_text
from tokenlight.explaining.explain_options import ExplainOptions
from tokenlight.explaining.session import Session
from tokenlight.methods.base import Method

DifferencePlan = tuple[tuple[Any, Any], tuple[Any, Any]]  # two texts, and a target for each
ALTERNATIVE_NAME = "instead"  # the segment name of the continuation that is subtracted


def merge_attributions(
    first: Attribution, second: Attribution, *, num_shared: int, sign: float, **changes: Any
) -> Attribution:
    """Add ``sign`` times the second explanation to the first.

    Args:
        first: The explanation whose other fields are kept.
        second: The explanation to add.
        num_shared: How many tokens at the beginning of both rows are the same.
        sign: The factor of the second explanation's scores.
        **changes: Further fields of the result, such as its row.

    Returns:
        An Attribution over the tokens of both: shared ones, those of the first, those of the second.
    """

    def merge_scores(first_scores: Any, second_scores: Any) -> Any:
        """Merge scores of shape ``… token``."""
        if first_scores is None or second_scores is None:
            return None
        shared = first_scores[..., :num_shared] + sign * second_scores[..., :num_shared]
        only_first = first_scores[..., num_shared:]
        only_second = sign * second_scores[..., num_shared:]
        return np.concatenate([shared, only_first, only_second], axis=-1)

    standard_errors = None
    if first.standard_errors is not None and second.standard_errors is not None:
        standard_errors = np.concatenate(
            [
                # The two passes draw their samples independently.
                np.hypot(first.standard_errors[:num_shared], second.standard_errors[:num_shared]),
                first.standard_errors[num_shared:],
                second.standard_errors[num_shared:],
            ]
        )
    return replace(
        first,
        scores=merge_scores(first.scores, second.scores),
        layers=merge_scores(first.layers, second.layers),
        standard_errors=standard_errors,
        notes=tuple(dict.fromkeys((*first.notes, *second.notes))),
        **changes,
    )


def plan_difference(
    session: Session, text: Any, target: RankedAbove | Contrast, options: ExplainOptions
) -> DifferencePlan:
    """Return the two texts and the two targets to explain and subtract.

    Args:
        session: The model, whose head must support the target.
        text: The text, or the pair of a query and a passage.
        target: Two passages to rank, or two continuations to tell apart.
        options: The methods; each must give signed scores.
    """
    if isinstance(target, RankedAbove):
        _refuse_unsigned(options.methods, "RankedAbove(…)")
        return _plan_ranking(session, text, target)
    this = target.this
    that = target.that
    if not isinstance(this, Continuation) or not isinstance(that, Continuation):
        raise BadTarget(
            f"{target!r} contrasts a continuation with something else. Give two continuations, or two "
            "tokens.",
            code="contrast-of-one-continuation",
        )
    _refuse_unsigned(options.methods, "A Contrast of two continuations")
    # What both have in common cancels out, so each side is a sum of logits.
    sides = [replace(side, joint=True, against=None) for side in (this, that)]
    return (text, text), (sides[0], sides[1])


def _refuse_unsigned(methods: Sequence[Method], target: str) -> None:
    """Refuse methods with scores that are never negative.

    In a difference, every token that only the second text has would get a minus sign and seem to count
    against the target.
    """
    for method in methods:
        if not method.signed:
            raise BadTarget(
                f"{target} subtracts the scores of one text from those of another, but the scores of "
                f"{method.name} have no sign, so no token can count against the target. Use a method with "
                "signed scores, such as attnlrp, grad_x_input, integrated_gradients or occlusion.",
                code="difference-needs-signed-method",
            )


def _plan_ranking(session: Session, text: Any, target: RankedAbove) -> DifferencePlan:
    """Plan the comparison of two passages for one query."""
    head = session.runner.head
    is_pair = isinstance(text, tuple) and len(text) == 2
    if not is_pair or head.task not in ("text-classification", "sentence-similarity"):
        raise BadTarget(
            f"RankedAbove({target.alternative[:20]!r}) compares two choices for a pair's second text. Give "
            f"(query, passage); {head.usage}.",
            code="ranking-needs-pair",
        )
    if target.label == "predicted" and len(head.labels) > 1:
        raise BadTarget(
            f"This model has several outputs ({join_first(head.labels, 6)}). Say which one to rank by: "
            "RankedAbove(…, label=…).",
            code="ranking-needs-label",
        )
    # The same query with the other passage, for the same label.
    query, _ = text
    return (text, (query, target.alternative)), (target.label, target.label)


def subtract_attributions(this: Attribution, that: Attribution) -> Attribution:
    """Subtract the second explanation from the first, over the tokens of both."""
    if this.row.texts == that.row.texts:
        raise BadTarget(
            f"Both sides of the contrast are {this.row.texts[-1][:40]!r}. Give two that differ.",
            code="contrast-of-equal-texts",
        )
    # Find the tokens that both rows have in common: the query, or the prompt.
    num_shared_texts = _count_shared_texts(this.row, that.row)
    num_shared = _find_segment_start(this.row, num_shared_texts)
    if this.row.ids[:num_shared] != that.row.ids[: _find_segment_start(that.row, num_shared_texts)]:
        raise BadInput(
            "One of the two texts was truncated before the point where they differ. Give shorter texts.",
            code="contrast-truncated",
        )
    # What is explained is the difference of these two numbers.
    values = [_read_explained_value(this), _read_explained_value(that)]
    labels = _describe_sides(this, that, num_shared_texts)
    # The joined row is for display: shared tokens, those of the first text, those of the second.
    row = this.row.concatenate(
        _take_tail(that.row, num_shared, num_shared_texts),
        token_type_ids=None,
        reference_embedding=None,
        continuation_ids=(),
        segment_names=labels.segment_names,
    )
    return merge_attributions(
        this,
        that,
        num_shared=num_shared,
        sign=-1.0,
        row=row,
        target=ResolvedTarget(
            "contrast", f" {labels.verb} ".join(labels.sides), (((0,), 1.0), ((1,), -1.0))
        ),
        prediction=Prediction(
            label=f"{values[0]:.4g} against {values[1]:.4g}",
            index=0,
            labels=labels.sides,
            probabilities=(),
        ),
        logits=np.array(values),
        extras={"difference": {"num_shared_tokens": num_shared, "num_first_tokens": len(this.row)}},
    )


class _DifferenceLabels(NamedTuple):
    """The names of both sides, the words between them, and the names of the joined segments."""

    sides: tuple[str, str]
    verb: str
    segment_names: tuple[str, ...]


def _describe_sides(
    this: Attribution, that: Attribution, num_shared_texts: int
) -> _DifferenceLabels:
    if this.row.continuation_ids:
        sides = (this.target.name, that.target.name)
        segment_names = _name_continuations(this.row, that.row, num_shared_texts)
        return _DifferenceLabels(sides, "rather than", segment_names)
    sides = (_quote_last_text(this.row), _quote_last_text(that.row))
    return _DifferenceLabels(sides, "above", ("query", "above", "below"))


def _count_shared_texts(first: TokenRow, second: TokenRow) -> int:
    """Count the texts at the beginning of both rows that are the same, by words and by name."""
    first_texts = zip(first.texts, first.segment_names or first.texts, strict=False)
    second_texts = zip(second.texts, second.segment_names or second.texts, strict=False)
    count = 0
    for first_text, second_text in zip(first_texts, second_texts, strict=False):
        if first_text != second_text:
            break
        count += 1
    return count


def _find_segment_start(row: TokenRow, segment: int) -> int:
    """Return the position of the first token of this segment or a later one."""
    for position, token_segment in enumerate(row.segments):
        if token_segment is not None and token_segment >= segment:
            return position
    return len(row)


def _take_tail(row: TokenRow, start: int, num_shared_texts: int) -> TokenRow:
    """Return the tokens from ``start`` on, with the texts and segments that they belong to."""
    tail = row.take(range(start, len(row)))
    segments = []
    for segment in tail.segments:
        segments.append(None if segment is None else segment - num_shared_texts)
    return replace(tail, segments=tuple(segments), texts=row.texts[num_shared_texts:])


def _read_explained_value(attribution: Attribution) -> float:
    """Return the number that was explained."""
    logits = attribution.logits
    if attribution.row.continuation_ids:
        # The logits of a continuation are saved flat: first those of its tokens, then those of all others.
        logits = logits.reshape(2, -1).T
    return float(attribution.target.compute_value(logits))


def _name_continuations(
    first: TokenRow, second: TokenRow, num_shared_texts: int
) -> tuple[str, ...]:
    """Name the segments of a joined row; the second continuation gets a name of its own."""
    names = list(first.segment_names)
    for name in second.segment_names[num_shared_texts:]:
        names.append(ALTERNATIVE_NAME if name == CONTINUATION_SEGMENT else name)
    return tuple(names)


def _quote_last_text(row: TokenRow) -> str:
    return f"‘{truncate_text(row.texts[-1].strip(), 31)}’"
