"""What explaining many texts costs: two workers against one, memory, a hand-written loop, the manifest.

The texts are SST-2's training half and AG News in turn, repeated to size, in Parquet.

    python benchmarks/scale.py factor [--engines local ray] [--texts 1536] [--block 64] [--rounds 3]
    python benchmarks/scale.py memory [--texts 100000] [--workers 2] [--device cuda] [--model DIR|bert-base]
    python benchmarks/scale.py loop [--texts 8192] [--device cuda] [--model DIR|bert-base]
    python benchmarks/scale.py manifest

``factor``: texts a second between the first block and the last, the best of several rounds in turn; the
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
from tokenlight.scale.blocks import TextFiles
from tokenlight.scale.explain_job import ExplainJob
from tokenlight.scale.manifest import MANIFEST
from tokenlight.scale.mapper import Mapper

DATA = Path(os.environ.get("TOKENLIGHT_DATA", Path(__file__).parents[2] / "shared" / "data"))
FILES = ("sst2/train.jsonl.gz", "ag_news/train_subset.jsonl.gz")
IMAGE = Path(__file__).parents[1] / "docs" / "images" / "scale_memory.svg"


def chosen(count: int) -> list[str]:
    """So many texts, one of each file in turn, each file begun again at its end."""
    halves: list[list[str]] = []
    for name in FILES:
        with gzip.open(DATA / name, "rt", encoding="utf-8") as stream:
            halves.append([json.loads(line)["text"] for line in stream])
    pairs = zip(*map(cycle, halves), strict=True)
    return list(islice(chain.from_iterable(pairs), count))


def written(folder: Path, count: int) -> Path:
    """So many texts with an id, 25,000 in a file and 5,000 in a row group."""
    import pyarrow.parquet

    texts = chosen(count)
    for first in range(0, count, 25_000):
        part = texts[first : first + 25_000]
        table = pyarrow.table({"id": range(first, first + len(part)), "text": part})
        pyarrow.parquet.write_table(table, folder / f"{first:08d}.parquet", row_group_size=5000)
    return folder


def rate(folder: Path, block: int, workers: int) -> float:
    """Texts a second after the first round of blocks: the workers end their first blocks together."""
    ends = sorted(one.stat().st_mtime for one in (folder / "rows").rglob("*.parquet"))
    return block * (len(ends) - workers) / (ends[-1] - ends[0])


def rows_of(folder: Path) -> bytes:
    return b"".join(one.read_bytes() for one in sorted((folder / "rows").rglob("*.parquet")))


def factor(given: argparse.Namespace) -> None:
    made, block = set(), given.block
    with tempfile.TemporaryDirectory() as place:
        data = written(Path(place), given.texts)
        for engine in given.engines:
            found: dict[int, list[float]] = {1: [], 2: []}
            for number in range(given.rounds):
                for workers in (1, 2) if number % 2 == 0 else (2, 1):
                    out = Path(place) / f"out-{engine}-{number}-{workers}"
                    how = {"model": given.model, "method": "attcat", "keep": ["id"], "block": block}
                    explain_files(
                        data / "00000000.parquet", out, engine=Engine(engine, workers), **how
                    )
                    found[workers].append(rate(out, block, workers))
                    made.add(rows_of(out))
            best = {workers: max(rates) for workers, rates in found.items()}
            print(
                f"{engine:5}  one worker {best[1]:6.1f} texts/s  two {best[2]:6.1f}  factor "
                f"{best[2] / best[1]:.2f} (goal 1.85), load {os.getloadavg()[0]:.1f}"
            )
            print(json.dumps({"engine": engine, "rounds": found, "factor": best[2] / best[1]}))
    print("rows equal:", len(made) == 1)


def resident() -> dict[int, float]:
    """MiB of this process and of all that come from it."""
    parents, sizes = {}, {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            stat = (place / "stat").read_text().rpartition(")")[2].split()
            pages = int((place / "statm").read_text().split()[1])
        except OSError:
            continue  # it ended meanwhile
        number = int(place.name)
        parents[number], sizes[number] = int(stat[1]), pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    ours = {os.getpid()}
    while more := {one for one, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return {one: sizes[one] for one in ours}


def memory(given: argparse.Namespace) -> None:
    samples: dict[int, list[tuple[float, float]]] = {}
    begun, over = time.monotonic(), threading.Event()

    def watch() -> None:
        while not over.wait(1.0):
            for number, size in resident().items():
                samples.setdefault(number, []).append((time.monotonic() - begun, size))

    with tempfile.TemporaryDirectory() as place:
        data = written(Path(place), given.texts)
        watcher = threading.Thread(target=watch)
        watcher.start()
        how = {"model": given.model, "method": "attcat", "keep": ["id"], "device": given.device}
        done = explain_files(
            f"{data}/*.parquet",
            Path(place) / "out",
            engine=Engine(workers=given.workers),
            on_message=print,
            **how,
        )
        over.set()
        watcher.join()
        size = sum(one.stat().st_size for one in (Path(place) / "out/rows").rglob("*.parquet"))
    print(done)
    print(
        f"{done.num_texts / done.seconds:.1f} texts/s with the start, {size / done.num_rows:.0f} bytes a text"
    )
    long = {n: one for n, one in samples.items() if len(one) > len(samples[os.getpid()]) // 2}
    for number, one in long.items():
        tenth = max(1, len(one) // 10)
        early = statistics.median(mib for _, mib in one[tenth : 3 * tenth])
        late = statistics.median(mib for _, mib in one[-2 * tenth :])
        kind = "driver" if number == os.getpid() else "process"
        most = max(mib for _, mib in one)
        print(f"{kind} {number}: {early:.0f} MiB early, {late:.0f} MiB late, {most:.0f} at most")
    drawn(long, done.num_texts)


def drawn(samples: dict[int, list[tuple[float, float]]], texts: int) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 3.0))
    names = {os.getpid(): "driver"}
    for number, one in samples.items():
        step = max(1, len(one) // 300)
        label = names.get(number, f"process {len(names)}")
        names.setdefault(number, label)
        axes.plot([at / 60 for at, _ in one[::step]], [mib for _, mib in one[::step]], label=label)
    axes.set(xlabel="minutes", ylabel="resident MiB", ylim=(0, None), title=f"{texts:,} texts")
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(IMAGE, metadata={"Date": None})
    print(f"wrote {IMAGE}")


def bert_base(folder: Path) -> str:
    """A model of BERT-base's shape with random weights, saved with the tokenizer of the embedded one."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    from tokenlight.explainer import Explainer

    torch.manual_seed(0)
    BertForSequenceClassification(BertConfig(num_labels=2)).save_pretrained(folder)
    Explainer.from_pretrained("tokenlight/sentiment", device="cpu").tokenizer.save_pretrained(
        folder
    )
    return str(folder)


