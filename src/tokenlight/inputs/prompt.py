"""Prompts of language models: a text, a chat or documents, and the continuation that was written."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from tokenlight.data.tokens import LongTextPolicy, Span, TokenRow
from tokenlight.data.units import CONTINUATION_SEGMENT, QUESTION_SEGMENT
from tokenlight.errors import BadInput, TextTooLong, TokenlightError, UnsupportedModel
from tokenlight.errors.arguments import check_fields
from tokenlight.inputs.encode import (
    assign_word_ids,
    build_row,
    check_text,
    check_tokenizer,
    run_tokenizer,
)
from tokenlight.inputs.limited import find_limited_runner
from tokenlight.inputs.prompt_layout import (
    PromptLayout,
    locate_parts,
    split_message_parts,
    split_thinking,
)

DOCUMENTS_SLOT = "{documents}"
QUESTION_SLOT = "{question}"
CHAT_TEMPLATE = "chat"  # template="chat": use the tokenizer's chat template
# The user's message of such a chat; the chat template adds the rest.
CHAT_MESSAGE = f"Context: {DOCUMENTS_SLOT}\n\nQuestion: {QUESTION_SLOT}"


@dataclass(frozen=True, slots=True)
class Context:
    """Documents and a question about them, for models that generate text.

    Each document is a segment of its own, and so is the question. An empty line separates documents; the
    tokens of the template belong to no segment.

    Args:
        documents: Texts, named ``document 1``, ``document 2`` …, or a mapping from name to text.
        question: The question, if there is one.
        template: The text around them, with ``{documents}`` and ``{question}`` once each, or ``"chat"``:
            one message, formatted by the tokenizer's chat template.

    Raises:
        BadInput: There are no documents, a name is reserved, or the template lacks a placeholder.

    Example:
        >>> from tokenlight import Context
        >>> context = Context(["Emma is a novel by Jane Austen."], question="Who wrote Emma?")
        >>> context.build_layout().text
        'Context: Emma is a novel by Jane Austen.\\n\\nQuestion: Who wrote Emma?\\n\\nAnswer:'
    """

    documents: Sequence[str] | Mapping[str, str]
    question: str | None = None
    template: str | None = None

    def __post_init__(self) -> None:
        # A 0-d array is iterable by its type.
        is_scalar = getattr(self.documents, "shape", None) == ()
        is_iterable = isinstance(self.documents, Iterable) and not is_scalar
        if is_iterable and not isinstance(self.documents, str | Mapping):
            object.__setattr__(self, "documents", tuple(self.documents))
        check_fields(self, "question", "template")
        self.build_layout()

    def build_layout(self) -> PromptLayout:
        """Lay out the prompt as one text.

        Returns:
            The text, with the span of each document and of the question.

        Raises:
            BadInput: There are no documents, one has a reserved name, or the template lacks a placeholder.

        Example:
            >>> from tokenlight import Context
            >>> layout = Context(["Rain is likely."], "Will it rain?").build_layout()
            >>> [name for _, name in layout.parts]
            ['document 1', 'question']
        """
        slots = {
            DOCUMENTS_SLOT: self._name_documents(),
            QUESTION_SLOT: {QUESTION_SEGMENT: self.question or ""},
        }
        text = ""
        parts = []
        for piece in re.split(f"({DOCUMENTS_SLOT}|{QUESTION_SLOT})", self._build_full_template()):
            if piece not in slots:
                text += piece
                continue
            for i, (name, part) in enumerate(slots[piece].items()):
                check_text(part)
                if i:
                    text += "\n\n"
                parts.append(((len(text), len(text) + len(part)), name))
                text += part
        return PromptLayout(text, tuple(parts))

    def _name_documents(self) -> Mapping[str, str]:
        """Return the documents by name."""
        documents = self.documents
        if not isinstance(documents, tuple | Mapping) or not documents:
            raise BadInput(
                "There are no documents. Give a list of texts, or a mapping from name to text.",
                code="documents-type",
            )
        if not isinstance(documents, Mapping):
            documents = {f"document {number}": text for number, text in enumerate(documents, 1)}
        if not {QUESTION_SEGMENT, CONTINUATION_SEGMENT}.isdisjoint(documents):
            raise BadInput(
                f"A document cannot be named {QUESTION_SEGMENT!r} or {CONTINUATION_SEGMENT!r}, because "
                "other parts of the prompt have these names. Rename it.",
                code="document-name",
            )
        return documents

    def _build_full_template(self) -> str:
        """Return the template with placeholders for the documents and, if there is one, the question."""
        has_question = self.question is not None
        message = CHAT_MESSAGE if has_question else DOCUMENTS_SLOT
        if self.template == CHAT_TEMPLATE:
            template = message
        elif self.template:
            template = self.template
        else:
            template = f"{message}\n\nAnswer:" if has_question else f"{message}\n\n"
        counts = (template.count(DOCUMENTS_SLOT), template.count(QUESTION_SLOT))
        if counts != (1, int(has_question)):
            raise BadInput(
                f"The template {template!r} needs {DOCUMENTS_SLOT} once, and {QUESTION_SLOT} once if there "
                "is a question. Write them where the texts belong.",
                code="context-template",
            )
        return template


@dataclass(frozen=True, slots=True)
class Chat:
    """Messages, formatted by the tokenizer's chat template.

    Each message is a segment of its own, named by its role. A part between ``<think>`` and ``</think>``, or
    given as ``reasoning_content``, is a segment named ``thinking``; each entry of ``tool_calls`` one named
    ``tool call``, from the function's name to its last argument. The tokens of the template belong to no
    segment.

    Args:
        messages: Each ``{"role": …, "content": …}``.
        add_generation_prompt: End the prompt where the assistant begins to write.
        template: A chat template to use instead of the tokenizer's.

    Raises:
        BadInput: There are no messages, or one lacks its role or its content.

    Example:
        >>> from tokenlight import Chat
        >>> chat = Chat([{"role": "user", "content": "Who wrote Hamlet?"}])
        >>> chat.add_generation_prompt
        True
    """

    messages: Sequence[Mapping[str, Any]]
    add_generation_prompt: bool = True
    template: str | None = None

    def __post_init__(self) -> None:
        messages = self.messages
        if isinstance(messages, str) or not isinstance(messages, Sequence) or not messages:
            raise BadInput(
                "A chat is a list of messages. Give, for example, "
                "Chat([{'role': 'user', 'content': 'Hi'}]).",
                code="chat-type",
            )
        for index, message in enumerate(messages):
            _check_message(index, message)
        object.__setattr__(self, "messages", tuple(map(dict, messages)))
        check_fields(self, "add_generation_prompt", "template")


def _check_message(index: int, message: Any) -> None:
    """Refuse a message without a role, or without anything to say."""
    fields = message if isinstance(message, Mapping) else {}
    has_tool_calls = bool(fields.get("tool_calls"))
    if "role" not in fields or not (has_tool_calls or "content" in fields):
        raise BadInput(
            f"Message {index} of the chat is {str(message)[:60]!r}. Give each message a 'role' and a "
            "'content', or 'tool_calls'.",
            code="chat-message",
        )
    if not has_tool_calls:
        check_text(fields["content"])


def encode_prompt(
    prompt: str | Chat | Context | PromptLayout,
    tokenizer: Any,
    *,
    max_tokens: int | None,
    continuation: str | None = None,
    long: LongTextPolicy = "error",
    keep_end_tokens: bool = False,
) -> TokenRow:
    """Tokenize a prompt and its continuation as one text.

    Args:
        prompt: The prompt.
        tokenizer: The model's tokenizer.
        max_tokens: Most tokens that the model reads; None for no limit.
        continuation: The text after the prompt; it becomes the last segment.
        long: Only ``"truncate"`` truncates a prompt that is too long, at its beginning.
        keep_end_tokens: Keep special tokens that the tokenizer adds at the end, as for the source text of
            an encoder. Otherwise they are dropped, so that the model can continue the text.

    Returns:
        The tokens.

    Raises:
        BadInput: The prompt has no token, or the continuation begins inside a token.
        TextTooLong: The prompt has more than ``max_tokens`` tokens, and may not be truncated.
    """
    check_tokenizer(tokenizer)
    layout = _lay_out_prompt(prompt, tokenizer)
    if continuation is not None:
        layout = _append_continuation(layout, continuation)
    add_special_tokens = not layout.has_special_tokens
    (encoding,) = run_tokenizer(tokenizer, layout.text, add_special_tokens=add_special_tokens)
    row = _build_row(encoding, layout, keep_end_tokens)
    if max_tokens is not None and len(row) > max_tokens:
        if long != "truncate":
            raise TextTooLong(
                f"The prompt has {len(row)} tokens, but this model reads at most {max_tokens}. Give a "
                f"shorter one, or long='truncate' to keep the last {max_tokens} tokens, which the model "
                "continues. Windows (long='stride') do not share a next token, so they do not help.",
                code="prompt-too-long",
            )
        row = _truncate_start(row, max_tokens)
    if all(row.special_tokens_mask):
        raise BadInput(
            "The prompt has no token besides the model's special tokens. Give a text.",
            code="prompt-without-tokens",
        )
    return row


def _truncate_start(row: TokenRow, max_tokens: int) -> TokenRow:
    """Drop tokens after the leading special tokens: a next token depends most on those right before it."""
    num_leading = 0
    while num_leading < len(row) and row.special_tokens_mask[num_leading]:
        num_leading += 1
    first_kept = len(row) - max_tokens + num_leading
    positions = [*range(num_leading), *range(first_kept, len(row))]
    return replace(row.take(positions), num_truncated=len(row) - len(positions))


def _lay_out_prompt(prompt: str | Chat | Context | PromptLayout, tokenizer: Any) -> PromptLayout:
    if isinstance(prompt, PromptLayout):
        return prompt
    if isinstance(prompt, Chat):
        return lay_out_chat(prompt, tokenizer)
    if isinstance(prompt, str):
        check_text(prompt)
        return PromptLayout(prompt, (((0, len(prompt)), "prompt"),))
    layout = prompt.build_layout()
    if prompt.template != CHAT_TEMPLATE:
        return layout
    # The documents and the question are one message of a chat.
    chat_layout = lay_out_chat(Chat([{"role": "user", "content": layout.text}]), tokenizer)
    message_start = chat_layout.parts[0][0][0]
    # Templates strip white space at the beginning of a message.
    num_stripped = len(layout.text) - len(layout.text.lstrip())
    parts = layout.shift_parts(message_start - num_stripped)
    return PromptLayout(chat_layout.text, parts, has_special_tokens=True)


def _append_continuation(layout: PromptLayout, continuation: str) -> PromptLayout:
    """Return the layout with a continuation as its last part."""
    if not isinstance(continuation, str) or not continuation:
        raise BadInput(
            f"The continuation {continuation!r} is empty. Give the text to explain.",
            code="continuation-empty",
        )
    check_text(continuation)
    new_parts = split_thinking(continuation, CONTINUATION_SEGMENT)
    if not new_parts or new_parts[-1][1] != CONTINUATION_SEGMENT:
        # It ends in thinking, so thinking is what is explained.
        new_parts = (((0, len(continuation)), CONTINUATION_SEGMENT),)
    shifted_parts = PromptLayout(continuation, new_parts).shift_parts(len(layout.text))
    return PromptLayout(
        layout.text + continuation, (*layout.parts, *shifted_parts), layout.has_special_tokens
    )


def lay_out_chat(chat: Chat, tokenizer: Any, *, has_image: bool = False) -> PromptLayout:
    """Format a chat by its template, and find its messages in the result.

    Args:
        chat: The messages.
        tokenizer: The tokenizer or processor that holds the template.
        has_image: Whether the first message begins with an image.

    Raises:
        UnsupportedModel: There is no chat template.
        BadInput: The template refuses the chat, or changes its messages.
    """
    if not chat.template and not getattr(tokenizer, "chat_template", None):
        raise UnsupportedModel(
            "The model's tokenizer has no chat template. Give a text or Chat(…, template=…).",
            code="chat-template-missing",
        )
    messages = [dict(message) for message in chat.messages]
    if has_image:
        # Processors expect the contents of a message as a list.
        for index, message in enumerate(messages):
            text_content = {"type": "text", "text": message["content"]}
            is_first = index == 0
            message["content"] = [{"type": "image"}, text_content] if is_first else [text_content]
    try:
        text = _render_chat(tokenizer, messages, chat)
    except TokenlightError:
        raise
    except Exception as error:  # templates raise whatever their author wrote
        raise BadInput(
            f"The model's chat template fails for this chat: {error}. Change its roles or their order.",
            code="chat-template-fails",
        ) from error
    expected: list[tuple[list[str], str]] = []
    for chat_message in chat.messages:
        expected.extend(split_message_parts(chat_message))
    return locate_parts(text, expected)


def _render_chat(holder: Any, messages: list[dict[str, Any]], chat: Chat) -> str:
    """Format messages by the template of ``holder``; one from a model folder runs under limits."""
    add_generation_prompt = bool(chat.add_generation_prompt)
    runner = find_limited_runner(holder)
    if runner is None:
        text = holder.apply_chat_template(
            messages,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            chat_template=chat.template,
        )
        return str(text)
    if hasattr(holder, "get_chat_template"):
        template = holder.get_chat_template(chat.template)
    else:
        # A processor has no such method, and may have several templates, too.
        templates = holder.chat_template
        if not isinstance(templates, Mapping):
            templates = {"default": templates}
        template = templates.get(chat.template or "default", chat.template)
    special_tokens = getattr(holder, "tokenizer", holder).special_tokens_map
    variables = {**special_tokens, "add_generation_prompt": add_generation_prompt}
    return runner.render(str(template), messages, variables)


def _build_row(encoding: Any, layout: PromptLayout, keep_end_tokens: bool) -> TokenRow:
    """Assign each token to the part of the prompt that it overlaps.

    A token that overlaps two parts belongs to the later one, as the blank before a word belongs to it.
    """
    part_spans = [span for span, _ in layout.parts]
    names = tuple(name for _, name in layout.parts)
    is_special = encoding.special_tokens_mask
    continuation_start = part_spans[-1][0] if names[-1] == CONTINUATION_SEGMENT else 0
    segments: list[int | None] = []
    offsets = []
    for position, (start, end) in enumerate(encoding.offsets):
        _check_border(layout.text, start, end, continuation_start)
        segment = None if is_special[position] else _find_part(part_spans, start, end)
        segments.append(segment)
        part_start, part_end = (0, len(layout.text)) if segment is None else part_spans[segment]
        offsets.append((max(start, part_start) - part_start, min(end, part_end) - part_start))
    texts = tuple(layout.text[slice(*span)] for span in part_spans)
    row = build_row(encoding, texts, tuple(segments), offsets)
    num_tokens = len(encoding.ids) if keep_end_tokens else _count_without_end_tokens(is_special)
    return replace(row.take(range(num_tokens)), segment_names=names)


def _count_without_end_tokens(is_special: Sequence[int]) -> int:
    """Return the number of tokens up to the last one that is not special."""
    length = len(is_special)
    while length and is_special[length - 1]:
        length -= 1
    return length


def _check_border(text: str, start: int, end: int, continuation_start: int) -> None:
    """Refuse a continuation that begins inside a token: no model could have continued from there."""
    if start < continuation_start < end and text[start:continuation_start].strip():
        raise BadInput(
            f"{text[start:end]!r} is one token, part prompt and part continuation. Move the boundary "
            "to the beginning of a word.",
            code="continuation-inside-token",
        )


def _find_part(part_spans: Sequence[Span], start: int, end: int) -> int | None:
    """Return the last part that shares a character with ``start`` to ``end``."""
    for index in reversed(range(len(part_spans))):
        part_start, part_end = part_spans[index]
        if max(start, part_start) < min(end, part_end):
            return index
    return None


def find_continuation_start(row: TokenRow) -> int:
    """Return the position of the first token of the continuation."""
    last_segment = len(row.segment_names) - 1
    positions = [i for i, segment in enumerate(row.segments) if segment == last_segment]
    if not positions or positions[0] == 0:
        raise BadInput(
            "The continuation has no token after the prompt. Begin it with a word.",
            code="continuation-without-start",
        )
    return positions[0]


def build_generated_row(
    ids: Sequence[int], tokenizer: Any, prefix_ids: Sequence[int] = ()
) -> TokenRow:
    """Create a row of tokens that the model generated.

    Args:
        ids: The generated tokens.
        tokenizer: The model's tokenizer.
        prefix_ids: The tokens before them, which influence how they are decoded.
    """
    # The text after each further token shows which characters the token adds.
    decoded = []
    for count in range(len(ids) + 1):
        visible_ids = [*prefix_ids, *ids[:count]]
        decoded.append(str(tokenizer.decode(visible_ids, clean_up_tokenization_spaces=False)))
    prefix_length = len(decoded[0])
    text = decoded[-1][prefix_length:]
    ends = []
    for decoded_prefix in decoded:
        # Part of a character decodes to a replacement that may be longer than the final character.
        end = max(0, len(decoded_prefix) - prefix_length)
        ends.append(min(end, len(decoded[-1]) - prefix_length))
    spans = tuple((min(start, end), end) for start, end in pairwise(ends))
    segments = (0,) * len(ids)
    return TokenRow.from_ids(
        ids,
        pieces=tuple(map(str, tokenizer.convert_ids_to_tokens(list(ids)))),
        spans=spans,
        segments=segments,
        word_ids=assign_word_ids((text,), segments, spans, (None,) * len(ids)),
        texts=(text,),
    )


def append_generated(
    row: TokenRow, new_ids: Sequence[int], tokenizer: Any, token_type: int = 0
) -> TokenRow:
    """Append tokens that the model generated to a prompt, as its last segment.

    Args:
        row: The prompt.
        new_ids: The generated tokens.
        tokenizer: The model's tokenizer.
        token_type: Their token type, for models that read token types.
    """
    token_type_ids = row.token_type_ids
    if token_type_ids is not None:
        token_type_ids = token_type_ids + (token_type,) * len(new_ids)
    prompt_names = row.segment_names or ("prompt",) * len(row.texts)
    return row.concatenate(
        build_generated_row(new_ids, tokenizer, row.ids),
        token_type_ids=token_type_ids,
        segment_names=(*prompt_names, CONTINUATION_SEGMENT),
    )
