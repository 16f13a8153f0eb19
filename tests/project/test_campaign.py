"""The campaign itself: a planted loss counts as lost, a planted traceback as raw, a planted wait as hung."""

import random
import sys
import textwrap
from pathlib import Path

import pytest

from tests.campaign.__main__ import main, plan
from tests.campaign.disturbances import DAMAGES, cut_pipes, damage_outputs, kill_at_renames
from tests.campaign.harness import Campaign, Job, Tally
from tests.campaign.jobs import Files, evaluate, explain_text
from tests.helpers.commands import run_command

# Writes ten files, each beside and renamed; given again, it makes those that are missing. The names of
# finished files stand in a list, which a careless author writes before the file is there.
SCRIPT = """
    import os, signal, sys
    out = sys.argv[1]
    os.makedirs(out, exist_ok=True)
    notes = os.path.join(out, "done")
    done = open(notes).read().split() if os.path.exists(notes) else []
    if done and {on_resume!r}:
        {on_resume}
    for number in map(str, range(10)):
        path = os.path.join(out, number + ".txt")
        if {is_done}:
            continue
        with open(notes, "a") as stream:
            stream.write(number + " ")
        with open(path + ".part", "w") as stream:
            stream.write("result " + number)
        os.replace(path + ".part", path)
    print("done")
"""


def make_planted_job(is_done="os.path.exists(path)", on_resume="pass"):
    """A job that can be given again; by default an honest one."""
    script = textwrap.dedent(SCRIPT).format(is_done=is_done, on_resume=on_resume)

    def results(out: Path):
        return {path.name: path.read_bytes() for path in out.glob("*.txt")}

    return Job("planted", lambda out: [sys.executable, "-c", script, str(out)], results)


def make_campaign(folder, seconds=60):
    return Campaign(folder, seconds=seconds, tell=lambda _: None)


@pytest.mark.parametrize(
    ("job", "verdict", "message"),
    [
        (make_planted_job(), "held", ""),
        (make_planted_job(is_done="number in done"), "lost", "1 missing"),
        (make_planted_job(on_resume="raise KeyError(done)"), "raw", "KeyError"),
        (
            make_planted_job(on_resume="sys.exit('the notes cannot be read')"),
            "lost",
            "cannot be read",
        ),
    ],
    ids=["honest", "loses a file", "traceback", "no way on"],
)
def test_the_outcome_of_a_killed_command_is_counted(tmp_path, job, verdict, message):
    campaign = make_campaign(tmp_path)
    kill_at_renames(campaign, job, 2, random.Random(0))  # after the first, before the second
    counted = campaign.tally.counts["rename: planted"]
    assert counted.total() == 2
    assert counted[verdict] >= 1
    assert all(message in fault for fault in campaign.tally.faults)
    assert campaign.tally.has_held == (verdict == "held")


def test_a_command_that_does_not_end_is_hung_and_nothing_of_it_is_left(tmp_path):
    campaign = make_campaign(tmp_path, seconds=3)
    kill_at_renames(campaign, make_planted_job(on_resume="signal.pause()"), 1, random.Random(0))
    assert campaign.tally.counts["rename: planted"] == {"hung": 1}
    running = campaign.start(make_planted_job(), campaign.new_folder())
    running.ended(60)
    assert running.descendants() == []


def test_a_damaged_file_that_stays_is_lost(tmp_path):
    campaign = make_campaign(tmp_path)
    damage_outputs(campaign, make_planted_job(), 8, random.Random(0))
    counted = campaign.tally.counts["damage: planted"]
    assert counted.total() == 9
    assert counted["lost"] > 0  # it looks whether a file is there, not at what it holds
    assert counted["held"] > 0


def test_every_damage_changes_a_file(tmp_path):
    for name, damage in DAMAGES.items():
        path = tmp_path / "file"
        path.write_bytes(bytes(range(1, 256)))
        damage(path)
        assert not path.exists() or path.read_bytes() != bytes(range(1, 256)), name


def test_files_that_come_after_a_closed_screen_are_counted_as_lost(tmp_path):
    honest = make_planted_job()
    screen_first = make_planted_job(is_done="print(number, flush=True)")
    campaign = make_campaign(tmp_path)
    cut_pipes(campaign, honest)
    assert campaign.tally.counts["pipe: planted"]["lost"] == 0
    other = make_campaign(tmp_path / "second")
    cut_pipes(other, screen_first)
    assert not other.tally.has_held


def test_the_table_has_a_line_for_each_kind_and_one_for_all():
    tally = Tally()
    tally.add("kill: a", "held", times=3)
    tally.add("kill: b", "lost", "a row")
    lines = [line.split() for line in tally.table().splitlines()]
    assert lines[0] == ["kind", "tried", "held", "lost", "raw", "hung"]
    assert lines[1][-5:] == ["3", "3", "0", "0", "0"]
    assert lines[-1] == ["all", "4", "3", "1", "0", "0"]
    assert tally.faults == ["kill: b: lost: a row"]


def test_a_quick_campaign_runs_from_end_to_end(tmp_path, capsys):
    # Hostile folders need one process; other kinds start several, each of which imports torch.
    with pytest.raises(SystemExit) as ended:
        main(["--quick", "--only", "folders", "--keep", str(tmp_path)])
    output = capsys.readouterr().out
    assert ended.value.code == 0, output
    assert [line.split() for line in output.splitlines()] == [
        ["kind", "tried", "held", "lost", "raw", "hung"],
        ["folders", "5", "5", "0", "0", "0"],
        ["all", "5", "5", "0", "0", "0"],
    ]


@pytest.fixture(scope="module")
def job_files(tmp_path_factory):
    return Files(tmp_path_factory.mktemp("campaign") / "files", 16)


@pytest.mark.parametrize("make_job", [evaluate, explain_text])
def test_a_job_leaves_the_same_results_when_it_is_run_again(make_job, job_files, tmp_path):
    job = make_job(job_files)
    program = [sys.executable, "-m", "tokenlight"]
    command = job.command(tmp_path / "out")
    assert command[: len(program)] == program
    results = []
    for _ in range(2):
        ended = run_command(*command[len(program) :])
        assert ended.status == 0, ended.errors
        results.append(job.results(tmp_path / "out"))
    assert len(results[0]) >= 2
    assert results[0] == results[1]


def test_the_plan_has_every_kind(tmp_path):
    kinds = plan(make_campaign(tmp_path), True, random.Random(0), 0)
    begins = {name.partition(" ")[0] for name in kinds}
    expected = {
        "kill",
        "rename",
        "disk",
        "pipe",
        "damage",
        "removed",
        "changed",
        "folders",
        "calls",
    }
    assert begins == expected
    assert sum(name.startswith("kill ") for name in kinds) == 4
