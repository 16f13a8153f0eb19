"""Data files and suites from anywhere: malformed, endless, packed beyond reason."""

from __future__ import annotations

import gzip
import io
import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.fuzz.outcomes import BAD, count_outcomes, mutate
from tokenlight.bench import suite
from tokenlight.files import parsing
from tokenlight.files.tables import read_examples

ROWS = [
    {"text": "good film", "label": 1, "spans": [[0, 4]]},
    {"text": "bad film", "label": 0, "spans": []},
    {"question": "who ?", "context": "we", "answers": {"text": ["we"], "answer_start": [0]}},
    {"premise": "a", "hypothesis": "b", "label": "x", "rationales": [[0, 1]]},
]
PIECES = (
    "text", "label", ",", "\t", "\n", "\r", '"', '""', "'", "\\", "{", "}", "[", "]", ":", "null", "NaN", "1e999",
    "\x00", "\ufeff", "\u2028", "é", "-1", "9" * 400, " ", "a", '{"text": "a"}', "text,label\n", "[" * 100,
)  # fmt: skip
GOOD = {
    "jsonl": "".join(json.dumps(row) + "\n" for row in ROWS[:2]),
    "json": json.dumps(ROWS[:2]),
    "csv": "text,label\ngood film,1\nbad film,0\n",
    "tsv": "text\tlabel\ngood film\t1\n",
    "txt": "good film\nbad film\n",
}


