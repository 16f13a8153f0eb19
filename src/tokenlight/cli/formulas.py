"""The formulas of the docstrings, written in LaTeX for the guide, in characters a terminal shows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

_NAMED = """\
    alpha α  beta β  gamma γ  epsilon ε  theta θ  pi π  rho ρ  sigma σ  tau τ  Delta Δ  partial ∂
    sum Σ  int ∫  nabla ∇  odot ⊙  cdot ·  sim ~  cup ∪  cap ∩  ni ∋  in ∈  ne ≠  emptyset ∅  setminus ∖
    mid ∣  top ⊤  leftarrow ←  to →  dots …  cdots …  | ‖  lVert ‖  rVert ‖  { {  } }
    max max  min min  Pr Pr
"""
SYMBOLS = {
    **dict(re.findall(r"(\S+) (\S+)", _NAMED)),
    **{f"{size}{side}": "" for size in ("big", "Big") for side in ("", "l", "r")},
    "arg": "arg ",
    "ln": "ln ",
    ",": " ",
    "quad": "\f",
    "qquad": "\f",
}
# Around a fraction until it is known whether it ends what is multiplied.
OPENS, CLOSES = "\x01", "\x02"

_PIECE = re.compile(r"\\([A-Za-z]+|.)|(\s+)|(.)", re.DOTALL)
_BLOCK = re.compile(r"^\.\. math:: (.*?)(?=\n\s*\n|\Z)", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r":math:`([^`]*)`")


def in_characters(latex: str) -> str:
    r"""A formula in plain characters: ``\frac{\partial y}{\partial h_i}`` becomes (∂y/∂h_i).

    Parts that stand apart (``\quad``) get a line each. A command this does not know is a ValueError,
    so that a new formula cannot reach a terminal half translated.
    """
    text = _until(_pieces(latex), end=None)
    lines = (re.sub(r"[ \n]+", " ", line).strip() for line in text.split(SYMBOLS["quad"]))
    return "\n".join(_tidied(line) for line in lines if line)


def without_marks(documentation: str) -> str:
    """A docstring for a terminal: its formulas in characters, its words without marks."""
    text = _BLOCK.sub(lambda found: _indented(_shown(found[1])), documentation)
    text = _INLINE.sub(lambda found: _shown(found[1]), text)
    return text.replace("``", "").replace(r"\|", "|")


def _shown(latex: str) -> str:
    """In characters, or as it was written where a method from elsewhere has a command of its own."""
    try:
        return in_characters(latex)
    except ValueError:
        return latex


def _tidied(line: str) -> str:
    """Spaces and brackets only where they help."""
    line = re.sub(r"‖ (.*?) ‖", r"‖\1‖", line).replace("∂ ", "∂")
    line = re.sub(r" ?([⊙∖∣∈≠]) ?", r"\1", line).replace("∣", "|")
    line = re.sub(rf"(?<!ln ){OPENS}([^{OPENS}{CLOSES}]*){CLOSES}(?=,|$)", r"\1", line)
    line = line.replace(OPENS, "(").replace(CLOSES, ") ")
    return re.sub(r"(?<=\() | (?=[ ),])", "", line).strip()


def _indented(formula: str) -> str:
    return "\n".join(f"    {line}" for line in formula.splitlines())


def _pieces(latex: str) -> Iterator[tuple[str, str]]:
    """Commands ("command", name) and single characters ("character", it)."""
    for found in _PIECE.finditer(latex):
        command, space, character = found.groups()
        if command is not None:
            yield "command", command
        else:
            yield "character", " " if space else character


def _until(pieces: Iterator[tuple[str, str]], end: str | None) -> str:
    """All up to the closing character, or to the end of the formula."""
    text = ""
    for kind, piece in pieces:
        if kind == "character" and piece == end:
            return text
        text += _written(kind, piece, pieces)
    if end is not None:
        raise ValueError(f"a formula ends before its {end}: {text!r}")
    return text


def _written(kind: str, piece: str, pieces: Iterator[tuple[str, str]]) -> str:
    if kind == "command":
        return _command(piece, pieces)
    if piece in "_^":
        script = _argument(pieces)
        return piece + (script if len(script) == 1 else "{" + script.strip() + "}")
    if piece == "{":
        return _until(pieces, "}")
    return "−" if piece == "-" else piece


def _argument(pieces: Iterator[tuple[str, str]]) -> str:
    """What a command or a script takes: a group in braces, or the next character."""
    for kind, piece in pieces:
        if kind == "character" and piece == " ":
            continue
        return _written(kind, piece, pieces)
    raise ValueError("a formula ends before an argument")


def _command(name: str, pieces: Iterator[tuple[str, str]]) -> str:
    if name in SYMBOLS:
        return SYMBOLS[name]
    if name in _OF_ONE:
        return _OF_ONE[name](_argument(pieces))
    if name in _OF_TWO:
        return _OF_TWO[name](_argument(pieces), _argument(pieces))
    raise ValueError(f"no characters are known for \\{name}")


def _fraction(above: str, below: str) -> str:
    """1/H as it stands; longer ones in brackets, since what follows is multiplied."""
    above, below = (part.replace("∂ ", "∂").strip() for part in (above, below))
    if len(above) == len(below) == 1:
        return f"{above}/{below} "
    return f"{OPENS}{_bracketed(above)}/{_bracketed(below)}{CLOSES}"


def _bracketed(part: str) -> str:
    """In brackets where the slash would otherwise take only an end of it."""
    simple = re.fullmatch(r"∂?\w([_^](\w|\{[^}]*\}))*|\|[^|]*\||\w\([^()]*\)", part)
    return part if simple else f"({part})"


_OF_ONE: dict[str, Callable[[str], str]] = {
    **dict.fromkeys(["operatorname", "mathrm", "text"], str),
    "mathcal": lambda letter: {"L": "ℒ"}.get(letter, letter),
    "hat": "{}\N{COMBINING CIRCUMFLEX ACCENT}".format,
    "tilde": "{}\N{COMBINING TILDE}".format,
    # A bar is an average in every formula here, and a terminal cannot draw one over a word.
    "bar": "mean({})".format,
    "overline": "mean({})".format,
}
_OF_TWO: dict[str, Callable[[str, str], str]] = {
    "frac": _fraction,
    "tfrac": _fraction,
    "binom": "binom({}, {}) ".format,
}
