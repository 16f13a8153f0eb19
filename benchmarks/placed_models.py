"""What an explanation costs of a model that is offloaded, quantized or compiled, on a CPU.

Processor seconds of explain() of one text by a model of BERT-base's width with random weights, divided by
those of its bare forward and backward pass in the same form. Forms whose library is missing are left out.

    python benchmarks/placed_models.py --json docs/results/cost/placed_models.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from machine import facts
from transformers import BertConfig, BertForSequenceClassification

from tokenlight import Explainer, Tokens

METHODS = ("attcat", "attnlrp", "integrated_gradients")
NUM_TOKENS = 64
NUM_LAYERS = 2  # of BERT-base's twelve
REPEATS = 3


def make_models(folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield each form of the model, with its name."""
    torch.manual_seed(0)
    config = BertConfig(num_labels=2, num_hidden_layers=NUM_LAYERS, vocab_size=1000)
    model = BertForSequenceClassification(config).eval()
    model.save_pretrained(folder)
    yield "in memory", model
    load = BertForSequenceClassification.from_pretrained
    num_bytes = sum(weight.numel() * weight.itemsize for weight in model.parameters())
    if find_spec("accelerate"):
        yield (
            'device_map="auto", a third of the weights on disk',
            load(
                folder,
                device_map="auto",
                max_memory={"cpu": num_bytes * 2 // 3},
                offload_folder=folder / "offload",
            ),
        )
    if find_spec("bitsandbytes"):
        for label in ("8bit", "4bit"):
            quantization = transformers.BitsAndBytesConfig(
                **{f"load_in_{label}": True}, llm_int8_skip_modules=["classifier"]
            )
            yield (
                f"bitsandbytes, {label}",
                load(folder, quantization_config=quantization, device_map="cpu"),
            )
    compiled = load(folder)
    compiled.compile(backend="eager")
    yield "compiled in place (backend eager)", compiled


def time_call(call: Callable[[], Any]) -> float:
    """Return the median seconds of the processor that a call takes after a first one."""
    call()
    seconds = []
    for _ in range(REPEATS):
        start = time.process_time()
        call()
        seconds.append(time.process_time() - start)
    return statistics.median(seconds)


def run_bare(model: Any, ids: torch.Tensor) -> None:
    """Run a forward pass and a backward pass down to the embeddings."""
    embeddings = model.get_input_embeddings()

    def start_graph(_module: Any, _args: Any, output: torch.Tensor) -> torch.Tensor:
        return output.detach().requires_grad_(True)

    handle = embeddings.register_forward_hook(start_graph)
    try:
        model(input_ids=ids).logits[0, 1].backward()
    finally:
        handle.remove()


def main() -> None:
    """Measure every form."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    ids = torch.randint(5, 900, (1, NUM_TOKENS), generator=torch.Generator().manual_seed(1))
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for form, model in make_models(Path(folder)):
            model.requires_grad_(False)
            bare_seconds = time_call(lambda model=model: run_bare(model, ids))
            explainer = Explainer(model)
            for method in METHODS:
                method_options = {"num_steps": 8} if method == "integrated_gradients" else {}
                name = method + "".join(f":{key}={value}" for key, value in method_options.items())
                seconds = time_call(
                    lambda name=name, explainer=explainer: explainer.explain(
                        Tokens.from_ids(ids), name, target=1
                    )
                )
                row = {
                    "form": form,
                    "method": name,
                    "bare_seconds": round(bare_seconds, 4),
                    "seconds": round(seconds, 4),
                }
                rows.append(row)
                print(
                    f"{form:52} {name:30} {seconds / bare_seconds:6.2f} {seconds:8.3f} s",
                    flush=True,
                )
    if options.json:
        report = {"machine": facts("cpu"), "rows": rows}
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