def make_texts():
    """Files of words thrown together, and good ones with a piece put in somewhere."""
    chance = random.Random(1)
    for ending, good in GOOD.items():
        for number in range(25):
            yield f"thrown {number}.{ending}", "".join(chance.choices(PIECES, k=12)).encode()
        for number in range(25):
            at = chance.randrange(len(good) + 1)
            garbled = (good[:at] + chance.choice(PIECES) + good[at:]).encode()
            cut = chance.randrange(len(garbled)) if number % 3 == 0 else len(garbled)
            yield f"garbled {number}.{ending}", garbled[:cut]
        packed = gzip.compress(good.encode())
        yield f"cut.{ending}.gz", packed[: len(packed) // 2]
        yield f"plain.{ending}.gz", good.encode()
        yield f"garbled.{ending}.gz", packed[:12] + b"\xff\xff" + packed[14:]
        yield f"latin.{ending}", (good + "é").encode("latin1")
        yield f"wide.{ending}", good.encode("utf-16")
        yield f"binary.{ending}", bytes(range(256))
        yield f"nothing.{ending}", b""
    for number, row in enumerate(ROWS):
        for mutation, value in mutate(row, 25, number).items():
            yield (
                f"row {number} {mutation[:40]}.jsonl".replace("/", "|"),
                json.dumps(value).encode(),
            )


def make_tables():
    """Parquet files with columns of every kind."""
    columns = {
        "time far": pa.array([2**40], pa.timestamp("s")),
        "time before": pa.array([-(2**62)], pa.timestamp("us")),
        "zone": pa.array([2**62], pa.timestamp("ns", tz="UTC")),
        "zone none": pa.array([0], pa.timestamp("s", tz="Nowhere/None")),
        "day": pa.array([2**31 - 1], pa.date32()),
        "duration": pa.array([2**62], pa.duration("s")),
        "number": pa.array([1]),
        "bytes": pa.array([b"\xff\xfe"]),
        "list": pa.array([["a"]]),
        "table": pa.array([{"a": 1}]),
        "null": pa.array([None]),
        "decimal": pa.array(["1"]).cast(pa.decimal128(38, 0)),
        "categories": pa.array(["a"]).dictionary_encode(),
    }
    for name, column in columns.items():
        for column_name in ("text", "label", "spans", "other"):
            rest = {} if column_name == "text" else {"text": pa.array(["good film"])}
            buffer = io.BytesIO()
            pq.write_table(pa.table({column_name: column, **rest}), buffer)
            yield f"{name} as {column_name}.parquet", buffer.getvalue()
    content = buffer.getvalue()
    chance = random.Random(2)
    for number in range(20):
        garbled = bytearray(content)
        for _ in range(3):
            garbled[chance.randrange(len(garbled))] = chance.randrange(256)
        yield f"garbled {number}.parquet", bytes(garbled)
    yield "cut.parquet", content[: len(content) // 2]


def test_a_bad_data_file_is_read_or_refused(tmp_path):
    def use(name, content):
        path = tmp_path / name[-200:]
        path.write_bytes(content)
        for example in read_examples(path):
            assert example.location

    inputs = {
        name: lambda name=name, content=content: use(name, content)
        for name, content in (*make_texts(), *make_tables())
    }
    assert len(inputs) >= 400
    count_outcomes(inputs)


def test_a_line_without_end_and_a_file_packed_beyond_reason_are_refused(tmp_path, monkeypatch):
    """With the limits made small, since the real ones take seconds to reach."""
    monkeypatch.setattr(parsing, "MAX_LINE_BYTES", 1 << 12)
    monkeypatch.setattr(parsing, "MAX_UNPACKED_BYTES", 1 << 12)
    for ending in ("jsonl", "csv", "tsv", "txt"):
        long = tmp_path / f"long.{ending}"
        long.write_text("x" * (1 << 13))
        bomb = tmp_path / f"bomb.{ending}.gz"
        head = b"" if ending == "jsonl" else b"text\n"
        bomb.write_bytes(gzip.compress(head + b"\n" * (1 << 20)))
        with pytest.raises(parsing.DamagedFile, match="Line 1 of long"):
            read_examples(long)
        with pytest.raises(parsing.DamagedFile, match="exceeds 200 times its"):
            read_examples(bomb)


SUITE = {
    "title": "A suite", "data": [{"name": "films", "local": "films.jsonl", "task": "classification", "size": 4}],
    "models": [{"name": "sentiment", "hub": "tokenlight/sentiment", "data": ["films"]}],
    "methods": ["attcat", {"name": "lrp", "label": "LRP", "options": {"rule": "epsilon"}, "each": {"seed": [1, 2]}}],
    "metrics": ["aopc", {"name": "lodds", "label": "log-odds"}], "slice": 16, "keep": 4, "seed": 0,
    "expect": [{"claim": "it wins", "metric": "aopc", "better": "attcat", "than": ["LRP"]}],
    "published": {"films": {"attcat": {"aopc": 0.5}}}, "notes": ["a note"], "report": {"columns": ["aopc"]},
    "protocol": {"long": "error"}, "heads": {"conllu": "x.conllu", "limit": 3}, "batch_tokens": 64,
}  # fmt: skip
BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join([f'*{chr(97 + i)}'] * 9)}]\n" for i in range(9)
)
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} {{<<: [{','.join([f'*{chr(97 + i)}'] * 9)}]}}\n"
    for i in range(9)
)
YAMLS = (
    "", "null", "5", "x", "[]", "{}", "a: [1", "\t", "a: b: c", "- a\n- b", "&a [*a]", "a: &a {b: *a}", BOMB, MERGES,
    "[" * 3000, "{a: " * 3000, "? [a, b]\n: c", "{}: 1", "[]: 1", "a: 2001-99-99", "a: " + "9" * 5000, "!!python/none",
    "!!python/object/apply:os.system [true]", "a: !!binary x", "a: !!timestamp x", "--- a\n--- b", "%YAML 9.9\n--- a",
    "a: *gone", "\x00", "data: 1:2:3", "a: 0x", "<<: 5", "<<: [5]", "seed: .inf", "seed: .nan", "methods: ~",
)  # fmt: skip


def test_a_bad_suite_is_read_or_refused(tmp_path):
    import yaml

    path = tmp_path / "suite.yaml"

    def use(text):
        path.write_text(text)
        suite.load_suite(path).compute_digest()

    inputs = {f"yaml {text[:30]!r}": text for text in YAMLS}
    inputs["as it is"] = yaml.safe_dump(SUITE)
    for mutation, value in mutate(SUITE, 220, 9).items():
        inputs[f"suite {mutation}"] = yaml.safe_dump(value, allow_unicode=True)
    assert len(inputs) >= 250
    count_outcomes({name: lambda text=text: use(text) for name, text in inputs.items()})


def test_every_kind_of_bad_value_is_tried():
    assert len({type(value) for value in BAD}) >= 6
