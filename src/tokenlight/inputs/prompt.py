"""Prompts of language models: a text, a chat or documents to write on from, and what was written."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, pairwise
from typing import Any

from tokenlight.data.tokens import Long, Span, TokenRow
from tokenlight.data.units import QUESTION, THINKING, TOOL_CALL, WRITTEN
from tokenlight.errors import BadInput, TextTooLong, UnsupportedModel, long_way, way
from tokenlight.inputs.encode import check_tokenizer, encodings, laid_row, number_words, readable

DOCUMENTS, ASKED = "{documents}", "{question}"
MESSAGE = f"Context: {DOCUMENTS}\n\nQuestion: {ASKED}"  # of a chat, whose template does the rest
CHAT = "chat"
_THINKING = re.compile(r"<think>.*?</think>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Laid:
    """A prompt as one text: where each part of it stands, and what each is called."""

    text: str
    parts: tuple[tuple[Span, str], ...]
    template: bool = False  # whether the text already holds the special tokens

    def shifted(self, by: int) -> tuple[tuple[Span, str], ...]:
        """The parts where ``by`` characters stand before the text."""
        return tuple(((start + by, end + by), name) for (start, end), name in self.parts)


@dataclass(frozen=True, slots=True)
class Context:
    """Documents and a question, for models that write.

    Each document is a segment of its own, named ``document 1``, … or as the mapping names it; so is
    the question. ``template``: the text around them, with ``{documents}`` and ``{question}`` once
    each, or ``"chat"``: a message laid out by the tokenizer's own chat template. Documents are
    parted by an empty line; the template's own tokens belong to no segment.
    """

    documents: Sequence[str] | Mapping[str, str]
    question: str | None = None
    template: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.documents, Iterable) and not isinstance(self.documents, str | Mapping):
            object.__setattr__(self, "documents", tuple(self.documents))
        self.laid()

    def laid(self) -> Laid:
        """The documents and the question in the text around them."""
        given, asked = self.documents, self.question is not None
        if not isinstance(given, tuple | Mapping) or not given:
            raise BadInput("documents are a list of texts, or a table of names and texts.")
        if not isinstance(given, Mapping):
            given = {f"document {number}": text for number, text in enumerate(given, 1)}
        if {QUESTION, WRITTEN} & {*given}:
            raise BadInput(f"a document cannot be named {QUESTION!r} or {WRITTEN!r}; rename it.")
        usual = MESSAGE if asked else DOCUMENTS
        template = self.template or (f"{usual}\n\nAnswer:" if asked else f"{usual}\n\n")
        template = usual if template == CHAT else template
        if (template.count(DOCUMENTS), template.count(ASKED)) != (1, asked):
            raise BadInput(
                f"the template {template!r} needs {DOCUMENTS} once, and {ASKED} once where a question is "
                "asked; write them where the texts are to stand."
            )
        slots = {DOCUMENTS: given, ASKED: {QUESTION: self.question or ""}}
        text, parts = "", []
        for piece in re.split(f"({DOCUMENTS}|{ASKED})", template):
            text += "" if piece in slots else piece
            for number, (name, own) in enumerate(slots.get(piece, {}).items()):
                readable(own)
                text += "\n\n" if number else ""
                parts.append(((len(text), len(text) + len(own)), name))
                text += own
        return Laid(text, tuple(parts))


@dataclass(frozen=True, slots=True)
class Chat:
    """Messages, each ``{"role": …, "content": …}``, laid out by the tokenizer's own chat template.

    Each message is a segment of its own, named by its role. What it has between ``<think>`` and
    ``</think>``, or as ``reasoning_content``, is one named ``thinking``; each of its ``tool_calls`` one
    named ``tool call``, from the function's name to its last argument. The template's own tokens belong
    to no segment.
    ``answer``: end the prompt where the assistant begins to write. ``template``: a chat template
    to use instead of the tokenizer's.
    """

    messages: Sequence[Mapping[str, Any]]
    answer: bool = True
    template: str | None = None

    def __post_init__(self) -> None:
        messages = self.messages
        if isinstance(messages, str) or not isinstance(messages, Sequence) or not messages:
            example = "[{'role': 'user', 'content': 'Hi'}]"
            raise BadInput(f"a chat is a list of messages, for example {example}.")
        for number, message in enumerate(messages):
            given = message if isinstance(message, Mapping) else {}
            called = given.get("tool_calls")
            if "role" not in given or not (called or "content" in given):
                said = f"message {number} of the chat is {str(message)[:60]!r}"
                raise BadInput(f"{said}; each has a 'role' and a 'content', or 'tool_calls'.")
            if not called:
                readable(given["content"])
        object.__setattr__(self, "messages", tuple(map(dict, messages)))


def encode_prompt(
    prompt: str | Chat | Context | Laid,
    tokenizer: Any,
    *,
    limit: int | None,
    continuation: str | None = None,
    long: Long = "error",
    ends: bool = False,
) -> TokenRow:
    """Tokenise a prompt, with what was written after it as its last segment, as one text. Special tokens
    that a tokenizer puts behind it are left off, unless it ``ends`` there, as a source does."""
    check_tokenizer(tokenizer)
    laid = _laid(prompt, tokenizer)
    if continuation is not None:
        laid = _continued(laid, continuation)
    (encoded,) = encodings(tokenizer, laid.text, add_special_tokens=not laid.template)
    row = _row(encoded, laid, ends)
    if limit is not None and len(row) > limit:
        if long != "truncate":
            raise TextTooLong(
                f"the prompt has {len(row)} tokens but this model reads at most {limit}. Give a shorter "
                f"one, or {long_way('truncate')} to keep the last {limit} tokens, which the model writes on "
                f"from; windows ({long_way('stride')}) have no next token in common."
            )
        # What a model writes depends most on what stands right before: the beginning goes.
        lead = [i for i in range(len(row)) if all(row.special[: i + 1])]
        kept = [*lead, *range(len(row) - limit + len(lead), len(row))]
        row = replace(row.take(kept), cut=len(row) - len(kept))
    if all(row.special):
        raise BadInput("the prompt has no token besides the model's special tokens; give a text.")
    return row


def _laid(prompt: str | Chat | Context | Laid, tokenizer: Any) -> Laid:
    if isinstance(prompt, Laid):
        return prompt
    if isinstance(prompt, Chat):
        return laid_chat(prompt, tokenizer)
    if isinstance(prompt, str):
        readable(prompt)
        return Laid(prompt, (((0, len(prompt)), "prompt"),))
    laid = prompt.laid()
    if prompt.template != CHAT:
        return laid
    around = laid_chat(Chat([{"role": "user", "content": laid.text}]), tokenizer)
    first = around.parts[0][0][0] - (len(laid.text) - len(laid.text.lstrip()))  # templates strip
    return Laid(around.text, laid.shifted(first), template=True)


def _continued(laid: Laid, continuation: str) -> Laid:
    """With what was written after it."""
    if not isinstance(continuation, str) or not continuation:
        raise BadInput(f"the continuation {continuation!r} is empty; give the text to explain.")
    said = _thought(continuation, WRITTEN)
    if not said.parts or said.parts[-1][1] != WRITTEN:  # all thinking: that is what is explained
        said = Laid(continuation, (((0, len(continuation)), WRITTEN),))
    parts = (*laid.parts, *said.shifted(len(laid.text)))
    return Laid(laid.text + continuation, parts, laid.template)


def _thought(text: str, name: str) -> Laid:
    """The parts of what was said: thinking between its marks, and what is not."""
    edges = [0, *(edge for found in _THINKING.finditer(text) for edge in found.span()), len(text)]
    parts = zip(pairwise(edges), cycle((name, THINKING)), strict=False)
    return Laid(text, tuple((span, own) for span, own in parts if text[slice(*span)].strip()))


def laid_chat(chat: Chat, tokenizer: Any, *, pictured: bool = False) -> Laid:
    """A chat in its template; ``pictured``: its first message begins with an image."""
    if not chat.template and not getattr(tokenizer, "chat_template", None):
        own = way("Chat(…, template=…)", "a template with --chat-template FILE")
        raise UnsupportedModel(f"the model's tokenizer has no chat template; give a text or {own}.")
    messages = [dict(message) for message in chat.messages]
    for number, message in enumerate(messages if pictured else ()):  # contents in a list
        written = {"type": "text", "text": message["content"]}
        message["content"] = [written] if number else [{"type": "image"}, written]
    how = {"add_generation_prompt": bool(chat.answer), "chat_template": chat.template}
    # Templates raise whatever their author wrote.
    with BadInput.telling("the model's chat template refuses this chat: ", Exception):
        text = str(tokenizer.apply_chat_template(messages, tokenize=False, **how))
    return located(text, (one for message in chat.messages for one in _said(message)))


def located(text: str, said: Iterable[tuple[list[str], str]], template: bool = True) -> Laid:
    """Where what was ``said`` stands in the text that a template or processor made of it."""
    parts, behind = [], 0
    for pieces, name in said:
        found, end = [], behind
        for piece in pieces:
            found.append(text.find(piece, end))
            end = found[-1] + len(piece)
        if min(found) >= 0:
            behind = end
            parts.append(((found[0], end), name))
        elif name != THINKING:  # many templates leave out what was thought in earlier turns
            raise BadInput(
                f"the model's chat template or processor changes or drops {pieces[0][:40]!r} ({name}), "
                "so its tokens cannot be laid over what you wrote; give the prompt as one text."
            )
    if not parts:
        raise BadInput("the model's chat template leaves nothing of this chat; give it otherwise.")
    return Laid(text, tuple(parts), template)


def _said(message: Mapping[str, Any]) -> Iterator[tuple[list[str], str]]:
    """What a message says: pieces that stand one behind the other in a template's text, and their name."""
    thought, content = (message.get(name) or "" for name in ("reasoning_content", "content"))
    if thought:
        yield [thought.strip()], THINKING
    for span, name in _thought(content, str(message["role"])).parts:
        yield [content[slice(*span)].strip()], name  # templates strip; the middle stays
    for call in message.get("tool_calls") or ():
        try:
            function = call.get("function", call)
            name, given = str(function["name"]), function.get("arguments") or {}
            given = json.loads(given) if isinstance(given, str) else given
        except (AttributeError, LookupError, TypeError, ValueError) as broken:
            said = f"the tool call {str(call)[:60]!r} cannot be read ({broken!r})"
            raise BadInput(f"{said}; it has a 'function' with 'name' and 'arguments'.") from broken
        yield [name, *_leaves(given)], TOOL_CALL


