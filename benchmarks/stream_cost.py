"""What it costs to explain every token while it is generated, relative to generating alone.

    python benchmarks/stream_cost.py --model FOLDER [--tokens 32] [-o FILE.json]
    python benchmarks/stream_cost.py --random-llama 8b --device cuda --dtype bfloat16 \\
        --prompt-tokens 128 512 2048 --tokens 24 --repeats 2 --seconds 90 -o stream.json

Two generations of the same tokens are the measure: *teacher-forced*, one forward pass over the text so far
per token, and *cached*, each token read once, with keys and values kept. Both and the explained stream
decode greedily. Every figure is the median of several runs, after one that is not counted.

The tokens of a chunk share one forward pass, and each has a backward pass; on a GPU, tokens of a short text
are a batch of rows instead. The product chooses; ``--routes`` measures both. The file is written after
every prompt and route, so that a run that is stopped leaves what it measured.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch

from tokenlight import Explainer
from tokenlight.explaining import continuations
from tokenlight.explaining.generation import CachedDecoder

PROMPT = (
    "The following is a short encyclopedia article about the city of Paris. Paris is the capital of France. "
    "It lies on the river Seine, and"
)
# How the tokens of a chunk are explained: up to which size of a pass they are a batch of rows.
ROUTES: dict[str, float] = {
    "chosen": continuations.MAX_LAUNCH_BOUND_MULTIPLICATIONS,
    "shared forward": 0.0,
    "batched rows": float("inf"),
}
SHAPES = {
    "8b": {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    },
    "tiny": {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256,
    },
}  # fmt: skip


def build_random_llama(shape: str, device: str, dtype: torch.dtype) -> Explainer:
    """Return a Llama with random weights and a tokenizer of bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    config = LlamaConfig(**SHAPES[shape], max_position_embeddings=8192, eos_token_id=None)
    torch.manual_seed(0)
    with torch.device(device):
        default_dtype = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            model = LlamaForCausalLM(config).eval()
        finally:
            torch.set_default_dtype(default_dtype)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return Explainer(
        model, PreTrainedTokenizerFast(tokenizer_object=backend), name=f"Llama {shape}"
    )


def read_clock() -> float:
    """Return the processor's seconds; those of the wall where a GPU computes, once it has finished."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def measure_seconds(run: Callable[[], Any], repeats: int) -> float:
    """Return the median seconds of several runs."""
    run()
    durations = []
    for _ in range(repeats):
        start = read_clock()
        run()
        durations.append(read_clock() - start)
    return median(durations)


def generate_cached(explainer: Explainer, prompt: Any, num_tokens: int) -> None:
    """Generate as generate() does, without explaining anything."""
    decoder = CachedDecoder(explainer, prompt)
    for _ in range(num_tokens):
        decoder.append(decoder.predict())


@torch.inference_mode()
def generate_forced(explainer: Explainer, ids: list[int], num_prompt: int) -> None:
    """Run the model over the text before each token."""
    model = explainer.model
    for length in range(num_prompt, len(ids)):
        input_ids = torch.tensor([ids[:length]], device=model.device)
        model(input_ids, use_cache=False, logits_to_keep=1).logits.argmax(-1)


def build_prompt(explainer: Explainer, num_tokens: int | None) -> str:
    """Return the prompt, repeated and cut to about so many tokens; without a number, the prompt itself."""
    if num_tokens is None:
        return PROMPT
    tokenizer = explainer.tokenizer
    ids = tokenizer(PROMPT, add_special_tokens=False).input_ids
    num_repeats = -(-num_tokens // len(ids))
    return str(tokenizer.decode((ids * num_repeats)[:num_tokens]))


@contextmanager
def forced_route(route: str) -> Iterator[None]:
    """Explain the tokens of a chunk by this route inside the block."""
    chosen = continuations.MAX_LAUNCH_BOUND_MULTIPLICATIONS
    continuations.MAX_LAUNCH_BOUND_MULTIPLICATIONS = ROUTES[route]
    try:
        yield
    finally:
        continuations.MAX_LAUNCH_BOUND_MULTIPLICATIONS = chosen


def measure(
    explainer: Explainer,
    prompt: str,
    method: str,
    num_tokens: int,
    repeats: int,
    routes: Sequence[str] = ("chosen",),
) -> Iterator[dict[str, Any]]:
    """Measure both generations, then the stream by every route.

    Yields:
        A record per route: milliseconds per token of both generations and of the stream, and their ratios.
    """
    streamed = list(explainer.generate(prompt, method, max_new_tokens=num_tokens))
    last = streamed[-1].attribution
    ids = [*last.row.ids, last.target.index]
    prompt_row = streamed[0].attribution.row
    cached = measure_seconds(lambda: generate_cached(explainer, prompt_row, len(streamed)), repeats)
    forced = measure_seconds(lambda: generate_forced(explainer, ids, len(prompt_row)), repeats)
    for route in routes:
        with forced_route(route):
            stream = measure_seconds(
                lambda: list(explainer.generate(prompt, method, max_new_tokens=num_tokens)), repeats
            )
        yield {
            "model": explainer.name,
            "method": last.method,
            "prompt_tokens": len(prompt_row),
            "new_tokens": len(streamed),
            "route": route,
            "ms_per_token": {
                "cached generation": 1000 * cached / len(streamed),
                "teacher-forced generation": 1000 * forced / len(streamed),
                "explained stream": 1000 * stream / len(streamed),
            },
            "over_teacher_forced": stream / forced,
            "over_cached": stream / cached,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="a folder, a hub id or a GGUF file")
    parser.add_argument("--random-llama", choices=list(SHAPES), help="random weights of this shape")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--method", default="auto")
    parser.add_argument("--prompt-tokens", type=int, nargs="*", help="lengths of the prompt")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--routes", nargs="*", choices=list(ROUTES), default=["chosen"])
    parser.add_argument("--seconds", type=float, help="begin no further prompt after so many")
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    if (arguments.model is None) == (arguments.random_llama is None):
        parser.error("give either --model or --random-llama")
    stop_time = time.monotonic() + (arguments.seconds or float("inf"))
    if arguments.model is not None:
        explainer = Explainer.from_pretrained(
            arguments.model, dtype=arguments.dtype, device=arguments.device
        )
    else:
        dtype = getattr(torch, arguments.dtype)
        explainer = build_random_llama(arguments.random_llama, arguments.device, dtype)
    results: list[dict[str, Any]] = []
    for num_prompt_tokens in arguments.prompt_tokens or [None]:
        if time.monotonic() > stop_time:
            break
        prompt = build_prompt(explainer, num_prompt_tokens)
        measured = measure(
            explainer,
            prompt,
            arguments.method,
            arguments.tokens,
            arguments.repeats,
            arguments.routes,
        )
        for result in measured:
            results.append(result)
            print(json.dumps(result), flush=True)
            if arguments.output:
                write_results(arguments.output, results)


def write_results(path: Path, results: list[dict[str, Any]]) -> None:
    """Write what has been measured so far, with the machine."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"device": device, "torch": torch.__version__, "results": results}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
