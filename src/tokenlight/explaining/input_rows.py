"""From what a person gives to the row of tokens that one model reads."""

import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from tokenlight.data.target import Continuation, TokenTarget
from tokenlight.data.tokens import Question, TokenRow, add_pieces, strip_padding
from tokenlight.data.units import find_segments
from tokenlight.errors import (
    BadInput,
    BadTarget,
    TextTooLong,
    TokenlightError,
    UnsupportedModel,
)
from tokenlight.explaining.explain_options import ExplainOptions
from tokenlight.explaining.session import Session, check_ids_in_vocabulary, find_pad_id, prepare_row
from tokenlight.inputs.encode import (
    Encoding,
    add_decoder_start,
    encode_batch,
    encode_text,
    select_kept_positions,
)
from tokenlight.inputs.picture import Picture, is_picture, load_picture
from tokenlight.inputs.picture_prompt import PicturePromptEncoder
from tokenlight.inputs.prompt import Chat, Context, encode_prompt

SINGLE_TEXT_TASKS = ("text-generation", "fill-mask", "token-classification")
BATCH_TOKENIZED_TASKS = (
    "text-classification",
    "question-answering",
    "fill-mask",
    "token-classification",
)


def tokenize_batch(
    session: Session, texts: Sequence[Any], options: ExplainOptions
) -> list[TokenRow | None]:
    """Tokenize several texts in one call of the tokenizer.

    Args:
        session: The model and its tokenizer.
        texts: Texts as users give them; they may be of different kinds.
        options: What happens to long texts, and which tokens are hidden.

    Returns:
        One row per text; None for each that needs its own treatment or is refused: encoded alone, it
        raises the error that says why.
    """
    rows: list[TokenRow | None] = [None] * len(texts)
    can_batch = session.runner.head.task in BATCH_TOKENIZED_TASKS
    if len(texts) < 2 or not can_batch or options.long == "stride":
        return rows
    if _need_no_encoding(session, texts, options):
        return [*texts]
    # Rows of ids may stand among the texts; the tokenizer is not called for them.
    untokenized = [None if isinstance(text, TokenRow) else text for text in texts]
    for index, encoding in enumerate(encode_batch(untokenized, session.tokenizer)):
        is_ids_row = untokenized[index] is None
        if encoding is not None or is_ids_row:
            with suppress(TokenlightError):
                rows[index] = encode_input(session, texts[index], options, encoding)
    return rows


def _need_no_encoding(session: Session, texts: Sequence[Any], options: ExplainOptions) -> bool:
    """Return whether all texts are rows of ids that :func:`encode_input` would not change.

    All are checked together, which is fast; if one is wrong, it is encoded alone and raises its error.
    """
    if session.runner.eos_ids or options.explain_mask != "none":
        return False
    needs_pieces = session.tokenizer is not None
    max_tokens = session.max_tokens
    for row in texts:
        if not _needs_no_encoding(row, max_tokens, needs_pieces=needs_pieces):
            return False
    with suppress(BadInput, struct.error):
        # The ids of all rows are checked at once; struct refuses those that no integer can hold.
        all_ids = np.concatenate([row.ids_array for row in texts])
        session.runner.check_ids(all_ids.min(), all_ids.max())
        return True
    return False


def _needs_no_encoding(row: Any, max_tokens: int | None, *, needs_pieces: bool) -> bool:
    """Return whether this is an unpadded row of ids that fits, with its text if there is a tokenizer."""
    if not isinstance(row, TokenRow) or not row.is_unmasked or row.token_type_ids is not None:
        return False
    num_tokens = len(row.ids)
    if max_tokens is not None and num_tokens > max_tokens:
        return False
    return num_tokens > 0 and (not needs_pieces or bool(row.texts))


