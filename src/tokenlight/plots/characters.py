"""Characters that would act instead of being seen, made visible.

A text may hold terminal commands (ESC, BEL), characters HTML cannot carry (NUL) or overrides that
turn the reading direction of all that follows. Each becomes a symbol that stands for it; every
other character, whatever its script, stays as it is.
"""

from __future__ import annotations

from unicodedata import category

_BIDI = {
    0x202A: "LRE",
    0x202B: "RLE",
    0x202C: "PDF",
    0x202D: "LRO",
    0x202E: "RLO",
    0x2066: "LRI",
    0x2067: "RLI",
    0x2068: "FSI",
    0x2069: "PDI",
}
_SYMBOLS: dict[int, str] = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"},
    0x7F: "␡",
    **{code: f"⟨{code:02X}⟩" for code in range(0x80, 0xA0)},
    **{code: f"⟨{name}⟩" for code, name in _BIDI.items()},
    # Half a surrogate pair is no character: no file and no terminal can take it.
    **{code: f"⟨{code:X}⟩" for code in range(0xD800, 0xE000)},
}
_IN_LINE = _SYMBOLS | {
    ord("\n"): "␊",
    ord("\t"): "␉",
    0x2028: "⟨2028⟩",
    0x2029: "⟨2029⟩",
}


def visible(text: str) -> str:
    """The text with acting characters shown as symbols; line breaks and tabs stay."""
    return text.translate(_SYMBOLS)


def in_line(text: str) -> str:
    """Like :func:`visible`, and on one line: for tokens in tables, labels and titles.

    Nothing but blanks is shown as ``␣``; an accent that stands alone sits on a dotted circle.
    """
    if text.isspace():
        return "".join(_IN_LINE.get(ord(blank), "␣") for blank in text)
    alone = not text.isascii() and category(text[0])[0] == "M"
    return ("◌" if alone else "") + text.translate(_IN_LINE)
