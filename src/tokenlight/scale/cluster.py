"""Tasks on a Ray cluster, by Ray Data: it places the workers, holds tasks back while they are busy, and
tries again what a lost one held.

Every machine must see the files of the job under the same paths, or behind the same URLs.
"""

import json
import os
import socket
import warnings
from importlib import import_module
from logging import getLogger
from typing import Any

from tokenlight.errors import BadInput, MissingExtra
from tokenlight.scale.engine import TRIES, Engine, Outcome, Outcomes, Tasks, TaskWorker, Work, lost

MOST_BLOCKS = 10_000  # of Ray's own; with more tasks than that, each holds several


def results(engine: Engine, job: Work, tasks: Tasks, device: str) -> Outcomes:
    """The outcome of each task, as they come in."""
    ray, gpus = _ray(), engine.gpus_per_worker if device.startswith("cuda") else 0.0
    began = _connect(ray, engine.crew, gpus, engine.address)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray's words on its own future
            context = ray.data.DataContext.get_current()
            context.enable_progress_bars = False
            context.max_errored_blocks = -1  # what is lost is told below, task by task
            rows = ray.data.range(len(tasks), override_num_blocks=min(len(tasks), MOST_BLOCKS))
            size = min(engine.crew, len(tasks))
            done = rows.map_batches(
                TaskWorker,
                fn_constructor_args=(job, tasks, device),
                compute=ray.data.ActorPoolStrategy(size=size, max_tasks_in_flight_per_actor=1),
                batch_size=1,
                num_cpus=1,
                num_gpus=gpus,
                max_restarts=-1,
                max_task_retries=TRIES - 1,
            )
        missing = set(range(len(tasks)))
        for row in done.iter_rows():
            outcome = Outcome(**json.loads(row["outcome"]))
            missing.discard(outcome.task)
            yield outcome
        yield from (lost(number, "Ray does not say why") for number in sorted(missing))
    finally:
        if began:
            ray.shutdown()


def _ray() -> Any:
    # No figures about the user are sent anywhere; asked before Ray is imported.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    MissingExtra.importing("ray.data", "ray", "--engine ray")
    getLogger("ray.data").setLevel("CRITICAL")
    return import_module("ray")


def _reachable(address: str) -> None:
    """Ray itself knocks for minutes at a door that nobody opens."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return  # "auto" and its like
    begin = ". Begin one there with: ray start --head"
    with BadInput.telling(f"no Ray cluster at {address}: ", OSError, end=begin):
        socket.create_connection((host, int(port)), timeout=10).close()


def _connect(ray: Any, workers: int, gpus: float, address: str | None) -> bool:
    """Join a cluster, or begin one on this machine; whether it was begun here."""
    if ray.is_initialized():
        return False
    how: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if address is None:
        # One CPU more than there are workers: Ray Data reads its own rows, too.
        how |= {"num_cpus": workers + 1, "include_dashboard": False}
    else:
        _reachable(address)
        how["address"] = address
    try:
        ray.init(**how)
    except (ConnectionError, ValueError, RuntimeError) as refused:
        said = (str(refused).strip().splitlines() or [type(refused).__name__])[0]
        raise BadInput(f"no Ray cluster at {address!r}: {said}") from refused
    have = ray.cluster_resources()
    kind = "GPU" if gpus else "CPU"
    if have.get(kind, 0) < 1:
        ray.shutdown()
        raise BadInput(f"the Ray cluster has no {kind}; it has {have}.")
    return True
