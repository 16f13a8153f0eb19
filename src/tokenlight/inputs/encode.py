"""From text to tokens: tokenize a text, a pair or a question, and never truncate silently.

Texts that are too long are truncated here and not by the tokenizer, which would keep the setting for every
thread that uses it. Besides, tokenizers 0.23.1 and 0.23.2 lose everything after the second window (their
issue 2091).
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from tokenlight.data.tokenizer import tokenize
from tokenlight.data.tokens import (
    LongTextPolicy,
    Question,
    Span,
    TextInput,
    TokenRow,
    Tokens,
    add_pieces,
    has_lone_surrogate,
)
from tokenlight.errors import BadInput, TextTooLong, UnsupportedTokenizer
from tokenlight.inputs.combining_marks import extend_over_marks, is_inside_word, is_mark_at

Encoding = Any  # tokenizers.Encoding: what a fast tokenizer returns for one text
# Everything else that is needed is in the encodings.
TOKENIZER_OPTIONS = {"return_attention_mask": False, "verbose": False}
SOURCE_SEGMENT = "source"  # name of the text that an encoder reads


def encode_text(
    text: TextInput,
    tokenizer: Any,
    *,
    max_tokens: int | None,
    long: LongTextPolicy = "error",
    encoding: Encoding = None,
) -> TokenRow:
    """Tokenize one text, pair or question.

    Args:
        text: The text.
        tokenizer: The model's tokenizer.
        max_tokens: Most tokens that the model reads; None for no limit.
        long: Only ``"truncate"`` truncates a text that is too long.
        encoding: The output of :func:`encode_batch` for this text, if it was called.

    Returns:
        The tokens.

    Raises:
        BadInput: The input is no text, or has no tokens.
        TextTooLong: The text has more than ``max_tokens`` tokens, and may not be truncated.
        UnsupportedTokenizer: The tokenizer gives no character offsets.
    """
    check_tokenizer(tokenizer)
    texts = _split_parts(text, is_checked=encoding is not None)
    if encoding is None:
        encoding = run_tokenizer(tokenizer, *texts)[0]
    has_token_types = "token_type_ids" in tokenizer.model_input_names
    row = build_row(encoding, texts, has_token_types=has_token_types)
    if max_tokens is not None and len(encoding) > max_tokens:
        if long != "truncate":
            raise TextTooLong(
                f"The text has {len(encoding)} tokens, but this model reads at most {max_tokens}. Give "
                f"long='truncate' (explain the first {max_tokens} tokens), long='stride' (overlapping "
                "windows over the whole text), or a shorter text.",
                code="text-too-long",
            )
        positions = select_kept_positions(
            encoding.sequence_ids,
            len(texts),
            max_tokens,
            last_only=isinstance(text, Question),
            from_left=tokenizer.truncation_side == "left",
        )
        row = replace(row.take(positions), num_truncated=len(row) - len(positions))
    # The special flags are slow to compute, so they are read only where there are so few tokens that all
    # may be special.
    num_special = tokenizer.num_special_tokens_to_add(len(texts) > 1)
    if len(row) <= num_special and all(row.special_tokens_mask):
        raise BadInput(
            f"The text {texts[0][:40]!r} has no token besides the model's special tokens. Give a word.",
            code="text-without-tokens",
        )
    return row


def check_tokenizer(tokenizer: Any) -> None:
    """Refuse a missing tokenizer, and one that gives no character offsets."""
    if tokenizer is None:
        raise BadInput(
            "This Explainer has no tokenizer, so it cannot read text. Give Tokens.from_ids(…), or build it "
            "with Explainer(model, tokenizer).",
            code="tokenizer-missing",
        )
    if not getattr(tokenizer, "is_fast", False):
        raise UnsupportedTokenizer(
            f"{type(tokenizer).__name__} has no character offsets, which are needed to find words. Load "
            "the fast tokenizer, or explain Tokens.from_ids(…).",
            code="tokenizer-not-fast",
        )


def encode_batch(texts: Sequence[Any], tokenizer: Any) -> list[Encoding]:
    """Tokenize many texts in one call, so that the tokenizer's threads share the work.

    Returns:
        One encoding per text. None for an input that is not a plain text or is not valid: tokenized
        alone by :func:`encode_text`, it raises the proper error.
    """
    encodings: list[Encoding] = [None] * len(texts)
    if not getattr(tokenizer, "is_fast", False):
        return encodings
    parts_by_text: dict[int, tuple[str, ...]] = {}
    for i, text in enumerate(texts):
        with suppress(BadInput):
            parts_by_text[i] = _split_parts(text)
    # Single texts and pairs need a call each.
    part_counts = {len(parts) for parts in parts_by_text.values()}
    for part_count in part_counts:
        indices = [i for i, parts in parts_by_text.items() if len(parts) == part_count]
        columns = zip(*(parts_by_text[i] for i in indices), strict=True)
        group_encodings = run_tokenizer(tokenizer, *map(list, columns))
        for i, encoding in zip(indices, group_encodings, strict=True):
            encodings[i] = encoding
    return encodings


def _split_parts(text: TextInput, *, is_checked: bool = False) -> tuple[str, ...]:
    """Return the text, or the two texts of a pair or question."""
    parts: Any = text
    num_parts = 2
    if isinstance(text, str):
        parts = (text,)
        num_parts = 1
    elif isinstance(text, Question):
        parts = (text.question, text.context)
    if not isinstance(parts, tuple | list) or len(parts) != num_parts:
        raise BadInput(
            f"Cannot explain {type(text).__name__} {str(text)[:60]!r}. Give a text, a (text, text) pair, "
            "Question(question=…, context=…), Tokens, or a list of these.",
            code="input-type",
        )
    if not is_checked:
        for part in parts:
            check_text(part)
    return tuple(parts)


def check_text(text: Any) -> None:
    """Refuse anything but a text with at least one visible character."""
    if not isinstance(text, str):
        raise BadInput(
            f"Expected a text, got {type(text).__name__}: {str(text)[:60]!r}. Give a str.",
            code="text-type",
        )
    if not text.strip():
        raise BadInput(
            f"The text {text!r} is empty. Give a text with at least one word.",
            code="text-empty",
        )
    if has_lone_surrogate(text):
        raise BadInput(
            f"The text {text[:40]!r} holds half of a surrogate pair, which is not a character. Decode the "
            "bytes again, for example with errors='replace'.",
            code="text-surrogate",
        )


def run_tokenizer(tokenizer: Any, *texts: Any, **options: Any) -> list[Encoding]:
    """Tokenize texts, neither truncated nor padded."""
    return list(tokenize(tokenizer, *texts, **TOKENIZER_OPTIONS, **options).encodings)


def build_row(
    encoding: Encoding,
    texts: tuple[str, ...],
    segments: tuple[int | None, ...] | None = None,
    offsets: Sequence[Span] | None = None,
    has_token_types: bool = False,
) -> TokenRow:
    """Create a row whose tokens are aligned with the texts; spans and words are computed when first read.

    Args:
        encoding: The output of the tokenizer.
        texts: The texts.
        segments: Index into ``texts`` per token, None for special tokens; by default the encoding's.
        offsets: Character spans in ``texts[segment]`` per token; by default the encoding's.
        has_token_types: Whether the model reads token type ids.
    """
    ids = tuple(encoding.ids)
    token_type_ids = tuple(encoding.type_ids) if has_token_types else None

    def load_alignment() -> dict[str, Any]:
        return _align_tokens(encoding, texts, segments, offsets)

    return TokenRow.lazy(
        load_alignment,
        ids=ids,
        attention_mask=(1,) * len(ids),
        token_type_ids=token_type_ids,
        texts=texts,
    )


def _align_tokens(
    encoding: Encoding,
    texts: tuple[str, ...],
    segments: tuple[int | None, ...] | None,
    offsets: Sequence[Span] | None,
) -> dict[str, Any]:
    """Return the fields of a row that say where each token stands in its text."""
    if offsets is None:
        offsets = encoding.offsets
    if segments is None:
        # A token that the tokenizer adds itself, such as [CLS], belongs to no segment, whatever its
        # offsets say.
        flags = zip(encoding.special_tokens_mask, encoding.sequence_ids, strict=True)
        segments = tuple(None if is_special else segment for is_special, segment in flags)
    spans = _find_spans(texts, segments, offsets)
    return {
        "pieces": tuple(encoding.tokens),
        "special_tokens_mask": tuple(segment is None for segment in segments),
        "spans": tuple(spans),
        "segments": segments,
        "word_ids": assign_word_ids(texts, segments, spans, encoding.word_ids),
    }


def _find_spans(
    texts: tuple[str, ...], segments: Sequence[int | None], offsets: Sequence[Span]
) -> list[Span | None]:
    """Return the character span of each token, extended over combining marks; None for special tokens."""
    spans: list[Span | None] = []
    for segment, span in zip(segments, offsets, strict=True):
        spans.append(None if segment is None else span)
    for segment_index, text in enumerate(texts):
        if text.isascii():
            continue  # ASCII has no combining marks
        positions = [i for i, segment in enumerate(segments) if segment == segment_index]
        extended = extend_over_marks(text, [offsets[i] for i in positions])
        for position, extended_span in zip(positions, extended, strict=True):
            spans[position] = extended_span
    return spans


def encode_windows(
    text: TextInput, tokenizer: Any, *, max_tokens: int, overlap: int
) -> list[tuple[TokenRow, tuple[int, ...]]]:
    """Cut a long text into overlapping windows.

    Of a pair or question, the second part is cut into windows; the first part and special tokens stand in
    every window.

    Args:
        text: The text.
        tokenizer: The model's tokenizer.
        max_tokens: Tokens per window.
        overlap: Tokens that adjacent windows share.

    Returns:
        The windows, each with the positions of its tokens in the whole text.

    Raises:
        TextTooLong: The first part leaves no room for the second.
    """
    whole_row = encode_text(text, tokenizer, max_tokens=None)
    last_segment = len(whole_row.texts) - 1
    cut_positions = [i for i, segment in enumerate(whole_row.segments) if segment == last_segment]
    fixed_positions = set(range(len(whole_row))).difference(cut_positions)
    window_length = max_tokens - len(fixed_positions)
    if window_length <= overlap:
        raise TextTooLong(
            f"Cannot cut this input into windows of {max_tokens} tokens that overlap by {overlap}: special "
            f"tokens and the first of two parts fill the window with {len(fixed_positions)} tokens. "
            "Shorten the first part.",
            code="window-full",
        )
    windows = []
    for start in range(0, max(1, len(cut_positions) - overlap), window_length - overlap):
        positions = sorted(fixed_positions.union(cut_positions[start : start + window_length]))
        windows.append((whole_row.take(positions), tuple(positions)))
    return windows


def select_kept_positions(
    segments: Sequence[int | None],
    num_texts: int,
    max_tokens: int,
    *,
    last_only: bool,
    from_left: bool = False,
) -> list[int]:
    """Choose the tokens that truncation keeps.

    Args:
        segments: The text of each token, 0 or 1; None for special tokens, which are kept.
        num_texts: Number of texts.
        max_tokens: Number of tokens to keep.
        last_only: Truncate only the second of two texts. Otherwise the longer one is truncated until both
            are of the same length, then both, as tokenizers do it (``longest_first``).
        from_left: Drop the beginning of a text instead of its end.

    Raises:
        TextTooLong: Nothing of a text would remain.
    """
    positions: list[list[int]] = [[] for _ in range(num_texts)]
    special_positions = []
    for position, segment in enumerate(segments):
        if segment is None:
            special_positions.append(position)
        else:
            positions[segment].append(position)
    lengths = [len(text_positions) for text_positions in positions]
    kept_lengths = _divide_max_tokens(
        lengths, max_tokens - len(special_positions), last_only=last_only
    )
    for length, kept_length in zip(lengths, kept_lengths, strict=True):
        # A text may have no token at all, for example one of a zero-width space.
        if kept_length < min(1, length):
            num_fixed = len(segments) - lengths[-1]
            raise TextTooLong(
                f"Cannot truncate this input to {max_tokens} tokens: special tokens and the first of two "
                f"parts fill the window with {num_fixed} tokens. Shorten the first part.",
                code="truncation-leaves-nothing",
            )
    kept_positions = special_positions
    for text_positions, kept_length in zip(positions, kept_lengths, strict=True):
        if from_left:
            kept_positions += text_positions[-kept_length:]
        else:
            kept_positions += text_positions[:kept_length]
    return sorted(kept_positions)


def _divide_max_tokens(lengths: list[int], max_tokens: int, *, last_only: bool) -> list[int]:
    """Return how many tokens of each text are kept so that they sum to ``max_tokens``."""
    if len(lengths) == 1 or last_only:
        return [*lengths[:-1], max_tokens - sum(lengths[:-1])]
    # The odd token goes to the longer text, or to the second.
    shorter = min(*lengths, max_tokens // 2)
    longer = max_tokens - shorter
    return [shorter, longer] if lengths[0] <= lengths[1] else [longer, shorter]


def assign_word_ids(
    texts: tuple[str, ...],
    segments: Sequence[int | None],
    spans: Sequence[Span | None],
    word_ids: Sequence[int | None],
) -> tuple[int | None, ...]:
    """Number the words through all texts.

    A new word begins where the segment or the tokenizer's word changes, or where the text has white space
    between two tokens; never at a combining mark, nor at a letter right after one.

    Args:
        texts: The texts.
        segments: Index into ``texts`` per token.
        spans: Character span per token.
        word_ids: The tokenizer's word indices per token.
    """
    word_indices: list[int | None] = []
    current_word = -1
    previous: tuple[int, int | None, int] | None = None  # segment, tokenizer's word, end
    for segment, span, tokenizer_word in zip(segments, spans, word_ids, strict=True):
        if segment is None or span is None:
            word_indices.append(None)
            previous = None
            continue
        text = texts[segment]
        continues_word = previous is not None and _continues_word(
            text, segment, span, tokenizer_word, previous
        )
        if not continues_word:
            current_word += 1
        word_indices.append(current_word)
        word = tokenizer_word
        # Some tokenizers put an accent and the letters after it into one word of their own: they belong
        # to the word of the letter under the accent.
        if previous and continues_word and not text.isascii() and is_mark_at(text, span[0]):
            word = previous[1]
        previous = (segment, word, span[1])
    return tuple(word_indices)


def _continues_word(
    text: str,
    segment: int,
    span: Span,
    tokenizer_word: int | None,
    previous: tuple[int, int | None, int],
) -> bool:
    """Return whether a token belongs to the same word as the previous token."""
    previous_segment, previous_word, previous_end = previous
    start, end = span
    # Some tokenizers count the blank before a word to its first token.
    starts_with_space = start < end and text[start].isspace()
    if segment != previous_segment or starts_with_space:
        return False
    is_same_word = tokenizer_word == previous_word
    if not is_same_word and (text.isascii() or not is_inside_word(text, start)):
        return False
    return not any(map(str.isspace, text[previous_end:start]))


# --- encoder-decoder models ------------------------------------------------------------------------


def add_decoder_start(source: TokenRow, start_ids: Sequence[int], tokenizer: Any) -> TokenRow:
    """Append the special tokens that a decoder begins with to the row of its source text.

    Args:
        source: The row that the encoder reads.
        start_ids: The tokens that every text of the decoder begins with; none of them gets a score.
        tokenizer: Names the added tokens.
    """
    start_row = add_pieces(Tokens.from_ids([start_ids]).rows[0], tokenizer)
    num_start = len(start_ids)
    start_row = replace(
        start_row, special_tokens_mask=(True,) * num_start, word_ids=(None,) * num_start
    )
    return source.concatenate(
        start_row,
        token_type_ids=None,
        segment_names=source.segment_names or (SOURCE_SEGMENT,) * len(source.texts),
        source_length=len(source),
    )


def encode_target_text(
    text: str, tokenizer: Any, start_id: int, max_tokens: int | None
) -> tuple[tuple[int, ...], TokenRow]:
    """Tokenize a continuation as a decoder would have written it.

    Args:
        text: The continuation.
        tokenizer: The model's tokenizer.
        start_id: The id that the decoder begins with.
        max_tokens: Most tokens that the model writes.

    Returns:
        The ids that the decoder begins with, and the continuation as a row of its own.

    Raises:
        BadInput: The text has no token.
        TextTooLong: The text has more than ``max_tokens`` tokens.
    """
    check_text(text)
    encoding = run_tokenizer(tokenizer, text_target=text)[0]
    written = [i for i, is_special in enumerate(encoding.special_tokens_mask) if not is_special]
    if not written:
        raise BadInput(
            f"The continuation {text!r} has no token besides special tokens. Give a word.",
            code="continuation-without-tokens",
        )
    first = written[0]
    end = written[-1] + 1
    if max_tokens is not None and end > max_tokens:
        raise TextTooLong(
            f"The continuation has {end} tokens; this model generates at most {max_tokens}. Give a shorter "
            "one.",
            code="continuation-too-long",
        )
    row = build_row(encoding, (text,)).take(range(first, end))
    return (start_id, *encoding.ids[:first]), row
