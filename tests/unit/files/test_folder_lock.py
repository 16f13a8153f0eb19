"""One run at a time in a folder; the lock goes when its process does."""

import os
import signal
import subprocess
import sys

import pytest

from tests.helpers.deadlines import DEADLINE_SECONDS
from tests.helpers.expect import expect_error
from tokenlight.errors import BadInput
from tokenlight.files.folder_lock import OWNER_FILE, find_lock_owner, locked_folder

HOLD_LOCK = """
import sys, time
from pathlib import Path
from tokenlight.files.folder_lock import locked_folder

with locked_folder(Path(sys.argv[1]), 3):
    print("locked", flush=True)
    time.sleep(600)
"""


def test_a_second_run_is_refused_and_names_the_first(tmp_path):
    with locked_folder(tmp_path, 2):
        owner = find_lock_owner(tmp_path)
        assert owner.startswith(f"process {os.getpid()} on ")
        assert owner.endswith(", 2 workers")
        with expect_error(BadInput, "folder-locked", mentions=owner), locked_folder(tmp_path, 1):
            pytest.fail("both hold the lock")
        assert find_lock_owner(tmp_path) == owner
    assert find_lock_owner(tmp_path) == ""
    with locked_folder(tmp_path, 1):
        pass


def test_an_unlocked_folder_has_no_owner(tmp_path):
    assert find_lock_owner(tmp_path) == ""
    assert find_lock_owner(tmp_path / "missing") == ""
    assert list(tmp_path.iterdir()) == []


def test_an_error_releases_the_lock(tmp_path):
    with pytest.raises(ZeroDivisionError), locked_folder(tmp_path / "new", 1):
        raise ZeroDivisionError
    assert find_lock_owner(tmp_path / "new") == ""


def test_a_lock_without_an_owner_file_is_still_a_lock(tmp_path):
    with locked_folder(tmp_path, 1):
        (tmp_path / OWNER_FILE).unlink()
        assert find_lock_owner(tmp_path) == "unknown"
        with expect_error(BadInput, "folder-locked"), locked_folder(tmp_path, 1):
            pytest.fail("both hold the lock")


def test_the_lock_of_a_killed_process_is_released(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    with holder:
        assert holder.stdout.readline() == "locked\n"
        assert find_lock_owner(tmp_path).startswith(f"process {holder.pid} on ")
        holder.send_signal(signal.SIGKILL)
        assert holder.wait(DEADLINE_SECONDS) == -signal.SIGKILL
    assert find_lock_owner(tmp_path) == ""
    with locked_folder(tmp_path, 1):
        assert find_lock_owner(tmp_path).startswith(f"process {os.getpid()} on ")
