"""Run the tutorials and keep what they print: ``python docs/tutorials/run.py [NAME …]``.

A cell is run as a notebook would run it, in one namespace, without Jupyter: what it prints is kept, and of
its last expression the HTML or, where there is none, the repr.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("COLUMNS", "100")


def code_cells(notebook: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The cells that are run."""
    return (cell for cell in notebook["cells"] if cell["cell_type"] == "code")


def outputs(notebook: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """What each code cell of a notebook gives, in a folder of its own."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            return [_output("".join(cell["source"]), namespace) for cell in code_cells(notebook)]
        finally:
            os.chdir(before)


def _output(source: str, namespace: dict[str, Any]) -> list[dict[str, Any]]:
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "<cell>", "exec"), namespace)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), namespace)
    found: list[dict[str, Any]] = []
    if printed.getvalue():
        found.append({"output_type": "stream", "name": "stdout", "text": printed.getvalue()})
    if value is not None:
        html = getattr(value, "_repr_html_", lambda: None)()
        data = {"text/html": html} if html else {}
        found.append(
            {
                "output_type": "execute_result",
                "execution_count": None,
                "metadata": {},
                "data": {**data, "text/plain": repr(value)},
            }
        )
    return found


def main() -> None:
    """Write the outputs of the notebooks named, or of all, into them."""
    for place in sorted(HERE.glob("*.ipynb")):
        if sys.argv[1:] and place.stem not in sys.argv[1:]:
            continue
        notebook = json.loads(place.read_text(encoding="utf-8"))
        for cell, own in zip(code_cells(notebook), outputs(notebook), strict=True):
            cell["outputs"] = own
        text = json.dumps(notebook, indent=1, ensure_ascii=False)
        place.write_text(text + "\n", encoding="utf-8")
        print(f"ran {place.name}")


if __name__ == "__main__":
    main()
