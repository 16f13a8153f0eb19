"""Texts longer than the model reads: overlapping windows, added up to one Attribution.

The explained number is the mean logit over the windows, so the score of a token is
``s_i = (1/W) Σ_w s_i^w`` over the windows w that hold it: one linear target, nothing invented.
A span head answers in one window; only that window is explained, with weight 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.data.head import Head
from tokenlight.data.prediction import Prediction
from tokenlight.data.span_target import SpanTarget, find_answer_tokens, to_span_target
from tokenlight.data.target import Contrast, ResolvedTarget
from tokenlight.data.tokens import TextInput, TokenRow
from tokenlight.errors import BadInput, BadTarget
from tokenlight.explaining.batches import explain_rows
from tokenlight.explaining.explain_options import ExplainOptions
from tokenlight.explaining.input_rows import check_input_kind
from tokenlight.explaining.session import (
    Session,
    list_row_notes,
    prepare_row,
    verify_model_for_rows,
)
from tokenlight.explaining.text_result import AttributionsByMethod
from tokenlight.inputs.encode import encode_text, encode_windows
from tokenlight.perturb.logits_stream import stream_logits

OVERLAP_SHARE = 0.25  # of a window is shared with the one before it
Window = tuple[TokenRow, tuple[int, ...]]  # with the positions of its tokens in the whole text


@dataclass(frozen=True)
class WindowPlan:
    """Which windows are explained, for which targets, and how they add up.

    Attributes:
        whole_row: The whole text as one row.
        windows: All windows.
        chosen: The indices of the windows that are explained, all with the same weight.
        targets: The targets of the whole text, as every window has them.
        prediction: The prediction for the whole text.
        mean_logits: The mean logits over windows; None for a span head.
        note: A note on the windows, for every Attribution.
    """

    whole_row: TokenRow
    windows: list[Window]
    chosen: list[int]
    targets: list[Any]
    prediction: Prediction
    mean_logits: np.ndarray | None
    note: str


def exceeds_max_tokens(session: Session, text: Any) -> bool:
    """Return whether a text has more tokens than the model reads; prompts and images are never cut."""
    max_tokens = session.max_tokens
    task = session.runner.head.task
    if (
        isinstance(text, TokenRow)
        or max_tokens is None
        or task in ("text-generation", "image-classification")
    ):
        return False
    check_input_kind(session, text)
    # A model without head reads the two texts of a pair one by one.
    is_read_apart = task == "sentence-similarity" and isinstance(text, tuple)
    for part in text if is_read_apart else (text,):
        if len(encode_text(part, session.tokenizer, max_tokens=None)) > max_tokens:
            return True
    return False


def explain_windows(
    session: Session, text: TextInput, target: Any, options: ExplainOptions
) -> AttributionsByMethod:
    """Explain every window for one target of the whole text and add the scores up.

    Args:
        session: The model; its limit is the size of a window.
        text: A text that is longer than the model reads.
        target: A label or an answer. "predicted" is resolved once, from all windows.
        options: The methods and other keywords.

    Returns:
        One list per method, with one Attribution of the whole text per target.

    Raises:
        BadInput: The head explains something that lies in one window.
        BadTarget: No window holds the answer that is asked for.
    """
    head = session.runner.head
    if head.task not in ("text-classification", "question-answering"):
        raise BadInput(
            "long='stride' works only for labels and answers. A next token, a masked word, the label of a "
            "word or a similarity needs a single window. Give long='truncate' or a shorter text.",
            code="stride-needs-label-or-answer",
        )
    assert session.max_tokens is not None
    windows = encode_windows(
        text,
        session.tokenizer,
        max_tokens=session.max_tokens,
        overlap=int(session.max_tokens * OVERLAP_SHARE),
    )
    rows = [prepare_row(session, row, options) for row, _ in windows]
    verify_model_for_rows(session, rows, options.methods)
    # The logits of all windows decide what is explained, before anything is.
    logits = list(stream_logits(session.runner, rows, batch_tokens=options.batch_tokens))
    whole_row = encode_text(text, session.tokenizer, max_tokens=None)
    plan_windows = _plan_answer if head.task == "question-answering" else _plan_mean
    plan = plan_windows(head, whole_row, windows, rows, logits, target)
    return _run_plan(session, plan, rows, options)


def _run_plan(
    session: Session, plan: WindowPlan, rows: Sequence[TokenRow], options: ExplainOptions
) -> AttributionsByMethod:
    """Explain the chosen windows for each target and add them up, method by method."""
    quiet_options = replace(options, progress=False)
    attributions_by_method: AttributionsByMethod = [[] for _ in options.methods]
    for target in plan.targets:
        targeted_rows = [(rows[index], target) for index in plan.chosen]
        attributions_by_window = explain_rows(session, targeted_rows, quiet_options)
        for method_index, attributions in enumerate(attributions_by_method):
            # One target per window, so that each method has one Attribution there.
            parts = [by_method[method_index][0] for by_method in attributions_by_window]
            attributions.append(_add_windows(session, plan, parts))
    return attributions_by_method


def _plan_mean(
    head: Head,
    whole_row: TokenRow,
    windows: list[Window],
    rows: Sequence[TokenRow],
    logits: list[np.ndarray],
    target: Any,
) -> WindowPlan:
    """Plan the mean over all windows, for a classifier."""
    mean_logits = np.mean(logits, axis=0)
    # Classes of the whole text's target, so that no window explains its own prediction instead.
    targets: list[Any] = []
    for resolved in head.resolve(target, mean_logits, rows[0]):
        classes = [position[0] for position, _ in resolved.terms]
        targets.append(Contrast(*classes[:2]) if len(classes) > 1 else classes[0])
    return WindowPlan(
        whole_row,
        windows,
        chosen=list(range(len(windows))),
        targets=targets,
        prediction=head.predict(mean_logits, rows[0]),
        mean_logits=mean_logits,
        note=(
            f"{len(windows)} overlapping windows, scores added with weight 1/{len(windows)} each"
        ),
    )


def _plan_answer(
    head: Head,
    whole_row: TokenRow,
    windows: list[Window],
    rows: Sequence[TokenRow],  # noqa: ARG001 - as _plan_mean
    logits: list[np.ndarray],
    target: Any,
) -> WindowPlan:
    """Plan the one window that answers, for a model that answers questions."""
    best_index, window_target = _choose_answer_window(head, windows, logits, target)
    return WindowPlan(
        whole_row,
        windows,
        chosen=[best_index],
        targets=[window_target],
        prediction=_predict_answer(head, windows, logits),
        mean_logits=None,
        note=(
            f"{len(windows)} overlapping windows; the answer is explained in window {best_index + 1}"
        ),
    )


def _add_windows(session: Session, plan: WindowPlan, parts: list[Attribution]) -> Attribution:
    """Add up the explanations of the chosen windows by one method."""
    # All parts have the same method and options; the first one stands for them.
    first = parts[0]
    positions = [list(plan.windows[index][1]) for index in plan.chosen]
    num_tokens = len(plan.whole_row)
    layers = None
    if first.layers is not None:
        layers = _mean_scores([part.layers for part in parts], positions, num_tokens)
    # Notes of windows, such as unknown tokens, are replaced by those of the whole text.
    window_notes: set[str] = set()
    for row, _ in plan.windows:
        window_notes.update(list_row_notes(session, row))
    notes = [note for note in first.notes if note not in window_notes]
    target = first.target
    # The answer of a span head is named by its tokens, which each window counts from 0.
    if plan.mean_logits is None:
        target = _shift_terms(target, positions[0])
    return replace(
        first,
        row=plan.whole_row,
        scores=_mean_scores([part.scores for part in parts], positions, num_tokens),
        layers=layers,
        standard_errors=_combine_errors(
            [part.standard_errors for part in parts], positions, num_tokens
        ),
        target=target,
        prediction=plan.prediction,
        logits=first.logits if plan.mean_logits is None else plan.mean_logits,
        notes=(*notes, *list_row_notes(session, plan.whole_row), plan.note),
        extras={**first.extras, "windows": _describe_windows(plan)},
    )


def _mean_scores(
    parts: Sequence[Any], positions: Sequence[list[int]], num_tokens: int
) -> np.ndarray:
    """Return the mean over windows of scores, ``… token``, at the positions of the whole text."""
    total = np.zeros((*parts[0].shape[:-1], num_tokens))
    for part, part_positions in zip(parts, positions, strict=True):
        total[..., part_positions] += 1 / len(parts) * part
    return total


def _combine_errors(
    parts: Sequence[np.ndarray | None], positions: Sequence[list[int]], num_tokens: int
) -> np.ndarray | None:
    """Return the standard errors of the mean over windows, whose partial texts are drawn independently."""
    squares = []
    for part in parts:
        if part is None:
            return None
        squares.append(part**2 / len(parts))
    return np.asarray(np.sqrt(_mean_scores(squares, positions, num_tokens)))


def _shift_terms(target: ResolvedTarget, positions: list[int]) -> ResolvedTarget:
    """Count the tokens of an answer in the whole text rather than in its window."""
    terms = []
    for (token, *rest), weight in target.terms:
        terms.append(((positions[token], *rest), weight))
    return replace(target, terms=tuple(terms))


def _describe_windows(plan: WindowPlan) -> list[dict[str, Any]]:
    """Return the extent of each window in the part of the text that was cut, and its weight."""
    segments = plan.whole_row.segments
    cut_segment = max(segment or 0 for segment in segments)
    extents = []
    for index, (_, positions) in enumerate(plan.windows):
        inside = [position for position in positions if segments[position] == cut_segment]
        weight = (index in plan.chosen) / len(plan.chosen)
        extents.append({"first": inside[0], "last": inside[-1], "weight": weight})
    return extents


def _choose_answer_window(
    head: Head, windows: list[Window], logits: list[np.ndarray], target: Any
) -> tuple[int, Any]:
    """Return the window in which the target scores best, and the target as that window has it.

    "No answer" must hold in all windows, so the one that gives it the lowest score is explained.
    """
    head.check_target_type(target)
    window_targets: dict[int, Any] = {}
    for index, (row, positions) in enumerate(windows):
        window_target = _shift_target(target, row, positions)
        if window_target is not None:
            window_targets[index] = window_target
    if not window_targets:
        raise BadTarget(
            f"None of the {len(windows)} windows holds the whole answer, or both answers of a contrast. Name "
            "a shorter answer, explain each by itself, or give a shorter context.",
            code="answer-in-no-window",
        )
    values: dict[int, float] = {}
    for index, window_target in window_targets.items():
        # Of a contrast, the first answer decides.
        answer = window_target.this if isinstance(window_target, Contrast) else window_target
        (resolved, *_) = head.resolve(answer, logits[index], windows[index][0])
        values[index] = float(resolved.compute_value(logits[index]))
    is_no_answer = isinstance(target, SpanTarget) and target.no_answer
    choose = min if is_no_answer else max
    best_index = choose(values, key=lambda index: values[index])
    return best_index, window_targets[best_index]


def _predict_answer(head: Head, windows: list[Window], logits: list[np.ndarray]) -> Prediction:
    """Return the best answer of any window, with the lowest score of "no answer"."""
    predictions = []
    for window_logits, (row, _) in zip(logits, windows, strict=True):
        predictions.append(head.predict(window_logits, row))
    best = max(predictions, key=lambda prediction: prediction.answer_score or 0.0)
    # "No answer" holds for the whole text only if it holds in every window.
    null_scores = [
        prediction.null_score for prediction in predictions if prediction.null_score is not None
    ]
    return replace(best, null_score=min(null_scores, default=None))


def _shift_target(target: Any, row: TokenRow, positions: tuple[int, ...]) -> Any:
    """Return a target as one window has it; None if its answer does not lie in the window.

    Token numbers of the target count the whole text; ``positions`` are those of the window's tokens.
    """
    if isinstance(target, Contrast):
        this = _shift_target(to_span_target(target.this), row, positions)
        that = _shift_target(to_span_target(target.that), row, positions)
        return Contrast(this, that) if this and that else None
    span = to_span_target(target)
    if span.has_named_answer and find_answer_tokens(span, row) is None:
        return None
    shifted: dict[str, Any] = {}
    for name in ("start", "end"):
        position = getattr(span, name)
        if type(position) is not int:
            continue
        if position not in positions:
            return None
        shifted[name] = positions.index(position)
    return replace(span, **shifted)
