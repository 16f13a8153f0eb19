"""Is anything lost, raw or hung? ``make campaign``: about half an hour.

    python -m tests.campaign [--quick] [--seed 0] [--only WORD …] [--keep FOLDER]

Commands are killed at random and at renames, disks fill, pipes are cut, outputs are damaged or vanish, inputs
and models change while they are read, hostile folders and fuzzed calls come in. After each disturbance the
same command is given again, and what it leaves is compared with an undisturbed run. The table counts:
``held`` (the same results, or a refusal in words where one is right), ``lost`` (other results, or no way
on), ``raw`` (a traceback), ``hung`` (no end in time). ``--only`` takes parts of the names of kinds.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tests.campaign import disturbances, jobs
from tests.campaign.harness import Campaign, Job
from tests.campaign.hostile import try_cases
from tests.campaign.jobs import Files

TEXTS = 960


def plan(
    campaign: Campaign, quick: bool, chance: random.Random, seed: int
) -> dict[str, Callable[[], None]]:
    """Every kind of disturbance by its name."""

    def count(times: int) -> int:
        return 1 if quick else times

    texts = 96 if quick else TEXTS
    files = Files(campaign.folder / "files", texts)
    local = jobs.explain(files)
    ray = jobs.explain(files, "ray")
    bench = jobs.bench(files)
    evaluate = jobs.evaluate(files)
    disturbances_by_name: dict[str, Callable[[], None]] = {}
    for job in (local, ray, bench, evaluate):
        disturbances_by_name[f"kill {job.name}"] = partial(
            disturbances.kill_at_random, campaign, job, count(20), chance
        )
    for job, count_of_job in ((local, 10), (bench, 8), (evaluate, 6)):
        disturbances_by_name |= plan_other_disturbances(campaign, job, count(count_of_job), chance)
    for job in (jobs.explain_text(files), local, bench, evaluate):
        disturbances_by_name[f"pipe {job.name}"] = partial(disturbances.cut_pipes, campaign, job)
    for name, make in (("explain", jobs.explain), ("evaluate", jobs.evaluate)):
        disturbances_by_name[f"changed {name}"] = partial(
            disturbances.change_what_is_read, campaign, make, count(4), texts
        )
    max_folders = 5 if quick else 10_000
    disturbances_by_name["folders"] = partial(
        try_cases, campaign, "folders", [str(seed)], max_folders
    )
    disturbances_by_name["calls"] = partial(
        try_cases, campaign, "calls", [str(seed)], 20 if quick else 3000
    )
    return disturbances_by_name


def plan_other_disturbances(
    campaign: Campaign, job: Job, count: int, chance: random.Random
) -> dict[str, Callable[[], None]]:
    """What is done to every command that can be given again, besides kills at random."""
    num_removals = max(1, count // 3)
    actions = {
        "rename": (disturbances.kill_at_renames, count),
        "disk": (disturbances.fill_disks, max(2, count // 2)),
        "damage": (disturbances.damage_outputs, count),
        "removed": (disturbances.remove_while_running, num_removals),
    }
    return {
        f"{kind} {job.name}": partial(act, campaign, job, times, chance)
        for kind, (act, times) in actions.items()
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one case of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=[""])
    parser.add_argument("--keep", type=Path, help="a folder for what the cases leave")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary_folder:
        campaign = Campaign((options.keep or Path(temporary_folder)).resolve())
        kinds = plan(campaign, options.quick, random.Random(options.seed), options.seed)
        try:
            for name, act in kinds.items():
                if any(word in name for word in options.only):
                    try_kind(campaign, name, act)
        finally:  # what is known so far is told, however the campaign ends
            print(campaign.tally.table())
    sys.exit(0 if campaign.tally.has_held else 1)


def try_kind(campaign: Campaign, name: str, act: Callable[[], None]) -> None:
    """Try one kind, and tell at once what did not hold."""
    start_time = time.monotonic()
    num_faults_before = len(campaign.tally.faults)
    act()
    faults = campaign.tally.faults[num_faults_before:]
    campaign.tell(f"{name}: {time.monotonic() - start_time:.0f} s, {len(faults)} faults")
    for fault in faults:
        campaign.tell(f"  {fault}")


if __name__ == "__main__":
    main()