def check_target_kind(session: Session, target: Any) -> None:
    """Refuse a kind of target that this model has for no text.

    Raises:
        BadTarget: The model does not continue texts, has no labels for tokens, or compares texts.
    """
    head = session.runner.head
    if isinstance(target, Continuation):
        _check_continuation(session, target)
    elif isinstance(target, TokenTarget) and head.task not in ("fill-mask", "token-classification"):
        raise BadTarget(
            f"{target!r} asks for a token's label, but {get_model_class_name(session)} has none: "
            f"{head.usage}.",
            code="no-token-labels",
        )
    elif head.task == "sentence-similarity" and target not in (
        "predicted",
        "all",
        0,
        head.labels[0],
    ):
        raise BadTarget(
            f"target={target!r} is not valid for {get_model_class_name(session)}: {head.usage}, by the "
            f"{head.labels[0]}. Leave the target out.",
            code="target-of-similarity",
        )


def _check_continuation(session: Session, target: Continuation) -> None:
    head = session.runner.head
    if head.task != "text-generation":
        raise BadTarget(
            f"{get_model_class_name(session)} does not continue texts: {head.usage}.",
            code="model-does-not-write",
        )
    num_tokens = target.max_new_tokens
    if target.text is None and (type(num_tokens) is not int or num_tokens < 1):
        raise BadTarget(
            f"Continuation(max_new_tokens={num_tokens!r}) generates nothing. Give 1 or more.",
            code="continuation-of-no-tokens",
        )


def encode_input(
    session: Session, text: Any, options: ExplainOptions, encoding: Encoding = None
) -> TokenRow:
    """Return one input as the row of tokens that the model reads.

    Args:
        session: The model, its tokenizer and its limits.
        text: An input of any kind.
        options: Resolved keyword arguments of ``explain()``.
        encoding: The tokenizer's output for the text, if all texts were tokenized together.

    Raises:
        BadInput: The text is too long, of the wrong kind, or unknown to the model.
        UnsupportedModel: The model does not read such an input.
    """
    runner = session.runner
    if runner.patch_inputs is not None:
        return _encode_image(session, text, options)
    if isinstance(text, TokenRow):
        row = _encode_ids(session, text, options)
    elif runner.vision_inputs is not None:
        row = encode_image_prompt(session, text, options)
    else:
        row = _encode_text_input(session, text, options, encoding)
    return prepare_row(session, row, options)


def _encode_text_input(
    session: Session, text: Any, options: ExplainOptions, encoding: Encoding
) -> TokenRow:
    """Encode a text, a pair, a question, a chat or a context."""
    check_input_kind(session, text)
    runner = session.runner
    tokenizer = session.tokenizer
    max_tokens = session.max_tokens
    if runner.generates_from_source:
        # A decoder begins with its start token, and with one that its generation config may force.
        start_ids = [runner.model.config.decoder_start_token_id]
        forced_id = getattr(runner.model.generation_config, "forced_bos_token_id", None)
        if forced_id is not None:
            start_ids.append(forced_id)
        source = encode_source(session, text, options)
        return add_decoder_start(source, tuple(start_ids), tokenizer)
    if runner.head.task == "text-generation":
        return encode_prompt(text, tokenizer, max_tokens=max_tokens, long=options.long)
    return encode_text(text, tokenizer, max_tokens=max_tokens, long=options.long, encoding=encoding)


def encode_source(session: Session, text: Any, options: ExplainOptions) -> TokenRow:
    """Encode what the encoder of an encoder-decoder model reads.

    Args:
        session: The model and its tokenizer.
        text: A text, or a Context with documents and a question.
        options: What happens to a text that is too long.
    """
    max_tokens = session.max_tokens
    if isinstance(text, Context):
        return encode_prompt(
            text,
            session.tokenizer,
            max_tokens=max_tokens,
            long=options.long,
            keep_end_tokens=True,
        )
    return encode_text(text, session.tokenizer, max_tokens=max_tokens, long=options.long)


def get_model_class_name(session: Session) -> str:
    """Return the name of the model's class, for messages."""
    return type(session.runner.model).__name__


