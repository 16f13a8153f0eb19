"""Fixtures of the command-line tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tokenlight import cli


@pytest.fixture
def tokenlight(capsys, monkeypatch) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs a command and returns its exit code, standard output and standard error."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_error:
            cli.main([str(argument) for argument in arguments])
        return exit_error.value.code, *capsys.readouterr()

    return run
