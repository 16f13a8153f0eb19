"""What a campaign does to commands: kills, renames that never end, full disks, cut pipes, damaged outputs,
inputs and models that change. Every case ends with the same command again and a comparison."""

from __future__ import annotations

import os
import random
import resource
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.campaign.harness import ROOT, Campaign, Ended, Job, closed_pipe, difference, read
from tests.campaign.jobs import Files, make_model
from tests.helpers.scale_runs import write_parquet

RENAMES = Path(__file__).parent / "renames"
KILLS_IN_A_ROW = 4
OF_WORKERS = 100  # MiB that a process holds which has loaded the libraries


def kill_at_random(campaign: Campaign, job: Job, count: int, chance: random.Random) -> None:
    """SIGKILL at a random moment or after a random number of files, of the command or of a worker.

    Each killed command is followed by the same one, which may be killed, too; after some of them in a
    row the last may end, and its results are compared.
    """
    expected, seconds = campaign.reference(job)
    num_kills = 0
    while num_kills < count:
        folder = campaign.new_folder()
        kills = 0
        raw: Ended | None = None
        victims = []
        for _ in range(2 * KILLS_IN_A_ROW):
            if kills == min(KILLS_IN_A_ROW, count - num_kills):
                break
            killed, victim, ended = _kill_once(
                campaign, job, folder, seconds, len(expected), chance
            )
            kills += killed
            victims.append(victim)
            # A driver whose worker was killed must go on or end in words.
            raw = ended if ended.is_raw or ended.status is None else raw
            if ended.status == 0:
                break
        if kills:
            num_kills += kills
            campaign.judge(f"kill: {job.name}", job, folder, ", ".join(victims), raw, times=kills)
        shutil.rmtree(folder)


def _kill_once(
    campaign: Campaign,
    job: Job,
    folder: Path,
    seconds: float,
    max_files: int,
    chance: random.Random,
) -> tuple[bool, str, Ended]:
    """Whether something was killed, whom and when, and how the command ended then."""
    running = campaign.start(job, folder)
    out = folder / "out"
    if chance.random() < 0.5:
        moment = chance.uniform(0, seconds)
        moment_text = f"at {moment:.1f} s"
        running.wait_until(lambda: False, moment)
    else:
        files = len(_list_files(out)) + chance.randint(1, max(2, max_files // KILLS_IN_A_ROW))
        moment_text = f"after {files} files"
        running.wait_until(lambda: len(_list_files(out)) >= files, campaign.seconds)
    victim = running.process.pid
    workers = [
        process for process in running.descendants() if _measure_megabytes(process) > OF_WORKERS
    ]
    of_a_worker = bool(workers) and chance.random() < 0.4
    if of_a_worker:
        victim = chance.choice(workers)
    killed = running.process.poll() is None
    if killed:
        running.kill(victim)
    ended = running.ended(campaign.seconds)
    return killed, f"{'worker' if of_a_worker else 'command'} {moment_text}", ended


def _list_files(out: Path) -> list[Path]:
    """Whole files that a command has left so far."""
    return [path for path in out.rglob("*") if path.is_file() and not path.name.startswith(".")]


def _measure_megabytes(process: int) -> float:
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0.0
    return pages * resource.getpagesize() / 2**20


def kill_at_renames(campaign: Campaign, job: Job, count: int, chance: random.Random) -> None:
    """SIGKILL of whichever process makes the n-th rename, before it or right after it."""
    campaign.reference(job)
    path = f"{RENAMES}"
    folder = campaign.new_folder()
    counter = folder / "renames"
    environment = {"PYTHONPATH": _with_path(path), "CAMPAIGN_RENAMES": str(counter)}
    campaign.run(job, folder, environment=environment)
    renames = counter.stat().st_size if counter.exists() else 0
    numbers = [1, 2, renames, renames - 1]
    numbers += [chance.randint(1, max(1, renames)) for _ in range(count)]
    for case, number in enumerate(numbers[:count]):
        folder = campaign.new_folder()
        when = "before" if case % 2 else "after"
        kill_environment = {
            "PYTHONPATH": _with_path(path),
            "CAMPAIGN_RENAMES": str(folder / "renames"),
            "CAMPAIGN_KILL_AT": str(max(1, number)),
            "CAMPAIGN_KILL_WHEN": when,
        }
        disturbed = campaign.run(job, folder, environment=kill_environment)
        description = f"killed {when} rename {number} of {renames}"
        campaign.judge(f"rename: {job.name}", job, folder, description, disturbed)
        shutil.rmtree(folder)


def _with_path(path: str) -> str:
    return os.pathsep.join(filter(None, [path, os.environ.get("PYTHONPATH", ""), str(ROOT)]))


def fill_disks(campaign: Campaign, job: Job, count: int, chance: random.Random) -> None:
    """A file may grow to so many bytes and no more, or a small file system fills; then there is room."""
    expected, _ = campaign.reference(job)
    sizes = sorted(len(content) for content in expected.values())
    for case in range(count):
        folder = campaign.new_folder()
        if case % 2 == 0 or not _can_mount():
            max_bytes = chance.randint(1, sizes[-1])

            def narrow(max_bytes: int = max_bytes) -> None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, max_bytes))

            # Its own words go to pipes, which the limit does not concern.
            disturbed = _run_piped(campaign, job, folder, narrow)
            description = f"files of at most {max_bytes} bytes"
            campaign.judge(f"disk: {job.name}", job, folder, description, disturbed)
        else:
            _fill_a_file_system(
                campaign, job, folder, chance.randint(16, max(32, sum(sizes) >> 11))
            )
        shutil.rmtree(folder)


