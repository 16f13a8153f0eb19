"""Make characters visible that would otherwise act, or be invisible.

Shown as symbols are: terminal commands (ESC, BEL), what HTML cannot hold (NUL), marks that change the
reading direction, and characters without width, which make two texts look the same that a model reads
differently. All other characters stay, and so do joiners within scripts and emoji that need them.
"""

import re
from unicodedata import category

_CHARACTER_NAMES = {
    0xAD: "SHY",
    0x61C: "ALM",
    0x180E: "MVS",
    0x200B: "ZWSP",
    0x200E: "LRM",
    0x200F: "RLM",
    0x202A: "LRE",
    0x202B: "RLE",
    0x202C: "PDF",
    0x202D: "LRO",
    0x202E: "RLO",
    0x2060: "WJ",
    0x2066: "LRI",
    0x2067: "RLI",
    0x2068: "FSI",
    0x2069: "PDI",
    0xFEFF: "BOM",
}
_SYMBOLS: dict[int, str] = {
    # Control characters have symbols of their own in Unicode, in the same order.
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"},
    0x7F: "␡",
    **{code: f"⟨{code:02X}⟩" for code in range(0x80, 0xA0)},
    **{code: f"⟨{name}⟩" for code, name in _CHARACTER_NAMES.items()},
    **{code: f"⟨{code:X}⟩" for code in range(0x2061, 0x2065)},  # invisible plus, times …
    # Half of a surrogate pair is no character: no file and no terminal accepts it.
    **{code: f"⟨{code:X}⟩" for code in range(0xD800, 0xE000)},
}
# Fonts that lack the control pictures of Unicode have this arrow; line breaks are what answers are full of.
_SINGLE_LINE_SYMBOLS = _SYMBOLS | {0x0A: "↵", 0x09: "␉", 0x2028: "⟨2028⟩", 0x2029: "⟨2029⟩"}
# Joiners next to a Latin letter, a digit or a space join nothing. At the start and the end of a string
# they are kept: a text is shown in pieces, and an emoji may be split between two of them.
_JOINERS = {"\u200c": "⟨ZWNJ⟩", "\u200d": "⟨ZWJ⟩"}
_LOOSE_JOINER = re.compile("(?<=[\x00-\u02ff])[\u200c\u200d]|[\u200c\u200d](?=[\x00-\u02ff])")


def make_visible(text: str) -> str:
    r"""Show characters that act or are invisible as symbols; line breaks and tabs stay.

    Example:
        >>> make_visible("a\x1b[31m")
        'a␛[31m'
    """
    return _mark_loose_joiners(text).translate(_SYMBOLS)


def _mark_loose_joiners(text: str) -> str:
    return _LOOSE_JOINER.sub(lambda match: _JOINERS[match[0]], text)


def to_single_line(text: str) -> str:
    r"""Like :func:`make_visible`, but on one line, for tables, labels and titles.

    Text of white space only is shown as ``␣``, and an accent without a letter on a dotted circle.

    Example:
        >>> to_single_line("two\nlines")
        'two↵lines'
    """
    if text in _JOINERS:
        return _JOINERS[text]
    if text.isspace():
        return "".join(_SINGLE_LINE_SYMBOLS.get(ord(character), "␣") for character in text)
    single_line = _mark_loose_joiners(text).translate(_SINGLE_LINE_SYMBOLS)
    has_lone_accent = not text.isascii() and category(text[0])[0] == "M"
    return f"◌{single_line}" if has_lone_accent else single_line
