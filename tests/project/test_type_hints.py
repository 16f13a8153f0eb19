"""Type checkers know the return types and the keywords of explain() and evaluate()."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# mypy runs once, for one worker.
pytestmark = pytest.mark.xdist_group("mypy")
SNIPPET_HEAD = """
from collections.abc import Iterator
from tokenlight import Continuation, Contrast, Explainer, Picture, Question, Tokens

def check_calls(e: Explainer, texts: list[str], names: list[str], stream: Iterator[str], ids: Tokens) -> None:
"""
RETURN_TYPES = {
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
TYPE_ERRORS = {
    'e.explain("a", sed=1)': 'Unexpected keyword argument "sed"',
    'e.explain("a", long="cut")': "No overload variant",
    'e.evaluate("a", ["aopc"])': 'Argument 1 to "evaluate"',
}


@pytest.fixture(scope="module")
def mypy_messages(tmp_path_factory):
    """Return mypy's first message for each expression. It shares the cache of ``make check``."""
    script = tmp_path_factory.mktemp("types") / "typed_calls.py"
    lines = [
        *(f"    reveal_type({expression})" for expression in RETURN_TYPES),
        *(f"    {expression}" for expression in TYPE_ERRORS),
    ]
    script.write_text(SNIPPET_HEAD + "\n".join(lines), encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--no-error-summary", str(script)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 1, result.stdout + result.stderr  # the wrong calls
    messages_by_line: dict[int, str] = {}
    for line_number, message in re.findall(r"typed_calls\.py:(\d+): (.+)", result.stdout):
        messages_by_line.setdefault(int(line_number), message)
    first_line = SNIPPET_HEAD.count("\n") + 1
    expressions = [*RETURN_TYPES, *TYPE_ERRORS]
    return {
        expression: messages_by_line.get(line_number, "")
        for line_number, expression in enumerate(expressions, start=first_line)
    }


@pytest.mark.parametrize("expression", RETURN_TYPES)
def test_return_values_have_their_types(mypy_messages, expression):
    (revealed_type,) = re.findall(r'Revealed type is "(.+)"', mypy_messages[expression])
    assert re.sub(r"[\w.]+\.(?=\w)", "", revealed_type) == RETURN_TYPES[expression]


@pytest.mark.parametrize("expression", TYPE_ERRORS)
def test_a_wrong_call_is_a_type_error(mypy_messages, expression):
    assert TYPE_ERRORS[expression] in mypy_messages[expression]
