"""JSON and YAML that others wrote: read within limits of size, depth and digits.

Drop-in for ``json.loads``, ``Path.read_text`` and ``yaml.safe_load``: what is beyond a limit is a
``ValueError`` in words, as malformed text is, so that each caller names its own file and way out.
"""

import gzip
import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import IO, Any

from tokenlight.errors import DamagedFile

BYTES = 1 << 28  # of one document; a saved picture of the most pixels stays under a quarter of it
DEPTH = 64  # lists in lists; Python itself gives up near a thousand, in the middle of later work
DIGITS = 300  # of one number: beyond 308 no float holds it
LONGEST = 1 << 26  # bytes of a line, characters of a cell
LINE = 32  # what a line costs to read, in bytes: a thousand million empty ones never end
UNPACKED, DENSE = 1 << 28, 200  # bytes in a .gz, and how many a packed byte may become
TOO_DEEP = f"its lists stand in lists more than {DEPTH} deep"


def text_of(place: str | os.PathLike[str], most: int = BYTES) -> str:
    """The text of a file, of at most ``most`` bytes; a device that never ends is left there, too."""
    with Path(place).open("rb") as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it has more than {most:,} bytes")
    return content.decode("utf-8")


@contextmanager
def unpacked(place: Path) -> Iterator[IO[bytes]]:
    """The bytes of a file; of a ``.gz``, what is packed in it."""
    packed = place.name.lower().endswith(".gz")
    with place.open("rb") as raw:
        stream: Any = gzip.GzipFile(fileobj=raw) if packed else raw
        with io.BufferedReader(stream) as buffered:  # stores read by blocks, and know no lines
            yield buffered


def lines_of(place: Path) -> Iterator[str]:
    """The lines of a file, each in bounds; cut at line feeds alone: JSON strings may hold other ends."""
    packed = place.stat().st_size if place.name.lower().endswith(".gz") else None
    read, wrong = 0, ""
    with unpacked(place) as stream:
        for number in count(1):
            line = stream.readline(LONGEST + 1)
            if not line:
                return
            read += len(line) + LINE
            if len(line) > LONGEST:
                wrong = f"has more than {LONGEST:,} bytes; one text a line"
            elif packed is not None and read > max(UNPACKED, DENSE * packed):
                wrong = f"is beyond {DENSE} times the packed size; unpack it if you trust it"
            try:
                text = line.decode("utf-8" if number > 1 else "utf-8-sig")
            except UnicodeDecodeError as broken:
                wrong = wrong or (
                    f"is not UTF-8 ({broken.reason}, byte {broken.start}). Save the file as UTF-8, for "
                    "example: iconv -f latin1 (or utf-16) -t utf-8 OLD > NEW"
                )
            if wrong:
                raise DamagedFile(f"line {number} of {place.name} {wrong}.")
            yield text


def json_of(text: str, **hooks: Any) -> Any:
    """``json.loads`` within the limits; ``hooks`` are its own, such as ``parse_constant``."""
    try:
        content = json.loads(text, parse_int=_whole, **hooks)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    level: list[Any] = [[content]] if text.count("[") + text.count("{") > DEPTH else []
    for _ in range(DEPTH + 2):
        inside = [one.values() if isinstance(one, dict) else one for one in level]
        level = [inner for own in inside for inner in own if isinstance(inner, dict | list)]
    if level:
        raise ValueError(TOO_DEEP)
    return content


def json_in(place: str | os.PathLike[str]) -> Any:
    """The JSON of a file."""
    return json_of(text_of(place))


def yaml_of(text: str) -> Any:
    """``yaml.safe_load`` within the limits; no aliases, of which a few lines make endless values."""
    import yaml

    depth = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEPTH:
            raise ValueError(TOO_DEEP)
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f"it has an alias, *{event.anchor}; write out what it stands for")
    try:
        return yaml.safe_load(text)
    except (AttributeError, TypeError) as broken:  # the library trusts what a tag says
        raise ValueError("a value in it is not what its tag says") from broken


def _whole(digits: str) -> int:
    if len(digits) > DIGITS:
        raise ValueError(f"a number in it has {len(digits):,} digits, and at most {DIGITS} count")
    return int(digits)