def by_hand(texts: list[str], given: argparse.Namespace, place: Path | None) -> float:
    """Seconds of a loop over blocks of 1,024: tokenize, sort, pack, gradient × input, and, with a place,
    one Parquet file a block."""
    import torch

    from tokenlight.explainer import Explainer

    loaded = Explainer.from_pretrained(given.model, device=given.device)
    model, tokenizer, budget = loaded.model, loaded.tokenizer, loaded._runner.default_batch_tokens
    model.requires_grad_(requires_grad=False)
    limit = model.config.max_position_embeddings
    begun = 0.0
    for first in range(0, len(texts), 1024):
        if first == 1024:
            begun = time.perf_counter()
        block = texts[first : first + 1024]
        read = tokenizer(block, truncation=True, max_length=limit, return_offsets_mapping=True)
        order = sorted(range(len(block)), key=lambda i: -len(read["input_ids"][i]))
        rows: list[dict] = [{} for _ in block]
        while order:
            size = max(1, budget // len(read["input_ids"][order[0]]))
            pack, order = order[:size], order[size:]
            batch = tokenizer.pad(
                {"input_ids": [read["input_ids"][i] for i in pack]}, return_tensors="pt"
            )
            batch = batch.to(given.device)
            inside = model.get_input_embeddings()(batch["input_ids"]).detach().requires_grad_()
            logits = model(inputs_embeds=inside, attention_mask=batch["attention_mask"]).logits
            (gradient,) = torch.autograd.grad(logits.max(-1).values.sum(), inside)
            scores = (gradient * inside).sum(-1).detach().cpu().numpy()
            chances = logits.softmax(-1).detach().cpu().numpy()
            for i, score, chance in zip(pack, scores, chances, strict=True):
                ids = read["input_ids"][i]
                rows[i] = {
                    "tokens": tokenizer.convert_ids_to_tokens(ids),
                    "offsets": [list(one) for one in read["offset_mapping"][i]],
                    "scores": score[: len(ids)].tolist(),
                    "probabilities": chance.tolist(),
                    "prediction": model.config.id2label[int(chance.argmax())],
                }
        if place is not None:
            import pyarrow.parquet

            table = pyarrow.Table.from_pylist(rows)
            pyarrow.parquet.write_table(table, place / f"{first:08d}.parquet", compression="zstd")
    return time.perf_counter() - begun


def timed(work: Callable[[Any], Any], blocks: Sequence[Any]) -> float:
    """Seconds for all blocks but the first, in which things are made ready."""
    work(blocks[0])
    begun = time.perf_counter()
    for block in blocks[1:]:
        work(block)
    return time.perf_counter() - begun


def loop(given: argparse.Namespace) -> None:
    count = given.texts - given.texts % 1024
    texts = chosen(count)
    how = {"method": "grad_x_input", "target": "predicted", "long": "truncate"}
    rows = [(str(i), {"text": text}) for i, text in enumerate(texts)]
    writes = find_spec("pyarrow") is not None
    with tempfile.TemporaryDirectory() as place:
        loading = {"name": given.model, "device": given.device}
        for number in range(given.rounds):
            blocks = [rows[first : first + 1024] for first in range(0, count, 1024)]
            ours = timed(Mapper(None, how, loading).build_columns, blocks)
            told("in memory", count, ours, by_hand(texts, given, None))
            if writes:
                data = f"{written(Path(place), count)}/*.parquet"
                found = TextFiles.scan(data, None, ["id"], None)
                folder, weights = Folder(f"{place}/out{number}"), digest_folder(loading["name"])
                job = ExplainJob(folder, found, loading, how, weights)
                ours = timed(job.prepare(given.device), found.split_into_blocks(1024))
                hand = Path(place) / f"hand{number}"
                hand.mkdir()
                told("to Parquet", count, ours, by_hand(texts, given, hand))


def told(what: str, count: int, ours: float, theirs: float) -> None:
    rates = [(count - 1024) / seconds for seconds in (ours, theirs)]
    print(
        f"{what}: ours {rates[0]:.0f} texts/s, by hand {rates[1]:.0f}: {ours / theirs:.2f} times (goal "
        f"1.2), {1000 * (ours - theirs) / (count - 1024):+.3f} ms a text",
        flush=True,
    )


def manifest(_: argparse.Namespace) -> None:
    """The driver's own traffic for 1,000 workers, each of which makes a block in about ten seconds."""
    for blocks in (10_000, 100_000, 1_000_000):
        said = {"seconds": 10.123, "rows": 1024, "refused": 0, "bytes": 700_123, "sha256": "f" * 64}
        with tempfile.TemporaryDirectory() as place:
            folder = Folder(place)
            begun = time.perf_counter()
            lines = (json.dumps({"block": n, **said}) for n in range(blocks))
            content = "".join(f"{line}\n" for line in lines).encode()
            folder.write(MANIFEST, content)
            wrote = time.perf_counter() - begun
            begun = time.perf_counter()
            known = [json.loads(line) for line in (folder.read(MANIFEST) or b"").splitlines()]
            read = time.perf_counter() - begun
            listed = "–"
            if blocks <= 100_000:
                for number in range(0, blocks, 1000):
                    (Path(place) / f"rows/{number // 1000:05d}").mkdir(parents=True)
                for number in range(blocks):
                    (Path(place) / f"rows/{number // 1000:05d}/{number:08d}.parquet").touch()
                begun = time.perf_counter()
                assert len(folder.list_sizes("rows")) == blocks
                listed = f"{time.perf_counter() - begun:.2f} s"
        assert len(known) == blocks
        print(
            f"{blocks:9,} blocks = {blocks * 1024 / 1e6:6,.0f} M texts: manifest "
            f"{len(content) / 1e6:5.1f} MB, written in {wrote:.2f} s, so every {20 * wrote:.1f} s; read in "
            f"{read:.2f} s, folder listed in {listed}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=["factor", "memory", "loop", "manifest"])
    parser.add_argument("--engines", nargs="+", default=["local", "ray"])
    parser.add_argument("--texts", type=int)
    parser.add_argument("--block", type=int, default=64, help="rows of a block, for factor")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="tokenlight/sentiment")
    given = parser.parse_args()
    given.texts = given.texts or {"memory": 100_000, "loop": 8192}.get(given.what, 1536)
    with tempfile.TemporaryDirectory() as place:
        if given.model == "bert-base":
            given.model = bert_base(Path(place))
        {"factor": factor, "memory": memory, "loop": loop, "manifest": manifest}[given.what](given)


if __name__ == "__main__":
    main()
