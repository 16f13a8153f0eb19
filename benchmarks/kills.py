"""Ten kills -9, of workers and of drivers, by both engines: are the rows what they would have been?

    python benchmarks/kills.py [--kills 10] [--texts 2048] [--engines local ray]

A job is begun by the command line and, at a random moment, one of its workers (which its engine replaces)
or its driver (which the same command follows) is killed; so often, until all kills are spent. At the end
the rows are compared byte for byte with those of a job that nobody disturbed.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from scale import resident, rows_of, written


def workers_of(driver: int) -> list[int]:
    """Processes of the job that explain: those of the driver that hold the libraries, but not it."""
    found = []
    for number, size in resident().items():
        try:
            said = Path(f"/proc/{number}/cmdline").read_bytes()
        except OSError:
            continue
        if number != driver and size > 200 and (b"MapWorker" in said or b"multiprocessing" in said):
            found.append(number)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--texts", type=int, default=2048)
    parser.add_argument("--block", type=int, default=32)
    parser.add_argument("--model", default="tokenlight/sentiment")
    parser.add_argument("--engines", nargs="+", default=["local", "ray"])
    given = parser.parse_args()
    moments = random.Random(time.time_ns())
    with tempfile.TemporaryDirectory() as place:
        data = written(Path(place), given.texts) / "00000000.parquet"
        command = [
            sys.executable,
            "-m",
            "tokenlight",
            "explain",
            "--file",
            str(data),
            "--keep",
            "id",
        ]
        command += [
            "-m",
            given.model,
            "-x",
            "attcat",
            "--block",
            str(given.block),
            "--workers",
            "2",
        ]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        whole = Path(place) / "whole"
        subprocess.run([*command, "-o", str(whole)], check=True, **quiet)
        blocks = len(list((whole / "rows").rglob("*.parquet")))
        for engine in given.engines:
            out, killed = Path(place) / engine, []
            while True:
                driver = subprocess.Popen([*command, "-o", str(out), "--engine", engine], **quiet)
                while driver.poll() is None and len(killed) < given.kills:
                    before = len(list((out / "rows").rglob("0*.parquet")))
                    goal = min(
                        blocks - 1, before + moments.randint(1, max(1, blocks // given.kills // 2))
                    )
                    while (
                        driver.poll() is None
                        and len(list((out / "rows").rglob("0*.parquet"))) < goal
                    ):
                        time.sleep(0.01)
                    time.sleep(moments.random() / 10)
                    alive = workers_of(driver.pid)
                    whom = moments.choice(["worker", "driver"]) if alive else "driver"
                    victim = moments.choice(alive) if whom == "worker" else driver.pid
                    if driver.poll() is not None:
                        break
                    os.kill(victim, signal.SIGKILL)
                    done = len(list((out / "rows").rglob("0*.parquet")))
                    killed.append(f"{whom} at {done}/{blocks}")
                    if whom == "driver":
                        break
                    time.sleep(1)
                if driver.wait() == 0:
                    break
            same = rows_of(out) == rows_of(whole)
            print(
                f"{engine}: {len(killed)} kills ({', '.join(killed)}); same bytes: {same}",
                flush=True,
            )


if __name__ == "__main__":
    main()
