"""Compare the cost of explanations before and after: two versions of the package, measured in turns.

    git archive COMMIT src/tokenlight | tar -x -C OLD
    python benchmarks/before_after.py --before OLD/src --device cuda --json FILE     # rows of the cost page
    python benchmarks/before_after.py --before OLD/src --tiny                        # a check on a CPU

One process per version holds the same random models. Every row is measured four times: before, after, after,
before, so that a machine that slows down slows both. The bare pass of the model, which no version of the
package changes, is a row of its own: its ratio shows the noise. Rows are written as they are measured; when
``--seconds`` are over, no further row is begun.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from machine import facts
from model_speed import (
    ONE_PASS,
    ONE_PASS_LABEL,
    SMALL_BERT,
    build_bert,
    build_llama,
    build_random_model,
    draw_texts,
    load_tokenizer,
    run_bare_pass,
    time_call,
)

import tokenlight
from tokenlight import Explainer, Tokens

ROUNDS = (("before", "after"), ("after", "before"))
# The third call of a shape captures a CUDA graph, and the fourth compares a replay with an eager pass.
NUM_WARM_UP_CALLS = 5
MIN_CALLS = 3
MAX_CALLS = 40
REPEAT_SECONDS = 0.3  # of one measurement
LONG_CALL_SECONDS = 2.0  # such a call has one warm-up call and is timed once
METHODS: dict[str, Any] = {ONE_PASS_LABEL: ONE_PASS}


class Case(NamedTuple):
    """A row of the table.

    Attributes:
        model: A name in ``LLAMAS`` of ``model_speed``, "BERT-base" or "BERT tiny".
        dtype: Name of the dtype of weights.
        shape: Texts × tokens, such as "64x128"; "N texts" for a whole data set.
        method: Name of a method, "bare" or ``ONE_PASS_LABEL``; for a data set "list" or "stream".
    """

    model: str
    dtype: str
    shape: str
    method: str


ENCODER_METHODS = ("bare", "attcat", ONE_PASS_LABEL, "attnlrp", "transatt")
LLAMA_METHODS = ("bare", "attcat", "attnlrp", "grad_x_input")
# Model, dtype, shape and methods: rows of the cost page that take seconds, the most telling ones first.
ROWS: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("BERT-base", "bfloat16", "64x32", ENCODER_METHODS),
    ("BERT-base", "bfloat16", "64x128", ENCODER_METHODS),
    ("BERT-base", "bfloat16", "256x128", ENCODER_METHODS[:3]),
    ("BERT-base", "bfloat16", "4000 texts", ("list", "stream")),
    ("BERT-base", "float32", "64x32", ENCODER_METHODS),
    ("BERT-base", "float32", "64x128", ENCODER_METHODS),
    ("Llama 8B", "bfloat16", "1x512", LLAMA_METHODS),
    ("Llama 8B", "bfloat16", "1x2048", LLAMA_METHODS),
    ("Llama 1B", "bfloat16", "1x16384", LLAMA_METHODS[:3]),
    ("Llama 8B", "bfloat16", "1x8192", LLAMA_METHODS[:3]),
    ("BERT-base", "float32", "256x128", ENCODER_METHODS[:3]),
)
TINY_ROWS = (
    ("BERT tiny", "float32", "2x16", ENCODER_METHODS[:4]),
    ("BERT tiny", "float32", "20 texts", ("list",)),
    ("Llama tiny", "float32", "1x64", ("attnlrp",)),
)


def list_cases(is_tiny: bool) -> list[Case]:
    """Return the rows to measure, in order."""
    cases = []
    for model, dtype, shape, methods in TINY_ROWS if is_tiny else ROWS:
        cases += [Case(model, dtype, shape, method) for method in methods]
    return cases


class Worker:
    """Measures cases in its process, with the model of the last case still loaded."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.loaded: tuple[str, str] | None = None
        self.explainer: Any = None
        self.is_warm: set[Case] = set()

    def load(self, name: str, dtype_name: str) -> Any:
        """Load a random model in place of the last one."""
        if self.loaded == (name, dtype_name):
            return self.explainer
        self.explainer = None
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()
        dtype = getattr(torch, dtype_name)
        tokenizer = None
        if name == "BERT-base":
            model = build_bert(self.device, dtype)
            tokenizer = load_tokenizer()
        elif name == "BERT tiny":
            tokenizer = load_tokenizer()
            config = transformers.BertConfig(num_labels=2, **SMALL_BERT)
            model_class = transformers.BertForSequenceClassification
            model = build_random_model(model_class, config, self.device, dtype)
        else:
            model = build_llama(name, self.device, dtype)
        self.explainer = Explainer(model, tokenizer)
        self.loaded = (name, dtype_name)
        self.is_warm.clear()
        return self.explainer

    def build_call(self, case: Case) -> Callable[[], Any]:
        """Return the call that a row times."""
        explainer = self.load(case.model, case.dtype)
        if case.shape.endswith("texts"):
            texts = draw_texts(explainer.tokenizer, int(case.shape.split()[0]))
            if case.method == "list":
                return partial(explainer.explain, texts, "attcat", progress=False)
            return lambda: deque(explainer.explain(iter(texts), "attcat"), 0)
        num_texts, num_tokens = map(int, case.shape.split("x"))
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(5, 900, (num_texts, num_tokens), generator=generator).to(self.device)
        if case.method == "bare":
            return partial(run_bare_pass, explainer.model, ids)
        tokens = Tokens.from_ids(ids, torch.ones_like(ids))
        method = METHODS.get(case.method, case.method)
        target = 7 if case.model.startswith("Llama") else 1
        return partial(explainer.explain, tokens, method, batch_tokens=ids.numel(), target=target)

    def measure(self, case: Case) -> float:
        """Return the median milliseconds of a call after warm-up calls."""
        call = self.build_call(case)
        first_seconds = time_call(call, self.device)
        if first_seconds > LONG_CALL_SECONDS:
            return 1e3 * time_call(call, self.device)
        num_warm_up_calls = 1 if case in self.is_warm else NUM_WARM_UP_CALLS
        self.is_warm.add(case)
        for _ in range(num_warm_up_calls):
            time_call(call, self.device)
        end_time = time.perf_counter() + REPEAT_SECONDS
        seconds: list[float] = []
        while len(seconds) < MIN_CALLS or (
            time.perf_counter() < end_time and len(seconds) < MAX_CALLS
        ):
            seconds.append(time_call(call, self.device))
        return 1e3 * statistics.median(seconds)


