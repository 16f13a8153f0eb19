"""Measure the rows on which a GPU once was slow, took much memory or was refused.

Prints one line per row and writes them to a file. A row that raises prints its error; rows that come after
the time are left out.

    python benchmarks/gpu_rows.py --seconds 70 --json rows.json
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from machine import facts
from model_speed import build_random_model, draw_texts, load_tokenizer, time_call
from shape_sweep import METHODS, ModelSweep, print_cell

from tokenlight import Explainer, Tokens

BF16 = torch.bfloat16
NUM_TEXTS = 4000
Row = dict[str, Any]


def measure_bert_cells() -> Iterator[Row]:
    """Measure BERT-base in bfloat16: long texts, and short texts after other work in the process."""
    sweep = ModelSweep("BERT-base", "bf16", "cuda")
    shapes = [
        (16, 512, "attcat"), (16, 512, "13 methods"), (16, 384, "attnlrp"), (64, 128, "transatt"),
        (64, 128, "lrp"), (64, 32, "attcat"), (8, 32, "attcat"),
    ]  # fmt: skip
    for num_texts, num_tokens, method in shapes:
        cell = sweep.measure_cell(num_texts, num_tokens, method)
        if cell is not None:
            print_cell(cell)
            label = f"BERT-base bf16 {num_texts}×{num_tokens} {method}"
            yield {"row": label, "time": cell.time_ratio, "memory": cell.memory_ratio}


def measure_reserved_memory() -> Iterator[Row]:
    """Measure memory after forty shapes of four calls, after a release, and without the Explainer."""
    config = transformers.BertConfig(num_labels=2, attn_implementation="sdpa")
    model = build_random_model(transformers.BertForSequenceClassification, config, "cuda", BF16)
    gc.collect()
    torch.cuda.empty_cache()
    start_bytes = torch.cuda.memory_reserved()
    explainer = Explainer(model)
    for num_texts in (1, 4, 8, 16):
        for num_tokens in range(16, 176, 16):
            ids = torch.randint(5, 900, (num_texts, num_tokens))
            for _ in range(4):
                explainer.explain(Tokens.from_ids(ids), "attcat", target=1)
    torch.cuda.synchronize()
    reserved = torch.cuda.memory_reserved() - start_bytes
    explainer.release_memory()
    released = torch.cuda.memory_reserved() - start_bytes
    del explainer
    gc.collect()
    torch.cuda.empty_cache()
    remaining = torch.cuda.memory_reserved() - start_bytes
    yield {
        "row": "GB held by BERT-base bf16 after 40 shapes × 4 calls; after release_memory(); when it is gone",
        "values": [round(number / 1e9, 2) for number in (reserved, released, remaining)],
    }


def compare_arithmetics() -> Iterator[Row]:
    """Compare attcat and gae with TF32 products and under autocast, once refused, with float32."""
    config = transformers.BertConfig(num_labels=2, attn_implementation="sdpa")
    model = build_random_model(
        transformers.BertForSequenceClassification, config, "cuda", torch.float32
    )
    ids = torch.randint(5, 900, (8, 64))
    for method in ("attcat", "gae"):
        expected = Explainer(model).explain(Tokens.from_ids(ids), method, target=1)
        torch.set_float32_matmul_precision("high")
        in_tf32 = Explainer(model).explain(Tokens.from_ids(ids), method, target=1)
        torch.set_float32_matmul_precision("highest")
        with torch.autocast("cuda", BF16):
            in_autocast = Explainer(model).explain(Tokens.from_ids(ids), method, target=1)
        for label, attributions in (("tf32", in_tf32), ("autocast", in_autocast)):
            gap = 0.0
            for attribution, reference in zip(attributions, expected, strict=True):
                difference = abs(attribution.scores - reference.scores).max()
                gap = max(gap, float(difference / abs(reference.scores).max()))
            yield {"row": f"{method} {label}: largest gap to float32", "values": [round(gap, 5)]}


def sum_llama_scores() -> Iterator[Row]:
    """Sum the scores of alti_logit, which recognizes norms, in every precision."""
    config = transformers.LlamaConfig(
        vocab_size=1000, hidden_size=256, intermediate_size=512, num_hidden_layers=4,
        num_attention_heads=8, num_key_value_heads=4, pad_token_id=0,
    )  # fmt: skip
    ids = Tokens.from_ids(torch.randint(5, 900, (1, 32)))
    for dtype in (BF16, torch.float16, torch.float32):
        model = build_random_model(transformers.LlamaForCausalLM, config, "cuda", dtype)
        attribution: Any = Explainer(model).explain(ids, "alti_logit", target=7)
        total = attribution.scores.sum()
        yield {"row": f"alti_logit Llama {dtype}: sum of scores", "values": [float(total)]}


def measure_data_set() -> Iterator[Row]:
    """Time whole calls from texts to Attributions."""
    tokenizer = load_tokenizer()
    texts = draw_texts(tokenizer, NUM_TEXTS)
    config = transformers.BertConfig(
        num_labels=2, vocab_size=len(tokenizer), attn_implementation="sdpa"
    )
    model = build_random_model(transformers.BertForSequenceClassification, config, "cuda", BF16)
    explainer = Explainer(model, tokenizer)
    calls: dict[str, Callable[[], Any]] = {
        "attcat, stream": lambda: deque(explainer.explain(iter(texts), "attcat"), 0),
        "attcat, list": partial(explainer.explain, texts, "attcat", progress=False),
        "13 methods, list": partial(
            explainer.explain, texts, METHODS["13 methods"], progress=False
        ),
        "transatt, list": partial(explainer.explain, texts, "transatt", progress=False),
    }
    for label, call in calls.items():
        seconds = [round(time_call(call, "cuda"), 2) for _ in range(2)]
        yield {
            "row": f"{NUM_TEXTS} texts bf16, {label}: seconds, first and second",
            "values": seconds,
        }


GROUPS = (
    measure_bert_cells,
    compare_arithmetics,
    sum_llama_scores,
    measure_reserved_memory,
    measure_data_set,
)


def main() -> None:
    """Measure group after group until the time is over."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    deadline = time.perf_counter() + options.seconds
    rows: list[Row] = []
    for group in GROUPS:
        try:
            for row in group():
                rows.append(row)
                print(row, flush=True)
                if options.json:
                    report = {"machine": facts("cuda"), "rows": rows}
                    options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
                if time.perf_counter() > deadline:
                    return
        except Exception as error:  # noqa: BLE001 - the other rows shall be measured
            print(f"{group.__name__}: {type(error).__name__}: {error}", flush=True)
            torch.set_float32_matmul_precision("highest")


if __name__ == "__main__":
    main()
