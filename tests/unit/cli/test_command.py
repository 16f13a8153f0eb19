"""Help by group of options, and earlier spellings of options."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from tokenlight.cli.app import app
from tokenlight.cli.command import OLD_FLAGS
from tokenlight.cli.options import GROUPS


def read_help(*command: str) -> str:
    return CliRunner().invoke(app, [*command, "-h"]).output


@pytest.mark.parametrize(
    "command", [("explain",), ("evaluate",), ("diff",), ("heads",), ("bench", "run")]
)
def test_help_lists_groups_in_one_order_and_general_options_last(command):
    titles = [line[:-1] for line in read_help(*command).splitlines() if line.endswith(":")]
    groups = [title for title in titles if title in GROUPS]
    assert len(groups) >= 3
    assert groups == [group for group in GROUPS if group in groups]
    assert titles[-1] == "Options"


def test_help_does_not_list_earlier_spellings():
    texts = read_help("explain") + read_help("bench", "run") + read_help("heads")
    words = texts.split()
    assert not set(OLD_FLAGS) & set(words)
    assert set(OLD_FLAGS.values()) - set(words) <= {"--min-correlation"}  # an option of diff


@pytest.mark.parametrize("spelling", [["--out", "FOLDER"], ["--out=FOLDER"]])
def test_an_earlier_spelling_is_still_read(spelling):
    # Writing into a folder needs --file, which is said before anything is loaded.
    result = CliRunner().invoke(app, ["explain", "a film", *spelling])
    assert "-o FOLDER needs --file DATA" in result.output


def test_words_after_two_dashes_are_text():
    result = CliRunner().invoke(app, ["explain", "-o", "FOLDER", "--", "--out"])
    assert "-o FOLDER needs --file DATA" in result.output
