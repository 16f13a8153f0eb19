"""What it costs to explain every token while it is generated, relative to generating alone.

    python benchmarks/stream_cost.py --model FOLDER [--tokens 32] [-o FILE.json]
    python benchmarks/stream_cost.py --random-llama 8b --device cuda --dtype bfloat16 -o $OUT/stream.json

Two generations of the same tokens are the measure: *teacher-forced*, one forward pass over the text so far
per token, and *cached*, each token read once, with keys and values kept. Both and the explained stream
decode greedily. Every figure is the median of several runs, after one that is not counted.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from tokenlight import Explainer
from tokenlight.explaining.generation import CachedDecoder

PROMPT = (
    "The following is a short encyclopedia article about the city of Paris. Paris is the capital of France. "
    "It lies on the river Seine, and"
)
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


def measure(explainer: Explainer, method: str, num_tokens: int, repeats: int) -> dict[str, Any]:
    """Return milliseconds per token of both generations and of the stream, and their ratios."""
    streamed = list(explainer.generate(PROMPT, method, max_new_tokens=num_tokens))
    last = streamed[-1].attribution
    ids = [*last.row.ids, last.target.index]
    prompt_row = streamed[0].attribution.row
    seconds = {
        "cached generation": measure_seconds(
            lambda: generate_cached(explainer, prompt_row, len(streamed)), repeats
        ),
        "teacher-forced generation": measure_seconds(
            lambda: generate_forced(explainer, ids, len(prompt_row)), repeats
        ),
        "explained stream": measure_seconds(
            lambda: list(explainer.generate(PROMPT, method, max_new_tokens=num_tokens)), repeats
        ),
    }
    per_token = {name: 1000 * value / len(streamed) for name, value in seconds.items()}
    stream = per_token["explained stream"]
    return {
        "model": explainer.name,
        "method": last.method,
        "prompt_tokens": len(prompt_row),
        "new_tokens": len(streamed),
        "ms_per_token": per_token,
        "over_teacher_forced": stream / per_token["teacher-forced generation"],
        "over_cached": stream / per_token["cached generation"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="a folder, a hub id or a GGUF file")
    parser.add_argument("--random-llama", choices=list(SHAPES), help="random weights of this shape")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--method", default="attnlrp")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("-o", "--output")
    arguments = parser.parse_args()
    if (arguments.model is None) == (arguments.random_llama is None):
        parser.error("give either --model or --random-llama")
    if arguments.model is not None:
        explainer = Explainer.from_pretrained(
            arguments.model, dtype=arguments.dtype, device=arguments.device
        )
    else:
        dtype = getattr(torch, arguments.dtype)
        explainer = build_random_llama(arguments.random_llama, arguments.device, dtype)
    result = measure(explainer, arguments.method, arguments.tokens, arguments.repeats)
    text = json.dumps(result, indent=1)
    print(text)
    if arguments.output:
        Path(arguments.output).parent.mkdir(parents=True, exist_ok=True)
        Path(arguments.output).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
