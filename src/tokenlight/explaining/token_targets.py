"""Targets of heads with labels for each token: a masked word, a word, an entity of several words."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from tokenlight.data.span_target import LogitTerms, pick_occurrence
from tokenlight.data.target import Continuation, Contrast, ResolvedTarget, TokenTarget
from tokenlight.data.tokens import TokenRow
from tokenlight.data.units import (
    find_common_tag_type,
    group_by_word,
    group_entities,
    group_labels_by_type,
)
from tokenlight.errors import BadInput, BadTarget, UnknownName
from tokenlight.explaining.explain_options import TargetedRow
from tokenlight.explaining.session import Session
from tokenlight.perturb.logits_stream import stream_logits

ENTITIES = "entities"
MAX_LISTED_WORDS = 20


def expands_to_several(target: Any) -> bool:
    """Return whether one target is asked for that stands for a list of targets."""
    return target in ("all", ENTITIES) or isinstance(target, Continuation)


def locate_mask(session: Session, row: TokenRow, target: Any) -> TargetedRow:
    """Return the row with the position of its masked token.

    Args:
        session: The model; its tokenizer knows the mask token.
        row: The tokens of the text.
        target: A target, which may name one of several masked tokens.

    Raises:
        BadInput: The text does not have exactly one mask token, and the target names no token.
    """
    if row.target_position is not None:
        return row, target
    if isinstance(target, TokenTarget):
        first_position = _find_words(row, target)[0]
        return replace(row, target_position=first_position), target.label
    mask_id = getattr(session.tokenizer, "mask_token_id", None)
    positions = [position for position, token_id in enumerate(row.ids) if token_id == mask_id]
    if len(positions) != 1:
        mask_token = getattr(session.tokenizer, "mask_token", None) or "the mask token"
        raise BadInput(
            f"The text has {len(positions)} masked tokens, but must have exactly one. Write {mask_token} "
            "once where the word belongs, or name one by its number: TokenTarget(number, …).",
            code="not-one-mask",
        )
    return replace(row, target_position=positions[0]), target


def resolve_token_labels(session: Session, row: TokenRow, target: Any) -> list[TargetedRow]:
    """Return one row per word or entity to explain, for a model that labels tokens.

    The label of a word is read at its first token. A bare label or contrast means the only word or entity
    that the model gives this label.

    Args:
        session: The model, its tokenizer and its limits.
        row: The tokens of the text.
        target: A TokenTarget names words; ``"all"`` stands for every word, ``"entities"`` for every entity.

    Raises:
        BadTarget: No word has the label, or several have.
    """
    if row.target_position is not None or row.target_positions:
        return [(row, target)]
    # The words are named, so that nothing has to be predicted to find them.
    if isinstance(target, TokenTarget):
        return [_build_words_target(session, row, _find_words(row, target), target.label)]
    words = _list_word_positions(row)
    first_positions = [positions[0] for positions in words]
    if target == "all":
        return [(replace(row, target_position=first), "predicted") for first in first_positions]
    # A bare label means the word or entity to which the model gives it.
    tags = _predict_tags(session, row, first_positions)
    entities = _find_matching_entities(session.runner.head.labels, tags, target)
    _check_one_entity(session, row, words, tags, entities, target)
    label = "predicted" if target == ENTITIES else target
    targeted_rows = []
    for entity in entities:
        entity_positions = [first_positions[word] for word in entity]
        targeted_rows.append(_build_words_target(session, row, entity_positions, label))
    return targeted_rows


def _check_one_entity(
    session: Session,
    row: TokenRow,
    words: Sequence[Sequence[int]],
    tags: Sequence[str],
    entities: Sequence[Sequence[int]],
    target: Any,
) -> None:
    """Refuse a bare label unless it means one word or entity; ``"entities"`` may mean several."""
    is_ambiguous = len(entities) != 1 and (target != ENTITIES or not entities)
    if not is_ambiguous:
        return
    tagged_words = []
    for positions, tag in zip(words, tags, strict=True):
        tagged_words.append(f"{_extract_text_at(row, positions)} {tag}")
    raise BadTarget(
        f"{len(entities)} words or entities match target={target!r}, but one is explained at a time: "
        f"{session.runner.head.usage}. The model predicts: {', '.join(tagged_words)}.",
        code="which-word",
    )


def _predict_tags(session: Session, row: TokenRow, positions: Sequence[int]) -> list[str]:
    """Return the predicted label at each position."""
    labels = session.runner.head.labels
    tags = []
    for logits in _compute_logits_at(session, row, positions):
        tags.append(labels[int(np.argmax(logits))])
    return tags


def _find_matching_entities(
    labels: Sequence[str], tags: Sequence[str], target: Any
) -> list[Sequence[int]]:
    """Return the entities, as indices of words, that a bare target means.

    Args:
        labels: All labels of the model.
        tags: The predicted label of each word.
        target: A label, a type of labels such as ``PER``, ``"predicted"`` or ``"entities"``; of a
            contrast its first side.
    """
    has_entity_types = bool(group_labels_by_type(labels))
    entities: Sequence[Sequence[int]] = [[word] for word in range(len(tags))]
    if has_entity_types:
        entities = group_entities(tags)
    wanted_label = target.this if isinstance(target, Contrast) else target
    # Without types of entities every word has a label, so "predicted" would mean any word.
    if has_entity_types and wanted_label in ("predicted", ENTITIES):
        return list(entities)
    matching = []
    for entity in entities:
        entity_tags = [tags[word] for word in entity]
        # An entity is meant by one of its tags, or by the type they have in common.
        if wanted_label in {*entity_tags, find_common_tag_type(entity_tags)}:
            matching.append(entity)
    return matching


def _build_words_target(
    session: Session, row: TokenRow, first_positions: list[int], label: Any
) -> TargetedRow:
    """Return a row and the target that means these words together.

    Args:
        session: The model, its tokenizer and its limits.
        row: The tokens of the text.
        first_positions: The position of each word's first token.
        label: A label, a type of labels, or a Contrast of two.
    """
    head = session.runner.head
    contrasted_labels = [label]
    if isinstance(label, Contrast):
        contrasted_labels = [label.this, label.that]
    labels_by_type = group_labels_by_type(head.labels)
    is_one_word = len(first_positions) == 1
    if is_one_word and not any(name in labels_by_type for name in contrasted_labels):
        return replace(row, target_position=first_positions[0]), label
    # A type of labels, or several words: choose the label at each word from the logits.
    indices_by_label = _choose_labels(session, row, first_positions, contrasted_labels)
    if is_one_word:
        row = replace(row, target_position=first_positions[0])
        label_indices = [word_indices[0] for word_indices in indices_by_label]
        if len(label_indices) == 2:
            return row, Contrast(*label_indices)
        return row, label_indices[0]
    return _sum_over_words(session, row, first_positions, indices_by_label)


def _sum_over_words(
    session: Session, row: TokenRow, first_positions: list[int], indices_by_label: list[list[int]]
) -> TargetedRow:
    """Return a row and the target that is the sum of the words' logits.

    Args:
        session: The model, its tokenizer and its limits.
        row: The tokens of the text.
        first_positions: The position of each word's first token.
        indices_by_label: By contrasted label: the index that is read at each word.
    """
    labels = session.runner.head.labels
    num_contrasted = len(indices_by_label)
    names = []
    label_indices: list[int] = []
    for word_indices in indices_by_label:
        names.append(find_common_tag_type([labels[index] for index in word_indices]))
        label_indices += word_indices
    if num_contrasted == 2 and indices_by_label[0] == indices_by_label[1]:
        raise BadTarget(
            f"Both sides of the contrast are {names[0]}. Give two labels that differ.",
            code="contrast-of-equal-labels",
        )
    row = replace(
        row,
        target_positions=tuple(first_positions) * num_contrasted,
        continuation_ids=tuple(label_indices),
    )
    kind: Literal["contrast", "continuation"] = "contrast"
    if num_contrasted == 1:
        kind = "continuation"
    terms = _sum_terms(num_contrasted, len(first_positions))
    return row, ResolvedTarget(kind, " rather than ".join(names), terms)


def _choose_labels(
    session: Session, row: TokenRow, first_positions: list[int], contrasted_labels: Sequence[Any]
) -> list[list[int]]:
    """Return, for each contrasted label, the likeliest fitting label at each word."""
    head = session.runner.head
    label_choices = {
        **group_labels_by_type(head.labels),
        "predicted": list(range(len(head.labels))),
    }
    logits = _compute_logits_at(session, row, first_positions)
    indices_by_label = []
    for label in contrasted_labels:
        try:
            choices = np.array(label_choices.get(label) or [head.find_label_index(label)])
        except UnknownName:
            known = (*head.labels, *label_choices)
            raise UnknownName.from_choices("label", label, known) from None
        word_indices = []
        for word_logits in logits:
            # Of a type such as PER, B-PER or I-PER, whichever is likelier here.
            likeliest = np.argmax(word_logits[choices])
            word_indices.append(int(choices[likeliest]))
        indices_by_label.append(word_indices)
    return indices_by_label


def _sum_terms(num_contrasted: int, num_words: int) -> LogitTerms:
    """Return the terms of a sum over words; those of the second label are subtracted."""
    terms = []
    for label_number in range(num_contrasted):
        weight = 1.0 if label_number == 0 else -1.0
        for word in range(num_words):
            terms.append(((label_number * num_words + word, 0), weight))
    return tuple(terms)


def _compute_logits_at(
    session: Session, row: TokenRow, positions: Sequence[int]
) -> list[np.ndarray]:
    """Return the logits of the labels at each position."""
    rows = [replace(row, target_position=position) for position in positions]
    return list(stream_logits(session.runner, rows))


def _list_word_positions(row: TokenRow) -> list[list[int]]:
    """Return the positions of each word's tokens, without special tokens."""
    words = []
    for positions in group_by_word(row):
        first = positions[0]
        if row.word_ids[first] is not None and not row.special_tokens_mask[first]:
            words.append(positions)
    return words


