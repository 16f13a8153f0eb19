"""Workers and drivers are killed, disks fill: finished parts stay, and the rest comes out the same."""

import json
import multiprocessing
import os
import resource
import signal
import time
from functools import partial

import pytest

from tests.helpers.commands import fork_context, run_command
from tests.helpers.deadlines import DEADLINE_SECONDS
from tests.helpers.gates import hold_after
from tests.helpers.scale_runs import InProcessEngine, read_output_files, write_parquet
from tokenlight.files.folder_lock import find_lock_owner
from tokenlight.scale import Engine, explain_files
from tokenlight.scale import local_processes as processes

pytestmark = pytest.mark.xdist_group("bench")
COUNT = 96


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_parquet(tmp_path_factory.mktemp("kills") / "a.parquet", COUNT)


def run_job(data, model, folder, engine):
    options = {"method": "attcat", "keep_columns": ["id"], "part_size": 4, "progress": False}
    return explain_files(data, folder, model=str(model), engine=engine, **options)


@pytest.fixture(scope="module")
def complete_folder(data, bert_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("kills") / "whole"
    run_job(data, bert_folder, folder, InProcessEngine())
    return folder


def test_two_workers_of_which_one_is_killed_write_the_same_bytes(
    data, complete_folder, bert_folder, tmp_path, monkeypatch
):
    killed = []
    real = processes._WorkerProcess.send_task

    def give(worker, task):
        real(worker, task)
        if task == 7 and not killed:
            killed.append(worker.process.pid)
            os.kill(worker.process.pid, signal.SIGKILL)

    monkeypatch.setattr(processes._WorkerProcess, "send_task", give)
    summary = run_job(data, bert_folder, tmp_path / "out", Engine(workers=2))
    assert len(killed) == 1
    assert (summary.num_explained, summary.failed_parts) == (COUNT, ())
    assert read_output_files(tmp_path / "out") == read_output_files(complete_folder)


def test_only_a_part_that_exhausts_memory_fails(
    data, complete_folder, bert_folder, tmp_path, monkeypatch
):
    """Its worker is killed every time, as a system without memory does, until the part is arguments up."""
    real = processes._WorkerProcess.send_task

    def give(worker, task):
        real(worker, task)
        if task == 3:
            os.kill(worker.process.pid, signal.SIGKILL)

    with monkeypatch.context() as patch:
        patch.setattr(processes._WorkerProcess, "send_task", give)
        summary = run_job(data, bert_folder, tmp_path / "out", Engine(workers=1))
    assert [number for number, _ in summary.failed_parts] == [3]
    assert "died 3 times (signal 9)" in summary.failed_parts[0][1]
    assert summary.num_explained == COUNT - 4
    second_summary = run_job(data, bert_folder, tmp_path / "out", Engine(workers=1))
    assert (
        second_summary.num_existing,
        second_summary.num_parts_made,
        second_summary.num_explained,
    ) == (COUNT - 4, 1, COUNT)
    assert read_output_files(tmp_path / "out") == read_output_files(complete_folder)


def _drive(data, model, folder):
    """Run the job with one worker, in a process of its own that never reaches its end.

    The worker is forked from it, where the libraries are: loading them would take most of its time.
    """
    processes._process_context = lambda: multiprocessing.get_context("fork")
    hold_after(4)
    run_job(data, model, folder, Engine(workers=1))


def list_part_files(folder):
    """Return the files of finished parts, each with a mark that changes when it is written again."""
    marks = {}
    for path in (folder / "rows").rglob("0*.parquet"):
        status = path.stat()
        marks[path] = (status.st_ino, status.st_mtime_ns)
    return marks


def test_a_driver_killed_three_times_resumes_with_the_same_output(
    data, complete_folder, bert_folder, tmp_path
):
    folder = tmp_path / "out"
    # Not forked from here, where earlier tests may have left threads.
    context = fork_context()
    for _ in range(3):
        files_before = list_part_files(folder)
        driver = context.Process(target=_drive, args=(data, bert_folder, folder))
        driver.start()
        deadline = time.monotonic() + DEADLINE_SECONDS
        # Parts that the last driver had not entered into the manifest are made again, so files that
        # were written count here, not files that exist: a driver may add none at all.
        while driver.is_alive():
            if len(list_part_files(folder).items() - files_before.items()) >= 2:
                break
            assert time.monotonic() < deadline
            time.sleep(0.005)
        os.kill(driver.pid, signal.SIGKILL)
        driver.join()
        assert driver.exitcode == -signal.SIGKILL
        while find_lock_owner(folder):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert len(list_part_files(folder)) < COUNT // 4  # it was killed before the end
    summary = run_job(data, bert_folder, folder, InProcessEngine())
    assert (summary.num_explained, summary.failed_parts) == (COUNT, ())
    assert read_output_files(folder) == read_output_files(complete_folder)
    lines = [json.loads(line) for line in (folder / "manifest.jsonl").read_text().splitlines()]
    assert sum(line["rows"] for line in lines) == COUNT


def test_a_run_resumes_after_a_full_disk(data, complete_folder, bert_folder, tmp_path):
    """A file may grow to so many bytes and no more, which the system tells as it tells a full disk."""
    folder = tmp_path / "out"
    biggest = max(len(content) for content in read_output_files(complete_folder).values())
    sizes = sorted(len(content) for content in read_output_files(complete_folder).values())
    assert sizes[0] < biggest
    arguments = ["explain", "--file", str(data), "-o", str(folder), "-m", str(bert_folder)]
    arguments += ["-x", "attcat", "--keep", "id", "--part-size", "4", "--workers", "1"]

    limits = (biggest - 1, biggest - 1)
    result = run_command(
        *arguments, prepare=partial(resource.setrlimit, resource.RLIMIT_FSIZE, limits)
    )
    assert result.status == 1, result.errors
    message = " ".join(result.errors.split())
    assert "is full. Finished work is kept: free some space, then run the same command" in message
    assert not list(folder.rglob(".*.tmp"))
    result = run_command(*arguments)
    assert result.status == 0, result.errors
    assert read_output_files(folder) == read_output_files(complete_folder)
