"""Type checkers see what explain() and evaluate() give back, and which keywords there are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# mypy runs once, for one worker.
pytestmark = pytest.mark.xdist_group("mypy")
BEGIN = """
from collections.abc import Iterator
from tokenlight import Continuation, Contrast, Explainer, Picture, Question, Tokens

def asked(e: Explainer, texts: list[str], names: list[str], stream: Iterator[str], ids: Tokens) -> None:
"""
GIVES = {
    'e.explain("a")': "Attribution",
    'e.explain(("a", "b"), ("rollout", {"start_layer": 2}), Contrast("a", "b"), seed=1)': "Attribution",
    'e.explain(Question(question="a", context="b"), target="b", long="stride")': "Attribution",
    'e.explain(Picture("cat.png"), "attcat", 3)': "Attribution",
    'e.explain("a", names)': "list[Attribution]",
    'e.explain("a", ["attcat", ("rollout", {})])': "list[Attribution]",
    'e.explain("a", target="all")': "list[Attribution]",
    'e.explain("a", "attcat", Continuation(" b"))': "list[Attribution]",
    "e.explain(texts)": "list[Attribution]",
    'e.explain(texts, names, ["positive", "negative"])': "list[Attribution]",
    "e.explain(stream, names)": "Iterator[Attribution]",
    "e.explain(ids)": "Attribution | list[Attribution]",
    'e.evaluate(e.explain(texts), ["aopc"])': "Evaluation",
}
WRONG = {
    'e.explain("a", sed=1)': 'Unexpected keyword argument "sed"',
    'e.explain("a", long="cut")': "No overload variant",
    'e.evaluate("a", ["aopc"])': 'Argument 1 to "evaluate"',
}


@pytest.fixture(scope="module")
def mypy_messages(tmp_path_factory):
    """Expression to what mypy says of its line. It shares the cache of ``make check``."""
    script = tmp_path_factory.mktemp("types") / "snippet.py"
    lines = [
        *(f"    reveal_type({expression})" for expression in GIVES),
        *(f"    {expression}" for expression in WRONG),
    ]
    script.write_text(BEGIN + "\n".join(lines), encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--no-error-summary", str(script)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 1, result.stdout + result.stderr  # the wrong ones
    first = BEGIN.count("\n") + 1
    heard: dict[int, str] = {}
    for number, words in re.findall(r"snippet\.py:(\d+): (.+)", result.stdout):
        heard.setdefault(int(number) - first, words)
    return dict(zip([*GIVES, *WRONG], (heard.get(at, "") for at in range(len(lines))), strict=True))


@pytest.mark.parametrize("expression", GIVES)
def test_return_values_have_their_types(mypy_messages, expression):
    (revealed_type,) = re.findall(r'Revealed type is "(.+)"', mypy_messages[expression])
    assert re.sub(r"[\w.]+\.(?=\w)", "", revealed_type) == GIVES[expression]


@pytest.mark.parametrize("expression", WRONG)
def test_a_wrong_call_is_a_type_error(mypy_messages, expression):
    assert WRONG[expression] in mypy_messages[expression]
