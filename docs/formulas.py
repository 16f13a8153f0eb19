"""Formulas of docstrings and pages, drawn as SVG while the guide is built: no script, no font.

Docstrings carry formulas as ``.. math::`` blocks and ``:math:`` roles. They become ``$$…$$`` and
``$…$``, which the Markdown extension arithmatex marks, and the marks become pictures.
"""

from __future__ import annotations

import html
import re
import textwrap
from functools import cache

_BLOCK = re.compile(r"^[ \t]*\.\. math::(.*?)(?=\n[ \t]*\n|\Z)", re.DOTALL | re.MULTILINE)
_ROLE = re.compile(r":math:`([^`]+)`")
_REFERENCE = re.compile(r":(?:class|meth|func|mod|attr|data):`~?([^`]+)`")
_DIFFERENCE = re.compile(r"\s(Differs from [^:.]*:)")
_SECTION = re.compile(
    r"^(Args|Returns|Yields|Raises|Attributes|Examples?):[ \t]*\n((?:[ \t]+\S.*(?:\n|\Z)|[ \t]*\n)+)",
    re.MULTILINE,
)
_MARKED = re.compile(
    r'<(div|span) class="arithmatex">\s*\\[\[(](.*?)\\[\])]\s*</(?:div|span)>', re.DOTALL
)
# mathtext knows LaTeX's words but not its shortcuts.
_WORDS = {r"\frac": r"\dfrac", r"\tfrac": r"\frac", r"\textstyle": ""}
_WORDS |= {r"\lVert": r"\|", r"\rVert": r"\|", r"\lvert": "|", r"\rvert": "|"}
_ARGUMENTS = {r"\dfrac": 2, r"\frac": 2, r"\binom": 2, r"\mathcal": 1, r"\mathbb": 1, r"\mathbf": 1}
_SIZED = re.compile(r"\\[bB]ig+([lr]?)(?![a-z])")
_END = 79
_SIZE = 1000  # of the letters, in units of the drawing; the page scales them with its text
_STEPS = {1: "M", 2: "L", 3: "Q", 4: "C", _END: "Z"}  # matplotlib's path codes as SVG writes them


def as_markdown(docstring: str) -> str:
    """A docstring with its formulas and references as Markdown understands them."""
    text = _BLOCK.sub(lambda m: f"\n$$\n{' '.join(m[1].split())}\n$$\n", docstring)
    text = _ROLE.sub(lambda m: f"${' '.join(m[1].split())}$", text)
    text = _REFERENCE.sub(r"`\1`", text)
    text = _DIFFERENCE.sub(r"\n\n**\1**", text)
    return _SECTION.sub(_section_as_markdown, text)


def _section_as_markdown(section: re.Match[str]) -> str:
    """``Args:`` and its like as a list, ``Example:`` as code: a heading of their own in the guide."""
    title = section[1]
    body = textwrap.dedent(section[2]).strip("\n")
    if title.startswith("Example"):
        before, prompt, code = body.partition(">>> ")
        shown = f"```pycon\n{prompt}{code}\n```" if prompt else ""
        return f"\n**{title}**\n\n{before}\n{shown}\n"
    lines = []
    for line in body.splitlines():
        name, colon, words = line.partition(": ")
        is_entry = colon and not line.startswith(" ") and title != "Returns"
        if is_entry:
            lines.append(f"- `{name.strip('`')}`: {words}")
        else:
            lines.append(line if title == "Returns" else f"  {line.strip()}")
    return f"\n**{title}**\n\n" + "\n".join(lines) + "\n"


def find_formulas(docstring: str) -> list[str]:
    """The formulas in a docstring, in LaTeX."""
    formulas = [*_BLOCK.findall(docstring), *_ROLE.findall(docstring)]
    return [" ".join(formula.split()) for formula in formulas]


def draw_formulas(page: str) -> str:
    """A page with every marked formula replaced by its picture."""
    return _MARKED.sub(
        lambda m: _draw_formula(" ".join(html.unescape(m[2]).split()), block=m[1] == "div"), page
    )


def _draw_formula(formula: str, *, block: bool) -> str:
    """The picture, or the LaTeX itself where mathtext has no word for it (a test names those)."""
    try:
        return draw_picture(formula, block=block)
    except ValueError:
        code = f"<code>{html.escape(formula)}</code>"
        return f"<pre>{code}</pre>" if block else code


@cache
def draw_picture(formula: str, *, block: bool) -> str:
    """The formula as inline SVG in the colour of the text around it, named by its LaTeX."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.mathtext import MathTextParser
    from matplotlib.textpath import TextPath

    text = f"${to_mathtext(formula)}$"
    letters = FontProperties(size=_SIZE, math_fontfamily="cm")
    outline = TextPath((0, 0), text, prop=letters)
    width, height, depth, *_ = MathTextParser("path").parse(text, 72, letters)
    steps = " ".join(
        _STEPS[int(code)] + ("" if code == _END else " ".join(f"{value:.0f}" for value in points))
        for points, code in outline.iter_segments(curves=True, simplify=False)
    )
    name = html.escape(formula, quote=True)
    svg = (
        f'<svg role="img" aria-label="{name}" viewBox="0 {-height:.0f} {width:.0f} '
        f'{height + depth:.0f}" style="width:{width / _SIZE:.2f}em;'
        f'vertical-align:{-depth / _SIZE:.2f}em"><title>{name}</title>'
        f'<path transform="scale(1 -1)" fill="currentColor" d="{steps}"/></svg>'
    )
    return f'<div class="formula">{svg}</div>' if block else f'<span class="formula">{svg}</span>'


def to_mathtext(formula: str) -> str:
    r"""LaTeX as mathtext spells it: ``\tfrac1H`` is ``\frac{1}{H}``, ``\bigl(`` is ``\left(``."""
    formula = re.sub(r"\\[a-zA-Z]+", lambda m: _WORDS.get(m[0], m[0]), formula)
    formula = _SIZED.sub(lambda m: {"l": r"\left", "r": r"\right", "": ""}[m[1]], formula)
    for command, count in _ARGUMENTS.items():
        formula = _brace_arguments(formula, command, count)
    return formula


def _brace_arguments(formula: str, command: str, count: int) -> str:
    """The arguments of ``command`` in braces."""
    head, separator, tail = formula.partition(command)
    if not separator:
        return formula
    head += command
    for _ in range(count):
        argument, tail = _split_argument(tail)
        head += f"{{{_brace_arguments(argument, command, count)}}}"
    return head + _brace_arguments(tail, command, count)


def _split_argument(text: str) -> tuple[str, str]:
    """The first argument of a command, without its braces, and what follows."""
    text = text.lstrip()
    if not text.startswith("{"):
        return text[:1], text[1:]
    depth = 0
    for index, letter in enumerate(text):
        depth += (letter == "{") - (letter == "}")
        if depth == 0:
            return text[1:index], text[index + 1 :]
    raise ValueError(f"a brace is not closed in {textwrap.shorten(text, 60)!r}")
