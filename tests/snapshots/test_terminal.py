"""What the terminal shows, line by line.

``pytest tests/snapshots --snapshot-update`` accepts an intended change.
"""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tests.snapshots import attributions
from tokenlight import cli
from tokenlight.plots.terminal import show


def render_terminal(explanations, **options) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=100, color_system=None, force_terminal=False)
    show(explanations, console=console, **options)
    return stream.getvalue()


@pytest.fixture
def run_command(capsys, monkeypatch):
    """Return a function that runs a command and returns what it prints."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: str) -> str:
        with pytest.raises(SystemExit) as exit_error:
            cli.main(arguments)
        output, errors = capsys.readouterr()
        assert exit_error.value.code == 0, errors
        return output

    return run


def test_explanation_by_one_method(snapshot):
    assert render_terminal(attributions.review()) == snapshot


def test_explanations_by_two_methods_with_trust(snapshot):
    assert render_terminal(attributions.reviews_by_two_methods()) == snapshot


def test_explanation_by_layer(snapshot):
    assert render_terminal(attributions.review_by_layer(), layers=True) == snapshot


def test_contrast_of_two_classes(snapshot):
    assert render_terminal(attributions.contrast()) == snapshot


def test_answer_to_a_question(snapshot):
    assert render_terminal(attributions.answer()) == snapshot


def test_continuation_of_a_language_model(snapshot):
    assert render_terminal(attributions.continuation()) == snapshot


@pytest.mark.parametrize("command", ["methods", "metrics", "models"])
def test_table_command(command, run_command, snapshot):
    assert run_command(command) == snapshot
