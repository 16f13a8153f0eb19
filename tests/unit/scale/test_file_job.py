"""Explaining files into a folder: one row per text, the same bytes with any engine, nothing lost."""

import json
import pickle
import shutil
import sys
from pathlib import Path

import fsspec
import numpy as np
import pyarrow
import pyarrow.dataset
import pyarrow.parquet
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import tokenlight
from tests.helpers.expect import expect_error
from tests.helpers.extras import import_extra
from tests.helpers.scale_runs import InProcessEngine, read_output_files, write_parquet
from tests.helpers.tolerance import FLOAT32
from tokenlight import Explainer
from tokenlight.errors import BadInput, DamagedFile, TokenlightError
from tokenlight.files.attribution_parquet import (
    ATTRIBUTION_COLUMNS,
    attribution_from_row,
    build_table,
    to_columns,
)
from tokenlight.files.folder_lock import locked_folder
from tokenlight.files.stores import open_filesystem
from tokenlight.models.embedded import digest_folder
from tokenlight.scale import explain_files
from tokenlight.scale.text_files import TextFiles

pytestmark = pytest.mark.xdist_group("bench")
COUNT = 40


@pytest.fixture(scope="module")
def model(bert_folder):
    return str(bert_folder)


@pytest.fixture(scope="module")
def explainer(model):
    return Explainer.from_pretrained(model)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scale") / "data"
    write_parquet(folder / "a.parquet", 25)
    write_parquet(folder / "b.parquet", 15, first=25)
    return folder


def run_job(source, folder, model, **options):
    defaults = {
        "method": "attcat",
        "keep_columns": ["id", "stars"],
        "part_size": 8,
        "engine": InProcessEngine(),
    }
    return explain_files(
        str(source), str(folder), model=model, **{**defaults, "progress": False, **options}
    )


