"""Targets where a head has labels for each token: a hidden word, a word, a name of several words."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tokenlight.capture.perturbation import stream_logits
from tokenlight.data.answers import one_place
from tokenlight.data.target import Contrast, ResolvedTarget, TokenTarget
from tokenlight.data.tokens import TokenRow
from tokenlight.data.units import merged, type_name, types_of, word_groups
from tokenlight.errors import BadInput, BadTarget, UnknownName, way
from tokenlight.explaining.options import Job
from tokenlight.explaining.session import Session

ENTITIES = "entities"


def masked(session: Session, row: TokenRow, target: Any) -> Job:
    """The row with its masked token named as the one that is asked about."""
    if row.at is not None:
        return row, target
    if isinstance(target, TokenTarget):
        return replace(row, at=_firsts_of(row, target)[0]), target.label
    mask = getattr(session.tokenizer, "mask_token_id", None)
    places = [place for place, i in enumerate(row.ids) if i == mask]
    if len(places) != 1:
        name = getattr(session.tokenizer, "mask_token", None) or "the mask token"
        raise BadInput(
            f"a masked token is filled in, and the text has {len(places)}: write {name} once where the word "
            f"is to be, or name one by its number: {way('TokenTarget(number, …)', '--token NUMBER')}."
        )
    return replace(row, at=places[0]), target


def labelled(session: Session, row: TokenRow, target: Any) -> list[Job]:
    """The words asked about, each with its label, which stands at its first token: one, every one, or a name
    of several as one target. A bare label or contrast is asked of the one name that is given that label."""
    if row.at is not None or row.asked:
        return [(row, target)]
    if isinstance(target, TokenTarget):
        return [_asked(session, row, _firsts_of(row, target), target.label)]
    words, head = _words(row), session.live.head
    firsts = [word[0] for word in words]
    if target == "all":
        return [(replace(row, at=place), "predicted") for place in firsts]
    typed = types_of(head.labels)
    tags = [head.labels[int(np.argmax(own))] for own in _logits_at(session, row, firsts)]
    names = merged(tags) if typed else [range(i, i + 1) for i in range(len(tags))]
    this = target.this if isinstance(target, Contrast) else target
    # A name is meant by its tags, or by what they have in common; without names any word would be.
    called = [{*(own := [tags[i] for i in name]), type_name(own)} for name in names]
    every = this in ("predicted", ENTITIES) and typed
    fitting = [name for name, own in zip(names, called, strict=True) if every or this in own]
    if len(fitting) == 1 or (fitting and target == ENTITIES):
        label = "predicted" if target == ENTITIES else target
        return [_asked(session, row, [firsts[i] for i in name], label) for name in fitting]
    said = ", ".join(f"{_text(row, word)} {tag}" for word, tag in zip(words, tags, strict=True))
    raise BadTarget(f"say which word is to be explained: {head.does}. The model says: {said}.")


def _asked(session: Session, row: TokenRow, firsts: list[int], label: Any) -> Job:
    """The words whose first tokens stand at ``firsts``, as one target."""
    head = session.live.head
    sides: tuple[Any, ...] = (label.this, label.that) if isinstance(label, Contrast) else (label,)
    typed = types_of(head.labels)
    if len(firsts) == 1 and not any(side in typed for side in sides):
        return replace(row, at=firsts[0]), label
    logits = _logits_at(session, row, firsts)
    several = {**typed, "predicted": [*range(len(head.labels))]}
    chosen = []  # of each side's tags the likeliest at each word
    for side in sides:
        try:
            tags = np.array(several.get(side) or [head.label_index(side)])
        except UnknownName:
            raise UnknownName.among("label", side, (*head.labels, *several)) from None
        chosen.append([int(tags[np.argmax(said[tags])]) for said in logits])
    if len(firsts) == 1:
        numbers: list[int] = [own[0] for own in chosen]
        return replace(row, at=firsts[0]), Contrast(*numbers) if numbers[1:] else numbers[0]
    names = [type_name([head.labels[i] for i in own]) for own in chosen]
    if len(chosen) == 2 and chosen[0] == chosen[1]:
        raise BadTarget(f"the contrast names one label twice: {names[0]}. Give two that differ.")
    terms = tuple(
        ((side * len(firsts) + word, 0), (1.0, -1.0)[side])
        for side in range(len(chosen))
        for word in range(len(firsts))
    )
    answer = tuple(i for own in chosen for i in own)
    row = replace(row, asked=tuple(firsts) * len(chosen), answer=answer)
    name = " rather than ".join(names)
    return row, ResolvedTarget("contrast" if len(chosen) > 1 else "answer", name, terms)


def _logits_at(session: Session, row: TokenRow, places: Sequence[int]) -> list[np.ndarray]:
    return list(stream_logits(session.live, [replace(row, at=place) for place in places]))


def _words(row: TokenRow) -> list[list[int]]:
    """The places of each word's tokens; special tokens are no words."""
    words, special = row.words, row.special
    return [o for o in word_groups(row) if words[o[0]] is not None and not special[o[0]]]


def _text(row: TokenRow, places: Sequence[int]) -> str:
    return row.written(places, " ").strip()


def _firsts_of(row: TokenRow, target: TokenTarget) -> list[int]:
    """The first token of each word that is meant: a word, words in a row, or a token by its number."""
    at = target.at
    if isinstance(at, int) and not isinstance(at, bool):
        if not 0 <= at < len(row):
            raise BadTarget(f"token {at} is outside the text of tokens 0 to {len(row) - 1}.")
        return [at]
    at, words = str(at), _words(row)
    found: dict[int, list[int]] = {}
    for first, word in enumerate(words):
        tokens: list[int] = []
        for behind in range(first, len(words)):
            if row.segments[words[behind][0]] != row.segments[word[0]]:
                break
            tokens += words[behind]
            text = _text(row, tokens)
            if text == at:
                found[word[0]] = [own[0] for own in words[first : behind + 1]]
            if len(text) >= len(at):
                break
    found = found or {i: [i] for i, surface in enumerate(row.surface) if surface == at}
    if not found:
        named = ", ".join(_text(row, word) for word in words[:20])
        raise BadTarget(f"the text has no word {at!r}; its words: {named}.")
    sought = f"the word {at!r}"
    return found[one_place(list(found), target.occurrence, sought, "the text", "tokens")]
