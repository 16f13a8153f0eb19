"""Documents, and a question about them, as one prompt: which of them did the answer come from?"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tokenlight.data.tokens import Span
from tokenlight.data.units import QUESTION, WRITTEN
from tokenlight.errors import BadInput
from tokenlight.inputs.encode import readable

DOCUMENTS, ASKED = "{documents}", "{question}"
MESSAGE = f"Context: {DOCUMENTS}\n\nQuestion: {ASKED}"  # of a chat, whose template does the rest
CHAT = "chat"


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
