"""Ray Data writes the rows that local processes write, and explains data sets of its own."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from tests.scale_runs import Here, bytes_of, parquet
from tests.tolerance import FLOAT32
from tests.unit.test_bench_ray import actors
from tokenlight.scale import Engine, explain_dataset, explain_files

ray = pytest.importorskip("ray")
pytestmark = [
    pytest.mark.xdist_group("bench"),
    # Third party, 2026-11: Ray's own process handling, and its words on its future.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
COUNT = 64


def test_an_actor_that_is_killed_is_replaced_and_the_bytes_are_those_of_one_process(
    bert_folder, tmp_path
):
    data = parquet(tmp_path / "a.parquet", COUNT)
    how = {"model": str(bert_folder), "method": "attcat", "block": 4, "progress": False}
    explain_files(data, tmp_path / "here", engine=Here(), **how)
    before, killed = set(actors()), []

    def kill_one():
        ends = time.monotonic() + 300
        while not killed and time.monotonic() < ends:
            made = len(list((tmp_path / "ray").rglob("0*.parquet")))
            if made >= 3 and (alive := set(actors()) - before):
                killed.append(min(alive))
                os.kill(killed[0], signal.SIGKILL)
            time.sleep(0.01)

    killer = threading.Thread(target=kill_one)
    killer.start()
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        done = explain_files(data, tmp_path / "ray", engine=Engine("ray", 2), **how)
        killer.join()
        assert len(killed) == 1
        assert (done.rows, done.failed) == (COUNT, ())
        assert bytes_of(tmp_path / "ray") == bytes_of(tmp_path / "here")
        given = ray.data.read_parquet(str(data))
        made = explain_dataset(given, model=str(bert_folder), method="attcat", block=16)
        rows = {row["id"]: row for row in made.take_all()}
    finally:
        ray.shutdown()
    import tokenlight

    for expected in tokenlight.load(str(tmp_path / "here")):
        row = rows[f"r{expected.extras['kept']['row'] - 1}"]
        np.testing.assert_allclose(row["scores"], expected.scores, atol=FLOAT32)


CODE = """
from tokenlight.scale import Engine, explain_files
explain_files({data!r}, {out!r}, model={model!r}, engine=Engine("ray", 1), method="attcat", block=4,
              progress=False)
"""


def test_a_driver_that_is_killed_leaves_nothing_half_done_for_the_next(bert_folder, tmp_path):
    """And its actors end with it: two drivers in turn write what one process writes."""
    data, folder = parquet(tmp_path / "a.parquet", COUNT), tmp_path / "ray"
    how = {"model": str(bert_folder), "method": "attcat", "block": 4, "progress": False}
    explain_files(data, tmp_path / "here", engine=Here(), **how)
    code = CODE.format(data=str(data), out=str(folder), model=str(bert_folder))
    driver = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    ends = time.monotonic() + 240
    while len(list(folder.rglob("0*.parquet"))) < 3 and driver.poll() is None:
        assert time.monotonic() < ends
        time.sleep(0.005)
    driver.kill()
    assert driver.wait() == -signal.SIGKILL
    assert len(list(folder.rglob("0*.parquet"))) < COUNT // 4
    done = explain_files(data, folder, engine=Here(), **how)
    assert (done.rows, done.failed) == (COUNT, ())
    assert bytes_of(folder) == bytes_of(tmp_path / "here")


class Deadly:
    """Work of which one task kills whoever does it, as a system out of memory does."""

    def begin(self, _device):
        def make(task):
            if task == "bomb":
                os.kill(os.getpid(), signal.SIGKILL)
            return {"rows": 1}

        return make


def test_a_task_that_kills_its_actors_costs_itself_alone():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        found = list(Engine("ray", 1).results(Deadly(), ["a", "bomb", "b"], "cpu"))
    finally:
        ray.shutdown()
    troubles = {one.task: one.trouble for one in found}
    assert sorted(troubles) == [0, 1, 2]
    assert troubles[0] == troubles[2] == ""
    assert (
        "its worker died 3 times (Ray does not say why); most often the memory does not suffice"
        in troubles[1]
    )
