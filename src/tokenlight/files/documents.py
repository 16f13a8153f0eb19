"""JSON and YAML that others wrote: read within limits of size, depth, digits and aliases.

Drop-in for ``json.loads``, ``Path.read_text`` and ``yaml.safe_load``: what is beyond a limit is a
``ValueError`` in words, as malformed text is, so that each caller names its own file and way out.
"""

import json
import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import IO, Any

from tokenlight.errors import DamagedFile

BYTES = 1 << 28  # of one document; a saved picture of the most pixels stays under a quarter of it
DEPTH = 64  # lists in lists; Python itself gives up near a thousand, in the middle of later work
DIGITS = 300  # of one number: beyond 308 no float holds it
LONGEST = 1 << 26  # characters of a line or a cell
LINE = 32  # what a line costs to read, in characters: a thousand million empty ones never end
UNPACKED, DENSE = 1 << 28, 200  # characters of a .gz, and how many a packed byte may become
TOO_DEEP = f"its lists stand in lists more than {DEPTH} deep"
NODES = 100_000  # of a YAML document with its aliases written out


def text_of(place: str | os.PathLike[str], most: int = BYTES) -> str:
    """The text of a file, of at most ``most`` bytes; a device that never ends is left there, too."""
    with Path(place).open("rb") as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it has more than {most:,} bytes")
    return content.decode("utf-8")


def lines_of(stream: IO[str], place: Path) -> Iterator[str]:
    """The lines of an open file, each in bounds: one without line ends, or packed from a thousand
    times its size, is refused before it fills the memory."""
    packed = place.stat().st_size if place.name.lower().endswith(".gz") else None
    read = 0
    for number in count(1):
        line = stream.readline(LONGEST + 1)
        if not line:
            return
        if len(line) > LONGEST:
            raise DamagedFile(
                f"line {number} of {place.name} has more than {LONGEST:,} characters; one text a line."
            )
        read += len(line) + LINE
        if packed is not None and read > max(UNPACKED, DENSE * packed):
            raise DamagedFile(
                f"{place.name} unpacks to more than {DENSE} times its size; unpack it if you trust it."
            )
        yield line


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
    """``yaml.safe_load`` within the limits; raises its ``YAMLError``, too."""
    import yaml

    try:
        node = yaml.compose(text, yaml.SafeLoader)
        if node is None:
            return None
        _written_out(node, {})
        return yaml.SafeLoader("").construct_document(node)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    except (AttributeError, TypeError) as broken:  # the library trusts what a tag says
        raise ValueError("a value in it is not what its tag says") from broken


def _whole(digits: str) -> int:
    if len(digits) > DIGITS:
        raise ValueError(f"a number in it has {len(digits):,} digits, and at most {DIGITS} count")
    return int(digits)


def _written_out(node: Any, known: dict[int, int], depth: int = 0) -> int:
    """How many nodes ``node`` is with its aliases written out; each is counted once."""
    if depth > DEPTH:
        raise ValueError(TOO_DEEP)
    if id(node) in known:
        if not known[id(node)]:
            raise ValueError("an alias in it stands inside of what it names")
        return known[id(node)]
    known[id(node)] = 0  # begun, not ended: an alias that meets it would never end
    value = node.value if isinstance(node.value, list) else []
    parts = [part for one in value for part in (one if isinstance(one, tuple) else (one,))]
    size = 1 + sum(_written_out(part, known, depth + 1) for part in parts)
    if size > NODES:
        raise ValueError(f"its aliases written out are more than {NODES:,} values")
    known[id(node)] = size
    return size
