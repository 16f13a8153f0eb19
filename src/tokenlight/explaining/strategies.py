"""How one text is explained: an ordered list of strategies, of which the first that applies is used.

Most texts are one row of tokens that shares a batch with the rows of other texts (:class:`BatchedRows`, the
last of the list). The strategies before it handle texts that need several passes of their own. Plain texts
for a classifier, for which only the last can apply, skip the list (``_needs_only_batches`` says why).
"""

import abc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
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
from tokenlight.explaining.session import Session, verify_model_for_rows
from tokenlight.explaining.similarity import explain_similarity
from tokenlight.explaining.targeted_rows import build_targeted_rows
from tokenlight.explaining.text_result import AttributionsByMethod, TextResult, merge_rows
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
class PendingText:
    """A text that is explained in the shared batches, by these rows."""

    rows: list[TargetedRow]


@dataclass(slots=True)
class FinishedText:
    """A text that a strategy has explained by passes of its own."""

    attributions_by_method: AttributionsByMethod


class Strategy(abc.ABC):
    """One way to explain a text."""

    @abc.abstractmethod
    def applies(self, request: TextRequest) -> bool:
        """Return whether this strategy explains such a text.

        Reading ``request.targeted_rows`` encodes the text, once for all strategies that ask.
        """

    @abc.abstractmethod
    def run(self, request: TextRequest) -> PendingText | FinishedText:
        """Explain the text now, or return the rows that the shared batches will explain."""


class DifferenceOfTwoTexts(Strategy):
    """Explain two texts and subtract: why this passage ranks above that one, or this continuation."""

    def applies(self, request: TextRequest) -> bool:
        target = request.target
        if isinstance(target, RankedAbove):
            return True
        if not isinstance(target, Contrast):
            return False
        return isinstance(target.this, Continuation) or isinstance(target.that, Continuation)

    def run(self, request: TextRequest) -> FinishedText:
        session = request.session
        texts, targets = plan_difference(session, request.text, request.target, request.options)
        quiet_options = replace(request.options, progress=False)
        first, second = run_strategies(session, texts, targets, quiet_options)
        pairs = zip(first.attributions_by_method, second.attributions_by_method, strict=True)
        differences: AttributionsByMethod = []
        for first_attributions, second_attributions in pairs:
            differences.append(
                list(map(subtract_attributions, first_attributions, second_attributions))
            )
        return FinishedText(differences)


class OverlappingWindows(Strategy):
    """Explain a text that is longer than the model reads, window by window (``long="stride"``)."""

    def applies(self, request: TextRequest) -> bool:
        if request.options.long != "stride":
            return False
        return exceeds_max_tokens(request.session, request.text)

    def run(self, request: TextRequest) -> FinishedText:
        return FinishedText(
            explain_windows(request.session, request.text, request.target, request.options)
        )


class SentenceSimilarity(Strategy):
    """Explain what makes two texts similar, for a model of sentence embeddings."""

    def applies(self, request: TextRequest) -> bool:
        return request.session.runner.head.task == "sentence-similarity"

    def run(self, request: TextRequest) -> FinishedText:
        return FinishedText(
            explain_similarity(request.session, request.text, request.target, request.options)
        )


class ContinuationInOneForward(Strategy):
    """Explain every token of a continuation from one forward pass over the whole text."""

    def applies(self, request: TextRequest) -> bool:
        return can_share_forward(request.session, request.targeted_rows, request.options)

    def run(self, request: TextRequest) -> FinishedText:
        return FinishedText(
            explain_continuation(request.session, request.targeted_rows, request.options)
        )


class BatchedRows(Strategy):
    """Explain the rows of a text in batches that it shares with other texts."""

    def applies(self, request: TextRequest) -> bool:  # noqa: ARG002 - the last resort
        return True

    def run(self, request: TextRequest) -> PendingText:
        return PendingText(request.targeted_rows)


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
    started_texts = _start_texts(session, texts, targets, options, first_index)
    results = _finish_texts(session, texts, started_texts, options)
    for text, result in zip(texts, results, strict=True):
        if isinstance(text, Example):
            # Columns of a table travel with its texts.
            result.attributions_by_method = _add_metadata(text, result.attributions_by_method)
    return results