def check_input_kind(session: Session, text: object) -> None:
    """Refuse an input of a kind that this model does not read.

    Raises:
        BadInput: A model that answers questions gets a text or a pair.
        UnsupportedModel: No input of this kind can be explained with this model.
    """
    head = session.runner.head
    if isinstance(text, str) and head.task == "text-classification":
        return  # The most frequent case first.
    if head.task == "question-answering":
        if isinstance(text, str | tuple):
            raise BadInput(
                f"{get_model_class_name(session)} answers questions about a context. Give "
                "Question(question=…, context=…).",
                code="question-needed",
            )
    elif isinstance(text, Question):
        raise UnsupportedModel(
            f"{get_model_class_name(session)} does not answer questions: {head.usage}.",
            code="model-does-not-answer",
        )
    if is_picture(text):
        raise UnsupportedModel(
            f"{get_model_class_name(session)} does not read images: {head.usage}.",
            code="model-reads-no-images",
        )
    _check_prompt_kind(session, text)
    _check_text_count(session, text)


def _check_prompt_kind(session: Session, text: object) -> None:
    """Refuse chats and contexts for a model that is not a language model."""
    head = session.runner.head
    if head.task == "text-generation":
        return
    if isinstance(text, Chat):
        raise UnsupportedModel(
            f"{get_model_class_name(session)} does not read chats: {head.usage}.",
            code="model-reads-no-chats",
        )
    if isinstance(text, Context):
        raise UnsupportedModel(
            f"{get_model_class_name(session)} does not generate answers from documents: {head.usage}.",
            code="model-reads-no-documents",
        )


def _check_text_count(session: Session, text: object) -> None:
    """Refuse a pair where one text is read, and one text where two are compared."""
    head = session.runner.head
    if isinstance(text, tuple) and head.task in SINGLE_TEXT_TASKS:
        raise UnsupportedModel(
            f"{get_model_class_name(session)} reads one text, not a pair: {head.usage}.",
            code="model-reads-no-pairs",
        )
    if isinstance(text, str) and head.task == "sentence-similarity":
        raise UnsupportedModel(
            f"{get_model_class_name(session)} has no head, so a single text has no output to explain: "
            f"{head.usage}.",
            code="model-reads-only-pairs",
        )


def _encode_ids(session: Session, ids_row: TokenRow, options: ExplainOptions) -> TokenRow:
    """Return a row that was given as token ids: checked, without padding, truncated to fit."""
    if session.runner.generates_from_source and ids_row.source_length is None:
        raise BadInput(
            f"{get_model_class_name(session)} reads a source, but token ids do not say where it ends. Give "
            "the text.",
            code="ids-without-source",
        )
    if session.runner.vision_inputs is not None:
        return session.runner.vision_inputs.check_row(ids_row)
    # Results have no padding, so that scores of a text do not depend on its batch.
    row = strip_padding(ids_row, find_pad_id(session))
    check_ids_in_vocabulary(session, row)
    return _truncate_row(session, add_pieces(row, session.tokenizer), options)


def _truncate_row(session: Session, row: TokenRow, options: ExplainOptions) -> TokenRow:
    """Truncate a row of ids to what the model reads.

    Special tokens stay, and the beginning of each text; of a prompt the end.
    """
    max_tokens = session.max_tokens
    if max_tokens is None or len(row) <= max_tokens:
        return row
    if session.tokenizer is None or options.long != "truncate":
        raise TextTooLong(
            f"The row has {len(row)} tokens, but this model reads at most {max_tokens}. Give fewer ids, the "
            "text itself with long='stride', or, with a tokenizer, long='truncate'.",
            code="ids-too-long",
        )
    head = session.runner.head
    is_prompt = head.task == "text-generation"
    segments: Sequence[int | None] = find_segments(row)
    num_texts = 1 + max(segment or 0 for segment in segments)
    if is_prompt or num_texts > 2:
        segments = _merge_segments(row)
        num_texts = 1
    # Of a prompt the end counts, which the model continues.
    from_left = is_prompt or session.tokenizer.truncation_side == "left"
    positions = select_kept_positions(
        segments,
        num_texts,
        max_tokens,
        last_only=head.task == "question-answering",
        from_left=from_left,
    )
    return replace(row.take(positions), num_truncated=len(row) - len(positions))