def _leaves(given: Any) -> Iterator[str]:
    """The texts and numbers of nested JSON, as JSON writes them."""
    if isinstance(given, Mapping | list):
        for own in given.values() if isinstance(given, Mapping) else given:
            yield from _leaves(own)
    else:
        written = json.dumps(given, ensure_ascii=False)
        yield written[1:-1] if isinstance(given, str) else written


def _row(piece: Any, laid: Laid, ends: bool) -> TokenRow:
    """Each token in the part that it reaches into; of two, the later, as a blank before it belongs to it."""
    parts, names = zip(*laid.parts, strict=True)
    border = parts[-1][0] if names[-1] == WRITTEN else 0
    added, stop = piece.special_tokens_mask, len(piece.ids)
    while stop and added[stop - 1] and not ends:
        stop -= 1
    segments, within = list[int | None](), []
    for special, (start, end) in zip(added, piece.offsets, strict=True):
        # Nobody could have written on from inside of a token.
        if start < border < end and laid.text[start:border].strip():
            said = f"{laid.text[start:end]!r} is one token, half of it prompt and half continuation"
            raise BadInput(f"{said}; move the border to the beginning of a word.")
        own = [i for i, (first, last) in enumerate(parts) if max(start, first) < min(end, last)]
        segments.append(None if special or not own else own[-1])
        first, last = (0, len(laid.text)) if segments[-1] is None else parts[segments[-1]]
        within.append((max(start, first) - first, min(end, last) - first))
    texts = tuple(laid.text[slice(*part)] for part in parts)
    row = laid_row(piece, texts, tuple(segments), within)
    return replace(row.take(range(stop)), names=names)


