"""Documents, and a question about them, as one prompt: which of them did the answer come from?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokenlight.data.tokens import Span
from tokenlight.data.units import QUESTION, WRITTEN
from tokenlight.errors import BadInput
from tokenlight.inputs.encode import readable

DOCUMENTS, ASKED = "{documents}", "{question}"
TEMPLATE = f"Context: {DOCUMENTS}\n\nQuestion: {ASKED}\n\nAnswer:"
MESSAGE = f"Context: {DOCUMENTS}\n\nQuestion: {ASKED}"  # of a chat, whose template does the rest
CHAT = "chat"


@dataclass(frozen=True, slots=True)
class Context:
    """Documents and a question, for models that write.

    Each document is a segment of its own, named ``document 1``, … or as the mapping names it; so is
    the question. ``template``: the text around them, with ``{documents}`` and ``{question}`` once
    each, or ``"chat"``: a message laid out by the tokenizer's own chat template. Documents are
    parted by an empty line; the template's own tokens belong to no segment.
    """

    documents: tuple[str, ...]
    question: str | None
    template: str
    names: tuple[str, ...]

    def __init__(
        self,
        documents: Sequence[str] | Mapping[str, str],
        question: str | None = None,
        template: str | None = None,
    ) -> None:
        if isinstance(documents, str) or not documents:
            raise BadInput(
                "documents are a list of texts, or a table of names and texts; give one."
            )
        named = documents if isinstance(documents, Mapping) else None
        texts = tuple(documents if named is None else named.values())
        names = tuple(named or (f"document {i + 1}" for i in range(len(texts))))
        for text in (*texts, *([] if question is None else [question])):
            readable(text)
        if {QUESTION, WRITTEN} & {*names}:
            raise BadInput(f"a document cannot be named {QUESTION!r} or {WRITTEN!r}; rename it.")
        given = template or (TEMPLATE if question is not None else f"{DOCUMENTS}\n\n")
        wanted = {DOCUMENTS: 1, ASKED: int(question is not None)}
        if given != CHAT and any(given.count(slot) != count for slot, count in wanted.items()):
            raise BadInput(
                f"the template {given!r} needs {DOCUMENTS} once, and {ASKED} once where a question is "
                "asked; write them where the texts are to stand."
            )
        for field, value in zip(self.__slots__, (texts, question, given, names), strict=True):
            object.__setattr__(self, field, value)

    def laid(self) -> tuple[str, tuple[Span, ...], tuple[str, ...]]:
        """The text, where each document and the question stand in it, and what they are called."""
        template = self.template
        if template == CHAT:
            template = MESSAGE if self.question is not None else DOCUMENTS
        named = dict(zip(self.names, self.documents, strict=True))
        asked = {} if self.question is None else {QUESTION: self.question}
        order = sorted(
            ((DOCUMENTS, named), (ASKED, asked)), key=lambda slot: template.find(slot[0])
        )
        text, parts = "", {}
        for slot, filling in order:
            if not filling:
                continue
            before, template = template.split(slot)
            text += before
            for number, (name, own) in enumerate(filling.items()):
                text += "\n\n" if number else ""
                parts[name] = (len(text), len(text) + len(own))
                text += own
        return text + template, tuple(parts.values()), tuple(parts)
