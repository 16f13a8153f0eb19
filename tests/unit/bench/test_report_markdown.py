"""A report in Markdown, as a terminal shows it."""

import io
import sys
import threading

import pytest
from rich.console import Console
from rich.markdown import Markdown

from tokenlight.bench.report.writers import escape_markdown, render_markdown_table
from tokenlight.progress import progress_bar


def render_lines(markdown, width=100):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(Markdown(markdown))
    lines = [line.strip() for line in console.file.getvalue().splitlines()]
    return [line for line in lines if line.strip("─")]


def test_headings_lines_and_tables_have_no_escapes():
    table = render_markdown_table(
        ("method", "aopc ↑"), [("grad_x_input", "0.236 [0.187, 0.302]"), ("a", "–")]
    )
    assert render_lines(
        "\n".join([f"## {escape_markdown('A <b> title')}", "", table, escape_markdown("- a_b *c*")])
    ) == [
        "A <b> title",
        "method        aopc ↑",
        "grad_x_input  0.236 [0.187, 0.302]",
        "a             –",
        "• a_b *c*",
    ]


@pytest.mark.parametrize("cell", ["a | b", "a\\", "\\|", "a \\| b", "[red]x[/]", "`x`", "\\\\ | "])
def test_any_cell_text_survives_markdown(cell):
    [_, line, *_] = render_lines(render_markdown_table(("x", "y"), [(cell, "end")]))
    assert line == f"{cell.rstrip()}  end"


def test_a_narrow_terminal_wraps_the_cells():
    lines = render_lines(
        render_markdown_table(("claim", "detail"), [("one", "word " * 20)]), width=40
    )
    assert all(len(line) <= 40 for line in lines)
    assert sum(line.count("word") for line in lines) == 20


def list_timers():
    return [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]


def test_a_progress_bar_writes_nothing_to_standard_output(monkeypatch, capsys):
    """What is printed while a bar is drawn may go to a file, and must not land beside the bar."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("tokenlight.progress.SHOW_DELAY_SECONDS", 0)
    with progress_bar("working", 2, True) as advance:
        for timer in list_timers():
            timer.join()  # nothing is done yet, and the bar is there
        advance(1)
        sys.stdout.write("the answer\n")
        advance(1)
    output = capsys.readouterr()
    assert output.out == "the answer\n"
    assert "the answer" not in output.err
    assert "working" in output.err
    assert "2/2" in output.err


def test_work_that_is_done_at_once_has_no_progress_bar(monkeypatch, capsys):
    monkeypatch.setattr("tokenlight.progress.SHOW_DELAY_SECONDS", 3600)
    with progress_bar("working", 2, True) as advance:
        advance(2)
    assert not list_timers()
    assert capsys.readouterr().err == ""
