"""The README is true: its tables are made from the code, its code runs."""

from __future__ import annotations

import re

from tests.readme_tables import PAGES, filled

README = PAGES[0]


def test_tables_are_up_to_date():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert filled(text) == text, "run: python -m tests.readme_tables"


def test_it_leads_with_the_two_commands():
    first = README.read_text(encoding="utf-8")[:600]
    assert "make demo" in first
    assert "make test" in first


def test_its_python_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for block in re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.S):
        exec(compile(block, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert printed.startswith("positive")
    assert "Shakespeare" in printed
    assert (tmp_path / "journey.html").stat().st_size > 1000
