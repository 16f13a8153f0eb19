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

from tests.helpers.bench_runs import (
    count_finished_parts,
    make_sentences,
    read_csv_rows,
    read_run_bytes,
    start_bench_process,
    wait_for_parts,
    write_suite,
)
from tests.helpers.deadlines import DEADLINE_SECONDS
from tests.helpers.expect import expect_error
from tests.helpers.tolerance import FLOAT32
from tests.plugins.random_order import SEED
from tokenlight import Explainer
from tokenlight.bench import planner as planning
from tokenlight.bench import tables
from tokenlight.bench.part_runner import PartRunner
from tokenlight.bench.plan import RunRequest
from tokenlight.bench.run import run_suite
from tokenlight.bench.run_folder import RunFolder, format_duration, read_status
from tokenlight.bench.suite import InvalidSuite, read_suite_file
from tokenlight.cli import main
from tokenlight.errors import BadInput, DamagedFile
from tokenlight.files.folder_lock import find_lock_owner, locked_folder
from tokenlight.files.parts import remove_partial_files
from tokenlight.scale import Engine
from tokenlight.scale import local_processes as processes
from tokenlight.scale.engine import Outcome

pytestmark = pytest.mark.xdist_group("bench")
COUNT = 72
PARTS = 54  # three methods, slices of four


@pytest.fixture(scope="module")
def suite(tmp_path_factory, bert_folder):
    return write_suite(tmp_path_factory.mktemp("bench") / "suite", bert_folder, COUNT)


@pytest.fixture(scope="module")
def complete_run(suite, tmp_path_factory):
    """An uninterrupted run by two workers."""
    folder = tmp_path_factory.mktemp("bench") / "whole"
    finished = run_suite(suite, folder, engine=Engine(workers=2), progress=False)
    assert (finished.num_parts_made, finished.failed_parts) == (PARTS, ())
    return folder


def count_parts(folder):
    return sum((counts for _, counts, _ in read_status(folder)), Counter())


def read_scores(folder):
    rows = read_csv_rows(folder / "scores.csv")
    return {(row["method"], row["metric"]): row for row in rows}


def test_the_table_of_cells_names_each_cell_as_the_scores_do(complete_run):
    cells = read_csv_rows(complete_run / "cells.csv")
    scores = read_csv_rows(complete_run / "scores.csv")
    columns = ("model", "data", "method")
    named_cells = {tuple(cell[column] for column in columns) for cell in cells}
    assert named_cells == {tuple(score[column] for column in columns) for score in scores}


def test_the_tables_hold_what_explain_and_evaluate_give(complete_run, bert_folder):
    explainer = Explainer.from_pretrained(bert_folder)
    attributions = explainer.explain(make_sentences(COUNT), method=["attcat"], long="truncate")
    expected = explainer.evaluate(attributions, ["aopc"]).summary["aopc"]
    row = read_scores(complete_run)["attcat", "aopc"]
    assert float(row["mean"]) == pytest.approx(expected["mean"], abs=FLOAT32)
    assert float(row["low"]) == pytest.approx(expected["low"], abs=FLOAT32)
    assert row["count"] == str(COUNT)
    assert len(read_scores(complete_run)) == 6


def test_a_part_has_a_row_for_each_example(complete_run):
    run = RunFolder.open(complete_run)
    rows = run.read_rows(run.parts[0])
    assert [row["example"] for row in rows] == [0, 1, 2, 3]
    assert len(rows[0]["measured"]["aopc"]["curve"]) == 11
    assert rows[0]["error"] is None


def test_the_manifest_of_a_part_records_suite_settings_and_cost(complete_run):
    run = RunFolder.open(complete_run)
    manifest = run.read_manifest(run.parts[0])
    assert manifest["suite"] == run.suite.compute_digest()
    assert (manifest["seed"], manifest["device"], manifest["threads"]) == (0, "cpu", 1)
    assert (manifest["explain_forwards"], manifest["explain_backwards"]) == (4, 4)
    assert manifest["measure_forwards"] >= 4
    assert manifest["versions"]["tokenlight"]
    assert manifest["seconds"] > 0


def test_a_finished_run_is_not_repeated(suite, complete_run):
    before = read_run_bytes(complete_run)
    finished = run_suite(suite, complete_run, progress=False)
    assert (finished.num_parts_made, finished.num_existing) == (0, PARTS)
    assert read_run_bytes(complete_run) == before


