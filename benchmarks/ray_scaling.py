"""How much faster two one-thread workers are than one, on local processes and on Ray.

The same suite (the embedded sentiment model, the film sentences that come with it) is run by one and
by two workers of each engine. Counted are the parts that come in between the first and the last, so
that the start of processes, which a long run pays once, is left out; the best of several rounds. The
goal is a factor of 1.5 or more on two cores. The tables of all runs must be the same bytes.

    python benchmarks/ray_scaling.py [--engines local ray] [--rounds N] [--slice N]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

from tokenlight.bench.run import run_suite
from tokenlight.bench.store import RunFolder
from tokenlight.bench.suite import SHIPPED
from tokenlight.scale import Engine

SUITE = """\
data: [{{name: films, local: {texts}}}]
models: [tokenlight/sentiment]
methods: [attcat, transatt, random]
metrics: [aopc, lodds]
slice: {slice}
"""


def rate(folder: Path, examples: int) -> float:
    """Examples a second between the first and the last part."""
    run = RunFolder.open(folder)
    ends = sorted(run.place(part, "json").stat().st_mtime for part in run.parts)
    return examples * (len(ends) - 1) / (ends[-1] - ends[0])


def measured(suite: Path, examples: int, engine: Engine) -> tuple[float, bytes]:
    with tempfile.TemporaryDirectory() as place:
        run_suite(suite, Path(place) / "run", engine=engine)
        found = rate(Path(place) / "run", examples)
        return found, (Path(place) / "run" / "scores.csv").read_bytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", nargs="+", default=["local", "ray"])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--slice", type=int, default=8)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        suite = Path(place) / "scaling.yaml"
        suite.write_text(SUITE.format(texts=SHIPPED / "quick.jsonl", slice=given.slice))
        tables = set()
        print(f"{os.cpu_count()} cores, load before the start {os.getloadavg()[0]:.1f}")
        for engine in given.engines:
            best = {1: 0.0, 2: 0.0}
            for _ in range(given.rounds):
                for workers in (1, 2):
                    found, table = measured(suite, given.slice, Engine(engine, workers))
                    best[workers] = max(best[workers], found)
                    tables.add(table)
            factor = best[2] / best[1]
            print(
                f"{engine:5}  one worker {best[1]:6.1f} examples/s  two {best[2]:6.1f}  "
                f"factor {factor:.2f} (goal 1.50)"
            )
            print(json.dumps({"engine": engine, "one": best[1], "two": best[2], "factor": factor}))
        print("tables equal:", len(tables) == 1)


if __name__ == "__main__":
    main()
