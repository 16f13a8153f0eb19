"""Read JSON, YAML and lines of text that others wrote, within limits of size, depth and digits.

The functions replace ``json.loads``, ``Path.read_text`` and ``yaml.safe_load``. A value beyond a limit raises
a ``ValueError``, as malformed text does, so that each caller names its own file and remedy.
"""

import gzip
import io
import json
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import IO, Any

from tokenlight.errors import DamagedFile

# Of one document; a saved image of the most pixels stays below a quarter of it.
MAX_DOCUMENT_BYTES = 1 << 28
# Of nested lists; Python itself gives up near a thousand, in the middle of later work.
MAX_DEPTH = 64
MAX_DIGITS = 300  # of one number: beyond 308 no float holds it
MAX_LINE_BYTES = 1 << 26  # bytes of a line, characters of a cell
# What each line counts besides its bytes, because a billion empty lines would take forever.
LINE_OVERHEAD_BYTES = 32
# Of a .gz file: bytes that may be unpacked in any case, and per packed byte.
MAX_UNPACKED_BYTES = 1 << 28
MAX_COMPRESSION_RATIO = 200
TOO_DEEP_MESSAGE = f"its lists are nested more than {MAX_DEPTH} deep"


def read_text(path: str | os.PathLike[str], max_bytes: int = MAX_DOCUMENT_BYTES) -> str:
    """Return the text of a file.

    Raises:
        ValueError: It has more than ``max_bytes`` bytes, or is not UTF-8.
    """
    with Path(path).open("rb") as stream:
        # One byte more, so that a device that never ends is recognized, too.
        content = stream.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"it has more than {max_bytes:,} bytes")
    return content.decode("utf-8")


@contextmanager
def open_decompressed(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading; of a ``.gz``, what is packed in it."""
    is_packed = path.name.lower().endswith(".gz")
    with path.open("rb") as raw:
        stream: Any = gzip.GzipFile(fileobj=raw) if is_packed else raw
        with io.BufferedReader(stream) as buffered:  # files of remote stores have no readline
            yield buffered


def read_lines(path: Path) -> Generator[str, None, None]:
    """Yield the lines of a file, split at line feeds only: JSON strings may hold other separators.

    Close the generator (``contextlib.closing``): an error that is kept would keep the file open, too.

    Raises:
        DamagedFile: A line is too long or not UTF-8, or the file unpacks to too much.
    """
    max_unpacked = None
    if path.name.lower().endswith(".gz"):
        max_unpacked = max(MAX_UNPACKED_BYTES, MAX_COMPRESSION_RATIO * path.stat().st_size)
    num_bytes = 0
    with open_decompressed(path) as stream:
        for number in count(1):
            line = stream.readline(MAX_LINE_BYTES + 1)
            if not line:
                return
            num_bytes += len(line) + LINE_OVERHEAD_BYTES
            if len(line) > MAX_LINE_BYTES:
                raise DamagedFile(
                    f"Line {number} of {path.name} has more than {MAX_LINE_BYTES:,} bytes. Write one text "
                    "per line.",
                    code="line-too-long",
                )
            if max_unpacked is not None and num_bytes > max_unpacked:
                raise DamagedFile(
                    f"At line {number}, {path.name} exceeds {MAX_COMPRESSION_RATIO} times its .gz size. "
                    "Unpack the file if you trust it.",
                    code="unpacked-too-large",
                )
            yield _decode_line(line, number, path)


def _decode_line(line: bytes, number: int, path: Path) -> str:
    """Decode a line; the first one may begin with a byte order mark."""
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise DamagedFile(
            f"Line {number} of {path.name} is not UTF-8 ({error.reason}, byte {error.start}). Save the file "
            "as UTF-8, for example: iconv -f latin1 (or utf-16) -t utf-8 OLD > NEW.",
            code="line-not-utf8",
        ) from error


def parse_json(text: str, **hooks: Any) -> Any:
    """Parse JSON within the limits.

    Args:
        text: The JSON.
        hooks: Keywords of ``json.loads``, such as ``parse_constant``.

    Raises:
        ValueError: The text is not JSON, or beyond a limit.
    """
    try:
        content = json.loads(text, parse_int=_parse_integer, **hooks)
    except RecursionError:
        raise ValueError(TOO_DEEP_MESSAGE) from None
    # Counting brackets is fast, and settles it for most documents.
    if text.count("[") + text.count("{") > MAX_DEPTH and _is_too_deep(content):
        raise ValueError(TOO_DEEP_MESSAGE)
    return content


def _is_too_deep(content: Any) -> bool:
    """Return whether lists and objects are nested more than ``MAX_DEPTH`` deep."""
    # One level deeper in each step; what remains in the end is too deep.
    level: list[Any] = [[content]]
    for _ in range(MAX_DEPTH + 2):
        next_level: list[Any] = []
        for container in level:
            values = container.values() if isinstance(container, dict) else container
            next_level.extend(value for value in values if isinstance(value, dict | list))
        level = next_level
    return bool(level)


def read_json(path: str | os.PathLike[str]) -> Any:
    """Return the JSON of a file."""
    return parse_json(read_text(path))


def parse_yaml(text: str) -> Any:
    """Parse YAML within the limits, without aliases, by which a few lines can become endless values.

    Raises:
        ValueError: The text has an alias, is too deep, or a value does not fit its tag.
    """
    import yaml

    # The parser in C, about eight times as fast, is missing where PyYAML was built without libyaml.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    depth = 0
    for event in yaml.parse(text, loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise ValueError(TOO_DEEP_MESSAGE)
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f"it has an alias, *{event.anchor}; write out what it stands for")
    try:
        return yaml.load(text, loader)
    except (AttributeError, TypeError) as error:  # the library trusts tags
        raise ValueError("a value in it is not what its tag says") from error


def _parse_integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(
            f"a number in it has {len(digits):,} digits, more than the {MAX_DIGITS} that are read"
        )
    return int(digits)
