"""Workers and drivers are killed, disks fill: what is finished stays, and the rest comes out the same."""

import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time

import pytest

from tests.scale_runs import Here, bytes_of, parquet
from tokenlight.files.parts import worked_in
from tokenlight.scale import Engine, explain_files
from tokenlight.scale import engine as processes

pytestmark = pytest.mark.xdist_group("bench")
COUNT = 96


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return parquet(tmp_path_factory.mktemp("kills") / "a.parquet", COUNT)


def explained(data, model, folder, engine):
    how = {"method": "attcat", "keep": ["id"], "block": 4, "progress": False}
    return explain_files(data, folder, model=str(model), engine=engine, **how)


@pytest.fixture(scope="module")
def whole(data, bert_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("kills") / "whole"
    explained(data, bert_folder, folder, Here())
    return folder


@pytest.fixture
def forked(monkeypatch):
    """Workers are forked from here, where the libraries are: loading them is most of a short life."""
    monkeypatch.setattr(processes, "_context", lambda: multiprocessing.get_context("fork"))


def test_two_workers_of_which_one_is_killed_write_the_same_bytes(
    data, whole, bert_folder, tmp_path, monkeypatch
):
    killed, real = [], processes._Process.give

    def give(worker, task):
        real(worker, task)
        if task == 7 and not killed:
            killed.append(worker.process.pid)
            os.kill(worker.process.pid, signal.SIGKILL)

    monkeypatch.setattr(processes._Process, "give", give)
    done = explained(data, bert_folder, tmp_path / "out", Engine(workers=2))
    assert len(killed) == 1
    assert (done.rows, done.failed) == (COUNT, ())
    assert bytes_of(tmp_path / "out") == bytes_of(whole)


@pytest.mark.usefixtures("forked")
def test_a_block_that_the_memory_does_not_suffice_for_costs_itself_alone(
    data, whole, bert_folder, tmp_path, monkeypatch
):
    """Killed whenever it is given out, as a system out of memory does, until it is given up."""
    real = processes._Process.give

    def give(worker, task):
        real(worker, task)
        if task == 3:
            os.kill(worker.process.pid, signal.SIGKILL)

    with monkeypatch.context() as patch:
        patch.setattr(processes._Process, "give", give)
        done = explained(data, bert_folder, tmp_path / "out", Engine(workers=1))
    assert [number for number, _ in done.failed] == [3]
    assert "died 3 times (signal 9); most often the memory does not suffice" in done.failed[0][1]
    assert done.rows == COUNT - 4
    again = explained(data, bert_folder, tmp_path / "out", Engine(workers=1))
    assert (again.there, again.made, again.rows) == (COUNT - 4, 1, COUNT)
    assert bytes_of(tmp_path / "out") == bytes_of(whole)


def _driven(data, model, folder):
    """A driver in a process of its own, with a worker."""
    processes._context = lambda: multiprocessing.get_context("fork")
    explained(data, model, folder, Engine(workers=1))


def blocks(folder):
    return len(list((folder / "rows").rglob("0*.parquet")))


def test_a_driver_that_is_killed_thrice_leaves_nothing_half_done(
    data, whole, bert_folder, tmp_path
):
    folder, found = tmp_path / "out", []
    context = multiprocessing.get_context("fork")
    while len(found) < 3:
        driver = context.Process(target=_driven, args=(data, bert_folder, folder))
        driver.start()
        ends = time.monotonic() + 120
        while blocks(folder) < (found[-1] if found else 0) + 2 and driver.is_alive():
            assert time.monotonic() < ends
            time.sleep(0.005)
        os.kill(driver.pid, signal.SIGKILL)
        driver.join()
        while worked_in(folder):  # its worker was forked with the lock, and notices within moments
            assert time.monotonic() < ends
            time.sleep(0.01)
        found.append(blocks(folder))
    assert found[0] < COUNT // 4  # it was killed before the end
    done = explained(data, bert_folder, folder, Here())
    assert (done.rows, done.failed) == (COUNT, ())
    assert bytes_of(folder) == bytes_of(whole)
    lines = [json.loads(line) for line in (folder / "manifest.jsonl").read_text().splitlines()]
    assert sum(line["rows"] for line in lines) == COUNT


def test_a_full_disk_stops_cleanly_and_room_lets_it_go_on(data, whole, bert_folder, tmp_path):
    """A file may grow to so many bytes and no more, which the system tells as it tells a full disk."""
    folder, code = tmp_path / "out", "from tokenlight.cli import main; main()"
    biggest = max(len(content) for content in bytes_of(whole).values())
    sizes = sorted(len(content) for content in bytes_of(whole).values())
    assert sizes[0] < biggest
    given = ["explain", "--file", str(data), "-o", str(folder), "-m", str(bert_folder)]
    given += ["-x", "attcat", "--keep", "id", "--block", "4", "--workers", "1"]

    def narrow():
        resource.setrlimit(resource.RLIMIT_FSIZE, (biggest - 1, biggest - 1))

    run = [sys.executable, "-c", code, *given]
    done = subprocess.run(run, capture_output=True, text=True, preexec_fn=narrow, timeout=300)
    assert done.returncode == 1, done.stderr
    said = " ".join(done.stderr.split())
    assert "is full. What is finished is kept: free some room, then give the same command" in said
    assert not list(folder.rglob(".*.part"))
    done = subprocess.run(run, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert bytes_of(folder) == bytes_of(whole)
