"""The content of a picture as plain values: texts, their targets, the methods of each and their views.

The terminal, the HTML page and the figures all read these scenes. The scenes decide what is shown; the
renderers decide only how it looks.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from tokenlight import registry
from tokenlight.data.attribution import Attribution
from tokenlight.data.notes import AUTO_NOTE, PAIR_NOTE, UNREAD_TENSORS_NOTE, WEIGHTS_NOTE
from tokenlight.data.postprocess import difference, merge_words
from tokenlight.errors import BadInput, UnknownName
from tokenlight.plots.agreement import describe_agreement
from tokenlight.plots.answer_reader import AnswerReader, build_reader
from tokenlight.plots.continuations import align_continuations, is_continuation
from tokenlight.plots.descriptions import describe_attention_sink, describe_question
from tokenlight.plots.prompt_parts import describe_deciding_part
from tokenlight.plots.score_tables import ScoreTable, build_class_table
from tokenlight.plots.views import View

# How notes begin that hold for all texts: on the choice of a method, and on what the model reads.
REPEATED_NOTES = (
    "method=",
    "effort=",
    "stable=",
    PAIR_NOTE,
    WEIGHTS_NOTE,
    UNREAD_TENSORS_NOTE,
)
TOKEN_VIEW = "tokens"
WORD_VIEW = "words"


@dataclass(eq=False)
class MethodScene:
    """One explanation and its views.

    Args:
        attribution: The explanation, one score per token.
        view_kinds: ``tokens``, ``words``, or both.
        notes: The notes of the explanation that the picture has not shown yet.
        same_method: The explanations by the same method of all targets of the text, including this one.
            They share a colour scale, so that classes can be compared by eye.
        has_sink_note: Whether the note on an attention sink stands here; a text has it once.
        deciding_part: Which document or turn decided; empty for a text without such parts.
    """

    attribution: Attribution
    view_kinds: tuple[str, ...]
    notes: tuple[str, ...] = ()
    same_method: list["MethodScene"] = field(default_factory=list)
    has_sink_note: bool = False
    deciding_part: str = ""

    @property
    def label(self) -> str:
        """The method with its options, without the target."""
        return self.attribution.title.removesuffix(f" → {self.attribution.question}")

    @cached_property
    def word_attribution(self) -> Attribution:
        """The explanation with one score per word."""
        return merge_words(self.attribution)

    @cached_property
    def views(self) -> tuple[View, ...]:
        """One view per kind; a single one without a kind if every word is one token."""
        if len(self.view_kinds) == 1:
            return (self._build_view("", self.view_kinds[0]),)
        if len(self.word_attribution) == len(self.attribution):
            return (self._build_view("", TOKEN_VIEW),)
        return tuple(self._build_view(kind, kind) for kind in self.view_kinds)

    def _build_view(self, title: str, kind: str) -> View:
        # A word can be stronger than its tokens, so that each kind of view has its own scale.
        scale = 0.0
        for method in (self, *self.same_method):
            scale = max(scale, _max_magnitude(method._select_attribution(kind)))
        return View(
            kind=title,
            attribution=self._select_attribution(kind),
            token_attribution=self.attribution,
            scale=scale,
        )

    def _select_attribution(self, kind: str) -> Attribution:
        return self.word_attribution if kind == WORD_VIEW else self.attribution


@dataclass(frozen=True)
class ExplanationGroup:
    """Explanations shown side by side: of one target by several methods, or of several classes by one.

    Args:
        name: The target or, of several classes, the method.
        methods: The explanations.
        differences: Each other method minus the reference method, if there is one.
    """

    name: str
    methods: Sequence[MethodScene]
    differences: Sequence[MethodScene] = ()

    @property
    def title(self) -> str:
        """The question; of a labeled token, with the words that it labels."""
        attribution = self.methods[0].attribution
        if attribution.target.alternatives:
            return describe_question(attribution)
        row = attribution.row
        positions = row.target_positions
        if row.target_position is not None and not attribution.prediction.ids:
            positions = (row.target_position,)
        if not positions:
            return self.name
        word_ids = {row.word_ids[position] for position in positions}
        word_positions = [i for i, word_id in enumerate(row.word_ids) if word_id in word_ids]
        words = row.extract_text(word_positions, " ").strip()
        return f"‘{words}’ as {self.name}"

    @property
    def agreement(self) -> str:
        """Whether several methods agree, in one sentence; empty for one method."""
        attributions = [method.attribution for method in self.methods]
        labels = [method.label for method in self.methods]
        return describe_agreement(attributions, labels)

    @cached_property
    def reader(self) -> AnswerReader | None:
        """The text with each word of the answer and its sources; None unless a model wrote them."""
        return build_reader([method.views[0] for method in self.methods])

    @property
    def tables(self) -> list[tuple[str, ScoreTable]]:
        """For each kind of view the scores of all classes."""
        tables = []
        for index, view in enumerate(self.methods[0].views):
            attributions = [method.views[index].attribution for method in self.methods]
            tables.append((view.kind, build_class_table(attributions)))
        return tables


@dataclass(frozen=True)
class TextScene:
    """All explanations of one text by one model, target by target."""

    targets: Sequence[ExplanationGroup]

    @property
    def methods(self) -> list[MethodScene]:
        """The explanations of all targets."""
        methods: list[MethodScene] = []
        for target in self.targets:
            methods += target.methods
        return methods

    @property
    def first(self) -> Attribution:
        """Any of the explanations: they share text, model and prediction."""
        return self.targets[0].methods[0].attribution

    @cached_property
    def class_groups(self) -> list[ExplanationGroup]:
        """For each method its explanations of several classes; pictures have heat maps instead."""
        methods_by_label: dict[str, list[MethodScene]] = {}
        for method in self.methods:
            attribution = method.attribution
            if attribution.target.index is not None and attribution.row.image is None:
                methods_by_label.setdefault(method.label, []).append(method)
        groups = []
        for label, methods in methods_by_label.items():
            if len(methods) > 1:
                groups.append(ExplanationGroup(label, methods))
        return groups

    def is_in_class_groups(self, target: ExplanationGroup) -> bool:
        """Return whether all explanations of a target are already shown class by class."""
        grouped: set[MethodScene] = set()
        for group in self.class_groups:
            grouped.update(group.methods)
        return grouped.issuperset(target.methods)


def list_attributions(attributions: Attribution | Iterable[Attribution]) -> list[Attribution]:
    """Return a list, also of a single explanation."""
    if isinstance(attributions, Attribution):
        return [attributions]
    return list(attributions)


def build_scenes(
    attributions: Attribution | Iterable[Attribution],
    view_kinds: tuple[str, ...] = (TOKEN_VIEW, WORD_VIEW),
    reference: str | None = None,
) -> list[TextScene]:
    """Group explanations by text (or labeled token) and model, then by target, in order of appearance.

    Args:
        attributions: The explanations to show.
        view_kinds: ``tokens``, ``words``, or both.
        reference: A method that every other method is compared with.

    Returns:
        One scene per text.

    Raises:
        BadInput: There is no explanation.
        UnknownName: No explanation is by the method ``reference``.
    """
    aligned = align_continuations(list_attributions(attributions))
    if not aligned:
        raise BadInput(
            "There is no attribution to draw. Give at least one.", code="no-attributions"
        )
    text_scenes = [
        _build_text_scene(targets, reference) for targets in _group_by_text(aligned, view_kinds)
    ]
    if reference is not None:
        _check_reference(text_scenes, reference)
    return text_scenes


def _group_by_text(
    attributions: Iterable[Attribution], view_kinds: tuple[str, ...]
) -> list[dict[str, list[MethodScene]]]:
    """Return the explanations of each text by the question that they answer."""
    texts: dict[Hashable, dict[str, list[MethodScene]]] = {}
    same_methods: dict[Hashable, list[MethodScene]] = {}
    occurrences: Counter[Hashable] = Counter()
    shown_notes: set[str] = set()
    for attribution in attributions:
        # The same explanation a second time belongs to another text with the same words.
        text_key = _text_key(attribution)
        explanation_key = (text_key, attribution.title, attribution.steps)
        scene_key = (text_key, occurrences[explanation_key])
        occurrences[explanation_key] += 1

        notes = select_new_notes(attribution.notes, shown_notes)
        method = MethodScene(attribution, view_kinds, notes)
        method.same_method = same_methods.setdefault((scene_key, method.label), [])
        sink_note = describe_attention_sink(attribution)
        if sink_note and not any(other.has_sink_note for other in method.same_method):
            method.notes += (sink_note,)
            method.has_sink_note = True
        method.deciding_part = describe_deciding_part(attribution)
        method.same_method.append(method)
        targets = texts.setdefault(scene_key, {})
        targets.setdefault(attribution.question, []).append(method)
    return list(texts.values())


def _build_text_scene(targets: Mapping[str, list[MethodScene]], reference: str | None) -> TextScene:
    groups = []
    for name, methods in targets.items():
        differences = _subtract_reference(methods, reference)
        groups.append(ExplanationGroup(name, methods, differences))
    return TextScene(groups)


def _text_key(attribution: Attribution) -> Hashable:
    """Return what all explanations of one text, or of one labeled token, have in common."""
    row = attribution.row
    positions = (row.target_position, row.target_positions)
    return (attribution.model, row.texts, row.fingerprint, positions)


def _check_reference(text_scenes: Sequence[TextScene], reference: str) -> None:
    labels = set()
    for text_scene in text_scenes:
        for method in text_scene.methods:
            if _matches_reference(method, reference):
                return
            labels.add(method.label)
    raise UnknownName.from_choices("reference method", reference, labels)


def _subtract_reference(methods: Sequence[MethodScene], reference: str | None) -> list[MethodScene]:
    """Return every other method minus the reference, if it is among them (Mask-LRP, figure 6)."""
    if reference is None:
        return []
    base = next((method for method in methods if _matches_reference(method, reference)), None)
    if base is None:
        return []
    differences = []
    for method in methods:
        if method is not base:
            attribution = difference(method.attribution, base.attribution)
            # Trust and notes of a method do not hold for a difference.
            attribution = replace(attribution, extras={}, notes=())
            differences.append(MethodScene(attribution, base.view_kinds))
    return differences


def _matches_reference(method: MethodScene, reference: str) -> bool:
    """Return whether ``reference`` (a name, a label or ``name:option=value``) means this method."""
    attribution = method.attribution
    if reference in (method.label, attribution.title):
        return True
    name = reference
    options: dict[str, Any] = {}
    if ":" in reference:
        name, options = registry.parse_spec(reference)
    method_options = {option: str(value) for option, value in attribution.options.items()}
    return name == attribution.method and options.items() <= method_options.items()


def _max_magnitude(attribution: Attribution) -> float:
    """Return the largest magnitude on the text: one strong separator would make all words pale."""
    magnitudes = np.abs(attribution.scores)
    is_special = np.array(attribution.row.special_tokens_mask, dtype=bool)
    if is_special.all():
        return float(magnitudes.max(initial=0.0))
    return float(magnitudes[~is_special].max(initial=0.0))


def should_show_words(attributions: Sequence[Attribution]) -> bool:
    """Return whether words are shown by default: not for written tokens, where each token is a decision."""
    return not any(map(is_continuation, attributions))


def shorten_choice(note: str) -> str:
    """Return a note as the terminal shows it: of the recommended method not what was measured.

    Example:
        >>> from tokenlight.plots.scene import shorten_choice
        >>> shorten_choice("method='auto': attnlrp, the most faithful of 8 methods")
        'default method'
    """
    return "default method" if note.startswith(AUTO_NOTE) else note


def select_new_notes(notes: Sequence[str], shown_notes: set[str]) -> tuple[str, ...]:
    """Return the notes to show; how a method was chosen (``method='auto': …``) is shown only once.

    Args:
        notes: The notes of an explanation.
        shown_notes: The notes that the picture has shown already.
    """
    # A method may also be chosen by an effort or a stability.
    new_notes = tuple(note for note in notes if note not in shown_notes)
    for note in new_notes:
        if note.startswith(REPEATED_NOTES):
            shown_notes.add(note)
    return new_notes
