"""Where the parts of a prompt stand in its text.

A prompt is one text for the model, but people wrote its parts: messages, documents, a question. A
:class:`PromptLayout` holds the text with the span and the name of each part. Chat templates and processors
rewrite prompts; :func:`locate_parts` finds the parts again in what they return.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tokenlight.data.tokens import Span
from tokenlight.data.units import THINKING_SEGMENT, TOOL_CALL_SEGMENT
from tokenlight.errors import BadInput

NamedSpan = tuple[Span, str]
_THINKING_PATTERN = re.compile(r"<think>.*?</think>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class PromptLayout:
    """A prompt as one text.

    Args:
        text: The whole text.
        parts: The span of each part in ``text``, and its name.
        has_special_tokens: Whether the text already contains the special tokens.
    """

    text: str
    parts: tuple[NamedSpan, ...]
    has_special_tokens: bool = False

    def shift_parts(self, offset: int) -> tuple[NamedSpan, ...]:
        """Return the parts as they stand after ``offset`` characters of other text."""
        return tuple(((start + offset, end + offset), name) for (start, end), name in self.parts)


def split_thinking(text: str, name: str) -> tuple[NamedSpan, ...]:
    """Split a text into its parts between ``<think>`` and ``</think>`` and the rest, called ``name``."""
    boundaries = [0]
    for match in _THINKING_PATTERN.finditer(text):
        boundaries.extend(match.span())
    boundaries.append(len(text))
    parts = []
    for i, span in enumerate(pairwise(boundaries)):
        # Boundaries alternate: every second part is a match.
        part_name = THINKING_SEGMENT if i % 2 else name
        if text[slice(*span)].strip():
            parts.append((span, part_name))
    return tuple(parts)


def locate_parts(
    text: str, expected: Iterable[tuple[list[str], str]], has_special_tokens: bool = True
) -> PromptLayout:
    """Find the parts of a prompt in the text that a template or processor made of it.

    Args:
        text: The output of the template or processor.
        expected: For each part, in order, the strings it consists of and its name.
        has_special_tokens: Whether ``text`` contains the special tokens.

    Raises:
        BadInput: A part is not there, or none is.
    """
    parts = []
    search_start = 0
    for pieces, name in expected:
        span = _find_pieces(text, pieces, search_start)
        if span is not None:
            search_start = span[1]
            parts.append((span, name))
        elif name != THINKING_SEGMENT:  # many templates drop the thinking of earlier turns
            raise BadInput(
                f"The model's chat template or processor changes or drops {pieces[0][:40]!r} ({name}), so "
                "its tokens cannot be matched with what you wrote. Give the prompt as one text.",
                code="chat-part-lost",
            )
    if not parts:
        raise BadInput(
            "The model's chat template drops everything in this chat. Give the prompt as one text.",
            code="chat-empty",
        )
    return PromptLayout(text, tuple(parts), has_special_tokens)


def _find_pieces(text: str, pieces: list[str], search_start: int) -> Span | None:
    """Return the span from the first to the last of some strings that follow one another."""
    starts = []
    end = search_start
    for piece in pieces:
        start = text.find(piece, end)
        starts.append(start)
        end = start + len(piece)
    return None if min(starts) < 0 else (starts[0], end)


def split_message_parts(message: Mapping[str, Any]) -> Iterator[tuple[list[str], str]]:
    """Yield the parts of a chat message, as :func:`locate_parts` expects them."""
    thinking = message.get("reasoning_content") or ""
    content = message.get("content") or ""
    if thinking:
        yield [thinking.strip()], THINKING_SEGMENT
    for span, name in split_thinking(content, str(message["role"])):
        # Templates strip white space at the ends of a message.
        yield [content[slice(*span)].strip()], name
    for call in message.get("tool_calls") or ():
        name, arguments = _parse_tool_call(call)
        yield [name, *_iter_leaves(arguments)], TOOL_CALL_SEGMENT


def _parse_tool_call(call: Any) -> tuple[str, Any]:
    """Return the name of the function and its arguments."""
    try:
        function = call.get("function", call)
        name = str(function["name"])
        arguments = function.get("arguments") or {}
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise BadInput(
            f"The tool call {str(call)[:60]!r} cannot be read ({error!r}). Give a 'function' with 'name' "
            "and 'arguments'.",
            code="tool-call",
        ) from error
    return name, arguments


def _iter_leaves(value: Any) -> Iterator[str]:
    """Yield the texts and numbers of nested JSON, as JSON writes them."""
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from _iter_leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _iter_leaves(inner)
    else:
        encoded = json.dumps(value, ensure_ascii=False)
        # Without the quotation marks: templates may write others.
        yield encoded[1:-1] if isinstance(value, str) else encoded
