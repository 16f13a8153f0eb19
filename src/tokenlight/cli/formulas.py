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
_GROUP = r" *(?:\{([^{}]*)\}|([^\s{}\\]))"  # braces without others inside, or one character
# What takes an argument, and how it is written. A bar is an average in every formula here, and a terminal
# cannot draw one over a word.
TAKING = {
    r"([_^]) *\{(.)\}": r"\1\2",
    r"([_^]) *\{([^{}]*)\}": r"\1⟦\2⟧",
    rf"\\(?:operatorname|mathrm|mathcal|text){_GROUP}": r"\1\2",
    rf"\\hat{_GROUP}": "\\1\\2\u0302",
    rf"\\tilde{_GROUP}": "\\1\\2\u0303",
    rf"\\(?:bar|overline){_GROUP}": r"mean(\1\2)",
    rf"\\binom{_GROUP}{_GROUP}": r"binom(\1\2, \3\4) ",
    rf"\\t?frac{_GROUP}{_GROUP}": r"(⟨\1\2⟩/⟨\3\4⟩) ",
    r"⟨((?:[^⟨⟩⟦⟧ −+]|⟦[^⟦⟧]*⟧)*)⟩": r"\1",  # a part of a fraction that needs no brackets
}
_BLOCK = re.compile(r"^\.\. math:: (.*?)(?=\n\s*\n|\Z)", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r":math:`([^`]*)`")


def in_characters(latex: str) -> str:
    r"""A formula in plain characters: ``\frac{\partial y}{\partial h_i}`` becomes (∂y/∂h_i).

    Parts that stand apart (``\quad``) get a line each. A command that this does not know stays as it is.
    """
    plain = " ".join(latex.split()).replace("-", "−")
    text = re.sub(r"\\([A-Za-z]+|.)", lambda found: SYMBOLS.get(found[1], found[0]), plain)
    text, before = text.replace("∂ ", "∂"), ""
    while text != before:  # what has no braces inside first, then what is around it
        before = text
        for pattern, written in TAKING.items():
            text = re.sub(pattern, written, text)
    text = re.sub(r"[{}]", "", text)
    text = re.sub(r" ?([⊙∖∣∈≠\n]) ?|(?<=[(]) | (?=[ ),])", r"\1", text)
    return text.strip().translate(str.maketrans("⟦⟧⟨⟩∣", "{}()|"))


def without_marks(documentation: str) -> str:
    """A docstring for a terminal: its formulas in characters, its words without marks."""
    text = _BLOCK.sub(lambda m: f"    {in_characters(m[1])}".replace("\n", "\n    "), documentation)
    text = _INLINE.sub(lambda found: in_characters(found[1]), text)
    return text.replace("``", "").replace(r"\|", "|")
