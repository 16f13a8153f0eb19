"""Explaining an iterator chunk by chunk, and isolating the texts that fail in a chunk."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice, repeat
from typing import Any, TypeVar

from tokenlight.errors import BadInput, BadTarget, NotFinite, TokenlightError
from tokenlight.explaining.text_result import TextResult

# Texts that are sorted and packed together: few at first, so that the first result comes soon.
FIRST_CHUNK_SIZES = (1, 7, 56, 448)
# Later chunks grow with the batches: the more texts are sorted together, the less padding they need.
SMALL_BATCH_TOKENS = 2048
# A chunk of long texts is shorter: its limit is this number of characters per text.
CHARACTERS_PER_TEXT = 256
CHARACTERS_PER_NON_TEXT = 4096  # what an input that is not a string counts for
# Errors that one text may cause; any other is caused by the model or the options, for all texts.
TEXT_ERRORS = (BadInput, BadTarget, NotFinite)

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
ErrorT = TypeVar("ErrorT", bound=Exception)
# A list of texts and the number of the first one, to their results.
ExplainChunk = Callable[[list[Any], int], list[TextResult]]


def explain_stream(
    texts: Iterator[Any], explain_chunk: ExplainChunk, batch_tokens: int
) -> Iterator[TextResult]:
    """Yield the result of each text, in order and in constant memory.

    Args:
        texts: The inputs; read only as far as results are needed.
        explain_chunk: Explains several texts, given with the number of the first one.
        batch_tokens: Tokens that go through the model at once; a chunk fills several such batches.

    Yields:
        One result per text. A text that is refused gives a result with its error; if the iterator
        itself fails, the texts before are explained first.
    """
    first_index = 0
    for chunk in read_chunks(texts, batch_tokens):
        yield from explain_isolated(chunk, explain_chunk, first_index)
        first_index += len(chunk)


def explain_isolated(
    texts: Sequence[Any], explain_chunk: ExplainChunk, first_index: int = 0
) -> list[TextResult]:
    """Explain texts together; one that is refused gives a result with its error.

    Args:
        texts: The inputs.
        explain_chunk: Explains several consecutive texts, given with the number of the first one.
        first_index: Index of the first text.
    """

    def explain_indexed(indexed_texts: Sequence[tuple[int, Any]]) -> list[TextResult]:
        chunk = [text for _, text in indexed_texts]
        return explain_chunk(chunk, indexed_texts[0][0])

    indexed_texts = list(enumerate(texts, first_index))
    outcomes = isolate_failures(explain_indexed, indexed_texts, TokenlightError)
    results = []
    for text, outcome in zip(texts, outcomes, strict=True):
        if isinstance(outcome, TokenlightError):
            results.append(TextResult(text, error=_without_tracebacks(outcome)))
        else:
            results.append(outcome)
    return results


def _without_tracebacks(error: TokenlightError) -> TokenlightError:
    """Drop tracebacks, which would keep the tensors of a failed pass alive as long as its result."""
    linked: BaseException | None = error
    while linked is not None:
        linked.__traceback__ = None
        linked = linked.__cause__ or linked.__context__
    return error


def read_chunks(texts: Iterator[Any], batch_tokens: int) -> Iterator[list[Any]]:
    """Yield lists of texts to explain together.

    Their sizes depend only on the texts and ``batch_tokens``, never on the clock, so that the same texts
    give the same numbers.
    """
    later_size = max(FIRST_CHUNK_SIZES[-1], (batch_tokens - SMALL_BATCH_TOKENS) // 2)
    for size in chain(FIRST_CHUNK_SIZES, repeat(later_size)):
        max_characters = max(size, FIRST_CHUNK_SIZES[-1]) * CHARACTERS_PER_TEXT
        chunk: list[Any] = []
        num_characters = 0
        try:
            for text in islice(texts, size):
                chunk.append(text)
                num_characters += len(text) if isinstance(text, str) else CHARACTERS_PER_NON_TEXT
                if num_characters >= max_characters:
                    break
        except Exception:
            # The user's iterator failed: the texts before are explained first.
            if chunk:
                yield chunk
            raise
        if chunk:
            yield chunk
        if len(chunk) < size and num_characters < max_characters:
            return


def isolate_failures(
    process: Callable[[Sequence[ItemT]], Sequence[ResultT]],
    items: Sequence[ItemT],
    error_classes: type[ErrorT] | tuple[type[ErrorT], ...],
) -> list[ResultT | ErrorT]:
    """Process items together, so that one that fails does not take the others with it.

    Args:
        process: Returns one result per item.
        items: What to process.
        error_classes: Errors that are isolated: both halves of the items are then tried by themselves.

    Returns:
        One entry per item: its result, or the error it fails with alone.
    """
    if not items:
        return []
    try:
        return list(process(items))
    except error_classes as error:
        if len(items) == 1:
            return [error]
    # Outside the except block, which would keep the tensors of the failed attempt alive.
    middle = len(items) // 2
    first_half = isolate_failures(process, items[:middle], error_classes)
    second_half = isolate_failures(process, items[middle:], error_classes)
    return first_half + second_half