def run_worker(device: str, source: Path) -> None:
    """Answer every case on standard input by its milliseconds, or by why it failed."""
    if not Path(tokenlight.__file__).is_relative_to(source):
        raise SystemExit(f"tokenlight was imported from {tokenlight.__file__}, not from {source}")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to the log
    worker = Worker(device)
    for line in sys.stdin:
        try:
            answer: dict[str, Any] = {"ms": worker.measure(Case(*json.loads(line)))}
        except Exception as error:  # noqa: BLE001 - the other rows shall be measured
            answer = {"failed": f"{type(error).__name__}: {str(error)[:200]}"}
        print(json.dumps(answer), file=answers, flush=True)


def start_worker(source: Path, device: str, log: Path) -> subprocess.Popen[str]:
    """Start a process that imports the package from this folder."""
    command = [sys.executable, __file__, "--worker", "--device", device, "--after", str(source)]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log.open("w"),
        text=True,
        env={**os.environ, "PYTHONPATH": str(source)},
    )


def ask(worker: subprocess.Popen[str], case: Case) -> dict[str, Any]:
    """Have a worker measure a case.

    Raises:
        RuntimeError: If the worker has ended.
    """
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(json.dumps(case) + "\n")
    worker.stdin.flush()
    line = worker.stdout.readline()
    if not line:
        raise RuntimeError("a worker has ended; its log says why")
    answer: dict[str, Any] = json.loads(line)
    return answer


def measure_case(workers: dict[str, subprocess.Popen[str]], case: Case) -> dict[str, Any]:
    """Measure a case in all rounds, both versions in turns."""
    milliseconds: dict[str, list[float]] = {"before": [], "after": []}
    row: dict[str, Any] = case._asdict()
    for versions in ROUNDS:
        for version in versions:
            answer = ask(workers[version], case)
            if "failed" in answer:
                row[f"{version} failed"] = answer["failed"]
            else:
                milliseconds[version].append(round(answer["ms"], 3))
    row |= milliseconds
    if all(milliseconds.values()):
        before = statistics.mean(milliseconds["before"])
        row["ratio"] = round(statistics.mean(milliseconds["after"]) / before, 3)
    return row


def main() -> None:
    """Measure row after row until the time is over."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, help="a folder with the earlier tokenlight in it")
    parser.add_argument("--before-commit", default="unknown", help="written to the file")
    parser.add_argument("--after", type=Path, default=Path(__file__).parent.parent / "src")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tiny", action="store_true", help="small models, as a check")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        run_worker(arguments.device, arguments.after)
        return
    if arguments.before is None:
        parser.error("give --before, the folder of the earlier version")
    deadline = time.monotonic() + arguments.seconds
    logs = arguments.json or Path("before_after.json")
    workers = {
        version: start_worker(
            source.resolve(), arguments.device, logs.with_name(f"{logs.stem}_{version}.log")
        )
        for version, source in (("before", arguments.before), ("after", arguments.after))
    }
    rows: list[dict[str, Any]] = []
    for case in list_cases(arguments.tiny):
        if time.monotonic() > deadline:
            print(f"the time is over before {' '.join(case)}", flush=True)
            break
        row = measure_case(workers, case)
        rows.append(row)
        failures = [row[f"{version} failed"] for version in workers if f"{version} failed" in row]
        print(" ".join(case), row["before"], row["after"], row.get("ratio", failures), flush=True)
        if arguments.json:
            content = {
                "facts": facts(arguments.device, before=arguments.before_commit),
                "rows": rows,
            }
            arguments.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    for worker in workers.values():
        worker.stdin.close()  # type: ignore[union-attr] # opened as a pipe
        worker.wait(timeout=60)


if __name__ == "__main__":
    main()
