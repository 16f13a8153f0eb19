"""How one text is explained: an ordered list of strategies, of which the first that applies is used.

Most texts are one row of tokens that shares a batch with the rows of other texts (:class:`BatchedRows`, the
last of the list). The strategies before it handle texts that need several passes of their own. Plain texts
for a classifier, for which only the last can apply, skip the list.
"""

import abc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tokenlight.data.target import Continuation, Contrast, RankedAbove
from tokenlight.data.tokenizer import isolated_tokenizer_cache
from tokenlight.data.tokens import TokenRow
from tokenlight.explaining.batches import explain_rows
from tokenlight.explaining.continuations import can_share_forward, explain_continuation
from tokenlight.explaining.differences import plan_difference, subtract_attributions
from tokenlight.explaining.explain_options import (
    ExplainOptions,
    TargetedRow,
    text_index_in_errors,
)
from tokenlight.explaining.input_rows import tokenize_batch
from tokenlight.explaining.session import Session, verify_rows
from tokenlight.explaining.similarity import explain_similarity
from tokenlight.explaining.targeted_rows import build_targeted_rows
from tokenlight.explaining.text_result import MethodGroups, TextResult, merge_groups
from tokenlight.explaining.windows import exceeds_max_tokens, explain_windows
from tokenlight.files.tables import Example


@dataclass(eq=False)
class TextRequest:
    """One text and the target to explain in it, as the strategies see it."""

    session: Session
    text: Any
    target: Any
    options: ExplainOptions
    encoded_row: TokenRow | None = None  # the text's tokens, if all texts were tokenized together

    @cached_property
    def targeted_rows(self) -> list[TargetedRow]:
        """The rows of this text, each with its target. A language model may write a text for them."""
        return build_targeted_rows(
            self.session, self.text, self.target, self.options, self.encoded_row
        )


@dataclass(slots=True)
class TextPlan:
    """The rows that a strategy adds to the shared batches, or the finished groups if it needs none."""

    rows: list[TargetedRow]
    groups: MethodGroups


class Strategy(abc.ABC):
    """One way to explain a text."""

    @abc.abstractmethod
    def applies(self, request: TextRequest) -> bool:
        """Return whether this strategy explains such a text.

        Reading ``request.targeted_rows`` encodes the text, once for all strategies that ask.
        """

    @abc.abstractmethod
    def run(self, request: TextRequest) -> TextPlan:
        """Explain the text, or name the rows that the shared batches have to explain."""


class DifferenceOfTwoTexts(Strategy):
    """Explain two texts and subtract: why this passage ranks above that one, or this continuation."""

    def applies(self, request: TextRequest) -> bool:
        target = request.target
        if isinstance(target, RankedAbove):
            return True
        if not isinstance(target, Contrast):
            return False
        return isinstance(target.this, Continuation) or isinstance(target.that, Continuation)

    def run(self, request: TextRequest) -> TextPlan:
        session = request.session
        texts, targets = plan_difference(session, request.text, request.target, request.options)
        quiet_options = replace(request.options, progress=False)
        minuend, subtrahend = run_strategies(session, texts, targets, quiet_options)
        groups: MethodGroups = []
        for these, those in zip(minuend.groups, subtrahend.groups, strict=True):
            pairs = zip(these, those, strict=True)
            groups.append([subtract_attributions(this, that) for this, that in pairs])
        return TextPlan([], groups)


class OverlappingWindows(Strategy):
    """Explain a text that is longer than the model reads, window by window (``long="stride"``)."""

    def applies(self, request: TextRequest) -> bool:
        if request.options.long != "stride":
            return False
        return exceeds_max_tokens(request.session, request.text)

    def run(self, request: TextRequest) -> TextPlan:
        groups = explain_windows(request.session, request.text, request.target, request.options)
        return TextPlan([], groups)


class SentenceSimilarity(Strategy):
    """Explain what makes two texts similar, for a model of sentence embeddings."""

    def applies(self, request: TextRequest) -> bool:
        return request.session.runner.head.task == "pair"

    def run(self, request: TextRequest) -> TextPlan:
        groups = explain_similarity(request.session, request.text, request.target, request.options)
        return TextPlan([], groups)


class ContinuationInOneForward(Strategy):
    """Explain every token of a continuation from one forward pass over the whole text."""

    def applies(self, request: TextRequest) -> bool:
        return can_share_forward(request.session, request.targeted_rows, request.options)

    def run(self, request: TextRequest) -> TextPlan:
        groups = explain_continuation(request.session, request.targeted_rows, request.options)
        return TextPlan([], groups)


