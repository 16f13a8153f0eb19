"""Folders that lose or change files during a job or between two: noticed, reported and repaired."""

import json
import shutil

import pyarrow
import pytest

from tests.helpers.expect import expect_error
from tests.helpers.scale_runs import InProcessEngine, read_output_files, write_parquet
from tokenlight.cli import main
from tokenlight.errors import BadInput, DamagedFile
from tokenlight.scale import explain_files

COVERED_MODULES = ("scale/verify",)
pytestmark = pytest.mark.xdist_group("bench")
COUNT = 24
PARTS = 6


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Texts of which two, in different parts, are refused."""
    texts = [f"a film that is good {i}" for i in range(COUNT)]
    texts[5] = texts[14] = "  "
    path = tmp_path_factory.mktemp("damage") / "a.parquet"
    return write_parquet(path, COUNT, review=pyarrow.array(texts))


def run_job(data, folder, model, before_task=lambda _task_index: None, **options):
    messages = []
    all_options = {
        "method": "attcat",
        "keep_columns": ["id"],
        "part_size": 4,
        "progress": False,
        **options,
    }
    summary = explain_files(
        str(data),
        str(folder),
        model=str(model),
        engine=InProcessEngine(before_task),
        on_message=messages.append,
        **all_options,
    )
    return summary, messages


@pytest.fixture(scope="module")
def complete_folder(data, bert_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("damage") / "whole"
    summary, messages = run_job(data, folder, bert_folder)
    assert (summary.num_explained, summary.num_refused, summary.failed_parts, messages) == (
        COUNT - 2,
        2,
        (),
        [],
    )
    return folder


@pytest.fixture
def copy(complete_folder, tmp_path):
    shutil.copytree(complete_folder, tmp_path / "copy")
    return tmp_path / "copy"


def verify(folder, capsys):
    with pytest.raises(SystemExit) as end:
        main(["verify", str(folder)])
    output, errors = capsys.readouterr()
    return end.value.code, output, " ".join(errors.split())


def zero(path, count=200):
    content = bytearray(path.read_bytes())
    content[100 : 100 + count] = bytes(count)
    path.write_bytes(content)


def test_rows_that_are_removed_during_a_run_are_recomputed(
    data, complete_folder, bert_folder, tmp_path
):
    folder = tmp_path / "out"

    def remove(number):
        if number == 4:
            (folder / "rows/00000/00000000.parquet").unlink()
            shutil.rmtree(folder / "refused")

    summary, messages = run_job(data, folder, bert_folder, remove)
    assert (summary.num_explained, summary.num_refused, summary.failed_parts) == (COUNT - 2, 2, ())
    assert messages == [
        "3 parts were lost while the job ran (rows/00000/00000000.parquet is missing, "
        "refused/00000/00000001.parquet is missing, refused/00000/00000003.parquet is missing). "
        "Recomputing them."
    ]
    assert read_output_files(folder) == read_output_files(complete_folder)


def test_rows_that_vanish_repeatedly_are_failures(data, complete_folder, bert_folder, tmp_path):
    folder = tmp_path / "out"

    def remove(_number):
        (folder / "rows/00000/00000000.parquet").unlink(missing_ok=True)

    class Removing(InProcessEngine):
        def run_tasks(self, job, tasks, device):
            yield from super().run_tasks(job, tasks, device)
            remove(0)

    options = {"method": "attcat", "keep_columns": ["id"], "part_size": 4, "progress": False}
    summary = explain_files(
        str(data), str(folder), model=str(bert_folder), engine=Removing(), **options
    )
    assert summary.failed_parts == (
        (
            0,
            "rows/00000/00000000.parquet is missing. Something removes or changes the files of this folder.",
        ),
    )
    assert summary.num_explained == COUNT - 2 - 4
    summary, _ = run_job(data, folder, bert_folder)
    assert (summary.num_parts_made, summary.failed_parts) == (1, ())
    assert read_output_files(folder) == read_output_files(complete_folder)


def test_a_folder_that_is_removed_during_a_run_is_recreated(
    data, complete_folder, bert_folder, tmp_path, capsys
):
    folder = tmp_path / "out"

    def remove(number):
        if number == 4:
            shutil.rmtree(folder)

    summary, _ = run_job(data, folder, bert_folder, remove)
    assert (summary.num_explained, summary.num_refused, summary.failed_parts) == (COUNT - 2, 2, ())
    assert read_output_files(folder) == read_output_files(complete_folder)
    assert verify(folder, capsys)[0] == 0
    assert run_job(data, folder, bert_folder)[0].num_parts_made == 0


def test_a_folder_that_is_removed_before_a_kill_is_continued(
    data, complete_folder, bert_folder, tmp_path
):
    """The rows that a worker wrote afterwards have no job.json beside them, but say whose they are."""
    folder = tmp_path / "out"

    class Killed(BaseException):
        pass

    def remove(number):
        if number == 3:
            shutil.rmtree(folder)
        if number == 5:
            raise Killed

    with pytest.raises(Killed):
        run_job(data, folder, bert_folder, remove)
    assert not (folder / "job.json").exists()
    with expect_error(BadInput, "folder-of-another-job"):
        run_job(data, folder, bert_folder, keep_columns=[])
    summary, messages = run_job(data, folder, bert_folder)
    assert messages[0].startswith(f"job.json was missing in {folder}")
    assert (summary.num_explained, summary.num_refused, summary.failed_parts) == (COUNT - 2, 2, ())
    assert read_output_files(folder) == read_output_files(complete_folder)


@pytest.mark.parametrize("below", ["rows", "refused"])
def test_zeroed_bytes_are_found_by_the_checksum_and_recomputed(
    data, complete_folder, bert_folder, copy, below, capsys
):
    path = copy / below / "00000/00000003.parquet"
    zero(path)
    reason = f"{below}/00000/00000003.parquet has a different checksum"
    code, output, errors = verify(copy, capsys)
    assert (code, output) == (1, f"{PARTS - 1} of {PARTS} parts are intact in {copy}\n")
    assert errors == (
        f"error: {reason} Run the command that wrote the folder again to restore these parts."
    )
    summary, messages = run_job(data, copy, bert_folder)
    assert messages[0] == f"1 parts are damaged ({reason}). Recomputing them."
    assert (summary.num_parts_made, summary.failed_parts) == (1, ())
    assert read_output_files(copy) == read_output_files(complete_folder)
    assert verify(copy, capsys) == (
        0,
        f"{PARTS} of {PARTS} parts are intact in {copy}\n",
        "",
    )


def test_refusals_that_were_removed_are_recomputed(
    data, complete_folder, bert_folder, copy, capsys
):
    shutil.rmtree(copy / "refused")
    assert verify(copy, capsys)[0] == 1
    summary, _ = run_job(data, copy, bert_folder)
    assert (summary.num_parts_made, summary.num_refused) == (2, 2)
    assert read_output_files(copy) == read_output_files(complete_folder)


def test_a_manifest_without_checksums_still_counts_with_a_note(data, bert_folder, copy, capsys):
    manifest = copy / "manifest.jsonl"
    lines = [json.loads(line) for line in manifest.read_text().splitlines()]
    old = [
        {key: line[key] for key in ("block", "seconds", "rows", "refused", "bytes")}
        for line in lines
    ]
    manifest.write_text("".join(json.dumps(line) + "\n" for line in old))
    note = f"{PARTS} parts are from a version without checksums"
    code, _, errors = verify(copy, capsys)
    assert code == 0
    assert note in errors
    summary, messages = run_job(data, copy, bert_folder)
    assert summary.num_parts_made == 0
    assert messages == [f"{note}. Only their sizes were checked."]
    shutil.rmtree(copy / "refused")
    assert run_job(data, copy, bert_folder)[0].num_parts_made == 2


@pytest.mark.parametrize(
    ("damage", "lost"),
    [
        (lambda text: text[:-20], 1),
        (lambda text: text.replace('"rows": 4', '"rows": 9', 1), 1),
        (
            lambda text: text.replace('"bytes": ', '"bytes": "1', 1).replace(
                ', "sha', '", "sha', 1
            ),
            1,
        ),
        (lambda text: "[]\n5\nnull\n" + text, 0),
        (lambda text: "\x00" * len(text), PARTS),
        (lambda text: "\udcff" + text, 1),
    ],
)
def test_a_damaged_manifest_is_reported_and_its_parts_are_recomputed(
    data, complete_folder, bert_folder, copy, capsys, damage, lost
):
    manifest = copy / "manifest.jsonl"
    manifest.write_bytes(damage(manifest.read_text()).encode("utf-8", "surrogateescape"))
    code, output, errors = verify(copy, capsys)
    assert code == 1
    assert output == f"{PARTS - lost} of {PARTS} parts are intact in {copy}\n"
    assert "manifest.jsonl is damaged: line" in errors
    summary, messages = run_job(data, copy, bert_folder)
    assert messages[0].startswith(f"{copy}/manifest.jsonl is damaged (line ")
    assert messages[0].endswith("). The parts that it does not list are recomputed.")
    assert (summary.num_parts_made, summary.num_explained, summary.failed_parts) == (
        lost,
        COUNT - 2,
        (),
    )
    assert read_output_files(copy) == read_output_files(complete_folder)
    assert verify(copy, capsys)[0] == 0


@pytest.mark.parametrize("content", ["", "[]", "{", "\x00\x00"])
def test_damaged_settings_are_reported_with_a_remedy_that_works(
    data, complete_folder, bert_folder, copy, capsys, content
):
    (copy / "job.json").write_text(content)
    with pytest.raises(DamagedFile, match=r"(?i)job.json is damaged .*delete this file"):
        run_job(data, copy, bert_folder)
    code, _, errors = verify(copy, capsys)
    assert code == 2
    assert "job.json is damaged" in errors
    (copy / "job.json").unlink()
    summary, _ = run_job(data, copy, bert_folder)
    assert (summary.num_parts_made, summary.failed_parts) == (0, ())
    assert read_output_files(copy) == read_output_files(complete_folder)


def test_an_unfinished_folder_is_reported_as_unfinished(copy, capsys):
    manifest = copy / "manifest.jsonl"
    lines = manifest.read_text().splitlines(keepends=True)
    manifest.write_text("".join(lines[:-2]))
    code, output, errors = verify(copy, capsys)
    assert (code, output) == (1, f"{PARTS - 2} of {PARTS} parts are intact in {copy}\n")
    assert "2 parts are missing: not made yet, or lost" in errors


def test_a_folder_that_cannot_be_verified_is_refused(tmp_path, capsys):
    code, _, errors = verify(tmp_path / "nowhere", capsys)
    assert code == 2
    assert "is not a folder" in errors
    code, _, errors = verify(tmp_path, capsys)
    assert code == 2
    assert "has no job.json, settings.json or run.json" in errors