@pytest.fixture(scope="module")
def complete_folder(data, model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("scale") / "whole"
    summary = run_job(data, folder, model)
    assert (
        summary.num_texts,
        summary.num_explained,
        summary.num_refused,
        summary.failed_parts,
    ) == (
        COUNT,
        COUNT,
        0,
        (),
    )
    return folder


def test_a_row_holds_all_of_the_attribution(explainer):
    for text, options in [
        ("A charming film, not dull", {}),
        (("the plot", "was bad"), {"target": 1}),
    ]:
        attribution = explainer.explain([text], "attcat", **options)[0]
        read = attribution_from_row(
            build_table(to_columns([attribution], "weights")).to_pylist()[0]
        )
        before = attribution.to_dict()
        after = read.to_dict()
        assert after["scores"] == np.float32(attribution.scores).astype(float).tolist()
        for name in (
            "row",
            "tokens",
            "target",
            "prediction",
            "options",
            "versions",
            "method",
            "model",
        ):
            assert after[name] == before[name], name
        assert after["logits"] == np.float32(attribution.logits).astype(float).tolist()


def test_each_text_has_one_row_with_kept_columns_and_explanation(complete_folder, data, explainer):
    table = pyarrow.dataset.dataset(complete_folder / "rows").to_table()
    source_rows = pyarrow.dataset.dataset(data).to_table()
    assert table.column_names == ["id", "stars", "source", "row", *ATTRIBUTION_COLUMNS]
    assert table["id"].to_pylist() == source_rows["id"].to_pylist()
    assert table.schema.field("stars").type == pyarrow.int8()
    assert table.schema.field("scores").type == pyarrow.list_(pyarrow.float32())
    assert table["row"].to_pylist() == [*range(1, 26), *range(1, 16)]
    texts = source_rows["review"].to_pylist()
    alone = [explainer.explain(text, "attcat") for text in texts]
    for row, expected in zip(table.to_pylist(), alone, strict=True):
        assert row["tokens"] == list(expected.tokens)
        assert row["prediction"] == expected.prediction.label
        np.testing.assert_allclose(row["scores"], expected.scores, atol=FLOAT32)


def test_a_folder_is_loaded_lazily_and_in_order(complete_folder, data):
    attributions = tokenlight.load(str(complete_folder))
    assert len(attributions) == COUNT
    assert attributions[-1].extras["input_columns"]["id"] == "r39"
    assert [each.extras["input_columns"]["id"] for each in attributions[7:10]] == ["r7", "r8", "r9"]
    assert [each.extras["input_columns"]["stars"] for each in attributions] == [
        *(i % 3 for i in range(25)),
        *(i % 3 for i in range(15)),
    ]
    frame = attributions.to_pandas(["id", "prediction"])
    assert frame.shape == (COUNT, 2)
    assert len(attributions.refusals) == 0
    with pytest.raises(IndexError):
        attributions[COUNT]
    with pytest.raises(DamagedFile):
        tokenlight.load(str(data))


def test_a_damaged_part_is_reported_and_recomputed(complete_folder, data, model, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(complete_folder, folder)
    path = folder / "rows/00000/00000002.parquet"
    content = bytearray(path.read_bytes())
    for byte in range(
        len(content) // 3, len(content) // 2
    ):  # headers and pages, which have checksums
        content[byte] ^= 255
    path.write_bytes(content)
    with pytest.raises(DamagedFile, match=r"00000002.parquet"):
        list(tokenlight.load(str(folder)))
    path.unlink()
    summary = run_job(data, folder, model)
    assert (summary.num_existing, summary.num_parts_made, summary.num_explained) == (32, 1, COUNT)
    assert read_output_files(folder) == read_output_files(complete_folder)


def test_partial_files_of_a_killed_worker_are_ignored_and_removed(
    complete_folder, data, model, tmp_path
):
    folder = tmp_path / "copy"
    shutil.copytree(complete_folder, folder)
    partial_file = folder / "rows/00000/.00000002.parquet.4242.part"
    partial_file.write_bytes(b"PAR1 half of")
    assert len(tokenlight.load(str(folder))) == COUNT
    assert run_job(data, folder, model).num_parts_made == 0
    assert not partial_file.exists()


def test_folders_globs_and_other_formats_give_the_rows_of_parquet(
    data, complete_folder, model, tmp_path
):
    table = pyarrow.dataset.dataset(data).to_table().select(["id", "review", "stars"])
    rows = table.to_pylist()
    (tmp_path / "x").mkdir()
    (tmp_path / "x/t.jsonl").write_text("\n" + "".join(json.dumps(row) + "\n" for row in rows))
    lines = [",".join(map(str, row.values())) for row in rows]
    (tmp_path / "x/t.csv").write_text("\n".join(["id,review,stars", *lines]))
    expected = pyarrow.dataset.dataset(complete_folder / "rows").to_table()["scores"].to_pylist()
    for source, first, kind in [
        ("x/*.jsonl", 2, pyarrow.int64()),
        ("**/t.csv", 1, pyarrow.string()),
    ]:
        folder = tmp_path / kind.id.__str__()
        run_job(tmp_path / source, folder, model, text_column="review", part_size=1000)
        rows_written = pyarrow.dataset.dataset(folder / "rows").to_table()
        assert rows_written["row"].to_pylist() == list(range(first, first + COUNT))
        assert rows_written.schema.field("stars").type == kind
        assert rows_written["id"].to_pylist() == [row["id"] for row in rows]
        for mine, other in zip(rows_written["scores"].to_pylist(), expected, strict=True):
            np.testing.assert_allclose(mine, other, atol=FLOAT32)


def test_bad_kept_columns_and_files_without_rows_are_refused(model, tmp_path):
    data = tmp_path / "data"
    write_parquet(data / "a.parquet", 3)
    with expect_error(BadInput, "output-inside-input"):
        run_job(data, data / "out", model)
    with expect_error(BadInput, "kept-column-reserved", mentions="tokens"):
        TextFiles.scan(str(data), None, ["tokens"], None)
    with expect_error(BadInput, "kept-column-missing", mentions="Did you mean 'stars'"):
        TextFiles.scan(str(data), None, ["star"], None)
    write_parquet(tmp_path / "none.parquet", 0)
    with expect_error(BadInput, "no-rows"):
        TextFiles.scan(str(tmp_path / "none.parquet"), None, [], None)
    with pytest.raises(DamagedFile):
        TextFiles.scan(str(tmp_path / "*.csv"), None, [], None)


def test_refused_texts_are_written_apart_with_their_reasons(model, tmp_path):
    texts = ["good film", None, "  ", "a film " * 400, "bad plot"]
    write_parquet(tmp_path / "a.parquet", 5, review=pyarrow.array(texts))
    summary = run_job(tmp_path / "a.parquet", tmp_path / "out", model)
    assert (summary.num_explained, summary.num_refused, summary.num_texts) == (2, 3, 5)
    refused = tokenlight.load(str(tmp_path / "out")).refusals
    assert refused["id"].tolist() == ["r1", "r2", "r3"]
    for reason, words in zip(
        refused["refused"], ["is null", "is empty", "--long|long="], strict=True
    ):
        assert any(word in reason for word in words.split("|")), reason
    second_summary = run_job(tmp_path / "a.parquet", tmp_path / "out", model)
    assert (
        second_summary.num_explained,
        second_summary.num_refused,
        second_summary.num_parts_made,
    ) == (2, 3, 0)


def test_a_job_with_other_settings_is_refused(data, model, tmp_path):
    folder = tmp_path / "out"
    source = tmp_path / "data"
    weights = tmp_path / "model"
    shutil.copytree(data, source)
    shutil.copytree(model, weights)
    run_job(source, folder, str(weights))
    before = read_output_files(folder)
    with pytest.raises(BadInput, match=r"method \(was attcat, now rollout\)"):
        run_job(source, folder, str(weights), method="rollout")
    with pytest.raises(BadInput, match=r"long \(was error, now truncate\)"):
        run_job(source, folder, str(weights), long="truncate")
    with pytest.raises(BadInput, match=r"keep \(was id,stars, now id\)"):
        run_job(source, folder, str(weights), keep_columns=["id"])
    with pytest.raises(BadInput, match=r"part_size \(was \d+, now 7\)"):
        run_job(source, folder, str(weights), part_size=7)
    write_parquet(source / "b.parquet", 15)
    with pytest.raises(BadInput, match=r"files .*b.parquet \(was 15 rows"):
        run_job(source, folder, str(weights))
    shutil.copy(data / "b.parquet", source)
    (weights / "config.json").write_text((weights / "config.json").read_text() + " ")
    with pytest.raises(BadInput, match="fingerprint"):
        run_job(source, folder, str(weights))
    assert read_output_files(folder) == before


def test_a_file_that_vanishes_or_changes_fails_only_its_parts(
    data, complete_folder, model, tmp_path
):
    source = tmp_path / "data"
    shutil.copytree(data, source)

    def vanish(number):
        if number == 4:
            (source / "b.parquet").unlink()

    summary = run_job(source, tmp_path / "out", model, engine=InProcessEngine(vanish))
    assert [part for part, _ in summary.failed_parts] == [4, 5]
    assert "b.parquet" in summary.failed_parts[0][1]
    assert summary.num_explained == 25
    shutil.copy2(data / "b.parquet", source)
    summary = run_job(source, tmp_path / "out", model)
    assert (summary.num_existing, summary.num_explained, summary.failed_parts) == (25, COUNT, ())
    expected = read_output_files(complete_folder)
    actual = read_output_files(tmp_path / "out")
    assert expected.keys() == actual.keys()

    def change(number):
        if number == 4:
            write_parquet(source / "b.parquet", 15, first=20)

    summary = run_job(source, tmp_path / "other", model, engine=InProcessEngine(change))
    assert "was changed while the job ran" in summary.failed_parts[0][1]


def test_only_one_driver_works_in_a_folder(data, model, tmp_path):
    with (
        locked_folder(tmp_path, 2),
        expect_error(BadInput, "folder-locked", mentions="(process "),
    ):
        run_job(data, tmp_path, model)
    write_parquet(tmp_path / "rows/00000/00000000.parquet", 1)
    with expect_error(BadInput, "folder-of-another-job"):
        run_job(data, tmp_path, model)


def test_an_unwritable_folder_is_reported(data, model):
    with expect_error(BadInput, "folder-unwritable", mentions="/sys/out"):
        run_job(data, "/sys/out", model)


def test_an_error_for_every_text_stops_the_job_at_once(data, model, tmp_path):
    with expect_error(TokenlightError, "job-failed", mentions="nonsense"):
        run_job(data, tmp_path / "a", model, target="nonsense")
    with expect_error(TokenlightError, "job-failed", mentions="wrong"):
        run_job(data, tmp_path / "b", model, method=("attcat", {"wrong": 1}))
    assert not (tmp_path / "a/rows").exists()
    assert run_job(data, tmp_path / "a", model, target="predicted").num_explained == COUNT


def test_a_store_of_objects_is_read_and_written_like_a_disk(data, complete_folder, model):
    memory = fsspec.filesystem("memory")
    for path in data.iterdir():
        memory.pipe_file(f"/scale/data/{path.name}", path.read_bytes())
    summary = run_job("memory://scale/data/*.parquet", "memory://scale/out", model)
    assert (summary.num_explained, summary.failed_parts) == (COUNT, ())
    attributions = tokenlight.load("memory://scale/out")
    assert [each.extras["input_columns"]["id"] for each in attributions] == [
        f"r{i}" for i in range(COUNT)
    ]
    mine = tokenlight.load(str(complete_folder)).to_pandas().drop(columns="source")
    assert attributions.to_pandas().drop(columns="source").equals(mine)
    second_summary = run_job("memory://scale/data/*.parquet", "memory://scale/out", model)
    assert (second_summary.num_existing, second_summary.num_parts_made) == (COUNT, 0)
    memory.rm("/scale", recursive=True)


class Locked(MemoryFileSystem):
    """A store that nobody has the key of, and that says so in an error of its own."""

    protocol = "locked"

    def info(self, path, **_):
        raise LookupError(f"no credentials for {path}")

    cat_file = pipe_file = find = info


def test_errors_of_an_object_store_are_reported_like_disk_errors(data, model):
    fsspec.register_implementation("locked", Locked, clobber=True)
    reason = "LookupError: no credentials"
    with pytest.raises(BadInput, match=f"locked://data .*{reason}"):
        run_job("locked://data", "memory://nowhere", model)
    with expect_error(BadInput, "folder-unwritable", mentions=reason):
        run_job(data, "locked://out", model)
    with pytest.raises(DamagedFile, match=f"locked://out .*{reason}"):
        tokenlight.load("locked://out")


def test_an_unreachable_hub_is_reported(model, monkeypatch):
    """Offline, or where nobody answers; the sandbox of the tests may be either."""
    from huggingface_hub import HfFileSystem, constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    HfFileSystem.clear_instance_cache()
    system, path = open_filesystem("hf://datasets/me/reviews/data/*.parquet")
    assert isinstance(system, HfFileSystem)
    assert path == "datasets/me/reviews/data/*.parquet"
    try:
        with pytest.raises(BadInput, match=r"hf://datasets/me/reviews/data \S+"):
            run_job("hf://datasets/me/reviews/data", "memory://nowhere", model)
    finally:
        HfFileSystem.clear_instance_cache()


def test_the_commit_of_a_hub_model_is_known_before_a_worker_has_fetched_it(
    model, tmp_path, monkeypatch
):
    import huggingface_hub

    cached_model = tmp_path / "models--me--bert"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))

    def fetch(_name, file):
        shutil.copytree(model, cached_model / "snapshots/abc123", dirs_exist_ok=True)
        (cached_model / "refs").mkdir(exist_ok=True)
        (cached_model / "refs/main").write_text("abc123")
        return str(cached_model / "snapshots/abc123" / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fetch)
    assert digest_folder("me/bert") == "abc123"
    assert digest_folder("me/bert") == "abc123"  # from what is kept now