class BatchedRows(Strategy):
    """Explain the rows of a text in batches that it shares with other texts."""

    def applies(self, request: TextRequest) -> bool:  # noqa: ARG002 - the last resort
        return True

    def run(self, request: TextRequest) -> TextPlan:
        return TextPlan(request.targeted_rows, [])


# The first strategy that applies is used, so the order matters: a difference may be one of long texts.
STRATEGIES: tuple[Strategy, ...] = (
    DifferenceOfTwoTexts(),
    OverlappingWindows(),
    SentenceSimilarity(),
    ContinuationInOneForward(),
    BatchedRows(),
)


@isolated_tokenizer_cache()
def run_strategies(
    session: Session,
    texts: Sequence[Any],
    targets: Sequence[Any],
    options: ExplainOptions,
    *,
    first_index: int | None = None,
) -> list[TextResult]:
    """Explain each text for its target.

    Args:
        session: The model, its tokenizer and its limits.
        texts: Inputs of any kind the model reads; an Example brings metadata for the results.
        targets: One target per text.
        options: Resolved keyword arguments of ``explain()``, with the methods.
        first_index: Index of the first text where the texts are part of a stream.

    Returns:
        One result per text, in order.

    Raises:
        TokenlightError: A text is refused; if there are several, the message says which one.
    """
    plans = _plan_texts(session, texts, targets, options, first_index)
    results = _run_plans(session, texts, plans, options)
    for text, result in zip(texts, results, strict=True):
        if isinstance(text, Example):
            # Columns of a table travel with its texts.
            result.groups = _add_metadata(text, result.groups)
    return results


def _plan_texts(
    session: Session,
    texts: Sequence[Any],
    targets: Sequence[Any],
    options: ExplainOptions,
    first_index: int | None,
) -> list[TextPlan]:
    """Choose a strategy for each text and let it plan."""
    bare_texts = [text.text if isinstance(text, Example) else text for text in texts]
    # One call of the tokenizer for all texts is much faster than one per text.
    encoded_rows = tokenize_batch(session, bare_texts, options)
    is_only_text = first_index is None and len(texts) == 1
    plans = []
    for index, (text, target, row) in enumerate(
        zip(bare_texts, targets, encoded_rows, strict=True)
    ):
        if row is not None and _needs_only_batches(session, target):
            plans.append(TextPlan([(row, target)], []))
            continue
        text_index = None if is_only_text else (first_index or 0) + index
        with text_index_in_errors(text_index):
            plans.append(
                _plan_text(
                    TextRequest(
                        session=session, text=text, target=target, options=options, encoded_row=row
                    )
                )
            )
    return plans


def _needs_only_batches(session: Session, target: Any) -> bool:
    """Return whether no strategy but :class:`BatchedRows` can apply to a text that is already one row.

    So it is with nearly all of many texts, and asking each strategy would take time.
    """
    return session.runner.head.task == "text" and isinstance(target, str | int)


def _plan_text(request: TextRequest) -> TextPlan:
    """Run the first strategy that applies."""
    for strategy in STRATEGIES:
        if strategy.applies(request):
            return strategy.run(request)
    raise AssertionError("BatchedRows applies to every text")


def _run_plans(
    session: Session, texts: Sequence[Any], plans: Sequence[TextPlan], options: ExplainOptions
) -> list[TextResult]:
    """Explain the rows of all plans in shared batches and hand each text its part."""
    targeted_rows: list[TargetedRow] = []
    for plan in plans:
        targeted_rows += plan.rows
    if targeted_rows:
        verify_rows(session, [row for row, _ in targeted_rows], options.methods)
    # The rows of all texts share batches; each text knows how many are its own.
    groups_by_row = explain_rows(session, targeted_rows, options)
    results = []
    start = 0
    for text, plan in zip(texts, plans, strict=True):
        stop = start + len(plan.rows)
        groups = merge_groups(groups_by_row[start:stop]) if plan.rows else plan.groups
        results.append(TextResult(text, groups))
        start = stop
    return results


def _add_metadata(example: Example, groups: MethodGroups) -> MethodGroups:
    """Add what a table says of a text to the extras of its explanations."""
    labeled: MethodGroups = []
    for group in groups:
        with_metadata = []
        for attribution in group:
            extras = {**attribution.extras, **example.metadata}
            with_metadata.append(replace(attribution, extras=extras))
        labeled.append(with_metadata)
    return labeled
