"""Texts read part by part: while a GPU works at some of them, the next are read."""

from collections.abc import Iterator, Sequence
from typing import Any

from tokenlight.data.tokens import TokenRow
from tokenlight.explaining.jobs import together
from tokenlight.explaining.options import How
from tokenlight.explaining.session import Session

DEVICES = {"cuda"}  # that work while Python reads
LIGHT = 1e9  # weights: with more, reading is no matter, and a text is better refused before the first pass
FIRST, PART = (
    1024,
    8192,
)  # texts; the larger a part, the more alike in length are those that go together


class Lookahead:
    """The rows of ``texts``, as :func:`together` has them. All are read at once where that does not keep a
    device waiting."""

    def __init__(self, session: Session, texts: Sequence[Any], how: How) -> None:
        live = session.live
        waits = live.device.type in DEVICES and live.head.reads == "text"
        self.parted = waits and live.replays.size < LIGHT
        self._session, self._texts, self._how = session, texts, how
        self.rows: list[TokenRow | None] = []

    def step(self) -> None:
        """Read some more."""
        begin = len(self.rows)
        texts = self._texts[begin : begin + FIRST if self.parted else None]
        if len(texts):
            self.rows += together(self._session, texts, self._how)

    def parts(self) -> Iterator[range]:
        """The numbers of texts that are read, part by part."""
        begin, count = 0, len(self._texts)
        size = FIRST if self.parted else count
        while begin < count:
            part = range(begin, min(begin + size, count))
            while len(self.rows) < part.stop:
                self.step()
            yield part
            begin, size = part.stop, min(2 * size, PART)
