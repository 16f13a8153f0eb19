"""The README stays short, names the two commands first, and its code runs."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"
MAX_BYTES = 8_000


def test_the_readme_stays_short():
    assert README.stat().st_size <= MAX_BYTES, "put details into the guide (docs/)"


def test_the_readme_begins_with_the_two_commands():
    first = README.read_text(encoding="utf-8")[:600]
    assert "make demo" in first
    assert "make test" in first


def test_the_python_code_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for block in re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.S):
        exec(compile(block, "README.md", "exec"), {})
    assert capsys.readouterr().out.startswith("positive")
    assert (tmp_path / "journey.html").stat().st_size > 1000
