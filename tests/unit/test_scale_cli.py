"""``tokenlight explain --file DATA -o FOLDER``: what goes together, and what a person is told."""

import json
import multiprocessing

import pyarrow.dataset
import pytest

from tests.scale_runs import parquet
from tests.unit.test_cli_file import tokenlight  # noqa: F401 - a fixture
from tokenlight.scale import engine as processes

pytestmark = pytest.mark.xdist_group("bench")


@pytest.fixture
def given(tmp_path, bert_folder):
    parquet(tmp_path / "data/a.parquet", 6)
    return ("explain", "--file", tmp_path / "data", "-m", bert_folder, "-x", "attcat")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ("--gpus-per-worker", "1"),
            "--gpus-per-worker 1.0 needs --engine ray",
        ),
        (("--address", "here:1"), "--address here:1 needs --engine ray"),
        (
            ("--engine", "ray", "--gpus-per-worker", "0.5", "--device", "cpu"),
            "--gpus-per-worker 0.5 asks for GPUs, and --device cpu for none",
        ),
        (("--by", "sentence"), "-o does not go with --by"),
        (("--document", "a.txt"), "--file does not go with --document"),
        (("--chat-template", "a.j2"), "-o does not go with --chat-template"),
        (("--json", "a.json"), "-o does not go with --json"),
        (("-x", "gae"), "not by attcat and gae: give one --method"),
    ],
)
def test_options_that_contradict_a_folder_are_refused(given, tokenlight, tmp_path, options, said):  # noqa: F811
    code, _, errors = tokenlight(*given, "-o", tmp_path / "out", *options)
    assert code == 2
    assert said in " ".join(errors.split())
    assert not (tmp_path / "out").exists()


def test_many_files_need_a_folder_and_workers_need_many_texts(given, tokenlight):  # noqa: F811
    _, _, errors = tokenlight(*given)
    assert "say where to, with -o FOLDER" in " ".join(errors.split())
    _, _, errors = tokenlight(*given, "--keep", "id")
    assert "--keep id needs --file DATA -o FOLDER" in " ".join(errors.split())


def test_a_folder_is_explained_kept_columns_and_precision_included(
    given,
    tokenlight,  # noqa: F811
    tmp_path,
    monkeypatch,
):
    monkeypatch.setattr(processes, "_context", lambda: multiprocessing.get_context("fork"))
    whole = (*given, "-o", tmp_path / "out", "--workers", "2", "--block", "3", "--device", "cpu")
    whole += ("--keep", "id, stars", "--text", "review", "--dtype", "bfloat16")
    code, output, errors = tokenlight(*whole)
    assert (code, output) == (0, "")
    assert "6 of 6 texts are in" in errors
    table = pyarrow.dataset.dataset(tmp_path / "out/rows").to_table()
    assert table.column_names[:3] == ["id", "stars", "source"]
    assert table["id"].to_pylist() == [f"r{i}" for i in range(6)]
    assert json.loads((tmp_path / "out/job.json").read_text())["dtype"] == "bfloat16"
    code, _, errors = tokenlight(*whole)
    assert code == 0
    code, _, errors = tokenlight(*whole[:-2])
    assert code == 2
    assert "dtype (was bfloat16, now nothing)" in " ".join(errors.split())