def _merge_segments(row: TokenRow) -> list[int | None]:
    """Return segments in which all texts of a row are one, to be truncated together."""
    return [None if is_special else 0 for is_special in row.special_tokens_mask]


def _encode_image(session: Session, image_input: Any, options: ExplainOptions) -> TokenRow:
    """Return an image as the row of patches that an image classifier reads."""
    patches = session.runner.patch_inputs
    assert patches is not None
    is_row = isinstance(image_input, TokenRow)
    is_text = isinstance(image_input, str | tuple | Question | Chat | Context)
    has_text = bool(getattr(image_input, "text", None))
    if is_text or has_text or (is_row and image_input.image is None):
        raise UnsupportedModel(
            f"{get_model_class_name(session)} does not read text: {session.runner.head.usage}.",
            code="model-reads-no-text",
        )
    if options.explain_mask != "none":
        raise BadInput(
            f"explain_mask={options.explain_mask!r} masks special tokens of a text, but an image has none. "
            "Leave it out.",
            code="explain-mask-of-image",
        )
    if is_row:
        return _check_patches(session, image_input)
    picture = load_picture(image_input, session.tokenizer, patches.patch_size)
    return patches.encode_image(picture)


def _check_patches(session: Session, row: TokenRow) -> TokenRow:
    """Return a row of patches, such as that of an Attribution, if this model reads such patches."""
    patches = session.runner.patch_inputs
    image = row.image
    assert patches is not None
    assert image is not None
    if image.patch_size != patches.patch_size or len(row) != len(patches.encode_image(image)):
        height, width = image.patch_size
        own_height, own_width = patches.patch_size
        raise BadInput(
            f"The image was cut into patches of {width} × {height} pixels for another model, but this one "
            f"reads patches of {own_width} × {own_height}. Explain the image itself.",
            code="patches-of-another-model",
        )
    return row


def encode_image_prompt(
    session: Session, image_input: Any, options: ExplainOptions, continuation: str | None = None
) -> TokenRow:
    """Return an image with a text as the row that a vision-language model reads.

    Args:
        session: The model, its tokenizer or processor, and its limits.
        image_input: A Picture, or an image alone.
        options: Resolved keyword arguments of ``explain()``; those for texts are refused.
        continuation: A text that the model might write after it.
    """
    vision_inputs = session.runner.vision_inputs
    assert vision_inputs is not None
    is_masked = options.explain_mask != "none"
    if is_masked or options.token_types == "zeros" or options.long == "stride":
        raise BadInput(
            "explain_mask, token_types and long='stride' apply only to texts without images. Leave them "
            "out.",
            code="text-options-with-image",
        )
    if not is_picture(image_input):
        raise BadInput(
            f"{get_model_class_name(session)} reads an image with a text. Give "
            "Picture('cat.png', text='What is this?').",
            code="picture-needed",
        )
    picture = image_input if isinstance(image_input, Picture) else Picture(image_input)
    # A picture may bring the processor that it was prepared for.
    encoder = PicturePromptEncoder(
        tokenizer=session.tokenizer,
        processor=picture.processor or session.facts.processor,
        image_token_id=vision_inputs.image_token_id,
        grid_shape=vision_inputs.find_grid,
    )
    max_tokens = session.max_tokens
    if max_tokens is not None and continuation is not None:
        max_tokens += 1  # The last token of a continuation is only predicted.
    return vision_inputs.add_token_types(encoder.encode(picture, max_tokens, continuation))
