"""Translate the LaTeX formulas of docstrings into characters that a terminal can show."""

import re

_SYMBOL_TABLE = """\
    alpha α  beta β  gamma γ  epsilon ε  theta θ  pi π  rho ρ  sigma σ  tau τ  Delta Δ  partial ∂
    sum Σ  int ∫  nabla ∇  odot ⊙  cdot ·  sim ~  cup ∪  cap ∩  ni ∋  in ∈  ne ≠  emptyset ∅  setminus ∖
    mid ∣  top ⊤  leftarrow ←  to →  dots …  cdots …  | ‖  lVert ‖  rVert ‖  { ⟦  } ⟧
    max max  min min  Pr Pr  cos cos  neg ¬
"""
# LaTeX command, without its backslash → characters. Sizes of brackets are dropped; \quad starts a new line.
SYMBOLS: dict[str, str] = {
    **dict(re.findall(r"(\S+) (\S+)", _SYMBOL_TABLE)),
    **dict.fromkeys(("big", "bigl", "bigr", "Big", "Bigl", "Bigr"), ""),
    **{"arg": "arg ", "ln": "ln ", ",": " ", "quad": "\n", "qquad": "\n"},
}
_GROUP = r" *(?:\{([^{}]*)\}|([^\s{}\\]))"  # braces without others inside, or one character
# Commands with arguments → how they are written. ⟦⟧ stand for braces and ⟨⟩ for brackets until the end, so
# that they are not taken for LaTeX's own. A bar is an average in every formula here, and a terminal cannot
# draw one over a word.
ARGUMENT_PATTERNS = {
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
_BLOCK_FORMULA = re.compile(r"^\.\. math:: (.*?)(?=\n\s*\n|\Z)", re.MULTILINE | re.DOTALL)
_INLINE_FORMULA = re.compile(r":math:`([^`]*)`")


def latex_to_text(latex: str) -> str:
    r"""Write a formula in plain characters.

    Parts separated by ``\quad`` get a line each. An unknown command stays as it is.

    Example:
        >>> from tokenlight.cli.formulas import latex_to_text
        >>> latex_to_text(r"s_i = \frac{|v_i|}{\sum_j |v_j|}")
        's_i = (|v_i|/(Σ_j |v_j|))'
    """
    text = " ".join(latex.split()).replace("-", "−")
    text = re.sub(r"\\([A-Za-z]+|.)", lambda match: SYMBOLS.get(match[1], match[0]), text)
    text = text.replace("∂ ", "∂")
    # Replace the innermost commands first, then those around them, until nothing changes.
    previous_text = None
    while text != previous_text:
        previous_text = text
        for pattern, replacement in ARGUMENT_PATTERNS.items():
            text = re.sub(pattern, replacement, text)
    text = re.sub(r"[{}]", "", text)
    text = re.sub(r" ?([⊙∖∣∈≠\n]) ?|(?<=[(]) | (?=[ ),])", r"\1", text)
    return text.strip().translate(str.maketrans("⟦⟧⟨⟩∣", "{}()|"))


def strip_markup(documentation: str) -> str:
    """Prepare a docstring for a terminal: formulas in characters, no markup around words."""

    def indent_formula(match: re.Match[str]) -> str:
        return f"    {latex_to_text(match[1])}".replace("\n", "\n    ")

    text = _BLOCK_FORMULA.sub(indent_formula, documentation)
    text = _INLINE_FORMULA.sub(lambda match: latex_to_text(match[1]), text)
    return text.replace("``", "").replace(r"\|", "|")
