"""The commands that a campaign disturbs, on a tiny model and small files made on the spot."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tests.campaign.harness import Job
from tests.helpers import bench_runs, scale_runs
from tests.helpers.families import build_model
from tests.helpers.tiny import tiny_bert, tiny_tokenizer

TOKENLIGHT = [sys.executable, "-m", "tokenlight"]
TEXT = "good film , slow plot"


class Files:
    """What the commands read: a model, texts and a suite, in one folder."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.model = make_model(folder / "model")
        self.data = scale_runs.write_parquet(folder / "texts.parquet", count)
        self.suite = bench_runs.write_suite(folder / "suite", self.model, max(16, count // 16))
        self.rows = folder / "texts.jsonl"
        sentences = bench_runs.make_sentences(max(24, count // 8))
        self.rows.write_text(
            "".join(json.dumps({"text": sentence}) + "\n" for sentence in sentences)
        )


def make_model(folder: Path, seed: int = 0) -> Path:
    """A tiny BERT; another seed makes another one of the same shape."""
    model = tiny_bert(dtype=torch.float32)
    if seed:
        with torch.no_grad():
            model.classifier.bias.add_(seed)
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def make_writer(folder: Path) -> Path:
    """A tiny GPT-2 that writes, for what only models with a chat template read."""
    tokenizer = tiny_tokenizer()
    model = build_model("gpt2", "LMHeadModel")
    model.resize_token_embeddings(len(tokenizer))
    model.to(torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def explain(files: Files, engine: str = "local", workers: int = 2) -> Job:
    """Many texts into Parquet, by worker processes of this machine or of Ray."""

    def command(out: Path) -> list[str]:
        file_options = [
            "explain",
            "--file",
            str(files.data),
            "-o",
            str(out),
            "-m",
            str(files.model),
        ]
        explain_options = ["-x", "attcat", "--keep", "id", "--part-size", "8"]
        return [
            *TOKENLIGHT,
            *file_options,
            *explain_options,
            "--engine",
            engine,
            "--workers",
            str(workers),
        ]

    def results(out: Path) -> Mapping[str, bytes]:
        output_files = scale_runs.read_output_files(out)
        lines = (out / "manifest.jsonl").read_text().splitlines()
        rows = sum(json.loads(line)["rows"] for line in lines)
        return {**output_files, "rows of the manifest": str(rows).encode()}

    return Job(f"explain -o ({engine})", command, results)


def bench(files: Files) -> Job:
    """A suite of measurements."""

    def command(out: Path) -> list[str]:
        return [*TOKENLIGHT, "bench", "run", str(files.suite), "-o", str(out), "--workers", "2"]

    return Job("bench run", command, bench_runs.read_run_bytes)


def evaluate(files: Files) -> Job:
    """Methods measured on the texts of a file."""

    def command(out: Path) -> list[str]:
        explain_options = ["-x", "attcat", "-x", "random", "--metric", "aopc"]
        return [
            *TOKENLIGHT,
            "evaluate",
            str(files.rows),
            "-o",
            str(out),
            "-m",
            str(files.model),
            *explain_options,
        ]

    def results(out: Path) -> Mapping[str, bytes]:
        import pyarrow.parquet

        summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
        summary.pop("metadata", None)  # it says when
        rows = pyarrow.parquet.read_table(out / "rows.parquet").to_pylist()
        contents = {"summary.json": summary, "rows.parquet": rows}
        return {
            name: json.dumps(content, sort_keys=True).encode() for name, content in contents.items()
        }

    return Job("evaluate", command, results)


def explain_text(files: Files) -> Job:
    """One text into a page and a file."""

    def command(out: Path) -> list[str]:
        out.mkdir(parents=True, exist_ok=True)
        files_to_write = ["--html", str(out / "p.html"), "--json", str(out / "p.json")]
        return [
            *TOKENLIGHT,
            "explain",
            TEXT,
            "-m",
            str(files.model),
            "-x",
            "attcat",
            *files_to_write,
        ]

    def results(out: Path) -> Mapping[str, bytes]:
        return {name: (out / name).read_bytes() for name in ("p.html", "p.json")}

    return Job("explain TEXT", command, results)
