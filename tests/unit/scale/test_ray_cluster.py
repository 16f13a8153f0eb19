"""Ray Data writes the rows that local processes write, and explains data sets of its own."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from tests.helpers.deadlines import DEADLINE_SECONDS
from tests.helpers.gates import GatedEngine
from tests.helpers.ray_actors import list_actor_processes
from tests.helpers.scale_runs import InProcessEngine, read_output_files, write_parquet
from tests.helpers.tolerance import FLOAT32
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


def test_a_killed_actor_is_replaced_and_the_bytes_equal_those_of_one_process(bert_folder, tmp_path):
    data = write_parquet(tmp_path / "a.parquet", COUNT)
    options = {"model": str(bert_folder), "method": "attcat", "part_size": 4, "progress": False}
    explain_files(data, tmp_path / "here", engine=InProcessEngine(), **options)
    gate = tmp_path / "gate"
    before = set(list_actor_processes())
    killed = []

    def kill_one():
        ends = time.monotonic() + DEADLINE_SECONDS
        while not killed and time.monotonic() < ends:
            num_made = len(list((tmp_path / "ray").rglob("0*.parquet")))
            if num_made >= 3 and (alive := set(list_actor_processes()) - before):
                killed.append(min(alive))
                os.kill(killed[0], signal.SIGKILL)
            time.sleep(0.01)
        gate.touch()

    killer = threading.Thread(target=kill_one, daemon=True)
    killer.start()
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        engine = GatedEngine("ray", 2, gate=str(gate), tasks=2)
        summary = explain_files(data, tmp_path / "ray", engine=engine, **options)
        killer.join()
        assert len(killed) == 1
        assert (summary.num_explained, summary.failed_parts) == (COUNT, ())
        assert read_output_files(tmp_path / "ray") == read_output_files(tmp_path / "here")
        dataset = ray.data.read_parquet(str(data))
        explained = explain_dataset(dataset, model=str(bert_folder), method="attcat", batch_size=16)
        rows = {row["id"]: row for row in explained.take_all()}
    finally:
        ray.shutdown()
    import tokenlight

    for expected in tokenlight.load(str(tmp_path / "here")):
        row = rows[f"r{expected.extras['input_columns']['row'] - 1}"]
        np.testing.assert_allclose(row["scores"], expected.scores, atol=FLOAT32)


CODE = """
from tests.helpers.gates import GatedEngine
from tokenlight.scale import explain_files
engine = GatedEngine("ray", 1, gate={gate!r}, tasks=3)
explain_files({data!r}, {out!r}, model={model!r}, engine=engine, method="attcat", part_size=4, progress=False)
"""


def test_the_next_driver_resumes_after_a_killed_one(bert_folder, tmp_path):
    """And its actors end with it: two drivers in turn write what one process writes."""
    data = write_parquet(tmp_path / "a.parquet", COUNT)
    folder = tmp_path / "ray"
    options = {"model": str(bert_folder), "method": "attcat", "part_size": 4, "progress": False}
    explain_files(data, tmp_path / "here", engine=InProcessEngine(), **options)
    gate = str(tmp_path / "never")  # so the driver cannot come to its end
    code = CODE.format(data=str(data), out=str(folder), model=str(bert_folder), gate=gate)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    driver = subprocess.Popen(
        [sys.executable, "-c", code], stderr=subprocess.DEVNULL, env=environment
    )
    ends = time.monotonic() + DEADLINE_SECONDS
    while len(list(folder.rglob("0*.parquet"))) < 3 and driver.poll() is None:
        assert time.monotonic() < ends
        time.sleep(0.005)
    driver.kill()
    assert driver.wait() == -signal.SIGKILL
    assert len(list(folder.rglob("0*.parquet"))) == 3
    summary = explain_files(data, folder, engine=InProcessEngine(), **options)
    assert (summary.num_explained, summary.failed_parts) == (COUNT, ())
    assert read_output_files(folder) == read_output_files(tmp_path / "here")


class DeadlyJob:
    """A job with a task that kills its worker, as a system without memory does."""

    def prepare(self, _device):
        def make(task):
            if task == "bomb":
                os.kill(os.getpid(), signal.SIGKILL)
            return {"rows": 1}

        return make


def test_only_a_task_that_kills_its_actors_fails():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        outcomes = list(Engine("ray", 1).run_tasks(DeadlyJob(), ["a", "bomb", "b"], "cpu"))
    finally:
        ray.shutdown()
    errors = {outcome.task_index: outcome.error for outcome in outcomes}
    assert sorted(errors) == [0, 1, 2]
    assert errors[0] == errors[2] == ""
    assert "died 3 times (Ray does not say why)" in errors[1]
