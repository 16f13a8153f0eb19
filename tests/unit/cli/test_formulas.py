"""Formulas on the command line: what LaTeX means, in characters, and none left untranslated."""

from __future__ import annotations

import inspect

import pytest

from tokenlight import registry
from tokenlight.cli.formulas import latex_to_text, strip_markup

DOCUMENTED = [(kind, name) for kind in ("methods", "metrics") for name in registry.list_names(kind)]


@pytest.mark.parametrize(
    ("latex", "characters"),
    [
        (r"\tfrac1H\sum_h A^L_{h,r,j}", "(1/H) Σ_h A^L_{h,r,j}"),
        (r"\frac{\partial y}{\partial h^{l-1}_{i,k}}\,h_i", "(∂y/∂h^{l−1}_{i,k}) h_i"),
        (r"s_i = \frac{|v_i|}{\sum_j |v_j|}", "s_i = (|v_i|/(Σ_j |v_j|))"),
        (
            r"\ln\frac{p(c\mid \tilde x^{k})}{p(c\mid x)}",
            "ln ((p(c|x\N{COMBINING TILDE}^k))/(p(c|x)))",
        ),
        (r"a = 1, \quad b = 2", "a = 1,\nb = 2"),
        (r"\alpha \lVert \beta \rVert^2", "α ‖ β ‖^2"),
        (r"\bigl|\{a,\dots,b\} \cap \mathrm{TopK}\bigr|", "|{a,…,b} ∩ TopK|"),
        (r"\overline{F_{ij}} \ne \hat A", "mean(F_{ij})≠A\N{COMBINING CIRCUMFLEX ACCENT}"),
        (r"\frac{1}{\binom C2\,k}", "(1/(binom(C, 2) k))"),
    ],
)
def test_a_formula_is_written_in_characters(latex, characters):
    assert latex_to_text(latex) == characters


@pytest.mark.parametrize(("kind", "name"), DOCUMENTED)
def test_no_mark_of_the_documentation_reaches_a_terminal(kind, name):
    text = strip_markup(inspect.getdoc(registry.load_class(kind, name)) or "")
    assert text
    for mark in ("\\", "`", "::"):
        assert mark not in text


def test_an_unknown_latex_command_is_shown_unchanged():
    documented = "Round.\n\n.. math:: s = \\oint x\n\nIt has :math:`\\alpha`."
    assert strip_markup(documented) == "Round.\n\n    s = \\oint x\n\nIt has α."