def test_a_mapper_takes_columns_and_tables_and_can_be_sent_elsewhere(explainer):
    mapper = pickle.loads(pickle.dumps(explainer.make_mapper("review", "attcat")))
    batch = {"review": ["good film", "", "bad plot"], "n": [1, 2, 3]}
    columns = mapper(batch)
    assert columns["n"] == [1, 2, 3]
    assert columns["tokens"][1] is None
    assert "is empty" in columns["refused"][1]
    table = mapper(pyarrow.table(batch))
    assert table["scores"].to_pylist()[0] == np.float32(columns["scores"][0]).astype(float).tolist()
    assert table.column_names == ["review", "n", *ATTRIBUTION_COLUMNS, "refused"]
    with expect_error(BadInput, "model-in-memory"):
        pickle.dumps(Explainer(explainer.model, explainer.tokenizer).make_mapper("review"))


def test_the_rows_open_in_pandas(complete_folder):
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_parquet(complete_folder / "rows")
    assert len(frame) == COUNT
    assert frame["scores"][0].dtype == np.float32


@pytest.mark.extras
def test_the_rows_open_in_duckdb(complete_folder):
    duckdb = import_extra("duckdb")
    query = (
        f"select count(*), max(len(tokens) - len(scores)) from '{complete_folder}/rows/*/*.parquet'"
    )
    assert duckdb.sql(query).fetchall() == [(COUNT, 0)]


