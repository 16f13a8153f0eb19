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
from tokenlight.plots.passages import SegmentText, Stretch
from tokenlight.plots.pieces import goes_on, piece_in_word

ANSWER, RIVAL = "answer", "rival"
EXPLAINED, LATER = "explained", "later"
CUT = "cut"  # text behind what the model read
Roles = Mapping[str, frozenset[int]]  # role -> its tokens


def laid_over(attributions: Sequence[Attribution]) -> list[Attribution]:
    """Explanations of successive written tokens as explanations of one text with several targets.

    Each token was explained from what stands before it; what stands behind it has score 0 and
    attention 0 (:func:`unread`). Targets are numbered, since a text may hold a token twice. Other
    attributions stay as they are.
    """
    longest: dict[object, Attribution] = {}
    counts: dict[object, int] = {}
    for a in attributions:
        key = _key(a)
        if key is None:
            continue
        counts[key] = counts.get(key, 0) + 1
        if key not in longest or len(a) > len(longest[key]):
            longest[key] = a
    return [
        a if key is None or counts[key] < 2 else _over(a, longest[key])
        for a, key in ((a, _key(a)) for a in attributions)
    ]


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


def unread_whole(a: Attribution, segment: int | None) -> bool:
    """Whether no token of a segment was there yet: the first written token has none before it."""
    later = unread(a)
    own = [later[place] for place, home in enumerate(a.row.segments) if home == segment]
    return bool(own) and all(own)


def explained_text(a: Attribution) -> str:
    """The written token that is explained, out of the quotes of its target's name."""
    return a.target.name.partition("‘")[2].removesuffix("’").removeprefix("…")


def _key(a: Attribution) -> object:
    """What the explanations of one continuation by one method share; None for any other."""
    if not is_continuation(a) or a.target.index is None:
        return None
    return (a.model, a.method, repr(sorted(a.options.items())), a.row.texts)


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


def token_roles(attribution: Attribution) -> Roles:
    """The roles of the tokens of an attribution that was not merged to words."""
    return _written(attribution) if is_continuation(attribution) else _answers(attribution)


def word_roles(attribution: Attribution) -> Roles:
    """The same for the words they merge to; a word begun before, or explained, is not later."""
    groups = word_groups(attribution.row)
    numbers = [number for number, group in enumerate(groups) for _ in group]
    found = {
        role: frozenset(numbers[i] for i in places)
        for role, places in token_roles(attribution).items()
    }
    if LATER in found:
        seen = np.flatnonzero(~unread(attribution))
        found[LATER] -= found[EXPLAINED] | {numbers[i] for i in seen}
    return found


def with_roles(
    attribution: Attribution, passage: SegmentText, roles: Roles
) -> Iterator[tuple[Stretch, tuple[str, ...]]]:
    """The stretches of a passage with their roles; text behind the last token is cut where the
    explained token ends."""
    row = attribution.row
    last = max(
        (n for n, s in enumerate(passage.stretches) if s.positions and not s.special), default=-1
    )
    written = is_continuation(attribution) and passage.segment == len(row.names) - 1
    for place, stretch in enumerate(passage.stretches):
        if stretch.positions:
            yield stretch, tuple(r for r, places in roles.items() if places & {*stretch.positions})
        elif place <= last or not stretch.text.strip():
            yield stretch, ()
        elif written:
            yield from _behind(attribution, stretch.text, roles)
        else:
            yield stretch, (CUT,) if row.cut else ()


def _written(attribution: Attribution) -> Roles:
    places = list(map(int, np.flatnonzero(unread(attribution))))
    if not places:
        return {}
    return {EXPLAINED: frozenset(places[:1]), LATER: frozenset(places[1:])}


def _answers(attribution: Attribution) -> Roles:
    """The answer that a span target explains, and the one it is held against."""
    if attribution.target.kind != "span":
        return {}
    if any(made.startswith("merge_words") for made in attribution.steps):
        return {}  # the target counts tokens
    found = {}
    for role, sign in ((ANSWER, 1), (RIVAL, -1)):
        places = [at[0] for at, weight in attribution.target.terms if weight * sign > 0]
        if places:
            found[role] = frozenset(range(min(places), max(places) + 1))
    return found


def _behind(
    attribution: Attribution, text: str, roles: Roles
) -> Iterator[tuple[Stretch, tuple[str, ...]]]:
    """Written text that is no token of the row: the last token of all is explained, never read."""
    core = text.lstrip()
    own = "" if EXPLAINED in roles else explained_text(attribution)
    if not core.startswith(own):
        own = ""  # a part of a character
    lead = len(text) - len(core)
    if lead:
        yield Stretch(text[:lead]), ()
    if own:
        yield Stretch(own), (EXPLAINED,)
    if len(core) > len(own):
        yield Stretch(core[len(own) :]), (LATER,)