def _extract_text_at(row: TokenRow, positions: Sequence[int]) -> str:
    return row.extract_text(positions, " ").strip()


def _find_words(row: TokenRow, target: TokenTarget) -> list[int]:
    """Return the first position of each word that is meant: a token number, a word, or words in a row.

    Raises:
        BadTarget: The text has no such token or word.
    """
    token = target.token
    if isinstance(token, int) and not isinstance(token, bool):
        if not 0 <= token < len(row):
            raise BadTarget(
                f"Token {token} is outside the text, which has tokens 0 to {len(row) - 1}.",
                code="token-outside-text",
            )
        return [token]
    phrase = str(token)
    matches = _find_phrase(row, phrase)
    if not matches:
        # A single token may be named by its surface form, too.
        for position, surface in enumerate(row.surface_forms):
            if surface == phrase:
                matches[position] = [position]
    if not matches:
        listed_words = [
            _extract_text_at(row, positions)
            for positions in _list_word_positions(row)[:MAX_LISTED_WORDS]
        ]
        raise BadTarget(
            f"The text has no word {phrase!r}. Its words are: {', '.join(listed_words)}.",
            code="word-not-in-text",
        )
    chosen = pick_occurrence(
        list(matches), target.occurrence, f"the word {phrase!r}", "the text", "tokens"
    )
    return matches[chosen]


def _find_phrase(row: TokenRow, phrase: str) -> dict[int, list[int]]:
    """Find consecutive words that read as ``phrase``: first position → first position of each word."""
    words = _list_word_positions(row)
    matches: dict[int, list[int]] = {}
    for first, first_word in enumerate(words):
        tokens: list[int] = []
        for last in range(first, len(words)):
            # A phrase does not reach from one text into the next.
            if row.segments[words[last][0]] != row.segments[first_word[0]]:
                break
            tokens += words[last]
            text = _extract_text_at(row, tokens)
            if text == phrase:
                matches[first_word[0]] = [word[0] for word in words[first : last + 1]]
            if len(text) >= len(phrase):
                break
    return matches
