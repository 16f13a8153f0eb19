"""Many texts into Parquet: one row a text, the same bytes whoever makes them, nothing lost."""

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
from tests.scale_runs import Here, bytes_of, parquet
from tests.tolerance import FLOAT32
from tokenlight import Explainer
from tokenlight.errors import BadInput, DamagedFile, TokenlightError
from tokenlight.files.parts import locked
from tokenlight.files.rows import OWN, attribution_of, columns_of, table_of
from tokenlight.files.write import filesystem
from tokenlight.models.embedded import folder_digest
from tokenlight.scale import explain_files
from tokenlight.scale.source import TextFiles

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
    parquet(folder / "a.parquet", 25)
    parquet(folder / "b.parquet", 15, first=25)
    return folder


def explained(source, folder, model, **how):
    given = {"method": "attcat", "keep": ["id", "stars"], "block": 8, "engine": Here()}
    return explain_files(
        str(source), str(folder), model=model, **{**given, "progress": False, **how}
    )


@pytest.fixture(scope="module")
def whole(data, model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("scale") / "whole"
    done = explained(data, folder, model)
    assert (done.texts, done.rows, done.refused, done.failed) == (COUNT, COUNT, 0, ())
    return folder


def test_a_row_holds_what_the_explanation_held(explainer):
    for text, how in [("A charming film, not dull", {}), (("the plot", "was bad"), {"target": 1})]:
        made = explainer.explain([text], "attcat", **how)[0]
        read = attribution_of(table_of(columns_of([made], "weights")).to_pylist()[0])
        before, after = made.to_dict(), read.to_dict()
        assert after["scores"] == np.float32(made.scores).astype(float).tolist()
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
        assert after["logits"] == np.float32(made.logits).astype(float).tolist()


def test_each_text_has_one_row_with_its_own_columns_beside_ours(whole, data, explainer):
    table = pyarrow.dataset.dataset(whole / "rows").to_table()
    given = pyarrow.dataset.dataset(data).to_table()
    assert table.column_names == ["id", "stars", "source", "row", *OWN]
    assert table["id"].to_pylist() == given["id"].to_pylist()
    assert table.schema.field("stars").type == pyarrow.int8()
    assert table.schema.field("scores").type == pyarrow.list_(pyarrow.float32())
    assert table["row"].to_pylist() == [*range(1, 26), *range(1, 16)]
    texts = given["review"].to_pylist()
    alone = [explainer.explain(text, "attcat") for text in texts]
    for row, expected in zip(table.to_pylist(), alone, strict=True):
        assert row["tokens"] == list(expected.tokens)
        assert row["prediction"] == expected.prediction.label
        np.testing.assert_allclose(row["scores"], expected.scores, atol=FLOAT32)


def test_a_folder_is_loaded_lazily_and_in_order(whole, data):
    found = tokenlight.load(str(whole))
    assert len(found) == COUNT
    assert found[-1].extras["kept"]["id"] == "r39"
    assert [one.extras["kept"]["id"] for one in found[7:10]] == ["r7", "r8", "r9"]
    assert [one.extras["kept"]["stars"] for one in found] == [
        *(i % 3 for i in range(25)),
        *(i % 3 for i in range(15)),
    ]
    frame = found.to_pandas(["id", "prediction"])
    assert frame.shape == (COUNT, 2)
    assert len(found.refused) == 0
    with pytest.raises(IndexError):
        found[COUNT]
    with pytest.raises(DamagedFile, match="folder without explanations"):
        tokenlight.load(str(data))


def test_a_damaged_block_is_told_and_made_again(whole, data, model, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(whole, folder)
    place = folder / "rows/00000/00000002.parquet"
    content = bytearray(place.read_bytes())
    for byte in range(
        len(content) // 3, len(content) // 2
    ):  # headers and pages, which have checksums
        content[byte] ^= 255
    place.write_bytes(content)
    with pytest.raises(DamagedFile, match=r"00000002.parquet is damaged"):
        list(tokenlight.load(str(folder)))
    place.unlink()
    done = explained(data, folder, model)
    assert (done.there, done.made, done.rows) == (32, 1, COUNT)
    assert bytes_of(folder) == bytes_of(whole)


def test_what_a_killed_worker_left_half_written_is_no_row_and_goes(whole, data, model, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(whole, folder)
    left = folder / "rows/00000/.00000002.parquet.4242.part"
    left.write_bytes(b"PAR1 half of")
    assert len(tokenlight.load(str(folder))) == COUNT
    assert explained(data, folder, model).made == 0
    assert not left.exists()


def test_folders_globs_and_other_formats_give_the_rows_of_parquet(data, whole, model, tmp_path):
    table = pyarrow.dataset.dataset(data).to_table().select(["id", "review", "stars"])
    rows = table.to_pylist()
    (tmp_path / "x").mkdir()
    (tmp_path / "x/t.jsonl").write_text("\n" + "".join(json.dumps(row) + "\n" for row in rows))
    lines = [",".join(map(str, row.values())) for row in rows]
    (tmp_path / "x/t.csv").write_text("\n".join(["id,review,stars", *lines]))
    expected = pyarrow.dataset.dataset(whole / "rows").to_table()["scores"].to_pylist()
    for source, first, kind in [
        ("x/*.jsonl", 2, pyarrow.int64()),
        ("**/t.csv", 1, pyarrow.string()),
    ]:
        folder = tmp_path / kind.id.__str__()
        explained(tmp_path / source, folder, model, text="review", block=1000)
        made = pyarrow.dataset.dataset(folder / "rows").to_table()
        assert made["row"].to_pylist() == list(range(first, first + COUNT))
        assert made.schema.field("stars").type == kind
        assert made["id"].to_pylist() == [row["id"] for row in rows]
        for mine, other in zip(made["scores"].to_pylist(), expected, strict=True):
            np.testing.assert_allclose(mine, other, atol=FLOAT32)


def test_what_cannot_be_kept_and_what_holds_no_text_is_refused(model, tmp_path):
    data = tmp_path / "data"
    parquet(data / "a.parquet", 3)
    with pytest.raises(BadInput, match="lies inside the folder that is read"):
        explained(data, data / "out", model)
    with pytest.raises(BadInput, match="the output has a column of this name"):
        TextFiles.found(str(data), None, ["tokens"], None)
    with pytest.raises(BadInput, match=r"no column 'star' to keep.*Did you mean 'stars'"):
        TextFiles.found(str(data), None, ["star"], None)
    parquet(tmp_path / "none.parquet", 0)
    with pytest.raises(BadInput, match="holds no text"):
        TextFiles.found(str(tmp_path / "none.parquet"), None, [], None)
    with pytest.raises(DamagedFile, match="no such file"):
        TextFiles.found(str(tmp_path / "*.csv"), None, [], None)


def test_refused_texts_stand_apart_with_the_reason_and_stop_nothing(model, tmp_path):
    texts = ["good film", None, "  ", "a film " * 400, "bad plot"]
    parquet(tmp_path / "a.parquet", 5, review=pyarrow.array(texts))
    done = explained(tmp_path / "a.parquet", tmp_path / "out", model)
    assert (done.rows, done.refused, done.texts) == (2, 3, 5)
    refused = tokenlight.load(str(tmp_path / "out")).refused
    assert refused["id"].tolist() == ["r1", "r2", "r3"]
    for reason, words in zip(
        refused["refused"], ["is null", "is empty", "--long|long="], strict=True
    ):
        assert any(word in reason for word in words.split("|")), reason
    again = explained(tmp_path / "a.parquet", tmp_path / "out", model)
    assert (again.rows, again.refused, again.made) == (2, 3, 0)


def test_what_the_numbers_depend_on_must_not_change(data, model, tmp_path):
    folder, source, weights = tmp_path / "out", tmp_path / "data", tmp_path / "model"
    shutil.copytree(data, source)
    shutil.copytree(model, weights)
    explained(source, folder, str(weights))
    before = bytes_of(folder)
    with pytest.raises(BadInput, match=r"method \(was attcat, now rollout\)"):
        explained(source, folder, str(weights), method="rollout")
    with pytest.raises(BadInput, match=r"long \(was error, now truncate\)"):
        explained(source, folder, str(weights), long="truncate")
    with pytest.raises(BadInput, match=r"keep \(was id,stars, now id\)"):
        explained(source, folder, str(weights), keep=["id"])
    parquet(source / "b.parquet", 15)
    with pytest.raises(BadInput, match=r"files .*b.parquet \(was 15 rows"):
        explained(source, folder, str(weights))
    shutil.copy(data / "b.parquet", source)
    (weights / "config.json").write_text((weights / "config.json").read_text() + " ")
    with pytest.raises(BadInput, match="fingerprint"):
        explained(source, folder, str(weights))
    assert bytes_of(folder) == before


def test_a_file_that_vanishes_or_changes_costs_its_blocks_only(data, whole, model, tmp_path):
    source = tmp_path / "data"
    shutil.copytree(data, source)

    def vanish(number):
        if number == 4:
            (source / "b.parquet").unlink()

    done = explained(source, tmp_path / "out", model, engine=Here(vanish))
    assert [block for block, _ in done.failed] == [4, 5]
    assert "b.parquet does not exist (any more); put it back" in done.failed[0][1]
    assert done.rows == 25
    shutil.copy2(data / "b.parquet", source)
    done = explained(source, tmp_path / "out", model)
    assert (done.there, done.rows, done.failed) == (25, COUNT, ())
    theirs, ours = bytes_of(whole), bytes_of(tmp_path / "out")
    assert theirs.keys() == ours.keys()

    def change(number):
        if number == 4:
            parquet(source / "b.parquet", 15, first=20)

    done = explained(source, tmp_path / "other", model, engine=Here(change))
    assert "was changed while the job ran" in done.failed[0][1]


def test_only_one_driver_works_in_a_folder(data, model, tmp_path):
    with locked(tmp_path, 2), pytest.raises(BadInput, match=r"worked in by another run \(process"):
        explained(data, tmp_path, model)
    parquet(tmp_path / "rows/00000/00000000.parquet", 1)
    with pytest.raises(BadInput, match="holds rows, but no job.json"):
        explained(data, tmp_path, model)


def test_a_folder_that_cannot_be_written_is_told(data, model):
    with pytest.raises(BadInput, match="cannot write in /sys/out"):
        explained(data, "/sys/out", model)


def test_what_is_wrong_for_every_text_stops_the_job_at_once(data, model, tmp_path):
    with pytest.raises(TokenlightError, match="unknown label 'nonsense'"):
        explained(data, tmp_path / "a", model, target="nonsense")
    with pytest.raises(TokenlightError, match="no option 'wrong'|wrong"):
        explained(data, tmp_path / "b", model, method=("attcat", {"wrong": 1}))
    assert not (tmp_path / "a/rows").exists()
    assert explained(data, tmp_path / "a", model, target="predicted").rows == COUNT


def test_a_store_of_objects_is_read_and_written_like_a_disk(data, whole, model):
    memory = fsspec.filesystem("memory")
    for place in data.iterdir():
        memory.pipe_file(f"/scale/data/{place.name}", place.read_bytes())
    done = explained("memory://scale/data/*.parquet", "memory://scale/out", model)
    assert (done.rows, done.failed) == (COUNT, ())
    found = tokenlight.load("memory://scale/out")
    assert [one.extras["kept"]["id"] for one in found] == [f"r{i}" for i in range(COUNT)]
    mine = tokenlight.load(str(whole)).to_pandas().drop(columns="source")
    assert found.to_pandas().drop(columns="source").equals(mine)
    again = explained("memory://scale/data/*.parquet", "memory://scale/out", model)
    assert (again.there, again.made) == (COUNT, 0)
    memory.rm("/scale", recursive=True)


class Locked(MemoryFileSystem):
    """A store that nobody has the key of, and that says so in an error of its own."""

    protocol = "locked"

    def info(self, path, **_):
        raise LookupError(f"no credentials for {path}")

    cat_file = pipe_file = find = info


def test_the_errors_of_a_store_are_told_as_those_of_a_disk(data, model):
    fsspec.register_implementation("locked", Locked, clobber=True)
    said = "LookupError: no credentials"
    with pytest.raises(BadInput, match=f"locked://data cannot be read: {said}"):
        explained("locked://data", "memory://nowhere", model)
    with pytest.raises(BadInput, match=f"cannot write in locked://out: {said}"):
        explained(data, "locked://out", model)
    with pytest.raises(DamagedFile, match=f"locked://out .* cannot be read: {said}"):
        tokenlight.load("locked://out")


def test_a_path_of_the_hub_is_its_own_and_a_hub_that_is_not_there_is_told(model, monkeypatch):
    """Offline, or where nobody answers; the sandbox of the tests may be either."""
    from huggingface_hub import HfFileSystem, constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    HfFileSystem.clear_instance_cache()
    system, path = filesystem("hf://datasets/me/reviews/data/*.parquet")
    assert isinstance(system, HfFileSystem)
    assert path == "datasets/me/reviews/data/*.parquet"
    try:
        with pytest.raises(BadInput, match=r"hf://datasets/me/reviews/data cannot be read: \S+"):
            explained("hf://datasets/me/reviews/data", "memory://nowhere", model)
    finally:
        HfFileSystem.clear_instance_cache()


def test_the_commit_of_a_hub_model_is_known_before_a_worker_has_fetched_it(
    model, tmp_path, monkeypatch
):
    import huggingface_hub

    kept = tmp_path / "models--me--bert"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))

    def fetch(_name, file):
        shutil.copytree(model, kept / "snapshots/abc123", dirs_exist_ok=True)
        (kept / "refs").mkdir(exist_ok=True)
        (kept / "refs/main").write_text("abc123")
        return str(kept / "snapshots/abc123" / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fetch)
    assert folder_digest("me/bert") == "abc123"
    assert folder_digest("me/bert") == "abc123"  # from what is kept now


def test_a_mapper_takes_columns_and_tables_and_can_be_sent_elsewhere(explainer):
    mapper = pickle.loads(pickle.dumps(explainer.mapper("review", "attcat")))
    batch = {"review": ["good film", "", "bad plot"], "n": [1, 2, 3]}
    made = mapper(batch)
    assert made["n"] == [1, 2, 3]
    assert made["tokens"][1] is None
    assert "is empty" in made["refused"][1]
    table = mapper(pyarrow.table(batch))
    assert table["scores"].to_pylist()[0] == np.float32(made["scores"][0]).astype(float).tolist()
    assert table.column_names == ["review", "n", *OWN, "refused"]
    with pytest.raises(BadInput, match="from_pretrained"):
        pickle.dumps(Explainer(explainer.model, explainer.tokenizer).mapper("review"))


def test_the_rows_open_in_pandas(whole):
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_parquet(whole / "rows")
    assert len(frame) == COUNT
    assert frame["scores"][0].dtype == np.float32


def test_the_rows_open_in_duckdb(whole):
    duckdb = pytest.importorskip("duckdb")
    query = f"select count(*), max(len(tokens) - len(scores)) from '{whole}/rows/*/*.parquet'"
    assert duckdb.sql(query).fetchall() == [(COUNT, 0)]


def test_the_rows_open_in_datasets_which_maps_by_a_mapper(whole, data, model, tmp_path):
    datasets = pytest.importorskip("datasets")
    files = str(whole / "rows/**/*.parquet")
    read = datasets.load_dataset(
        "parquet", data_files=files, split="train", cache_dir=str(tmp_path)
    )
    assert read["id"][:2] == ["r0", "r1"]
    given = datasets.Dataset.from_parquet(str(data / "a.parquet"), cache_dir=str(tmp_path))
    mapper = Explainer.from_pretrained(model).mapper("review", "attcat")
    made = given.map(mapper, batched=True, batch_size=8, num_proc=2)
    for mine, other in zip(made["scores"], read["scores"], strict=False):
        np.testing.assert_allclose(mine, other, atol=FLOAT32)


def in_a_bucket(store, url, data, whole, model):
    store.mkdir("bucket")
    for place in data.iterdir():
        store.pipe_file(f"bucket/data/{place.name}", place.read_bytes())
    done = explained(f"{url}/data/*.parquet", f"{url}/out", model)
    assert (done.rows, done.failed) == (COUNT, ())
    again = explained(f"{url}/data/*.parquet", f"{url}/out", model)
    assert (again.there, again.made) == (COUNT, 0)
    found = tokenlight.load(f"{url}/out").to_pandas().drop(columns="source")
    assert found.equals(tokenlight.load(str(whole)).to_pandas().drop(columns="source"))


def test_an_s3_bucket_is_read_and_written(data, whole, model, monkeypatch):
    server = pytest.importorskip("moto.server")
    s3fs = pytest.importorskip("s3fs")
    running = server.ThreadedMotoServer(port=0)
    running.start()
    host, port = running.get_host_and_port()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    try:
        in_a_bucket(s3fs.S3FileSystem(), "s3://bucket", data, whole, model)
    finally:
        running.stop()


@pytest.mark.filterwarnings("ignore")  # Third party, 2026-11: the emulator's own deprecations.
def test_a_google_bucket_is_read_and_written(data, whole, model, monkeypatch):
    emulator = pytest.importorskip("gcp_storage_emulator.server")
    gcsfs = pytest.importorskip("gcsfs")
    running = emulator.create_server("127.0.0.1", 0, in_memory=True)
    running.start()
    port = running._api._httpd.server_address[1]
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
    try:
        in_a_bucket(gcsfs.GCSFileSystem(), "gs://bucket", data, whole, model)
    finally:
        running.stop()


@pytest.mark.filterwarnings("ignore")  # Third party, 2026-11: pyspark on pandas 3.
def test_spark_maps_frames_by_a_mapper(data, whole, model, monkeypatch):
    pytest.importorskip("pyspark")
    from pyspark.sql import SparkSession

    monkeypatch.setenv("PYTHONPATH", str(Path(tokenlight.__file__).parents[1]))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    )
    mapper = Explainer.from_pretrained(model).mapper("review", "attcat")

    def explain(frames):
        import pandas

        for frame in frames:
            made = mapper(frame.to_dict("list"))
            yield pandas.DataFrame({name: made[name] for name in ("id", "prediction", "scores")})

    try:
        kinds = "id string, prediction string, scores array<float>"
        made = spark.read.parquet(str(data)).mapInPandas(explain, kinds).toPandas()
    finally:
        spark.stop()
    read = tokenlight.load(str(whole)).to_pandas(["id", "prediction", "scores"])
    made, read = (one.sort_values("id").reset_index(drop=True) for one in (made, read))
    assert made["prediction"].tolist() == read["prediction"].tolist()
    for mine, other in zip(made["scores"], read["scores"], strict=True):
        np.testing.assert_allclose(mine, other, atol=FLOAT32)