def _run_piped(campaign: Campaign, job: Job, folder: Path, before: Callable[[], None]) -> Ended:
    running = campaign.start(
        job, folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=before
    )
    try:
        streams = running.process.communicate(timeout=campaign.seconds)
        status: int | None = running.process.returncode
    except subprocess.TimeoutExpired:
        status = None
        streams = (b"", b"")
    running.clean_up()
    output, errors = (stream.decode("utf-8", "replace") for stream in streams)
    return Ended(status, output, errors, campaign.seconds)


def _can_mount() -> bool:
    """Whether a user may make a file system of his own here."""
    if shutil.which("unshare") is None:
        return False
    trial = [
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "mount",
        "-t",
        "tmpfs",
        "none",
        "/mnt",
    ]
    return subprocess.run(trial, capture_output=True, check=False).returncode == 0


def _fill_a_file_system(campaign: Campaign, job: Job, folder: Path, kilobytes: int) -> None:
    """The command twice on a file system in memory: first it is too small, then it is not.

    Nobody outside sees such a file system, so both runs and the copying are one command.
    """
    small = folder / "small"
    small.mkdir()
    out = small / "out"
    command = shlex.join(job.command(out))
    script = (
        f"mount -t tmpfs -o size={kilobytes}k none {shlex.quote(str(small))} || exit 77\n{command}\n"
        f"echo $? > {shlex.quote(str(folder / 'status'))}\n"
        f"mount -o remount,size=64m {shlex.quote(str(small))}\n{command}\nstatus=$?\n"
        f"cp -r {shlex.quote(str(out))} {shlex.quote(str(folder / 'out'))}\nexit $status\n"
    )
    unshare_command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
    in_memory = Job(job.name, lambda _: unshare_command, job.results, job.environment)
    ended = campaign.run(in_memory, folder)
    description = f"a disk of {kilobytes} KiB"
    kind = f"disk: {job.name}"
    results = read(job, folder / "out")
    expected = campaign.reference(job)[0]
    if ended.status is None:
        campaign.tally.add(kind, "hung", description)
    elif ended.is_raw:
        campaign.tally.add(kind, "raw", f"{description}: {ended.errors[-600:]}")
    elif results == expected:
        campaign.tally.add(kind, "held")
    else:
        what = difference(results, expected)
        campaign.tally.add(
            kind, "lost", f"{description}: status {ended.status}, {what} {ended.errors[-400:]}"
        )


def cut_pipes(campaign: Campaign, job: Job) -> None:
    """Nobody reads what the command prints, or what it complains of; its files must be there at once."""
    expected, _ = campaign.reference(job)
    for stream in ("stdout", "stderr"):
        folder = campaign.new_folder()
        kind = f"pipe: {job.name}"
        with closed_pipe() as pipe:
            ended = campaign.run(job, folder, **{stream: pipe})
        results = read(job, folder / "out")
        if ended.status is None:
            campaign.tally.add(kind, "hung", stream)
        elif ended.is_raw:
            campaign.tally.add(kind, "raw", f"{stream}: {ended.errors[-600:]}")
        elif results == expected:
            campaign.tally.add(kind, "held")
        else:
            what = f"{stream}: status {ended.status}, {difference(results, expected)}"
            campaign.tally.add(kind, "lost", what)
        shutil.rmtree(folder)


