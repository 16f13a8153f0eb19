"""The HTML file and the box of a notebook, drawn by a browser: no number runs into its neighbor, and
whatever a notebook's style says of tables, the words in ours can be read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.helpers.colour_contrast import compute_contrast_ratio
from tests.helpers.handmade_attributions import make_sample, with_method
from tokenlight.plots.html import render_fragment, render_page

# What JupyterLab, the old notebook and others write about the tables of an output.
NOTEBOOK = """
body { background: GROUND; }
.output { color: INK; }
.output table { color: INK; border-collapse: collapse; table-layout: fixed; }
.output td, .output th, .output tr { padding: .5em; white-space: normal; color: INK; border: none; }
.output tbody tr:nth-child(odd) { background: GROUND; }
.output tbody tr:hover { background: purple; }
"""
DARK = [
    ("", 'data-jp-theme-light="false"'),
    ("", 'class="vscode-dark"'),
    ("", 'class="vscode-high-contrast"'),
    ('theme="dark"', ""),
    ('data-theme="dark"', ""),
]
LIGHT = [
    ("", 'data-jp-theme-light="true"'),
    ("", 'class="vscode-light"'),
    ("", 'class="vscode-high-contrast vscode-high-contrast-light"'),
    ('theme="light"', ""),
    ("", 'data-theme="light"'),
]
COLOURS = """() => {
  const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
  const ground = node => {
    for (let one = node; one; one = one.parentElement) {
      const found = numbers(getComputedStyle(one).backgroundColor);
      if (found.length === 3 || found[3] === 1) return found.slice(0, 3);
    }
  };
  const kinds = 'h2, h3, h4, b, p, summary, label, td, th, .name, .value, .label';
  return [...document.querySelectorAll(`.tokenlight :is(${kinds})`)]
    .filter(one => one.checkVisibility() && one.textContent.trim())
    .map(one => [one.textContent.trim().slice(0, 30),
      numbers(getComputedStyle(one).color).slice(0, 3), ground(one)]);
}"""


@pytest.fixture
def open_page(chromium):
    """A browser page that shows a source, at a width and under a system's brightness."""
    contexts = []

    def show(source: str, width: int = 1200, scheme: str = "light"):
        context = chromium.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme
        )
        contexts.append(context)
        page = context.new_page()
        page.set_content(source)
        page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        return page

    yield show
    for context in contexts:
        context.close()


def render_notebook(source: str, where: tuple[str, str], *, dark: bool) -> str:
    ink, ground = ("white", "#111111") if dark else ("black", "#ffffff")
    style = NOTEBOOK.replace("INK", ink).replace("GROUND", ground)
    return (
        f"<!doctype html><html {where[0]}><head><style>{style}</style></head>"
        f"<body {where[1]}><div class='output'>{source}</div></body></html>"
    )


def find_unreadable_texts(page) -> list[tuple[str, float]]:
    contrasts = [
        (text, compute_contrast_ratio(tuple(map(int, ink)), tuple(map(int, paper))))
        for text, ink, paper in page.evaluate(COLOURS)
    ]
    assert len(contrasts) > 30
    return [(text, value) for text, value in contrasts if value < 4.5]


def make_attributions(size: float, methods: int = 3):
    """One text by several methods whose scores have this size."""
    first = make_sample("The plot is unremarkably thin, but the actors never let it become dull.")
    first = replace(first, scores=first.scores * size, layers=first.layers * size)
    others = [with_method(first, f"method_{n}", n) for n in range(1, methods)]
    return [
        first,
        *(replace(attribution, scores=attribution.scores * size) for attribution in others),
    ]


@pytest.mark.parametrize("width", [400, 500, 800, 1200])
@pytest.mark.parametrize("size", [1e-13, 3.25e-5, 1.0, 1e9])
def test_no_number_of_the_file_breaks_or_runs_into_its_bar(open_page, width, size):
    page = open_page(render_page(make_attributions(size, methods=6)), width)
    values = page.locator(".top .value, .prediction .value, .heat td").evaluate_all(
        """all => all.filter(one => one.textContent.trim()).map(one => {
          const range = document.createRange();
          range.selectNodeContents(one);
          const text = range.getBoundingClientRect();
          const bar = one.nextElementSibling?.matches('svg') ? one.nextElementSibling : null;
          const [own, next] = [one.getBoundingClientRect(), bar?.getBoundingClientRect()];
          return [one.textContent, range.getClientRects().length === 1
            && text.width <= own.width + .5 && (!next || (text.right <= next.left && next.width >= 40))];
        })"""
    )
    assert len(values) > 40
    assert [text for text, fits in values if not fits] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_classes_side_by_side_have_their_numbers_on_one_line(open_page):
    first = make_attributions(7.36e-5, methods=1)[0]
    other = replace(first, target=replace(first.target, name="negative"), scores=-first.scores)
    page = open_page(render_page([first, other]))
    tall = page.locator(".heat:not(.summed) td").evaluate_all(
        "all => all.map(one => one.getBoundingClientRect().height)"
    )
    assert max(tall) == min(tall) < 30


def test_sentences_of_a_long_text_have_their_numbers_on_one_line(open_page):
    long = make_sample("This film is neither good nor bad, but it is long. " * 30)
    small = replace(long, scores=long.scores * 1e-6, layers=None)
    page = open_page(render_page([small]))
    values = page.locator(".sentence .value").evaluate_all(
        "all => all.map(one => [one.scrollWidth <= one.clientWidth, one.clientHeight < 30])"
    )
    assert values
    assert all(wide and low for wide, low in values)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("dark", [True, False])
def test_a_notebook_without_a_known_mark_does_not_paint_our_tables(open_page, scheme, dark):
    source = render_notebook(render_fragment(make_attributions(1.0)), ("", ""), dark=dark)
    assert find_unreadable_texts(open_page(source, scheme=scheme)) == []


@pytest.mark.parametrize(
    ("where", "dark"), [*((mark, True) for mark in DARK), *((mark, False) for mark in LIGHT)]
)
def test_the_box_follows_the_notebooks_brightness(open_page, where, dark):
    scheme = "light" if dark else "dark"  # the system's, which the notebook overrules
    page = open_page(
        render_notebook(render_fragment(make_attributions(1.0)), where, dark=dark), scheme=scheme
    )
    paper = page.locator("article").evaluate("one => getComputedStyle(one).backgroundColor")
    assert paper == ("rgb(22, 26, 31)" if dark else "rgb(255, 255, 255)")
    assert find_unreadable_texts(page) == []
