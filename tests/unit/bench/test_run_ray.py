"""Ray makes the parts that local processes make, also where it loses a worker on the way."""

import os
import signal
import threading
import time

import pytest

from tests.helpers.bench_runs import count_finished_parts, read_run_bytes, write_suite
from tests.helpers.deadlines import DEADLINE_SECONDS
from tests.helpers.gates import GatedEngine
from tests.helpers.ray_actors import list_actor_processes
from tokenlight.bench.run import run_suite
from tokenlight.errors import BadInput
from tokenlight.scale import Engine

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.xdist_group("bench"),
    # Third party, 2026-11: Ray's own process handling.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
COUNT = 48


def test_two_actors_of_which_one_is_killed_make_the_same_tables(bert_folder, tmp_path):
    suite = write_suite(tmp_path / "suite", bert_folder, COUNT, methods=["attcat", "rollout"])
    run_suite(suite, tmp_path / "local", engine=Engine(workers=1), progress=False)
    folder = tmp_path / "ray"
    gate = tmp_path / "gate"
    before = set(list_actor_processes())
    killed = []

    def kill_one():
        ends = time.monotonic() + DEADLINE_SECONDS
        while not killed and time.monotonic() < ends:
            if count_finished_parts(folder) >= 4 and (
                alive := set(list_actor_processes()) - before
            ):
                killed.append(min(alive))
                os.kill(killed[0], signal.SIGKILL)
            time.sleep(0.01)
        gate.touch()

    killer = threading.Thread(target=kill_one, daemon=True)
    killer.start()
    engine = GatedEngine("ray", workers=2, gate=str(gate), tasks=2)
    finished = run_suite(suite, folder, engine=engine, progress=False)
    killer.join()
    assert len(killed) == 1
    assert (finished.num_parts_made, finished.failed_parts) == (24, ())
    assert read_run_bytes(folder) == read_run_bytes(tmp_path / "local")


def test_an_unreachable_cluster_is_reported(bert_folder, tmp_path):
    suite = write_suite(tmp_path / "suite", bert_folder, 2, methods=["random"])
    with pytest.raises(BadInput, match="no Ray cluster at"):
        run_suite(suite, tmp_path / "run", engine=Engine("ray", 1, address="127.0.0.1:1"))