def written_from(row: TokenRow) -> int:
    """The place of the first token of the continuation."""
    last = len(row.names) - 1
    first = next((i for i, segment in enumerate(row.segments) if segment == last), 0)
    if first == 0:
        raise BadInput("the continuation has no token behind the prompt; begin it with a word.")
    return first


def generated(ids: Sequence[int], tokenizer: Any, before: Sequence[int] = ()) -> TokenRow:
    """What a model wrote by itself behind other tokens, as a row of its own."""

    def decoded(count: int) -> str:
        return str(tokenizer.decode([*before, *ids[:count]], clean_up_tokenization_spaces=False))

    whole = [decoded(number) for number in range(len(ids) + 1)]
    begin = len(whole[0])
    # Half of a character decodes to a stand-in that may be longer than what it becomes.
    ends = [min(max(0, len(text) - begin), len(whole[-1]) - begin) for text in whole]
    text, spans = whole[-1][begin:], tuple((min(a, b), b) for a, b in pairwise(ends))
    own = (0,) * len(ids)
    return TokenRow.plain(
        ids,
        pieces=tuple(map(str, tokenizer.convert_ids_to_tokens(list(ids)))),
        spans=spans,
        segments=own,
        words=number_words((text,), own, spans, (None,) * len(ids)),
        texts=(text,),
    )


def extended(row: TokenRow, written: Sequence[int], tokenizer: Any, kind: int = 0) -> TokenRow:
    """A prompt's row with tokens the model wrote, which are the last segment; ``kind``: their type."""
    own = row.token_types
    types = None if own is None else (*own, *(kind,) * len(written))
    names = (*(row.names or ("prompt",) * len(row.texts)), WRITTEN)
    return row.joined(generated(written, tokenizer, row.ids), token_types=types, names=names)
