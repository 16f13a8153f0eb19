"""What the terminal shows, line by line.

``pytest tests/snapshots --snapshot-update`` accepts an intended change.
"""

from __future__ import annotations

import pytest

from tests.helpers.terminal import render_terminal
from tests.snapshots import attributions
from tokenlight import cli


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


def test_one_method_is_shown_as_a_line_of_coloured_words(snapshot):
    assert render_terminal(attributions.review()) == snapshot


def test_two_methods_stand_below_each_other_with_their_grades(snapshot):
    assert render_terminal(attributions.reviews_by_two_methods()) == snapshot


def test_layers_are_columns_of_a_table(snapshot):
    assert render_terminal(attributions.review_by_layer(), layers=True) == snapshot


def test_a_contrast_names_both_classes(snapshot):
    assert render_terminal(attributions.contrast()) == snapshot


def test_an_answer_is_shown_in_its_context(snapshot):
    assert render_terminal(attributions.answer()) == snapshot


def test_a_continuation_is_explained_token_by_token(snapshot):
    assert render_terminal(attributions.continuation()) == snapshot


@pytest.mark.parametrize("command", ["methods", "metrics", "models"])
def test_a_table_of_names_is_printed(command, run_command, snapshot):
    assert run_command(command) == snapshot
