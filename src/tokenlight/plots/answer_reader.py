"""What a model wrote, as one text: pointing at a word of the answer lights up the words it came from."""

from collections.abc import Sequence
from dataclasses import dataclass

from tokenlight.plots.continuations import is_continuation
from tokenlight.plots.descriptions import format_score
from tokenlight.plots.token_roles import EXPLAINED_ROLE
from tokenlight.plots.views import Mark, View

# Each word of the answer has a copy of the text: a page of a whole book would not open.
MAX_MARKS = 40_000
NUM_SOURCES = 3


@dataclass(frozen=True)
class AnswerPart:
    """A part of the text.

    Args:
        mark: Its characters.
        view: The explanation of this word of the answer; None for all other parts.
    """

    mark: Mark
    view: View | None = None

    @property
    def sources(self) -> str:
        """The strongest words behind it, with their scores, on one line."""
        if self.view is None:
            return ""
        sources = []
        for strong_token in self.view.top_tokens[:NUM_SOURCES]:
            name = strong_token.token.bracketed
            sources.append(f"{name} {format_score(strong_token.score)}")
        return ", ".join(sources)


@dataclass(frozen=True)
class AnswerReader:
    """The lines of the prompt and the answer, as parts."""

    lines: Sequence[Sequence[AnswerPart]]


def build_reader(views: Sequence[View]) -> AnswerReader | None:
    """Return the text with an explanation at each word of the answer.

    Args:
        views: The explanations of the words of one answer, in order, padded to one text.

    Returns:
        The text; None if the views explain no written text, or would make too large a page.
    """
    if len(views) < 2 or not all(is_continuation(view.attribution) for view in views):
        return None
    # The last word is a part of its own only where it is explained.
    base_lines = views[-1].lines
    num_marks = sum(len(line.marks) for line in base_lines)
    if num_marks * len(views) > MAX_MARKS:
        return None
    explained: dict[tuple[int, int], View] = {}
    for view in views:
        index = _find_explained(view)
        if index is not None:
            explained.setdefault(index, view)
    lines = []
    for line_index, line in enumerate(base_lines):
        parts = []
        for mark_index, mark in enumerate(line.marks):
            parts.append(AnswerPart(mark, explained.get((line_index, mark_index))))
        lines.append(parts)
    return AnswerReader(lines)


def _find_explained(view: View) -> tuple[int, int] | None:
    """Return the line and the mark that a view explains."""
    for line_index, line in enumerate(view.lines):
        for mark_index, mark in enumerate(line.marks):
            if EXPLAINED_ROLE in mark.roles:
                return line_index, mark_index
    return None
