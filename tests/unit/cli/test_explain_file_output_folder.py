"""``tokenlight explain --file DATA -o FOLDER``: what goes together, and what a person is told."""

import json
import multiprocessing

import pyarrow.dataset
import pytest

from tests.helpers.scale_runs import write_parquet
from tokenlight.cli.explain_folder import describe_finished_parts
from tokenlight.scale import local_processes as processes

pytestmark = pytest.mark.xdist_group("bench")


@pytest.fixture
def base_command(tmp_path, bert_folder):
    write_parquet(tmp_path / "data/a.parquet", 6)
    return ("explain", "--file", tmp_path / "data", "-m", bert_folder, "-x", "attcat")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--gpus-per-worker", "1"),
            "--gpus-per-worker 1.0 needs --engine ray",
        ),
        (("--address", "here:1"), "--address here:1 needs --engine ray"),
        (
            ("--engine", "ray", "--gpus-per-worker", "0.5", "--device", "cpu"),
            "--gpus-per-worker 0.5 requests GPUs, but --device cpu does not use any",
        ),
        (("--by", "sentence"), "-o cannot be combined with --by"),
        (("--document", "a.txt"), "--file cannot be combined with --document"),
        (("--chat-template", "a.j2"), "-o cannot be combined with --chat-template"),
        (("--json", "a.json"), "-o cannot be combined with --json"),
        (("-x", "gae"), "but got attcat and gae. Run the command once per method"),
    ],
)
def test_options_that_contradict_a_folder_are_refused(
    base_command,
    tokenlight,
    tmp_path,
    options,
    message,
):
    code, _, errors = tokenlight(*base_command, "-o", tmp_path / "out", *options)
    assert code == 2
    assert message in " ".join(errors.split())
    assert not (tmp_path / "out").exists()


def test_many_files_need_a_folder_and_workers_need_many_texts(base_command, tokenlight):
    _, _, errors = tokenlight(*base_command)
    assert "Give a folder for the results with -o FOLDER" in " ".join(errors.split())
    _, _, errors = tokenlight(*base_command, "--keep", "id")
    assert "--keep id needs --file DATA -o FOLDER" in " ".join(errors.split())


def test_a_folder_is_explained_kept_columns_and_precision_included(
    base_command,
    tokenlight,
    tmp_path,
    monkeypatch,
):
    monkeypatch.setattr(processes, "_process_context", lambda: multiprocessing.get_context("fork"))
    command = (
        *base_command,
        "-o",
        tmp_path / "out",
        "--workers",
        "2",
        "--part-size",
        "3",
        "--device",
        "cpu",
    )
    command += ("--keep", "id, stars", "--text", "review", "--dtype", "bfloat16")
    code, output, errors = tokenlight(*command)
    assert (code, output) == (0, "")
    assert "6 of 6 texts are in" in errors
    table = pyarrow.dataset.dataset(tmp_path / "out/rows").to_table()
    assert table.column_names[:3] == ["id", "stars", "source"]
    assert table["id"].to_pylist() == [f"r{i}" for i in range(6)]
    assert json.loads((tmp_path / "out/job.json").read_text())["dtype"] == "bfloat16"
    code, _, errors = tokenlight(*command)
    assert code == 0
    code, _, errors = tokenlight(*command[:-2])
    assert code == 2
    assert "dtype (was bfloat16, now nothing)" in " ".join(errors.split())


def test_an_interrupted_command_says_how_many_parts_are_kept(tmp_path):
    output = str(tmp_path / "out")
    assert describe_finished_parts(output, 1024) == "no part of 1,024 texts was finished"
    rows = tmp_path / "out/rows/a"
    rows.mkdir(parents=True)
    for name in ("00000.parquet", "00001.parquet", ".00002.parquet"):
        (rows / name).touch()
    assert (
        describe_finished_parts(output, 1024)
        == f"2 finished parts of up to 1,024 texts are in {output}"
    )
    assert describe_finished_parts("s3://bucket/out", 8) == "finished texts are in s3://bucket/out"
