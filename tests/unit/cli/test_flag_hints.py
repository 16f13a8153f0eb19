"""Errors of the library name Python keywords; the command line prints its options instead."""

import re

import pytest

from tokenlight.cli import flag_hints
from tokenlight.cli.flag_hints import (
    FLAG_HINTS,
    format_for_command_line,
    format_text_for_command_line,
)
from tokenlight.errors import BadInput

ROWS = {
    "too-long": ((r"long='(\w+)'", r"--long \1"),),
    "no-labels": ((r"labels=…", "--label COLUMN"),),
}


@pytest.fixture
def two_rows(monkeypatch):
    monkeypatch.setattr(flag_hints, "FLAG_HINTS", ROWS)


@pytest.mark.usefixtures("two_rows")
def test_an_error_is_spelled_by_the_row_of_its_code():
    error = BadInput("Give long='stride' or labels=….", code="too-long")
    assert format_for_command_line(error) == "Give --long stride or labels=…."
    assert format_for_command_line(BadInput("Give long='stride'.")) == "Give long='stride'."


@pytest.mark.usefixtures("two_rows")
def test_a_text_without_a_code_is_spelled_by_every_row():
    text = "2 of 3 texts were not explained: Give long='stride' or labels=…."
    assert format_text_for_command_line(text).endswith("Give --long stride or --label COLUMN.")


def test_rows_are_sorted_and_every_pattern_is_valid():
    assert list(FLAG_HINTS) == sorted(FLAG_HINTS)
    for rows in FLAG_HINTS.values():
        for python_spelling, option in rows:
            # Raises where the option refers to a group that the pattern does not have.
            re.sub(f"(?:{python_spelling})?", option, "")
