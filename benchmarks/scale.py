"""Time the explanation of many texts: two workers against one, memory, a hand-written loop, the manifest.

The texts are SST-2's training half and AG News in turn, repeated to size, in Parquet.

    python benchmarks/scale.py factor [--engines local ray] [--texts 1536] [--part-size 64] [--rounds 3]
    python benchmarks/scale.py memory [--texts 100000] [--workers 2] [--device cuda] [--model DIR|bert-base]
    python benchmarks/scale.py loop [--texts 8192] [--device cuda] [--model DIR|bert-base]
    python benchmarks/scale.py manifest

``factor``: texts per second between the first part and the last, the best of several rounds in turn; the
goal is 1.85 on two cores. ``memory``: the resident memory of every process of the job, drawn into
docs/images/scale_memory.svg. ``loop``: one worker against the loop that a person would write by hand for
the same rows, in memory and, where pyarrow is, into files; the goal is 1.2. ``--model bert-base`` makes a
random one of that shape. ``manifest``: what the driver of 1,000 workers reads and writes.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any

from tokenlight.files.stores import Folder
from tokenlight.models.embedded import digest_folder
from tokenlight.scale import Engine, explain_files
from tokenlight.scale.explain_job import ExplainJob
from tokenlight.scale.manifest import MANIFEST
from tokenlight.scale.mapper import Mapper
from tokenlight.scale.text_files import TextFiles

DATA = Path(os.environ.get("TOKENLIGHT_DATA", Path(__file__).parents[2] / "shared" / "data"))
FILES = ("sst2/train.jsonl.gz", "ag_news/train_subset.jsonl.gz")
IMAGE = Path(__file__).parents[1] / "docs" / "images" / "scale_memory.svg"


def load_texts(count: int) -> list[str]:
    """Load texts, one of each file in turn; a file is begun again at its end."""
    halves: list[list[str]] = []
    for name in FILES:
        with gzip.open(DATA / name, "rt", encoding="utf-8") as stream:
            halves.append([json.loads(line)["text"] for line in stream])
    pairs = zip(*map(cycle, halves), strict=True)
    return list(islice(chain.from_iterable(pairs), count))


def write_texts(folder: Path, count: int) -> Path:
    """Write texts with ids, 25,000 in a file and 5,000 in a row group."""
    import pyarrow.parquet

    texts = load_texts(count)
    for first in range(0, count, 25_000):
        chunk = texts[first : first + 25_000]
        table = pyarrow.table({"id": range(first, first + len(chunk)), "text": chunk})
        pyarrow.parquet.write_table(table, folder / f"{first:08d}.parquet", row_group_size=5000)
    return folder


def measure_rate(folder: Path, part_size: int, workers: int) -> float:
    """Return texts per second after the first round of parts, which the workers end together."""
    ends = sorted(path.stat().st_mtime for path in (folder / "rows").rglob("*.parquet"))
    return part_size * (len(ends) - workers) / (ends[-1] - ends[0])


def read_rows(folder: Path) -> bytes:
    """Read the bytes of all files of rows, in order."""
    return b"".join(path.read_bytes() for path in sorted((folder / "rows").rglob("*.parquet")))


def factor(arguments: argparse.Namespace) -> None:
    """Compare two workers with one."""
    distinct_rows = set()
    part_size = arguments.part_size
    with tempfile.TemporaryDirectory() as work_folder:
        data = write_texts(Path(work_folder), arguments.texts)
        for engine in arguments.engines:
            rates_by_workers: dict[int, list[float]] = {1: [], 2: []}
            for round_index in range(arguments.rounds):
                for workers in (1, 2) if round_index % 2 == 0 else (2, 1):
                    out = Path(work_folder) / f"out-{engine}-{round_index}-{workers}"
                    options = {
                        "model": arguments.model,
                        "method": "attcat",
                        "keep_columns": ["id"],
                        "part_size": part_size,
                    }
                    explain_files(
                        data / "00000000.parquet", out, engine=Engine(engine, workers), **options
                    )
                    rates_by_workers[workers].append(measure_rate(out, part_size, workers))
                    distinct_rows.add(read_rows(out))
            best = {workers: max(rates) for workers, rates in rates_by_workers.items()}
            print(
                f"{engine:5}  one worker {best[1]:6.1f} texts/s  two {best[2]:6.1f}  factor "
                f"{best[2] / best[1]:.2f} (goal 1.85), load {os.getloadavg()[0]:.1f}"
            )
            print(
                json.dumps(
                    {"engine": engine, "rounds": rates_by_workers, "factor": best[2] / best[1]}
                )
            )
    print("rows equal:", len(distinct_rows) == 1)


def read_resident_memory() -> dict[int, float]:
    """Return the MiB of this process and of all its descendants, by process id."""
    parents = {}
    mebibytes = {}
    for process_folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (process_folder / "stat").read_text().rpartition(")")[2].split()
            pages = int((process_folder / "statm").read_text().split()[1])
        except OSError:
            continue  # it ended meanwhile
        process_id = int(process_folder.name)
        parents[process_id] = int(stat[1])
        mebibytes[process_id] = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    family = {os.getpid()}
    has_grown = True
    while has_grown:
        children = {process_id for process_id, parent in parents.items() if parent in family}
        has_grown = not children <= family
        family |= children
    return {process_id: mebibytes[process_id] for process_id in family}


def memory(arguments: argparse.Namespace) -> None:
    """Record the resident memory of every process of a job, print it and draw it."""
    samples: dict[int, list[tuple[float, float]]] = {}
    start = time.monotonic()
    finished = threading.Event()

    def watch() -> None:
        while not finished.wait(1.0):
            for process_id, size in read_resident_memory().items():
                samples.setdefault(process_id, []).append((time.monotonic() - start, size))

    with tempfile.TemporaryDirectory() as work_folder:
        data = write_texts(Path(work_folder), arguments.texts)
        watcher = threading.Thread(target=watch)
        watcher.start()
        options = {
            "model": arguments.model,
            "method": "attcat",
            "keep_columns": ["id"],
            "device": arguments.device,
        }
        summary = explain_files(
            f"{data}/*.parquet",
            Path(work_folder) / "out",
            engine=Engine(workers=arguments.workers),
            on_message=print,
            **options,
        )
        finished.set()
        watcher.join()
        paths = (Path(work_folder) / "out/rows").rglob("*.parquet")
        size = sum(path.stat().st_size for path in paths)
    print(summary)
    print(
        f"{summary.num_texts / summary.seconds:.1f} texts/s with the start, "
        f"{size / summary.num_explained:.0f} bytes per text"
    )
    min_samples = len(samples[os.getpid()]) // 2
    long_lived = {}
    for process_id, process_samples in samples.items():
        if len(process_samples) > min_samples:
            long_lived[process_id] = process_samples
    for process_id, process_samples in long_lived.items():
        tenth = max(1, len(process_samples) // 10)
        early = statistics.median(mib for _, mib in process_samples[tenth : 3 * tenth])
        late = statistics.median(mib for _, mib in process_samples[-2 * tenth :])
        kind = "driver" if process_id == os.getpid() else "process"
        maximum = max(mib for _, mib in process_samples)
        print(
            f"{kind} {process_id}: {early:.0f} MiB early, {late:.0f} MiB late, {maximum:.0f} at most"
        )
    draw_memory(long_lived, summary.num_texts)


def draw_memory(samples: dict[int, list[tuple[float, float]]], texts: int) -> None:
    """Draw the resident memory of every process over time."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 3.0))
    names = {os.getpid(): "driver"}
    for process_id, process_samples in samples.items():
        step = max(1, len(process_samples) // 300)
        label = names.get(process_id, f"process {len(names)}")
        names.setdefault(process_id, label)
        axes.plot(
            [seconds / 60 for seconds, _ in process_samples[::step]],
            [mib for _, mib in process_samples[::step]],
            label=label,
        )
    axes.set(xlabel="minutes", ylabel="resident MiB", ylim=(0, None), title=f"{texts:,} texts")
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(IMAGE, metadata={"Date": None})
    print(f"wrote {IMAGE}")


def save_bert_base(folder: Path) -> str:
    """Save a random model of the shape of BERT-base with the tokenizer of an embedded one."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    from tokenlight.explainer import Explainer

    torch.manual_seed(0)
    BertForSequenceClassification(BertConfig(num_labels=2)).save_pretrained(folder)
    Explainer.from_pretrained("tokenlight/sentiment", device="cpu").tokenizer.save_pretrained(
        folder
    )
    return str(folder)


def time_handwritten_loop(
    texts: list[str], arguments: argparse.Namespace, output_folder: Path | None
) -> float:
    """Time a hand-written loop over parts of 1,024 texts.

    It tokenizes, sorts, packs and computes gradient × input.

    Args:
        texts: The texts.
        arguments: Names the model and the device.
        output_folder: Folder for a Parquet file per part; None writes none.

    Returns:
        Seconds for all parts but the first.
    """
    import torch

    from tokenlight.explainer import Explainer

    explainer = Explainer.from_pretrained(arguments.model, device=arguments.device)
    model = explainer.model
    tokenizer = explainer.tokenizer
    budget = explainer.runner.default_batch_tokens
    model.requires_grad_(requires_grad=False)
    limit = model.config.max_position_embeddings
    start = 0.0
    for first in range(0, len(texts), 1024):
        if first == 1024:
            start = time.perf_counter()
        part = texts[first : first + 1024]
        encodings = tokenizer(part, truncation=True, max_length=limit, return_offsets_mapping=True)
        order = sorted(range(len(part)), key=lambda i: -len(encodings["input_ids"][i]))
        rows: list[dict] = [{} for _ in part]
        while order:
            size = max(1, budget // len(encodings["input_ids"][order[0]]))
            indices = order[:size]
            order = order[size:]
            batch = tokenizer.pad(
                {"input_ids": [encodings["input_ids"][i] for i in indices]}, return_tensors="pt"
            )
            batch = batch.to(arguments.device)
            embeddings = model.get_input_embeddings()(batch["input_ids"]).detach().requires_grad_()
            logits = model(inputs_embeds=embeddings, attention_mask=batch["attention_mask"]).logits
            (gradient,) = torch.autograd.grad(logits.max(-1).values.sum(), embeddings)
            scores = (gradient * embeddings).sum(-1).detach().cpu().numpy()
            probabilities = logits.softmax(-1).detach().cpu().numpy()
            for i, score, text_probabilities in zip(indices, scores, probabilities, strict=True):
                ids = encodings["input_ids"][i]
                rows[i] = {
                    "tokens": tokenizer.convert_ids_to_tokens(ids),
                    "offsets": [list(offset) for offset in encodings["offset_mapping"][i]],
                    "scores": score[: len(ids)].tolist(),
                    "probabilities": text_probabilities.tolist(),
                    "prediction": model.config.id2label[int(text_probabilities.argmax())],
                }
        if output_folder is not None:
            import pyarrow.parquet

            table = pyarrow.Table.from_pylist(rows)
            pyarrow.parquet.write_table(
                table, output_folder / f"{first:08d}.parquet", compression="zstd"
            )
    return time.perf_counter() - start


def time_parts(process_part: Callable[[Any], Any], parts: Sequence[Any]) -> float:
    """Return the seconds for all parts but the first, which warms up."""
    process_part(parts[0])
    start = time.perf_counter()
    for part in parts[1:]:
        process_part(part)
    return time.perf_counter() - start


def loop(arguments: argparse.Namespace) -> None:
    """Compare one worker with the hand-written loop, in memory and into files."""
    count = arguments.texts - arguments.texts % 1024
    texts = load_texts(count)
    options = {"method": "grad_x_input", "target": "predicted", "long": "truncate"}
    rows = [(str(i), {"text": text}) for i, text in enumerate(texts)]
    writes = find_spec("pyarrow") is not None
    with tempfile.TemporaryDirectory() as work_folder:
        loading = {"name": arguments.model, "device": arguments.device}
        for round_index in range(arguments.rounds):
            parts = [rows[first : first + 1024] for first in range(0, count, 1024)]
            worker_seconds = time_parts(Mapper(None, options, loading).build_columns, parts)
            print_rates(
                "in memory", count, worker_seconds, time_handwritten_loop(texts, arguments, None)
            )
            if writes:
                data = f"{write_texts(Path(work_folder), count)}/*.parquet"
                text_files = TextFiles.scan(data, None, ["id"], None)
                folder = Folder(f"{work_folder}/out{round_index}")
                weights = digest_folder(loading["name"])
                job = ExplainJob(folder, text_files, loading, options, weights)
                worker_seconds = time_parts(
                    job.prepare(arguments.device), text_files.split_into_parts(1024)
                )
                loop_folder = Path(work_folder) / f"hand{round_index}"
                loop_folder.mkdir()
                print_rates(
                    "to Parquet",
                    count,
                    worker_seconds,
                    time_handwritten_loop(texts, arguments, loop_folder),
                )


def print_rates(title: str, count: int, worker_seconds: float, loop_seconds: float) -> None:
    """Print the rates of a worker and of the loop, without the first part."""
    num_timed = count - 1024
    worker_rate = num_timed / worker_seconds
    loop_rate = num_timed / loop_seconds
    milliseconds_per_text = 1000 * (worker_seconds - loop_seconds) / num_timed
    print(
        f"{title}: ours {worker_rate:.0f} texts/s, by hand {loop_rate:.0f}: "
        f"{worker_seconds / loop_seconds:.2f} times (goal 1.2), "
        f"{milliseconds_per_text:+.3f} ms per text",
        flush=True,
    )


def manifest(_: argparse.Namespace) -> None:
    """Time the driver's own files for 1,000 workers, each of which makes a part in about ten seconds."""
    for parts in (10_000, 100_000, 1_000_000):
        entry = {
            "seconds": 10.123,
            "rows": 1024,
            "refused": 0,
            "bytes": 700_123,
            "sha256": "f" * 64,
        }
        with tempfile.TemporaryDirectory() as work_folder:
            folder = Folder(work_folder)
            start = time.perf_counter()
            lines = (json.dumps({"block": n, **entry}) for n in range(parts))
            content = "".join(f"{line}\n" for line in lines).encode()
            folder.write(MANIFEST, content)
            write_seconds = time.perf_counter() - start
            start = time.perf_counter()
            entries = [json.loads(line) for line in (folder.read(MANIFEST) or b"").splitlines()]
            read_seconds = time.perf_counter() - start
            listed = "–"
            if parts <= 100_000:
                for number in range(0, parts, 1000):
                    (Path(work_folder) / f"rows/{number // 1000:05d}").mkdir(parents=True)
                for number in range(parts):
                    (Path(work_folder) / f"rows/{number // 1000:05d}/{number:08d}.parquet").touch()
                start = time.perf_counter()
                assert len(folder.list_sizes("rows")) == parts
                listed = f"{time.perf_counter() - start:.2f} s"
        assert len(entries) == parts
        print(
            f"{parts:9,} parts = {parts * 1024 / 1e6:6,.0f} M texts: manifest "
            f"{len(content) / 1e6:5.1f} MB, written in {write_seconds:.2f} s, "
            f"so every {20 * write_seconds:.1f} s; read in {read_seconds:.2f} s, folder listed in {listed}"
        )


def main() -> None:
    """Run one of the measurements."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("measurement", choices=["factor", "memory", "loop", "manifest"])
    parser.add_argument("--engines", nargs="+", default=["local", "ray"])
    parser.add_argument("--texts", type=int)
    parser.add_argument("--part-size", type=int, default=64, help="rows of a part, for factor")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="tokenlight/sentiment")
    arguments = parser.parse_args()
    default_texts = {"memory": 100_000, "loop": 8192}
    arguments.texts = arguments.texts or default_texts.get(arguments.measurement, 1536)
    run = {"factor": factor, "memory": memory, "loop": loop, "manifest": manifest}
    with tempfile.TemporaryDirectory() as model_folder:
        if arguments.model == "bert-base":
            arguments.model = save_bert_base(Path(model_folder))
        run[arguments.measurement](arguments)


if __name__ == "__main__":
    main()