@pytest.mark.extras
def test_the_rows_open_in_datasets_which_maps_by_a_mapper(complete_folder, data, model, tmp_path):
    datasets = import_extra("datasets")
    files = str(complete_folder / "rows/**/*.parquet")
    read = datasets.load_dataset(
        "parquet", data_files=files, split="train", cache_dir=str(tmp_path)
    )
    assert read["id"][:2] == ["r0", "r1"]
    source_rows = datasets.Dataset.from_parquet(str(data / "a.parquet"), cache_dir=str(tmp_path))
    mapper = Explainer.from_pretrained(model).make_mapper("review", "attcat")
    rows_written = source_rows.map(mapper, batched=True, batch_size=8, num_proc=2)
    for mine, other in zip(rows_written["scores"], read["scores"], strict=False):
        np.testing.assert_allclose(mine, other, atol=FLOAT32)


def run_in_a_bucket(store, url, data, complete_folder, model):
    store.mkdir("bucket")
    for path in data.iterdir():
        store.pipe_file(f"bucket/data/{path.name}", path.read_bytes())
    summary = run_job(f"{url}/data/*.parquet", f"{url}/out", model)
    assert (summary.num_explained, summary.failed_parts) == (COUNT, ())
    second_summary = run_job(f"{url}/data/*.parquet", f"{url}/out", model)
    assert (second_summary.num_existing, second_summary.num_parts_made) == (COUNT, 0)
    frame = tokenlight.load(f"{url}/out").to_pandas().drop(columns="source")
    assert frame.equals(tokenlight.load(str(complete_folder)).to_pandas().drop(columns="source"))


