"""A continuation as one picture, and tokens that play a part: an answer, the token explained here.

The explanations of a continuation's tokens are laid over the whole text. A row explains one written token
from those before it: that token is marked, and what was written after it is shown as not yet there, since
it had no say.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.data.units import WRITTEN, word_groups
from tokenlight.plots.passages import SegmentText, Stretch, goes_on, piece_in_word

ANSWER, RIVAL = "answer", "rival"
EXPLAINED, LATER = "explained", "later"
CUT = "cut"  # text behind what the model read
Roles = Mapping[str, set[int]]  # role -> its tokens


def laid_over(attributions: Sequence[Attribution]) -> list[Attribution]:
    """Explanations of successive written tokens as explanations of one text with several targets.

    Each token was explained from what stands before it; what stands behind it has score 0 and
    attention 0 (:func:`unread`). Targets are numbered, since a text may hold a token twice. Other
    attributions stay as they are.
    """
    alike: dict[object, list[Attribution]] = {}
    for a in attributions:
        if is_continuation(a) and a.target.index is not None:
            alike.setdefault(_key(a), []).append(a)
    several = {key: max(own, key=len) for key, own in alike.items() if len(own) > 1}
    return [
        _over(a, several[_key(a)]) if a.target.index is not None and _key(a) in several else a
        for a in attributions
    ]


def _key(a: Attribution) -> object:
    """What the explanations of one continuation by one method share."""
    return (a.model, a.method, repr(sorted(a.options.items())), a.row.texts, a.row.names)


def is_continuation(a: Attribution) -> bool:
    """Whether it explains a token that was written after a prompt."""
    return bool(a.row.names) and a.row.names[-1] == WRITTEN


def unread(a: Attribution) -> np.ndarray:
    """Which tokens of a laid-over continuation were not there yet: the explained one and those
    behind it. None of any other row, whatever is masked in it."""
    if not is_continuation(a):
        return np.zeros(len(a), dtype=bool)
    seen = np.flatnonzero(a.row.attention)
    return np.arange(len(a)) > (seen[-1] if seen.size else -1)


def explained_text(a: Attribution) -> str:
    """The written token that is explained, out of the quotes of its target's name."""
    return a.target.name.partition("‘")[2].removesuffix("’").removeprefix("…")


def _over(a: Attribution, whole: Attribution) -> Attribution:
    if a.row.ids != whole.row.ids[: len(a)]:
        return a
    behind = len(whole) - len(a)
    number = 1 + sum(segment == len(a.row.names) - 1 for segment in a.row.segments)
    name = a.target.name
    if behind:  # of a word in pieces: ‘L…’, ‘…ily’
        piece = piece_in_word(whole.row, len(a))
        marked = f"‘{'…' * bool(piece.before)}{piece.text}{'…' * bool(piece.after)}’"
        name = marked if name == f"‘{piece.text}’" else name
    elif len(a) and goes_on(a.row, explained_text(a)):
        name = name.replace("‘", "‘…", 1)
    layers = None if a.layers is None else np.pad(a.layers, ((0, 0), (0, behind)))
    return replace(
        a,
        row=whole.row.masked([place >= len(a) for place in range(len(whole))]),
        scores=np.pad(a.scores, (0, behind)),
        layers=layers,
        target=replace(a.target, name=f"{number}. {name}"),
    )


def roles_of(a: Attribution, *, words: bool) -> Roles:
    """The roles of its tokens, or of the words they merge to: of a continuation what is explained and what
    comes later, else the answer that a span target explains and its rival."""
    if is_continuation(a):
        places = [int(place) for place in np.flatnonzero(unread(a))]
        found = {EXPLAINED: {*places[:1]}, LATER: {*places[1:]}} if places else {}
    elif a.target.kind != "span" or any(made.startswith("merge_words") for made in a.steps):
        return {}  # the target counts tokens
    else:
        found = {}
        for role, sign in ((ANSWER, 1), (RIVAL, -1)):
            own = [at[0] for at, weight in a.target.terms if weight * sign > 0]
            found |= {role: {*range(min(own), max(own) + 1)}} if own else {}
    if not words:
        return found
    numbers = [number for number, group in enumerate(word_groups(a.row)) for _ in group]
    merged = {role: {numbers[i] for i in places} for role, places in found.items()}
    if LATER in merged:  # a word begun before, or explained, is not later
        merged[LATER] -= merged[EXPLAINED] | {numbers[i] for i in np.flatnonzero(~unread(a))}
    return merged


def with_roles(
    attribution: Attribution, passage: SegmentText, roles: Roles
) -> Iterator[tuple[Stretch, tuple[str, ...]]]:
    """The stretches of a passage with their roles; text behind the last token is cut where the
    explained token ends."""
    row = attribution.row
    own = [n for n, one in enumerate(passage.stretches) if one.positions and not one.special]
    written = is_continuation(attribution) and passage.segment == len(row.names) - 1
    for place, stretch in enumerate(passage.stretches):
        if stretch.positions:
            yield stretch, tuple(r for r, places in roles.items() if places & {*stretch.positions})
        elif place < max(own, default=0) or not stretch.text.strip():
            yield stretch, ()
        elif written:
            yield from _behind(attribution, stretch.text, roles)
        else:
            yield stretch, (CUT,) if row.cut else ()


def _behind(
    attribution: Attribution, text: str, roles: Roles
) -> list[tuple[Stretch, tuple[str, ...]]]:
    """Written text that is no token of the row: the last token of all is explained, never read."""
    core = text.lstrip()
    own = "" if EXPLAINED in roles else explained_text(attribution)
    own = own if core.startswith(own) else ""  # a part of a character
    parts = text[: len(text) - len(core)], own, core[len(own) :]
    played = (), (EXPLAINED,), (LATER,)
    return [(Stretch(part), role) for part, role in zip(parts, played, strict=True) if part]
