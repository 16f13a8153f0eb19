"""The formulas of the docstrings, written in LaTeX for the guide, in characters a terminal shows."""

import re

_NAMED = """\
    alpha α  beta β  gamma γ  epsilon ε  theta θ  pi π  rho ρ  sigma σ  tau τ  Delta Δ  partial ∂
    sum Σ  int ∫  nabla ∇  odot ⊙  cdot ·  sim ~  cup ∪  cap ∩  ni ∋  in ∈  ne ≠  emptyset ∅  setminus ∖
    mid ∣  top ⊤  leftarrow ←  to →  dots …  cdots …  | ‖  lVert ‖  rVert ‖  { ⟦  } ⟧
    max max  min min  Pr Pr  cos cos  neg ¬
"""
SYMBOLS: dict[str, str] = {
    **dict(re.findall(r"(\S+) (\S+)", _NAMED)),
    **{f"{size}{side}": "" for size in ("big", "Big") for side in ("", "l", "r")},
    **{"arg": "arg ", "ln": "ln ", ",": " ", "quad": "\n", "qquad": "\n"},
}
# What takes an argument. A bar is an average in every formula here, and a terminal cannot draw one
# over a word.
TAKING = {
    **dict.fromkeys(("operatorname", "mathrm", "text", "mathcal"), "{0}"),
    **{"hat": "{0}\u0302", "tilde": "{0}\u0303", "bar": "mean({0})", "overline": "mean({0})"},
    **{"frac": "", "tfrac": "", "binom": "binom({0}, {1}) "},
}
_GROUP = r" *(?:\{([^{}]*)\}|([^\s{}\\]))"  # braces without others inside, or one character
_ONE = re.compile(rf"\\(?!t?frac|binom)(\w+){_GROUP}")
_TWO = re.compile(rf"\\(t?frac|binom){_GROUP}{_GROUP}")
_SCRIPT = re.compile(r"([_^]) *\{([^{}]*)\}")
_BLOCK = re.compile(r"^\.\. math:: (.*?)(?=\n\s*\n|\Z)", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r":math:`([^`]*)`")


def in_characters(latex: str) -> str:
    r"""A formula in plain characters: ``\frac{\partial y}{\partial h_i}`` becomes (∂y/∂h_i).

    Parts that stand apart (``\quad``) get a line each. A command this does not know is a ValueError,
    so that a new formula cannot reach a terminal half translated.
    """
    plain = re.sub(r"\s+", " ", latex).replace("-", "−")
    plain = re.sub(r"\\mathcal(\{L\}| L)", "ℒ", plain)
    text, before = re.sub(r"\\([A-Za-z]+|.)", _symbol, plain), ""
    while text != before:  # what has no braces inside first, then what is around it
        before = text
        text = _SCRIPT.sub(_script, text)
        text = _ONE.sub(lambda found: TAKING[found[1]].format(found[2] or found[3]), text)
        text = _TWO.sub(_of_two, text)
    while (bare := re.sub(r"\{([^{}]*)\}", r"\1", text)) != text:
        text = bare
    if re.search(r"[{}\\]", text):
        raise ValueError(f"a formula ends before its brace or its argument: {latex!r}")
    return "\n".join(line for line in map(_tidied, text.split("\n")) if line)


def without_marks(documentation: str) -> str:
    """A docstring for a terminal: its formulas in characters, its words without marks."""
    text = _BLOCK.sub(
        lambda found: f"    {_shown(found[1])}".replace("\n", "\n    "), documentation
    )
    text = _INLINE.sub(lambda found: _shown(found[1]), text)
    return text.replace("``", "").replace(r"\|", "|")


def _shown(latex: str) -> str:
    """In characters, or as it was written where a method from elsewhere has a command of its own."""
    try:
        return in_characters(latex)
    except ValueError:
        return latex


def _symbol(found: re.Match[str]) -> str:
    command, name = found[0], found[1]
    if name not in SYMBOLS and name not in TAKING:
        raise ValueError(f"no characters are known for {command}")
    return SYMBOLS.get(name, command)


def _script(found: re.Match[str]) -> str:
    sign, script = found.groups()
    return f"{sign}{script}" if len(script) == 1 else f"{sign}⟦{script.strip()}⟧"


def _of_two(found: re.Match[str]) -> str:
    """1/H as it stands; longer fractions in brackets, since what follows is multiplied."""
    above, below = (
        one.replace("∂ ", "∂").strip() for one in (found[2] or found[3], found[4] or found[5])
    )
    if found[1] == "binom":
        return TAKING["binom"].format(above, below)
    if len(above) == len(below) == 1:
        return f"{above}/{below} "
    # In brackets where the slash would otherwise take only an end of it.
    simple = re.compile(r"∂?\w([_^](\w|⟦[^⟧]*⟧))*|\|[^|]*\||\w\([^()]*\)")
    parts = (one if simple.fullmatch(one) else f"({one})" for one in (above, below))
    return f"⟨{'/'.join(parts)}⟩"


def _tidied(line: str) -> str:
    """Spaces and brackets only where they help: none around a fraction that ends what is multiplied."""
    line = re.sub(r"‖ (.*?) ‖", r"‖\1‖", re.sub(" +", " ", line).strip()).replace("∂ ", "∂")
    line = re.sub(r" ?([⊙∖∣∈≠]) ?", r"\1", line).replace("∣", "|")
    line = re.sub(r"(?<!ln )⟨([^⟨⟩]*)⟩(?=,|$)", r"\1", line)
    line = line.replace("⟨", "(").replace("⟩", ") ").replace("⟦", "{").replace("⟧", "}")
    return re.sub(r"(?<=\() | (?=[ ),])", "", line).strip()