@pytest.mark.extras
def test_an_s3_bucket_is_read_and_written(data, complete_folder, model, monkeypatch):
    server = import_extra("moto.server")
    s3fs = import_extra("s3fs")
    running = server.ThreadedMotoServer(port=0)
    running.start()
    host, port = running.get_host_and_port()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    try:
        run_in_a_bucket(s3fs.S3FileSystem(), "s3://bucket", data, complete_folder, model)
    finally:
        running.stop()


@pytest.mark.extras
@pytest.mark.filterwarnings("ignore")  # Third party, 2026-11: the emulator's own deprecations.
def test_a_google_bucket_is_read_and_written(data, complete_folder, model, monkeypatch):
    emulator = import_extra("gcp_storage_emulator.server")
    gcsfs = import_extra("gcsfs")
    running = emulator.create_server("127.0.0.1", 0, in_memory=True)
    running.start()
    port = running._api._httpd.server_address[1]
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
    try:
        run_in_a_bucket(gcsfs.GCSFileSystem(), "gs://bucket", data, complete_folder, model)
    finally:
        running.stop()


@pytest.mark.extras
@pytest.mark.filterwarnings("ignore")  # Third party, 2026-11: pyspark on pandas 3.
def test_spark_maps_frames_by_a_mapper(data, complete_folder, model, monkeypatch):
    import_extra("pyspark")
    from pyspark.sql import SparkSession

    monkeypatch.setenv("PYTHONPATH", str(Path(tokenlight.__file__).parents[1]))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    )
    mapper = Explainer.from_pretrained(model).make_mapper("review", "attcat")

    def explain(frames):
        import pandas

        for frame in frames:
            explanations = mapper(frame.to_dict("list"))
            yield pandas.DataFrame(
                {name: explanations[name] for name in ("id", "prediction", "scores")}
            )

    try:
        kinds = "id string, prediction string, scores array<float>"
        result = spark.read.parquet(str(data)).mapInPandas(explain, kinds).toPandas()
    finally:
        spark.stop()
    read = tokenlight.load(str(complete_folder)).to_pandas(["id", "prediction", "scores"])
    result = result.sort_values("id").reset_index(drop=True)
    read = read.sort_values("id").reset_index(drop=True)
    assert result["prediction"].tolist() == read["prediction"].tolist()
    for mine, other in zip(result["scores"], read["scores"], strict=True):
        np.testing.assert_allclose(mine, other, atol=FLOAT32)