def test_five_kills_at_random_moments_lose_nothing(suite, complete_run, tmp_path, request):
    # Other moments in each run: none may matter. `--order-seed` repeats them.
    moments = random.Random(f"kills {request.config.stash[SEED]}")
    folder = tmp_path / "run"
    kills = []
    for _ in range(5):
        before = count_finished_parts(folder)
        more = moments.randint(0, PARTS // 7)
        process = start_bench_process(
            "run", suite, "--workers", 1, "-o", folder, max_parts=more + 3
        )
        wait_for_parts(before + more, folder, process)
        time.sleep(moments.random() / 50)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert process.exitcode == -signal.SIGKILL
        kills.append(count_finished_parts(folder))
    assert kills[-1] < PARTS
    process = start_bench_process("run", suite, "--workers", 2, "-o", folder)
    process.join()
    assert process.exitcode == 0
    assert read_run_bytes(folder) == read_run_bytes(complete_run), kills
    assert not list(folder.rglob(".*.tmp"))


def test_an_interrupted_run_reports_its_finished_parts_and_resumes(suite, complete_run, tmp_path):
    folder = tmp_path / "run"
    process = start_bench_process("run", suite, "--workers", 1, "-o", folder, max_parts=5)
    wait_for_parts(5, folder, process)
    os.kill(process.pid, signal.SIGINT)
    process.join()
    assert process.exitcode == 130
    assert count_parts(folder)["done"] == 5
    assert find_lock_owner(folder) == ""  # the lock went with its process
    run_suite(suite, folder, engine=Engine(workers=1), progress=False)
    assert read_run_bytes(folder) == read_run_bytes(complete_run)


def test_a_changed_or_missing_part_is_noticed_and_recomputed(suite, complete_run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(complete_run, folder)
    run = RunFolder.open(folder)
    run.part_path(run.parts[3]).unlink()
    run.part_path(run.parts[5]).write_bytes(b"")
    finished = run_suite(suite, folder, engine=Engine(workers=1), progress=False)
    assert finished.num_parts_made == 2
    assert read_run_bytes(folder) == read_run_bytes(complete_run)
    path = run.part_path(run.parts[7])
    path.write_bytes(path.read_bytes().replace(b'"error": null', b'"error": "x"', 1))
    with pytest.raises(DamagedFile, match="do not match the hash in its manifest"):
        tables.merge_parts(run)
    run.part_path(run.parts[0]).write_text("[")
    assert count_parts(folder)["failed"] == 2
    assert count_parts(folder)["done"] == len(run.parts) - 2
    messages = []
    finished = run_suite(
        suite, folder, engine=Engine(workers=1), on_message=messages.append, progress=False
    )
    assert finished.num_parts_made == 2
    assert sum("to recreate it" in message for message in messages) == 2
    assert read_run_bytes(folder) == read_run_bytes(complete_run)


def test_a_part_of_another_cell_or_run_does_not_count(suite, complete_run, bert_folder, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(complete_run, folder)
    run = RunFolder.open(folder)
    other = next(part for part in run.parts if part.cell != run.parts[0].cell)
    shutil.copy(run.part_path(other), run.part_path(run.parts[0]))
    shutil.copy(run.part_path(run.parts[1]), run.part_path(run.parts[2]))
    assert "(method differ)" in run.find_error(run.parts[0])
    assert "(first differ)" in run.find_error(run.parts[2])
    with pytest.raises(DamagedFile, match="belongs to another part or run"):
        tables.merge_parts(run)
    rows = [{"text": text, "label": 0} for text in make_sentences(COUNT)]
    foreign_suite = write_suite(tmp_path / "other", bert_folder, 0, rows=rows)
    planned, _ = planning.plan_run(read_suite_file(foreign_suite)[0], RunRequest())
    foreign_run = RunFolder.create_or_resume(
        tmp_path / "else", foreign_suite, read_suite_file(foreign_suite)[0], planned
    )
    task = foreign_run.parts[3]
    list(Engine(workers=1).run_tasks(PartRunner(str(foreign_run.folder)), [task], "cpu"))
    shutil.copy(foreign_run.part_path(foreign_run.parts[3]), run.part_path(run.parts[3]))
    assert "(settings differ)" in run.find_error(run.parts[3])
    run_suite(suite, folder, engine=Engine(workers=1), progress=False)
    assert read_run_bytes(folder) == read_run_bytes(complete_run)


# An outcome comes from another process: it has the text of the error, not its code.
CHANGE_MESSAGES = {
    "data": "has changed since this run was started",
    "models": "has changed since this run was started",
    "suite": "is not the suite that this run was started with",
}


@pytest.mark.parametrize("what", ["data", "models", "suite"])
def test_files_that_change_during_a_run_are_refused(bert_folder, tmp_path, what):
    """The worker that began dies, as any may; the one in its place reads the files as they are now."""
    model = tmp_path / "model"
    shutil.copytree(bert_folder, model)
    path = write_suite(tmp_path / "suite", model, 8, methods=["random"], part_size=2)
    planned, problems = planning.plan_run(read_suite_file(path)[0], RunRequest())
    assert not problems
    run = RunFolder.create_or_resume(tmp_path / "run", path, read_suite_file(path)[0], planned)
    tasks = list(run.parts)
    first = list(Engine(workers=1).run_tasks(PartRunner(str(run.folder)), tasks[:1], "cpu"))
    assert first[0].error == ""
    if what == "data":
        shutil.copy(write_suite(tmp_path / "new", model, 20).parent / "texts.jsonl", path.parent)
    elif what == "models":
        (model / "config.json").write_text((model / "config.json").read_text() + " ")
    else:
        suite_copy = run.folder / "suite.yaml"
        suite_copy.write_text(suite_copy.read_text().replace("aopc", "comprehensiveness"))
    second_outcomes = list(
        Engine(workers=1).run_tasks(PartRunner(str(run.folder)), tasks[1:], "cpu")
    )
    assert len(second_outcomes) == 3
    for outcome in second_outcomes:
        assert CHANGE_MESSAGES[what] in outcome.error
        assert not run.is_done(run.parts[1 + outcome.task_index])


def test_a_run_in_which_every_example_fails_exits_with_an_error(bert_folder, tmp_path, capsys):
    rows = [{"text": "   ", "label": 0}, {"text": "a \ud800 film", "label": 1}]
    path = write_suite(tmp_path / "suite", bert_folder, 2, rows=rows, methods=["random"])
    with pytest.raises(SystemExit) as ended:
        main(["bench", "run", str(path), "-o", str(tmp_path / "run"), "--workers", "1"])
    assert ended.value.code == 1
    assert "Every example failed" in capsys.readouterr().err


def test_a_folder_of_another_run_is_refused_with_what_differs(suite, complete_run, tmp_path):
    with pytest.raises(BadInput, match=r"limit \(was nothing, now 5\).*Give another folder"):
        run_suite(suite, complete_run, RunRequest(limit=5))
    folder = tmp_path / "run"
    shutil.copytree(complete_run, folder)
    manifest = json.loads((folder / "run.json").read_text())
    manifest["plan"]["settings"]["versions"]["torch"] = "1.0"
    (folder / "run.json").write_text(json.dumps(manifest))
    with pytest.raises(BadInput, match=r"versions torch \(was 1.0"):
        run_suite(suite, folder)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with expect_error(BadInput, "run-folder-not-empty", mentions="thesis.txt"):
        run_suite(suite, tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_the_plan_of_an_earlier_version_is_read(complete_run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(complete_run, folder)
    manifest = json.loads((folder / "run.json").read_text())
    plan = manifest["plan"]
    plan["slice"] = plan.pop("part_size")
    for cell in plan["cells"]:
        cell["makes_heads"] = cell.pop("computes_heads_file")
        cell["method"] = cell.pop("method_label")
        cell["name"] = cell.pop("method_name")
    plan["completed"] = {"m/d": {"num_asked": 3, "indices": [0, 2]}}
    (folder / "run.json").write_text(json.dumps(manifest))
    read = RunFolder.open(folder).plan
    assert read.completed["m/d"].num_prompts == 3
    expected = RunFolder.open(complete_run).plan
    assert (read.cells, read.part_size) == (expected.cells, expected.part_size)


def test_a_run_killed_before_its_plan_was_written_starts_over(bert_folder, tmp_path):
    path = write_suite(tmp_path / "suite", bert_folder, 2, methods=["random"])
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "suite.yaml").write_text("half a su", encoding="utf-8")
    finished = run_suite(path, tmp_path / "run", engine=Engine(workers=1), progress=False)
    assert finished.failed_parts == ()
    assert read_scores(tmp_path / "run")["random", "aopc"]["count"] == "2"


def test_two_runners_do_not_share_a_folder(suite, complete_run):
    with locked_folder(complete_run, 1):
        assert find_lock_owner(complete_run).startswith(f"process {os.getpid()}")
        with pytest.raises(BadInput, match="Another run is working in"):
            run_suite(suite, complete_run)
    assert find_lock_owner(complete_run) == ""


def test_a_failing_example_is_recorded_and_the_others_are_measured(bert_folder, tmp_path):
    rows = [{"text": text, "label": i % 3} for i, text in enumerate(make_sentences(8))]
    rows[2]["text"] = "a \ud800 film"  # no text that can be encoded
    rows[5]["text"] = "   "
    path = write_suite(tmp_path / "suite", bert_folder, 8, rows=rows, methods=["attcat", "random"])
    finished = run_suite(path, tmp_path / "run", engine=Engine(workers=1), progress=False)
    assert sum(manifest["failed"] for manifest in finished.run_folder.read_manifests()) == 4
    assert finished.failed_parts == ()
    failures = read_csv_rows(tmp_path / "run" / "failures.csv")
    assert [(row["method"], row["example"]) for row in failures] == [
        ("attcat", "2"),
        ("attcat", "5"),
        ("random", "2"),
        ("random", "5"),
    ]
    assert all(row["error"] for row in failures)
    assert read_scores(tmp_path / "run")["attcat", "aopc"]["count"] == "6"
    assert read_scores(tmp_path / "run")["attcat", "aopc"]["failed"] == "2"
    clean = write_suite(tmp_path / "clean", bert_folder, 8, methods=["attcat", "random"])
    run_suite(clean, tmp_path / "other", engine=Engine(workers=1), progress=False)
    mine = list(RunFolder.open(tmp_path / "run").iter_rows(method="attcat"))
    expected = list(RunFolder.open(tmp_path / "other").iter_rows(method="attcat"))
    for row, clean_row in zip(mine, expected, strict=True):
        if row["error"] is None:
            assert row["measured"]["aopc"]["value"] == pytest.approx(
                clean_row["measured"]["aopc"]["value"], abs=FLOAT32
            )


def test_offline_cells_without_a_model_are_reported_but_do_not_fail(bert_folder, tmp_path, capsys):
    models = [
        {"name": "there", "hub": "someone/a", "data": "texts"},
        {"name": "gone", "hub": "someone/b", "data": "texts"},
    ]
    path = write_suite(tmp_path / "suite", bert_folder, 2, models=models, methods=["rollout"])
    arguments = ["bench", "run", str(path), "--offline", "--model", f"there={bert_folder}"]
    with pytest.raises(SystemExit) as end:
        main([*arguments, "--workers", "1", "-o", str(tmp_path / "run")])
    assert end.value.code == 0
    assert "not run: no local model: gone · texts" in capsys.readouterr().out
    cells = read_csv_rows(tmp_path / "run" / "cells.csv")
    assert [(row["status"], row["reason"]) for row in cells] == [
        ("run", ""),
        ("not run", "no local model"),
    ]
    with pytest.raises(SystemExit) as end:
        main(["bench", "status", str(tmp_path / "run")])
    assert end.value.code == 0
    assert "1 of 1 parts done" in capsys.readouterr().out


def test_without_the_extra_no_run_is_started(suite, tmp_path, capsys, monkeypatch):
    for library in ("pyarrow", "scipy"):
        monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(SystemExit) as end:
        main(["bench", "run", str(suite), "-o", str(tmp_path / "run")])
    assert end.value.code == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors == (
        "error: tokenlight bench run needs pyarrow and scipy. Install it with: "
        "pip install 'tokenlight[bench]'\n"
    )
    assert not (tmp_path / "run").exists()


def test_a_run_without_a_finished_part_has_no_report(suite, tmp_path, capsys, monkeypatch):
    def yield_failures(_run, tasks, **_):
        yield from (Outcome(number, error="out of luck") for number in range(len(tasks)))

    monkeypatch.setattr("tokenlight.scale.local_processes.run_local_tasks", yield_failures)
    folder = str(tmp_path / "run")
    with pytest.raises(SystemExit) as end:
        main(["bench", "run", str(suite), "-o", folder])
    assert end.value.code == 1
    output = capsys.readouterr().out
    assert "no part was completed, so there is nothing to report" in output
    assert "written:" not in output
    assert "report: " not in output
    with pytest.raises(SystemExit) as end:
        main(["bench", "report", folder])
    assert end.value.code == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert f"None of the {PARTS} parts of {folder} is finished" in errors


FULL_DISK = """
import multiprocessing, shutil, subprocess, sys
from pathlib import Path
from tokenlight.cli import main
from tokenlight.scale import local_processes
# A worker that is forked has the libraries already.
local_processes._process_context = lambda: multiprocessing.get_context("fork")
place, suite, out = sys.argv[1:]
def bench():
    try:
        main(["bench", "run", suite, "--workers", "1", "-o", place + "/run"])
    except SystemExit as end:
        return end.code
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160k", "none", place], check=True)
codes = [bench()]
half = [*Path(place).rglob(".*.tmp")]
kept = len([*Path(place).rglob("*.jsonl")])
subprocess.run(["mount", "-o", "remount,size=20m", place], check=True)
codes.append(bench())
shutil.copytree(place + "/run", out)
print("codes", codes, "kept", kept, "half", len(half))
"""


def test_a_run_resumes_after_a_full_disk(suite, complete_run, tmp_path):
    mount = shutil.which("unshare")
    if mount is None or subprocess.run([mount, "-rm", "true"], capture_output=True).returncode:
        pytest.skip("a small disk of one's own needs user namespaces")
    disk = tmp_path / "disk"
    disk.mkdir()
    process = subprocess.run(
        [mount, "-rm", sys.executable, "-c", FULL_DISK, str(disk), str(suite), str(tmp_path / "o")],
        capture_output=True, text=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=DEADLINE_SECONDS,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    last = process.stdout.splitlines()[-1].split()
    assert last[:3] == ["codes", "[1,", "0]"], process.stderr
    assert 0 < int(last[4]) < PARTS
    assert last[6] == "0"
    errors = " ".join(process.stderr.split())
    assert "is full" in errors
    assert "ree some space, then run the same command again to continue." in errors
    assert read_run_bytes(tmp_path / "o") == read_run_bytes(complete_run)


def test_a_worker_that_dies_three_times_loses_only_its_part(suite, tmp_path, monkeypatch):
    """Kill whichever worker holds a part, as a system out of memory does, until it is given up."""
    run = RunFolder.open(plan_run(suite, tmp_path / "run"))
    victim = run.parts[1]
    real = processes._WorkerProcess.send_task

    def give(worker, task):
        real(worker, task)
        if run.parts[task] == victim:
            os.kill(worker.process.pid, signal.SIGKILL)

    monkeypatch.setattr(processes._WorkerProcess, "send_task", give)
    tasks = list(run.parts[:3])
    outcomes = list(Engine(workers=1).run_tasks(PartRunner(str(run.folder)), tasks, "cpu"))
    troubles = {run.parts[outcome.task_index]: outcome.error for outcome in outcomes}
    assert "died 3 times (signal 9)" in troubles.pop(victim)
    assert set(troubles.values()) == {""}
    run.part_path(victim, "failed.txt").write_text("killed")
    assert count_parts(run.folder)["failed"] == 1
    assert run.find_error(victim) == "killed"


def plan_run(suite, folder):
    """A run that is planned, and not a part of it made."""
    from tokenlight.bench import planner as planning
    from tokenlight.bench.suite import read_suite_file

    described, _ = read_suite_file(suite)
    plan, problems = planning.plan_run(described, RunRequest())
    assert problems == []
    return RunFolder.create_or_resume(Path(folder), suite, described, plan).folder


def test_partial_files_of_a_killed_run_are_removed(tmp_path):
    inner = tmp_path / "parts" / "a"
    inner.mkdir(parents=True)
    (inner / ".00000000.jsonl.7.part").write_text("half")
    (inner / "00000000.jsonl").write_text("whole")
    remove_partial_files(tmp_path)
    assert [path.name for path in inner.iterdir()] == ["00000000.jsonl"]


def test_durations_are_formatted():
    assert [format_duration(s) for s in (5, 600, 10800)] == ["5 s", "10 min", "3.0 h"]


def test_a_number_instead_of_a_text_is_named_before_anything_runs(bert_folder, tmp_path):
    rows = [{"text": text, "label": 0} for text in make_sentences(4)]
    rows[2]["text"] = 17
    path = write_suite(tmp_path / "suite", bert_folder, 4, rows=rows, methods=["random"])
    with pytest.raises(InvalidSuite, match=r"In line 3 of texts\.jsonl, 'text' is a number"):
        run_suite(path, tmp_path / "run", engine=Engine(workers=1), progress=False)
    assert not (tmp_path / "run" / "scores.csv").exists()


def remove_after(count, remove):
    """An engine whose folder loses something after ``count`` parts."""

    class Removing(Engine):
        def run_tasks(self, job, tasks, device):
            for number, outcome in enumerate(super().run_tasks(job, tasks, device), 1):
                if number == count:
                    remove()
                yield outcome

    return Removing(workers=1)


def test_parts_deleted_during_a_run_are_reported_and_recomputed(bert_folder, tmp_path, capsys):
    suite = write_suite(tmp_path / "suite", bert_folder, 8)
    folder = tmp_path / "run"
    removed = []

    def remove():
        removed.extend(sorted((folder / "parts").rglob("*.jsonl"))[:2])
        for path in removed:
            path.unlink()

    finished = run_suite(suite, folder, engine=remove_after(4, remove), progress=False)
    assert len(removed) == 2
    assert [why for _, why in finished.failed_parts] == [
        f"{path} was deleted while the run was in progress." for path in removed
    ]
    assert finished.num_parts_made == len(finished.run_folder.parts) - 2
    with pytest.raises(SystemExit) as end:
        main(["verify", str(folder)])
    assert end.value.code == 1
    assert "2 parts are missing" in capsys.readouterr().err
    second_run = run_suite(suite, folder, engine=Engine(workers=1), progress=False)
    assert (second_run.num_parts_made, second_run.failed_parts) == (2, ())
    with pytest.raises(SystemExit) as end:
        main(["verify", str(folder)])
    assert end.value.code == 0


def test_a_folder_that_is_removed_during_a_run_is_recreated(bert_folder, tmp_path):
    suite = write_suite(tmp_path / "suite", bert_folder, 8)
    folder = tmp_path / "run"
    engine = remove_after(4, lambda: shutil.rmtree(folder))
    finished = run_suite(suite, folder, engine=engine, progress=False)
    assert finished.failed_parts
    second_run = run_suite(suite, folder, engine=Engine(workers=1), progress=False)
    assert (second_run.num_parts_made, second_run.failed_parts) == (len(finished.failed_parts), ())


def test_a_run_whose_plan_was_lost_keeps_its_parts_and_another_run_is_refused(
    suite, complete_run, bert_folder, tmp_path
):
    folder = tmp_path / "run"
    shutil.copytree(complete_run, folder)
    (folder / "run.json").unlink()
    other = write_suite(tmp_path / "other", bert_folder, 8)
    with expect_error(BadInput, "run-folder-not-empty"):
        run_suite(other, folder, progress=False)
    finished = run_suite(suite, folder, engine=Engine(workers=1), progress=False)
    assert (finished.num_parts_made, finished.num_existing) == (0, PARTS)
    assert read_run_bytes(folder) == read_run_bytes(complete_run)


def test_verify_names_the_part_that_is_damaged(complete_run, tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(complete_run, folder)
    path = sorted((folder / "parts").rglob("*.jsonl"))[3]
    path.write_bytes(path.read_bytes().replace(b'"error": null', b'"error": "x"', 1))
    (folder / "scores.csv").unlink()
    with pytest.raises(SystemExit) as end:
        main(["verify", str(folder)])
    output, errors = capsys.readouterr()
    assert end.value.code == 1
    assert f"error: {path} is damaged: its lines do not match" in " ".join(errors.split())
    assert output == f"{PARTS - 1} of {PARTS} parts are intact in {folder}\n"
    shutil.copytree(complete_run / "parts", folder / "parts", dirs_exist_ok=True)
    with pytest.raises(SystemExit) as end:
        main(["verify", str(folder)])
    assert end.value.code == 1
    assert "scores.csv is missing" in capsys.readouterr().err
