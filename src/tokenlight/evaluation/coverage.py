"""What the numbers of an evaluation do not cover: texts cut, not explained or not measured."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tokenlight.evaluation.measure import Failure, Record

# As Python writes a string, or as we quote a word; an apostrophe within a word opens nothing.
QUOTED = re.compile(r"""(?<!\w)(?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")(?!\w)|‘[^’]*’""", re.DOTALL)
EVERY = "any metric"  # what a text is not measured by where measuring itself broke


@dataclass(frozen=True, slots=True)
class Omission:
    """Texts that these methods have no number for, and why.

    ``metric``: what they are not measured by; None: they are not explained. ``partly``: only some of
    their explanations are not, say those of one class.
    """

    methods: tuple[str, ...]
    metric: str | None
    texts: frozenset[int]
    among: int
    reason: str
    partly: bool = False

    def __str__(self) -> str:
        names = ", ".join(self.methods)
        what = f"measured by {self.metric} ({names})" if self.metric else f"explained by {names}"
        counted = _counted(len(self.texts), self.among)
        return f"{counted} {'only in part' if self.partly else 'not'} {what}: {self.reason}"

    def to_dict(self) -> dict[str, Any]:
        """JSON values; of one method."""
        counts = {"texts": len(self.texts), "of": self.among, "partly": self.partly}
        return {"method": self.methods[0], "metric": self.metric, **counts, "reason": self.reason}


def cut_texts(records: Sequence[Record], refusals: Sequence[Failure]) -> dict[str, Any]:
    """How many texts' end (of a prompt: whose beginning) no method saw, and the tokens left of them."""
    found = [record for record in records if record.cut]
    lengths = sorted({record.tokens for record in found})
    texts = {record.text for record in found}
    return {"texts": len(texts), "of": _among(records, refusals), "tokens": lengths}


def cut_in_words(cut: Mapping[str, Any]) -> str:
    """Empty where no text was cut."""
    if not cut["texts"]:
        return ""
    shortest, longest = cut["tokens"][0], cut["tokens"][-1]
    to = f"{shortest} to {longest}" if shortest < longest else str(longest)
    return f"{_counted(cut['texts'], cut['of'])} cut to {to} tokens (long=truncate)."


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
    among = _among(records, refusals)
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
        alike.setdefault((one.methods, one.metric, one.partly, shape), []).append(one)
    found: dict[Omission, tuple[str, ...]] = {}
    for first, *others in alike.values():
        texts = first.texts.union(*(one.texts for one in others))
        reason = f"for example: {first.reason}" if others else first.reason
        same = replace(first, methods=(), texts=texts, reason=reason)
        found[same] = (*found.get(same, ()), *first.methods)
    return [replace(one, methods=methods) for one, methods in found.items()]


def _among(records: Sequence[Record], refusals: Sequence[Failure]) -> int:
    return len({one.text for one in records} | {one.text for one in refusals})


def _counted(count: int, among: int) -> str:
    noun, verb = "text" if among == 1 else "texts", "was" if count == 1 else "were"
    return f"{count} of {among} {noun} {verb}"
