"""Tasks on a Ray cluster, through Ray Data.

Ray places the workers, holds tasks back while all are busy, and repeats the task of a lost worker. Every
machine must see the files of the job under the same paths or URLs.
"""

import json
import os
import socket
import warnings
from importlib import import_module
from logging import getLogger
from typing import Any

from tokenlight.errors import BadInput, MissingExtra
from tokenlight.scale.engine import (
    MAX_TRIES,
    Engine,
    Job,
    Outcome,
    OutcomeStream,
    Tasks,
    TaskWorker,
    make_lost_outcome,
)

MAX_RAY_BLOCKS = 10_000  # with more tasks than this, one of Ray's blocks holds several
CONNECT_SECONDS = 10.0


def run_ray_tasks(engine: Engine, job: Job, tasks: Tasks, device: str) -> OutcomeStream:
    """Yield the outcome of each task, in the order in which they finish."""
    ray = _import_ray()
    gpus_per_worker = 0.0
    if device.startswith("cuda"):
        gpus_per_worker = engine.gpus_per_worker
    was_started = _connect_or_start(ray, engine.num_workers, gpus_per_worker, engine.address)
    try:
        dataset = _build_dataset(
            ray, (job, tasks, device), min(engine.num_workers, len(tasks)), gpus_per_worker
        )
        missing = set(range(len(tasks)))
        for row in dataset.iter_rows():
            outcome = Outcome(**json.loads(row["outcome"]))
            missing.discard(outcome.task_index)
            yield outcome
        for task_index in sorted(missing):
            yield make_lost_outcome(task_index, "Ray does not say why")
    finally:
        if was_started:
            ray.shutdown()


def _build_dataset(
    ray: Any, worker_arguments: tuple[Job, Tasks, str], num_workers: int, gpus_per_worker: float
) -> Any:
    """Return a data set of task numbers, mapped to outcomes by actors; it runs when it is read."""
    _, tasks, _ = worker_arguments
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray announces changes of future versions
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.max_errored_blocks = -1  # tasks that Ray loses are reported one by one
        task_numbers = ray.data.range(
            len(tasks), override_num_blocks=min(len(tasks), MAX_RAY_BLOCKS)
        )
        return task_numbers.map_batches(
            TaskWorker,
            fn_constructor_args=worker_arguments,
            compute=ray.data.ActorPoolStrategy(size=num_workers, max_tasks_in_flight_per_actor=1),
            batch_size=1,
            num_cpus=1,
            num_gpus=gpus_per_worker,
            max_restarts=-1,
            max_task_retries=MAX_TRIES - 1,
        )


def _import_ray() -> Any:
    # Ray reads these when it is imported. The first keeps it from sending usage statistics.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    MissingExtra.import_or_raise("ray.data", "ray", "--engine ray")
    getLogger("ray.data").setLevel("CRITICAL")
    return import_module("ray")


def _check_reachable(address: str) -> None:
    """Fail within seconds if nothing listens at ``address``; Ray itself retries for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return  # "auto" and similar words
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise BadInput(
            f"There is no Ray cluster at {address}: {error}. Start one there with: ray start --head",
            code="ray-unreachable",
        ) from error


def _connect_or_start(
    ray: Any, num_workers: int, gpus_per_worker: float, address: str | None
) -> bool:
    """Connect to a cluster, or start one on this machine; return whether ``ray.shutdown()`` is ours."""
    if ray.is_initialized():
        return False
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if address is None:
        # One CPU more than there are workers: Ray Data needs one to read the task numbers.
        options |= {"num_cpus": num_workers + 1, "include_dashboard": False}
    else:
        _check_reachable(address)
        options["address"] = address
    try:
        ray.init(**options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        # Ray's messages run over many lines, of which the first says what happened.
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise BadInput(
            f"Ray cannot connect to a cluster at {address!r}: {lines[0].rstrip('.')}. Check the address, and "
            "that the cluster runs the same version of Ray.",
            code="ray-refused",
        ) from error
    resources = ray.cluster_resources()
    kind = "GPU" if gpus_per_worker else "CPU"
    if resources.get(kind, 0) < 1:
        ray.shutdown()
        raise BadInput(
            f"The Ray cluster has no {kind}. It has {resources}.", code="ray-without-device"
        )
    return True
