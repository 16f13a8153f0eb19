"""Commands of a campaign: run within limits, disturbed, given again, and judged by what they leave."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).parents[2]
REFERENCE_SECONDS = 1800  # for an undisturbed command, however busy the machine is
MAX_SLOWDOWN = 20  # a disturbed command may take as many times as long as an undisturbed one
MARK = "CAMPAIGN_CASE"  # in the environment of every process of a case, by which they are found
BUSY = "Another run is working in"
RAW = re.compile(
    r"Traceback|panicked|Fatal Python error|^Aborted!|Segmentation fault", re.MULTILINE
)
Verdict = Literal["held", "lost", "raw", "hung"]
VERDICTS: tuple[Verdict, ...] = ("held", "lost", "raw", "hung")
Results = Mapping[str, bytes]


@dataclass(frozen=True)
class Job:
    """A command that writes into a folder and can be given again; ``results`` reads what it wrote."""

    name: str
    command: Callable[[Path], list[str]]
    results: Callable[[Path], Results]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ended:
    """How a command ended; ``status`` is None where it had to be stopped for its time."""

    status: int | None
    output: str
    errors: str
    seconds: float

    @property
    def is_raw(self) -> bool:
        return RAW.search(self.errors) is not None


@dataclass
class Tally:
    """What became of the cases of each kind, and in words what did not hold."""

    counts: dict[str, Counter[Verdict]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def add(self, kind: str, verdict: Verdict, description: str = "", times: int = 1) -> None:
        self.counts.setdefault(kind, Counter())[verdict] += times
        if verdict != "held":
            self.faults.append(f"{kind}: {verdict}: {description}")

    @property
    def has_held(self) -> bool:
        return not self.faults

    def table(self) -> str:
        """One line for each kind: tried, held, lost, raw, hung."""
        lines = [("kind", "tried", *VERDICTS)]
        everything: Counter[Verdict] = Counter()
        for kind, counts in self.counts.items():
            everything.update(counts)
            lines.append(_format_line(kind, counts))
        lines.append(_format_line("all", everything))
        width = max(len(line[0]) for line in lines)
        return "\n".join(
            line[0].ljust(width) + "".join(cell.rjust(8) for cell in line[1:]) for line in lines
        )


def _format_line(kind: str, counts: Counter[Verdict]) -> tuple[str, ...]:
    return (kind, str(counts.total()), *(str(counts[verdict]) for verdict in VERDICTS))


class Running:
    """A command in a process group of its own, whose output goes to files."""

    def __init__(
        self,
        command: list[str],
        folder: Path,
        environment: Mapping[str, str] | None = None,
        **stream_options: Any,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        number = len(list(folder.glob("*.errors")))
        self.paths = [folder / f"{number}.output", folder / f"{number}.errors"]
        self.mark = f"{os.getpid()}-{time.monotonic_ns()}"
        paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        case_environment = {
            "PYTHONPATH": os.pathsep.join(filter(None, [*paths, str(ROOT)])),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
            MARK: self.mark,
        }
        with self.paths[0].open("wb") as output, self.paths[1].open("wb") as errors:
            streams = {
                "stdout": output,
                "stderr": errors,
                "stdin": subprocess.DEVNULL,
            } | stream_options
            self.begun = time.monotonic()
            self.process = subprocess.Popen(
                command,
                env={**os.environ, **case_environment, **(environment or {})},
                start_new_session=True,
                **streams,
            )

    def descendants(self) -> list[int]:
        """Processes of this case that still run, the first one left out."""
        processes = []
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                is_ours = f"{MARK}={self.mark}".encode() in (path / "environ").read_bytes()
                if is_ours and int(path.name) != self.process.pid:
                    processes.append(int(path.name))
        return processes

    def kill(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)

    def clean_up(self) -> None:
        """End what is left of the case, every process by its number."""
        self.kill(self.process.pid)
        self.process.wait()
        ends = time.monotonic() + 10
        while (remaining := self.descendants()) and time.monotonic() < ends:
            for number in remaining:
                self.kill(number)
            time.sleep(0.02)

    def wait_until(self, happened: Callable[[], bool], seconds: float) -> bool:
        """Whether ``happened`` came true while the command ran."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends and self.process.poll() is None:
            if happened():
                return True
            time.sleep(0.005)
        return False

    def ended(self, seconds: float) -> Ended:
        """Wait for the end; after so many seconds it counts as hung and is stopped."""
        try:
            status: int | None = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
        self.clean_up()
        texts = [path.read_text("utf-8", errors="replace") for path in self.paths]
        return Ended(status, texts[0], texts[1], time.monotonic() - self.begun)


