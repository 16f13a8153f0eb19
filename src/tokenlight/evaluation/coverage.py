"""What the numbers of an evaluation do not cover: texts cut, not explained or not measured."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenlight.evaluation.measure import Failure, Record

# As Python writes a string, or as we quote a word; an apostrophe within a word opens nothing.
QUOTED = re.compile(r"""(?<!\w)(?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")(?!\w)|‘[^’]*’""", re.DOTALL)
EVERY = "any metric"  # what a text is not measured by where measuring itself broke


@dataclass(frozen=True, slots=True)
class Cut:
    """Which texts were cut, of how many, and the lengths in tokens they were cut to."""

    texts: frozenset[int]
    among: int
    tokens: tuple[int, ...]

    def __str__(self) -> str:
        lengths = " to ".join(str(one) for one in dict.fromkeys((self.tokens[0], self.tokens[-1])))
        noun = "token" if self.tokens[-1] == 1 else "tokens"
        counted = _counted(len(self.texts), self.among)
        return f"{counted} cut to {lengths} {noun} (long=truncate)."

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {"texts": len(self.texts), "of": self.among, "tokens": list(self.tokens)}


@dataclass(frozen=True, slots=True)
class Omission:
    """Texts that these methods have no number for, and why.

    ``metric``: what they are not measured by; None: they are not explained. ``partly``: only some of
    their explanations are not, say those of one class. ``reason`` is an example where there are
    ``several``, which differ in numbers and quoted words only.
    """

    methods: tuple[str, ...]
    metric: str | None
    texts: frozenset[int]
    among: int
    reason: str
    several: bool = False
    partly: bool = False

    @property
    def why(self) -> str:
        """The reason, said to be an example where it is one."""
        return f"for example: {self.reason}" if self.several else self.reason

    def __str__(self) -> str:
        names = ", ".join(self.methods)
        what = f"explained by {names}"
        if self.metric is not None:
            what = f"measured by {self.metric} ({names})"
        part = "only in part" if self.partly else "not"
        return f"{_counted(len(self.texts), self.among)} {part} {what}: {self.why}"

    def to_dict(self) -> dict[str, Any]:
        """JSON values; of one method."""
        return {
            "method": self.methods[0],
            "metric": self.metric,
            "texts": len(self.texts),
            "of": self.among,
            "partly": self.partly,
            "reason": self.reason,
        }


def cut_texts(records: Sequence[Record], refusals: Sequence[Failure]) -> Cut:
    """The texts whose end (of a prompt: whose beginning) no method saw."""
    found = [record for record in records if record.cut]
    lengths = sorted({record.tokens for record in found})
    texts = frozenset(record.text for record in found)
    return Cut(texts, _texts(records, refusals), tuple(lengths))


def omissions(records: Sequence[Record], refusals: Sequence[Failure]) -> list[Omission]:
    """What is left out, one entry for each method, metric and reason."""
    found: dict[tuple[str, str | None, str, bool], set[int]] = {}
    for refusal in refusals:
        metric = None if refusal.step == "explained" else EVERY
        found.setdefault((refusal.method, metric, refusal.reason, False), set()).add(refusal.text)
    numbered = {(one.method, key, one.text) for one in records for key in one.measured}
    for record in records:
        for key, reason in record.skipped.items():
            partly = (record.method, key, record.text) in numbered
            found.setdefault((record.method, key, reason, partly), set()).add(record.text)
    among = _texts(records, refusals)
    return [
        Omission((method,), metric, frozenset(texts), among, reason, partly=partly)
        for (method, metric, reason, partly), texts in found.items()
    ]


def together(listed: Sequence[Omission]) -> list[Omission]:
    """The same in few lines: reasons that differ in numbers and quoted words only become one, and so
    do methods that leave out the same texts for the same reason."""
    alike: dict[Any, list[Omission]] = {}
    for one in listed:
        # A reason without what it says of one text: its numbers, and what it quotes of it.
        shape = re.sub(r"\d+", "#", QUOTED.sub("'…'", one.reason))
        alike.setdefault((one.methods[0], one.metric, one.partly, shape), []).append(one)
    methods: dict[Any, list[str]] = {}
    for (method, metric, partly, _), group in alike.items():
        texts = frozenset(text for one in group for text in one.texts)
        key = (metric, texts, group[0].reason, len(group) > 1, partly)
        methods.setdefault(key, []).append(method)
    among = listed[0].among if listed else 0
    return [
        Omission(tuple(names), metric, texts, among, reason, several, partly)
        for (metric, texts, reason, several, partly), names in methods.items()
    ]


def _texts(records: Sequence[Record], refusals: Sequence[Failure]) -> int:
    return len({one.text for one in records} | {one.text for one in refusals})


def _counted(count: int, among: int) -> str:
    noun, verb = "text" if among == 1 else "texts", "was" if count == 1 else "were"
    return f"{count} of {among} {noun} {verb}"
