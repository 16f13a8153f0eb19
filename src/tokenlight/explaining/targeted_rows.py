"""The rows of one text, each with its target: mostly one; a continuation has one for each of its tokens."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tokenlight.data.target import Continuation, NextToken, ResolvedTarget
from tokenlight.data.tokens import TokenRow
from tokenlight.data.units import CONTINUATION_SEGMENT
from tokenlight.errors import BadInput, BadTarget
from tokenlight.explaining.explain_options import ExplainOptions, TargetedRow
from tokenlight.explaining.input_rows import (
    check_input_kind,
    check_target_kind,
    encode_image_prompt,
    encode_input,
    encode_source,
    get_model_class_name,
)
from tokenlight.explaining.session import Session, prepare_row
from tokenlight.explaining.token_targets import locate_mask, resolve_token_labels
from tokenlight.inputs.encode import add_decoder_start, encode_target_text
from tokenlight.inputs.prompt import (
    append_generated,
    build_generated_row,
    encode_prompt,
    find_continuation_start,
)
from tokenlight.perturb.logits_stream import stream_logits
from tokenlight.progress import progress_bar


def build_targeted_rows(
    session: Session, text: Any, target: Any, options: ExplainOptions, row: TokenRow | None = None
) -> list[TargetedRow]:
    """Return the rows that answer one question about one text, each with its target.

    Args:
        session: The model, its tokenizer and its limits.
        text: An input of any kind the model reads.
        target: What to explain. A continuation has a row for each of its tokens; a text with labels for
            tokens has one for each word if all are asked for.
        options: Resolved keyword arguments of ``explain()``.
        row: The tokens of the text, if all texts were tokenized together.
    """
    check_target_kind(session, target)
    if isinstance(target, Continuation):
        return _build_continuation_rows(session, text, target, options)
    if row is None:
        row = encode_input(session, text, options)
    if session.runner.head.task == "fill-mask":
        return [locate_mask(session, row, target)]
    if session.runner.head.task == "token-classification":
        return resolve_token_labels(session, row, target)
    return [(row, target)]


def _build_continuation_rows(
    session: Session, text: Any, target: Continuation, options: ExplainOptions
) -> list[TargetedRow]:
    """Return the rows of a continuation under teacher forcing.

    For each token of the continuation this is the text before it and that token. A joint target is one
    row, the last tokens of which predict the continuation.
    """
    # The prompt and the continuation as one row; the continuation is its last segment.
    whole_row = _encode_with_continuation(session, text, target, options)
    start = find_continuation_start(whole_row)
    positions: Sequence[int] = range(start, len(whole_row))
    if target.span:
        positions = _find_span_positions(whole_row, target.span)
    if not target.joint:
        targeted_rows: list[TargetedRow] = []
        for position in positions:
            prefix = prepare_row(session, whole_row.take(range(position)), options)
            token = NextToken(whole_row.ids[position], target.against)
            targeted_rows.append((prefix, token))
        return targeted_rows
    # The last token is only predicted, never read.
    row = whole_row.take(range(len(whole_row) - 1))
    row = replace(row, continuation_ids=whole_row.ids[start:])
    terms: list[tuple[tuple[int, ...], float]] = []
    for position in positions:
        terms.append(((position - start, 0), 1.0))
        if target.against is not None:
            # The second entry stands for all other tokens: the difference is the token's log-odds.
            terms.append(((position - start, 1), -1.0))
    words = target.span or whole_row.texts[-1]
    joint_target = ResolvedTarget("continuation", f"‘{words.strip()}’", tuple(terms))
    return [(prepare_row(session, row, options), joint_target)]


def _encode_with_continuation(
    session: Session, text: Any, target: Continuation, options: ExplainOptions
) -> TokenRow:
    """Return the prompt and its continuation as one row; the model writes what was not given."""
    if isinstance(text, TokenRow):
        raise BadInput(
            "A Continuation needs a prompt or a Chat, not Tokens. Give the text of the prompt.",
            code="continuation-of-ids",
        )
    runner = session.runner
    if runner.vision_inputs is None:
        check_input_kind(session, text)
    if runner.generates_from_source:
        return _encode_after_source(session, text, target, options)
    if target.text is None:
        prompt = encode_input(session, text, options)
        return _generate_continuation(session, prompt, target.max_new_tokens)
    if runner.vision_inputs is not None:
        return encode_image_prompt(session, text, options, target.text)
    # One more token than the model reads may follow: the last one is only predicted.
    max_tokens = None if session.max_tokens is None else session.max_tokens + 1
    return encode_prompt(
        text,
        session.tokenizer,
        max_tokens=max_tokens,
        continuation=target.text,
        long=options.long,
    )


def _find_span_positions(row: TokenRow, span_text: str) -> list[int]:
    """Return the positions of the tokens of the continuation that overlap ``span_text``."""
    continuation = row.texts[-1]
    count = continuation.count(span_text)
    if count != 1:
        raise BadTarget(
            f"The span {span_text!r} occurs {count} times in the continuation {continuation!r}. Give one "
            "that occurs once.",
            code="span-not-once",
        )
    start = continuation.index(span_text)
    stop = start + len(span_text)
    continuation_segment = len(row.texts) - 1
    positions = []
    for position, (segment, span) in enumerate(zip(row.segments, row.spans, strict=True)):
        if segment == continuation_segment and span and span[0] < stop and span[1] > start:
            positions.append(position)
    return positions


def _generate_continuation(session: Session, prompt: TokenRow, max_new_tokens: int) -> TokenRow:
    """Return the prompt and what the model writes after it by greedy decoding."""
    model = session.runner.model
    stop_ids = find_eos_ids(model)
    token_type = 0
    if session.runner.vision_inputs is not None:
        token_type = session.runner.vision_inputs.continuation_token_type
    num_steps = max_new_tokens
    if session.max_tokens is not None:
        # The last token is only predicted, so one more than the model reads may be written.
        num_steps = min(max_new_tokens, session.max_tokens - len(prompt) + 1)
    written_ids: list[int] = []
    with progress_bar("writing", num_steps, None) as advance:
        for _ in range(num_steps):
            row = append_ids(prompt, written_ids, token_type)
            (logits,) = stream_logits(session.runner, [row])
            next_id = int(np.argmax(logits))
            # An end token is not part of the text.
            if next_id in stop_ids:
                break
            written_ids.append(next_id)
            advance(1)
    if not written_ids:
        raise BadInput(
            f"{get_model_class_name(session)} generates nothing after this prompt: its most likely next "
            "token ends the text. Give Continuation('…'), explain 'predicted', or ask an instruct model in "
            "its chat template.",
            code="nothing-generated",
        )
    return append_generated(prompt, written_ids, session.tokenizer, token_type)


def find_eos_ids(model: Any) -> list[Any]:
    """Return the ids that end a generated text."""
    config = getattr(model, "generation_config", None) or model.config
    if isinstance(config.eos_token_id, list):
        return config.eos_token_id
    return [config.eos_token_id]


def append_ids(prompt: TokenRow, token_ids: Sequence[int], token_type: int) -> TokenRow:
    """Return the prompt followed by token ids, as the model reads them.

    Args:
        prompt: The row before the new tokens.
        token_ids: Ids that follow it, such as a continuation.
        token_type: The token type of the new tokens, for a model that reads token types.
    """
    num_added = len(token_ids)
    token_type_ids = prompt.token_type_ids
    if token_type_ids is not None:
        token_type_ids += (token_type,) * num_added
    return replace(
        prompt,
        ids=(*prompt.ids, *token_ids),
        attention_mask=prompt.attention_mask + (1,) * num_added,
        token_type_ids=token_type_ids,
    )


def _encode_after_source(
    session: Session, text: Any, target: Continuation, options: ExplainOptions
) -> TokenRow:
    """Return the source of an encoder-decoder model and the text its decoder writes.

    A text that was not given is generated by the model's generation config.
    """
    tokenizer = session.tokenizer
    source = encode_source(session, text, options)
    if target.text is not None:
        start_id = session.runner.model.config.decoder_start_token_id
        start_ids, written = encode_target_text(
            target.text, tokenizer, start_id, session.max_tokens
        )
    else:
        generated_ids = session.runner.generate(source, target.max_new_tokens)
        special_ids = {*tokenizer.all_special_ids} - {tokenizer.unk_token_id}
        # The text stands between the leading special tokens and the next special token.
        start = _find_first_index(token_id not in special_ids for token_id in generated_ids)
        stop = start + _find_first_index(
            token_id in special_ids for token_id in generated_ids[start:]
        )
        if start == stop:
            raise BadInput(
                f"{get_model_class_name(session)} generates nothing from this text. Give Continuation('…').",
                code="nothing-generated-from-source",
            )
        start_ids = tuple(generated_ids[:start])
        written = build_generated_row(generated_ids[start:stop], tokenizer)
    # Source, start tokens of the decoder, then the text it writes.
    before = add_decoder_start(source, start_ids, tokenizer)
    segment_names = (*before.segment_names, CONTINUATION_SEGMENT)
    return before.concatenate(written, segment_names=segment_names)


def _find_first_index(conditions: Iterable[bool]) -> int:
    """Return the index of the first true condition; their number if none is."""
    index = -1
    for index, is_true in enumerate(conditions):
        if is_true:
            return index
    return index + 1
