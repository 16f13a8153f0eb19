"""Tutorials as pages of the guide: the cells of a notebook, each with what it gave."""

from __future__ import annotations

import json
import textwrap
from html import escape
from pathlib import Path
from typing import Any

TUTORIALS = Path(__file__).parent / "tutorials"
MAX_COLUMNS = 88  # of printed text; a browser would cut what is longer


def build_pages() -> dict[str, str]:
    """Address to Markdown of every tutorial."""
    return {
        f"tutorials/{path.stem}.md": build_page(path) for path in sorted(TUTORIALS.glob("*.ipynb"))
    }


def build_page(path: Path) -> str:
    """One notebook: its words, its code, and below each cell what it printed and drew."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    blocks: list[str] = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            blocks.append(source)
            continue
        blocks.append(f"```python\n{source}\n```")
        blocks += [_render_output(output) for output in cell["outputs"]]
    return "\n\n".join(blocks) + "\n"


def _render_output(output: dict[str, Any]) -> str:
    if output["output_type"] == "stream":
        return f"```text\n{_wrap(output['text'].rstrip())}\n```"
    image = output["data"].get("image/png")
    if image is not None:
        title = escape(output["data"]["text/plain"].strip("<>").removeprefix("Figure: "))
        address = f"data:image/png;base64,{image}"
        return f'<p class="tutorial-figure"><img alt="{title}" src="{address}"></p>'
    html = output["data"].get("text/html")
    if html is None:
        return f"```text\n{_wrap(output['data']['text/plain'])}\n```"
    # A block of its own: Markdown must not look inside, and a blank line would end it.
    lines = [line for line in html.splitlines() if line.strip()]
    return '<div class="tutorial-output">\n' + "\n".join(lines) + "\n</div>"


def _wrap(text: str) -> str:
    """Printed text with its long lines broken, each part as far from the left as its beginning."""
    lines: list[str] = []
    for line in text.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        is_long = len(line) > MAX_COLUMNS
        lines += textwrap.wrap(line, MAX_COLUMNS, subsequent_indent=indent) if is_long else [line]
    return "\n".join(lines)
