"""Workers that are killed or interrupted while they start: told in words, and nothing is lost."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.helpers.commands import run_command
from tests.helpers.deadlines import DEADLINE_SECONDS
from tests.helpers.scale_runs import write_parquet

pytestmark = pytest.mark.xdist_group("bench")

# The fork server imports this before its first worker; a worker imports the script that it is started from.
SERVER = """
import os, signal, time
from pathlib import Path

HERE = Path(__file__).parent
attempts = HERE / "attempts"
attempts.write_text(attempts.read_text() + "x" if attempts.exists() else "x")
if len(attempts.read_text()) <= int(os.environ.get("KILLED", 0)):
    os.kill(os.getpid(), signal.SIGKILL)
if os.environ.get("PAUSED") == "server":
    (HERE / "reached").touch()
    while not (HERE / "go").exists():
        time.sleep(0.01)
"""
SCRIPT = """
import multiprocessing, os, time
from pathlib import Path

HERE = Path(__file__).parent


def make_context():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fork_server_hook", "tokenlight.explainer"])
    return context


if __name__ == "__mp_main__" and os.environ.get("PAUSED") == "worker":
    (HERE / "reached").touch()
    while not (HERE / "go").exists():
        time.sleep(0.01)
if __name__ == "__main__":
    from tokenlight.cli import main
    from tokenlight.scale import local_processes

    local_processes._process_context = make_context
    main()
"""

PART_SIZE = 3  # texts


@pytest.fixture
def arguments(tmp_path, bert_folder):
    """A job of two parts."""
    data = write_parquet(tmp_path / "data/a.parquet", 6)
    arguments = ["explain", "--file", data, "-m", bert_folder, "-x", "attcat", "--workers", 1]
    return [*arguments, "--part-size", PART_SIZE, "-o", tmp_path / "out"]


@pytest.fixture
def command(tmp_path, arguments):
    """The job in a process group of its own, as a terminal has it."""
    (tmp_path / "fork_server_hook.py").write_text(SERVER)
    (tmp_path / "script.py").write_text(SCRIPT)
    path = os.pathsep.join([str(tmp_path), *sys.path])

    def begin(**environment):
        return subprocess.Popen(
            [sys.executable, str(tmp_path / "script.py"), *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": path} | environment,
            start_new_session=True,
        )

    return begin


def test_a_fork_server_that_is_killed_once_is_started_again(command, tmp_path):
    process = command(KILLED="1")
    output, errors = process.communicate(timeout=DEADLINE_SECONDS)
    assert (process.returncode, output) == (0, ""), errors
    assert "6 of 6 texts are in" in errors
    assert len((tmp_path / "attempts").read_text()) == 2


def test_a_fork_server_that_is_killed_repeatedly_is_reported_with_a_remedy(
    command, arguments, tmp_path
):
    process = command(KILLED="100")
    _, errors = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 1, errors
    messages = " ".join(errors.split())
    assert "error: Worker processes could not be started: 3 attempts ended in" in messages
    assert "run the same command to continue." in messages
    assert "Traceback" not in messages
    result = run_command(*arguments)
    assert result.status == 0, result.errors
    assert len(list((tmp_path / "out/rows").rglob("*.parquet"))) == 2


@pytest.mark.parametrize("where", ["server", "worker"])
def test_only_the_runner_answers_ctrl_c_while_a_worker_starts(command, arguments, tmp_path, where):
    process = command(PAUSED=where)
    ends = time.monotonic() + DEADLINE_SECONDS
    while not (tmp_path / "reached").exists():
        assert process.poll() is None
        assert time.monotonic() < ends
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=DEADLINE_SECONDS) == 130
    (tmp_path / "go").touch()  # for who is still there, and holds standard error open
    _, errors = process.communicate(timeout=DEADLINE_SECONDS)
    messages = " ".join(errors.split())
    assert messages == (
        f"stopped: no part of {PART_SIZE} texts was finished; run the same command again to continue."
    )
    result = run_command(*arguments)
    assert result.status == 0, result.errors