def _zero(path: Path) -> None:
    """200 bytes in the middle become zeros; the size stays."""
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    length = min(200, len(content) - middle)
    content[middle : middle + length] = bytes(length)
    path.write_bytes(content)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _write_nothing(path: Path) -> None:
    path.write_bytes(b"")


DAMAGES: dict[str, Callable[[Path], None]] = {
    "zeros in": _zero,
    "half of": _cut,
    "nothing in": _write_nothing,
    "no": Path.unlink,
}


def damage_outputs(campaign: Campaign, job: Job, count: int, chance: random.Random) -> None:
    """A finished output is damaged, one file at a time, and the command given again.

    A file of settings that cannot be read may be refused in words; results must come back.
    """
    campaign.reference(job)
    finished_folder = campaign.new_folder()
    campaign.run(job, finished_folder)
    names = sorted(
        str(path.relative_to(finished_folder / "out"))
        for path in _list_files(finished_folder / "out")
    )
    settings = [name for name in names if name.endswith("job.json") or "/" not in name]
    for case in range(count):
        # Every other time one of the few files at the top, which name all the others.
        name = chance.choice(settings if case % 2 and settings else names)
        damage = chance.choice(list(DAMAGES))
        folder = campaign.new_folder()
        shutil.copytree(finished_folder / "out", folder / "out")
        DAMAGES[damage](folder / "out" / name)
        is_setting = name.endswith((".json", ".yaml")) and "/" not in name
        description = f"{damage} {name}"
        campaign.judge(f"damage: {job.name}", job, folder, description, may_refuse=is_setting)
        shutil.rmtree(folder)
    folder = campaign.new_folder()
    shutil.copytree(finished_folder / "out", folder / "out")
    for below in (path for path in (folder / "out").iterdir() if path.is_dir()):
        shutil.rmtree(below)
    campaign.judge(f"damage: {job.name}", job, folder, "no folder in it", may_refuse=True)


def remove_while_running(campaign: Campaign, job: Job, count: int, chance: random.Random) -> None:
    """Finished files vanish while the command runs: it must not call itself done without them."""
    expected, _ = campaign.reference(job)
    for _ in range(count):
        folder = campaign.new_folder()
        out = folder / "out"
        running = campaign.start(job, folder)
        goal = chance.randint(3, max(4, len(expected) // 2))
        running.wait_until(
            lambda out=out, goal=goal: len(_list_files(out)) >= goal, campaign.seconds
        )
        removed_paths = [
            path for path in _list_files(out) if path.suffix in (".parquet", ".jsonl")
        ][: goal // 2]
        for path in removed_paths:
            path.unlink(missing_ok=True)
        ended = running.ended(campaign.seconds)
        kind = f"removed: {job.name}"
        description = f"{len(removed_paths)} files"
        if ended.status == 0 and read(job, out) != expected:
            what = difference(read(job, out), expected)
            campaign.tally.add(kind, "lost", f"{description}: called done, but {what}")
        else:
            campaign.judge(kind, job, folder, description, ended)
        shutil.rmtree(folder)


def change_what_is_read(
    campaign: Campaign, make: Callable[[Files], Job], count: int, texts: int
) -> None:
    """The texts or the model become others while the command runs.

    Right is a refusal in words, or rows that are all of the old or all of the new.
    """
    for case in range(count):
        is_model = case % 2 == 1
        folder = campaign.new_folder()
        files = Files(folder / "files", texts)
        job = make(files)
        private = Campaign(folder / "private", campaign.tally, campaign.seconds, campaign.tell)
        kind = f"changed: {job.name}"
        expected, _ = private.reference(job)
        running = private.start(job, folder)
        out = folder / "out"
        running.wait_until(lambda out=out: len(_list_files(out)) > 3, private.seconds)
        if is_model:
            make_model(files.model, seed=5)
        else:
            write_parquet(files.data, texts, first=7)
            files.rows.write_text(files.rows.read_text().replace("film", "movie"))
        disturbed = running.ended(private.seconds)
        fresh = private.new_folder()
        private.run(job, fresh)
        new = read(job, fresh / "out")
        description = "another model" if is_model else "other texts"
        if disturbed.status == 0 and read(job, out) not in (expected, new):
            private.tally.add(kind, "lost", f"{description}: old and new mixed")
        else:
            private.judge(kind, job, folder, description, disturbed, may_refuse=True, others=[new])
        shutil.rmtree(folder)
