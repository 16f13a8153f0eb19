"""Characters that would act instead of being seen, made visible.

Terminal commands (ESC, BEL), what HTML cannot carry (NUL), marks that turn the reading direction, and
characters without width, which make two texts look alike that a model reads apart, become symbols; all
others stay, and so do joiners within scripts and emoji that need them.
"""

import re
from unicodedata import category

_NAMED = {
    **dict(zip((0xAD, 0x61C, 0x180E, 0x200B), ("SHY", "ALM", "MVS", "ZWSP"), strict=True)),
    **dict(zip((0x200E, 0x200F, 0x2060, 0xFEFF), ("LRM", "RLM", "WJ", "BOM"), strict=True)),
    **dict(enumerate(("LRE", "RLE", "PDF", "LRO", "RLO"), 0x202A)),
    **dict(enumerate(("LRI", "RLI", "FSI", "PDI"), 0x2066)),
}
_SYMBOLS: dict[int, str] = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"},
    0x7F: "␡",
    **{code: f"⟨{code:02X}⟩" for code in range(0x80, 0xA0)},
    **{code: f"⟨{name}⟩" for code, name in _NAMED.items()},
    **{code: f"⟨{code:X}⟩" for code in range(0x2061, 0x2065)},  # invisible plus, times …
    # Half a surrogate pair is no character: no file and no terminal can take it.
    **{code: f"⟨{code:X}⟩" for code in range(0xD800, 0xE000)},
}
_IN_LINE = _SYMBOLS | {0x0A: "␊", 0x09: "␉", 0x2028: "⟨2028⟩", 0x2029: "⟨2029⟩"}
# Joiners beside a Latin letter, a digit or a blank join nothing. What stands before the first character
# and behind the last is not known here: a text is shown in pieces, and an emoji may be cut between two.
_JOINERS = {"\u200c": "⟨ZWNJ⟩", "\u200d": "⟨ZWJ⟩"}
_LOOSE = re.compile("(?<=[\x00-\u02ff])[\u200c\u200d]|[\u200c\u200d](?=[\x00-\u02ff])")


def visible(text: str) -> str:
    """The text with acting characters shown as symbols; line breaks and tabs stay."""
    return _joiners(text).translate(_SYMBOLS)


def _joiners(text: str) -> str:
    return _LOOSE.sub(lambda found: _JOINERS[found[0]], text)


def in_line(text: str) -> str:
    """Like :func:`visible`, and on one line, for tables, labels and titles. Nothing but blanks is shown as
    ``␣``; an accent that stands alone sits on a dotted circle."""
    if text in _JOINERS:
        return _JOINERS[text]
    if text.isspace():
        return "".join(_IN_LINE.get(ord(blank), "␣") for blank in text)
    alone = not text.isascii() and category(text[0])[0] == "M"
    return ("◌" if alone else "") + _joiners(text).translate(_IN_LINE)