@dataclass
class Campaign:
    """Where cases run, how long each may take, and what they came to."""

    folder: Path
    tally: Tally = field(default_factory=Tally)
    seconds: float = 120  # for one command; more where an undisturbed one is slow, too
    tell: Callable[[str], None] = lambda message: print(message, file=sys.stderr, flush=True)
    undisturbed: dict[str, tuple[Results, float]] = field(default_factory=dict)
    cases: int = 0

    def new_folder(self) -> Path:
        """A folder of its own for a case."""
        self.cases += 1
        folder = self.folder / f"case-{self.cases}"
        folder.mkdir(parents=True)
        return folder

    def reference(self, job: Job) -> tuple[Results, float]:
        """What ``job`` leaves where nobody disturbs it, and how many seconds it takes."""
        if job.name not in self.undisturbed:
            folder = self.new_folder()
            ended = self.start(job, folder).ended(REFERENCE_SECONDS)
            if ended.status != 0:
                raise RuntimeError(f"{job.name} fails undisturbed: {ended.errors[-2000:]}")
            self.undisturbed[job.name] = job.results(folder / "out"), ended.seconds
            self.seconds = max(self.seconds, MAX_SLOWDOWN * ended.seconds)
        return self.undisturbed[job.name]

    def start(self, job: Job, folder: Path, **options: Any) -> Running:
        extra = options.pop("environment", {})
        environment = {**job.environment, **extra}
        return Running(job.command(folder / "out"), folder / "log", environment, **options)

    def run(self, job: Job, folder: Path, **options: Any) -> Ended:
        """Give the command and wait for its end; a killed run's lock may take a moment to go."""
        ends = time.monotonic() + self.seconds
        while True:
            ended = self.start(job, folder, **options).ended(self.seconds)
            if BUSY not in ended.errors or time.monotonic() > ends:
                return ended

    def judge(
        self,
        kind: str,
        job: Job,
        folder: Path,
        message: str,
        disturbed: Ended | None = None,
        **options: Any,
    ) -> Ended:
        """Give the same command again, and compare what it leaves with the undisturbed results.

        ``times``: how many disturbances it followed; ``may_refuse``: a refusal in words is right, too;
        ``others``: results that are as right as the undisturbed ones.
        """
        accepted_results = [self.reference(job)[0], *options.get("others", ())]
        second_run = self.run(job, folder)
        verdict, why = self._verdict(
            job, folder / "out", [disturbed, second_run], accepted_results, options
        )
        self.tally.add(kind, verdict, f"{message}: {why}", options.get("times", 1))
        return second_run

    def _verdict(
        self,
        job: Job,
        out: Path,
        runs: list[Ended | None],
        accepted_results: list[Results],
        options: Mapping[str, Any],
    ) -> tuple[Verdict, str]:
        for ended in filter(None, runs):
            if ended.status is None:
                return "hung", f"no end after {self.seconds:.0f} s {ended.errors[-300:]}"
            if ended.is_raw:
                return "raw", ended.errors[-600:]
        last = runs[-1]
        assert last is not None
        if last.status != 0:
            in_words = bool(last.errors.strip())
            is_right = in_words and bool(options.get("may_refuse"))
            return ("held" if is_right else "lost"), f"status {last.status} {last.errors[-400:]}"
        results = read(job, out)
        if any(results == accepted for accepted in accepted_results):
            return "held", ""
        return "lost", f"ends well, but {difference(results, accepted_results[0])}"


def read(job: Job, out: Path) -> Results:
    """The results, or none where they cannot be read."""
    with suppress(OSError, ValueError, LookupError):
        return job.results(out)
    return {}


def difference(results: Results, expected: Results) -> str:
    """What is missing, too much or other, by the names of the first few files."""
    missing = sorted(set(expected) - set(results))
    added = sorted(set(results) - set(expected))
    other = sorted(name for name in set(results) & set(expected) if results[name] != expected[name])
    names_by_difference = {"missing": missing, "added": added, "other": other}
    return ", ".join(
        f"{len(names)} {label} ({names[0]} …)"
        for label, names in names_by_difference.items()
        if names
    )


@contextmanager
def closed_pipe() -> Iterator[int]:
    """The writing end of a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        yield writing
    finally:
        os.close(writing)
