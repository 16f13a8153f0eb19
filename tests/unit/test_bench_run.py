"""A run stopped in any way goes on to the tables that it would have had."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.bench_runs import begun, bytes_of, finished_parts, make, rows_of, sentences, wait_for
from tests.tolerance import FLOAT32
from tokenlight import Explainer
from tokenlight.bench import request as planning
from tokenlight.bench import tables
from tokenlight.bench.part import Making
from tokenlight.bench.plan import Request
from tokenlight.bench.run import run_suite
from tokenlight.bench.store import RunFolder, in_time, status
from tokenlight.bench.suite import SuiteRefused, read
from tokenlight.cli import main
from tokenlight.errors import BadInput, DamagedFile
from tokenlight.files.parts import locked, tidy, worked_in
from tokenlight.scale import Engine
from tokenlight.scale import engine as processes
from tokenlight.scale.engine import Outcome

pytestmark = pytest.mark.xdist_group("bench")
COUNT = 72
PARTS = 54  # three methods, slices of four


@pytest.fixture(scope="module")
def suite(tmp_path_factory, bert_folder):
    return make(tmp_path_factory.mktemp("bench") / "suite", bert_folder, COUNT)


@pytest.fixture(scope="module")
def whole(suite, tmp_path_factory):
    """An uninterrupted run by two workers."""
    folder = tmp_path_factory.mktemp("bench") / "whole"
    finished = run_suite(suite, folder, engine=Engine(workers=2), progress=False)
    assert (finished.made, finished.failed_parts) == (PARTS, ())
    return folder


def counted(folder):
    return sum((counts for _, counts, _ in status(folder)), Counter())


def scores(folder):
    rows = rows_of(folder / "scores.csv")
    return {(row["method"], row["metric"]): row for row in rows}


def test_the_tables_hold_what_explain_and_evaluate_give(whole, bert_folder):
    explainer = Explainer.from_pretrained(bert_folder)
    made = explainer.explain(sentences(COUNT), method=["attcat"], long="truncate")
    expected = explainer.evaluate(made, ["aopc"]).summary["aopc"]
    found = scores(whole)["attcat", "aopc"]
    assert float(found["mean"]) == pytest.approx(expected["mean"], abs=FLOAT32)
    assert float(found["low"]) == pytest.approx(expected["low"], abs=FLOAT32)
    assert found["count"] == str(COUNT)
    assert len(scores(whole)) == 6


def test_a_part_has_its_rows_and_a_manifest(whole):
    run = RunFolder.open(whole)
    part = run.parts[0]
    rows, said = run.rows_of(part), run.said(part)
    assert [row["example"] for row in rows] == [0, 1, 2, 3]
    assert len(rows[0]["measured"]["aopc"]["curve"]) == 11
    assert rows[0]["error"] is None
    assert said["suite"] == run.suite.digest()
    assert (said["seed"], said["device"], said["threads"]) == (0, "cpu", 1)
    assert (said["explain_forwards"], said["explain_backwards"]) == (4, 4)
    assert said["measure_forwards"] >= 4
    assert said["versions"]["tokenlight"]
    assert said["seconds"] > 0


def test_running_again_does_nothing_and_writes_the_same(suite, whole):
    before = bytes_of(whole)
    finished = run_suite(suite, whole, progress=False)
    assert (finished.made, finished.kept) == (0, PARTS)
    assert bytes_of(whole) == before


def test_five_kills_at_random_moments_lose_nothing(suite, whole, tmp_path):
    moments = random.Random(time.time_ns())  # another time each run: none may matter
    folder, kills = tmp_path / "run", []
    while finished_parts(folder) < PARTS:
        process = begun("run", suite, "--workers", 1, "-o", folder)
        if len(kills) < 5:
            more = moments.randint(0, PARTS // 7)
            wait_for(finished_parts(folder) + more, folder, process)
            time.sleep(moments.random() / 50)
            os.kill(process.pid, signal.SIGKILL)
            kills.append(finished_parts(folder))
        process.join()
    assert len(kills) == 5
    process = begun("run", suite, "--workers", 2, "-o", folder)  # the last kill may have come late
    process.join()
    assert process.exitcode == 0
    assert bytes_of(folder) == bytes_of(whole), kills
    assert not list(folder.rglob(".*.part"))


def test_control_c_says_what_is_kept_and_the_run_goes_on(suite, whole, tmp_path):
    for attempt in range(5):  # on a busy machine the run may be done before the signal is sent
        folder = tmp_path / f"run{attempt}"
        process = begun("run", suite, "--workers", 1, "-o", folder)
        wait_for(5, folder, process)
        if process.is_alive():
            os.kill(process.pid, signal.SIGINT)
        process.join()
        if process.exitcode != 0:
            break
    assert process.exitcode == 130
    assert 5 <= counted(folder)["done"] < PARTS
    assert worked_in(folder) == ""  # the lock went with its process
    run_suite(suite, folder, engine=Engine(workers=1), progress=False)
    assert bytes_of(folder) == bytes_of(whole)


def test_a_part_that_was_changed_or_lost_is_noticed_and_made_again(suite, whole, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    run = RunFolder.open(folder)
    run.place(run.parts[3]).unlink()
    run.place(run.parts[5]).write_bytes(b"")
    finished = run_suite(suite, folder, engine=Engine(workers=1), progress=False)
    assert finished.made == 2
    assert bytes_of(folder) == bytes_of(whole)
    place = run.place(run.parts[7])
    place.write_bytes(place.read_bytes().replace(b'"error": null', b'"error": "x"', 1))
    with pytest.raises(DamagedFile, match="not those that its manifest names.*makes it again"):
        tables.merged(run)
    run.place(run.parts[0]).write_text("[")
    assert counted(folder)["failed"] == 2
    assert counted(folder)["done"] == len(run.parts) - 2
    said = []
    finished = run_suite(suite, folder, engine=Engine(workers=1), tell=said.append, progress=False)
    assert finished.made == 2
    assert sum("makes it again" in one for one in said) == 2
    assert bytes_of(folder) == bytes_of(whole)


def test_a_part_of_another_cell_or_run_does_not_count(suite, whole, bert_folder, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    run = RunFolder.open(folder)
    other = next(part for part in run.parts if part.cell != run.parts[0].cell)
    shutil.copy(run.place(other), run.place(run.parts[0]))
    shutil.copy(run.place(run.parts[1]), run.place(run.parts[2]))
    assert "(method differ)" in run.trouble(run.parts[0])
    assert "(first differ)" in run.trouble(run.parts[2])
    with pytest.raises(DamagedFile, match="of another part or run"):
        tables.merged(run)
    rows = [{"text": text, "label": 0} for text in sentences(COUNT)]
    stranger = make(tmp_path / "other", bert_folder, 0, rows=rows)
    planned, _ = planning.plan(read(stranger)[0], Request())
    theirs = RunFolder.begin(tmp_path / "else", stranger, read(stranger)[0], planned)
    task = theirs.parts[3]
    list(Engine(workers=1).results(Making(str(theirs.folder)), [task], "cpu"))
    shutil.copy(theirs.place(theirs.parts[3]), run.place(run.parts[3]))
    assert "(settings differ)" in run.trouble(run.parts[3])
    run_suite(suite, folder, engine=Engine(workers=1), progress=False)
    assert bytes_of(folder) == bytes_of(whole)


@pytest.mark.parametrize("what", ["data", "models", "suite"])
def test_what_changes_in_the_middle_of_a_run_is_mixed_with_nothing(bert_folder, tmp_path, what):
    """The worker that began dies, as any may; the one in its place reads the files as they are now."""
    model = tmp_path / "model"
    shutil.copytree(bert_folder, model)
    place = make(tmp_path / "suite", model, 8, methods=["random"], slice=2)
    planned, problems = planning.plan(read(place)[0], Request())
    assert not problems
    run = RunFolder.begin(tmp_path / "run", place, read(place)[0], planned)
    tasks = list(run.parts)
    first = list(Engine(workers=1).results(Making(str(run.folder)), tasks[:1], "cpu"))
    assert first[0].trouble == ""
    if what == "data":
        shutil.copy(make(tmp_path / "new", model, 20).parent / "texts.jsonl", place.parent)
    elif what == "models":
        (model / "config.json").write_text((model / "config.json").read_text() + " ")
    else:
        kept = run.folder / "suite.yaml"
        kept.write_text(kept.read_text().replace("aopc", "comprehensiveness"))
    then = list(Engine(workers=1).results(Making(str(run.folder)), tasks[1:], "cpu"))
    assert len(then) == 3
    for outcome in then:
        assert "begun" in outcome.trouble
        assert not run.done(run.parts[1 + outcome.task])


def test_a_run_in_which_every_example_fails_does_not_end_well(bert_folder, tmp_path, capsys):
    rows = [{"text": "   ", "label": 0}, {"text": "a \ud800 film", "label": 1}]
    place = make(tmp_path / "suite", bert_folder, 2, rows=rows, methods=["random"])
    with pytest.raises(SystemExit) as ended:
        main(["bench", "run", str(place), "-o", str(tmp_path / "run"), "--workers", "1"])
    assert ended.value.code == 1
    assert "every example failed" in capsys.readouterr().err


def test_a_folder_of_another_run_is_refused_with_what_differs(suite, whole, tmp_path):
    with pytest.raises(BadInput, match=r"limit \(was nothing, now 5\).*give another folder"):
        run_suite(suite, whole, Request(limit=5))
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    told = json.loads((folder / "run.json").read_text())
    told["plan"]["settings"]["versions"]["torch"] = "1.0"
    (folder / "run.json").write_text(json.dumps(told))
    with pytest.raises(BadInput, match=r"versions torch \(was 1.0"):
        run_suite(suite, folder)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(BadInput, match=r"holds other things \(thesis.txt\)"):
        run_suite(suite, tmp_path / "mine")
    assert [one.name for one in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_a_run_killed_before_its_plan_was_written_begins_anew(bert_folder, tmp_path):
    place = make(tmp_path / "suite", bert_folder, 2, methods=["random"])
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "suite.yaml").write_text("half a su", encoding="utf-8")
    finished = run_suite(place, tmp_path / "run", engine=Engine(workers=1), progress=False)
    assert finished.failed_parts == ()
    assert scores(tmp_path / "run")["random", "aopc"]["count"] == "2"


def test_two_runners_do_not_share_a_folder(suite, whole):
    with locked(whole, 1):
        assert worked_in(whole).startswith(f"process {os.getpid()}")
        with pytest.raises(BadInput, match="being worked in by another run"):
            run_suite(suite, whole)
    assert worked_in(whole) == ""


def test_a_poisoned_example_is_recorded_and_the_rest_goes_on(bert_folder, tmp_path):
    rows = [{"text": text, "label": i % 3} for i, text in enumerate(sentences(8))]
    rows[2]["text"] = "a \ud800 film"  # no text that can be encoded
    rows[5]["text"] = "   "
    place = make(tmp_path / "suite", bert_folder, 8, rows=rows, methods=["attcat", "random"])
    finished = run_suite(place, tmp_path / "run", engine=Engine(workers=1), progress=False)
    assert sum(said["failed"] for said in finished.run.manifests()) == 4
    assert finished.failed_parts == ()
    failures = rows_of(tmp_path / "run" / "failures.csv")
    assert [(row["method"], row["example"]) for row in failures] == [
        ("attcat", "2"),
        ("attcat", "5"),
        ("random", "2"),
        ("random", "5"),
    ]
    assert all(row["error"] for row in failures)
    assert scores(tmp_path / "run")["attcat", "aopc"]["count"] == "6"
    assert scores(tmp_path / "run")["attcat", "aopc"]["failed"] == "2"
    clean = make(tmp_path / "clean", bert_folder, 8, methods=["attcat", "random"])
    run_suite(clean, tmp_path / "other", engine=Engine(workers=1), progress=False)
    mine = list(RunFolder.open(tmp_path / "run").rows(method="attcat"))
    theirs = list(RunFolder.open(tmp_path / "other").rows(method="attcat"))
    for one, other in zip(mine, theirs, strict=True):
        if one["error"] is None:
            assert one["measured"]["aopc"]["value"] == pytest.approx(
                other["measured"]["aopc"]["value"], abs=FLOAT32
            )


def test_offline_cells_without_a_model_are_reported_and_no_failure(bert_folder, tmp_path, capsys):
    models = [
        {"name": "there", "hub": "someone/a", "data": "texts"},
        {"name": "gone", "hub": "someone/b", "data": "texts"},
    ]
    place = make(tmp_path / "suite", bert_folder, 2, models=models, methods=["rollout"])
    arguments = ["bench", "run", str(place), "--offline", "--models", f"there={bert_folder}"]
    with pytest.raises(SystemExit) as end:
        main([*arguments, "--workers", "1", "-o", str(tmp_path / "run")])
    assert end.value.code == 0
    assert "not run: no local model: gone · texts" in capsys.readouterr().out
    cells = rows_of(tmp_path / "run" / "cells.csv")
    assert [(row["status"], row["reason"]) for row in cells] == [
        ("run", ""),
        ("not run", "no local model"),
    ]
    with pytest.raises(SystemExit) as end:
        main(["bench", "status", str(tmp_path / "run")])
    assert end.value.code == 0
    assert "1 of 1 parts done" in capsys.readouterr().out


def test_without_the_extra_nothing_is_begun(suite, tmp_path, capsys, monkeypatch):
    for library in ("pyarrow", "scipy"):
        monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(SystemExit) as end:
        main(["bench", "run", str(suite), "-o", str(tmp_path / "run")])
    assert end.value.code == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors == (
        "error: tokenlight bench run needs pyarrow and scipy. Install: "
        "pip install 'tokenlight[bench]'\n"
    )
    assert not (tmp_path / "run").exists()


def test_a_run_without_a_finished_part_has_no_report(suite, tmp_path, capsys, monkeypatch):
    def broken(_run, tasks, **_):
        yield from (Outcome(number, trouble="out of luck") for number in range(len(tasks)))

    monkeypatch.setattr("tokenlight.scale.engine.local_results", broken)
    folder = str(tmp_path / "run")
    with pytest.raises(SystemExit) as end:
        main(["bench", "run", str(suite), "-o", folder])
    assert end.value.code == 1
    output = capsys.readouterr().out
    assert "no part was made, so there is nothing to report" in output
    assert "written:" not in output
    assert "report: " not in output
    with pytest.raises(SystemExit) as end:
        main(["bench", "report", folder])
    assert end.value.code == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert f"none of the {PARTS} parts of {folder} is finished" in errors


FULL_DISK = """
import shutil, subprocess, sys
from pathlib import Path
from tokenlight.cli import main
place, suite, out = sys.argv[1:]
def bench():
    try:
        main(["bench", "run", suite, "--workers", "1", "-o", place + "/run"])
    except SystemExit as end:
        return end.code
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160k", "none", place], check=True)
codes = [bench()]
half = [*Path(place).rglob(".*.part")]
kept = len([*Path(place).rglob("*.jsonl")])
subprocess.run(["mount", "-o", "remount,size=20m", place], check=True)
codes.append(bench())
shutil.copytree(place + "/run", out)
print("codes", codes, "kept", kept, "half", len(half))
"""


def test_a_full_disk_stops_cleanly_and_room_lets_it_go_on(suite, whole, tmp_path):
    mount = shutil.which("unshare")
    if mount is None or subprocess.run([mount, "-rm", "true"], capture_output=True).returncode:
        pytest.skip("a small disk of one's own needs user namespaces")
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(
        [mount, "-rm", sys.executable, "-c", FULL_DISK, str(place), str(suite), str(tmp_path / "o")],
        capture_output=True, text=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1].split()
    assert last[:3] == ["codes", "[1,", "0]"], done.stderr
    assert 0 < int(last[4]) < PARTS
    assert last[6] == "0"
    said = " ".join(done.stderr.split())
    assert "is full" in said
    assert "free some room, then give the same command; it goes on from there." in said
    assert bytes_of(tmp_path / "o") == bytes_of(whole)


def test_a_worker_that_dies_thrice_costs_its_part_alone(suite, tmp_path, monkeypatch):
    """Kill whichever worker holds a part, as a system out of memory does, until it is given up."""
    run = RunFolder.open(_begun(suite, tmp_path / "run"))
    victim = run.parts[1]
    real = processes._Process.give

    def give(worker, task):
        real(worker, task)
        if run.parts[task] == victim:
            os.kill(worker.process.pid, signal.SIGKILL)

    monkeypatch.setattr(processes._Process, "give", give)
    tasks = list(run.parts[:3])
    found = list(Engine(workers=1).results(Making(str(run.folder)), tasks, "cpu"))
    troubles = {run.parts[outcome.task]: outcome.trouble for outcome in found}
    assert "died 3 times (signal 9)" in troubles.pop(victim)
    assert set(troubles.values()) == {""}
    run.place(victim, "failed.txt").write_text("killed")
    assert counted(run.folder)["failed"] == 1
    assert run.trouble(victim) == "killed"


def _begun(suite, folder):
    """A run that is planned, and not a part of it made."""
    from tokenlight.bench import request as planning
    from tokenlight.bench.suite import read

    described, _ = read(suite)
    plan, problems = planning.plan(described, Request())
    assert problems == []
    return RunFolder.begin(Path(folder), suite, described, plan).folder


def test_what_a_killed_run_left_half_written_is_taken_away(tmp_path):
    inner = tmp_path / "parts" / "a"
    inner.mkdir(parents=True)
    (inner / ".00000000.jsonl.7.part").write_text("half")
    (inner / "00000000.jsonl").write_text("whole")
    tidy(tmp_path)
    assert [one.name for one in inner.iterdir()] == ["00000000.jsonl"]


def test_time_is_told_in_words():
    assert [in_time(s) for s in (5, 600, 10800)] == ["5 s", "10 min", "3.0 h"]


def test_a_number_in_the_place_of_a_text_is_named_before_anything_runs(bert_folder, tmp_path):
    rows = [{"text": text, "label": 0} for text in sentences(4)]
    rows[2]["text"] = 17
    place = make(tmp_path / "suite", bert_folder, 4, rows=rows, methods=["random"])
    with pytest.raises(SuiteRefused, match=r"line 3 of texts\.jsonl: its 'text' is a number"):
        run_suite(place, tmp_path / "run", engine=Engine(workers=1), progress=False)
    assert not (tmp_path / "run" / "scores.csv").exists()