def _start_texts(
    session: Session,
    texts: Sequence[Any],
    targets: Sequence[Any],
    options: ExplainOptions,
    first_index: int | None,
) -> list[PendingText | FinishedText]:
    """Run the strategy that applies to each text: most leave their rows to passes that texts share."""
    bare_texts = [text.text if isinstance(text, Example) else text for text in texts]
    # One call of the tokenizer for all texts is much faster than one per text.
    encoded_rows = tokenize_batch(session, bare_texts, options)
    is_only_text = first_index is None and len(texts) == 1
    # Texts that are classified or hold an answer.
    has_one_output = session.runner.head.task in ("text-classification", "question-answering")
    started_texts: list[PendingText | FinishedText] = []
    for index, (text, target, row) in enumerate(
        zip(bare_texts, targets, encoded_rows, strict=True)
    ):
        if row is not None and has_one_output and _needs_only_batches(target):
            # What the list would end in, without asking it.
            started_texts.append(PendingText([(row, target)]))
            continue
        text_index = None if is_only_text else (first_index or 0) + index
        request = TextRequest(
            session=session, text=text, target=target, options=options, encoded_row=row
        )
        with text_index_in_errors(text_index):
            started_texts.append(_apply_first_strategy(request))
    return started_texts


def _needs_only_batches(target: Any) -> bool:
    """Return whether no strategy but :class:`BatchedRows` can apply to a text of :func:`tokenize_batch`.

    The model classifies texts, or finds answers in them.

    So it is with nearly all of many texts, and asking each strategy would take time. That the first strategy
    that applies is used holds with this shortcut by two facts, which a new strategy must keep, or be asked
    here:

    - ``tokenize_batch`` makes no row with ``long="stride"``, so none of its texts needs windows;
    - no other strategy explains a text for a name or an index where it is classified or holds an answer: a
      difference and a continuation have targets of their own, and similarity is another task.
    """
    return isinstance(target, str | int)


def _apply_first_strategy(request: TextRequest) -> PendingText | FinishedText:
    """Run the first strategy that applies."""
    for strategy in STRATEGIES:
        if strategy.applies(request):
            return strategy.run(request)
    raise AssertionError("BatchedRows applies to every text")


def _finish_texts(
    session: Session,
    texts: Sequence[Any],
    started_texts: Sequence[PendingText | FinishedText],
    options: ExplainOptions,
) -> list[TextResult]:
    """Explain the rows of all pending texts in shared batches; return one result per text."""
    targeted_rows: list[TargetedRow] = []
    for started_text in started_texts:
        if isinstance(started_text, PendingText):
            targeted_rows += started_text.rows
    if targeted_rows:
        verify_model_for_rows(session, [row for row, _ in targeted_rows], options.methods)
    # The rows of all texts share batches; each text takes as many results as it has rows.
    attributions_by_row = iter(explain_rows(session, targeted_rows, options))
    results = []
    for text, started_text in zip(texts, started_texts, strict=True):
        if isinstance(started_text, FinishedText):
            attributions_by_method = started_text.attributions_by_method
        else:
            text_rows = [*islice(attributions_by_row, len(started_text.rows))]
            attributions_by_method = merge_rows(text_rows)
        results.append(TextResult(text, attributions_by_method))
    return results


def _add_metadata(
    example: Example, attributions_by_method: AttributionsByMethod
) -> AttributionsByMethod:
    """Add what a table says of a text to the extras of its explanations."""
    with_metadata: AttributionsByMethod = []
    for attributions in attributions_by_method:
        changed = []
        for attribution in attributions:
            extras = {**attribution.extras, **example.metadata}
            changed.append(replace(attribution, extras=extras))
        with_metadata.append(changed)
    return with_metadata
