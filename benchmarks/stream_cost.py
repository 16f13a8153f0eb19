"""What it costs to explain every token while it is generated, relative to generating alone.

    python benchmarks/stream_cost.py --model FOLDER [--tokens 32] [-o FILE.json]
    python benchmarks/stream_cost.py --random-llama 8b --device cuda --dtype bfloat16 \\
        --prompt-tokens 128 512 2048 --tokens 24 --repeats 2 --seconds 90 -o stream.json

Two generations of the same tokens are the measure: *teacher-forced*, one forward pass over the text so far
per token, and *cached*, each token read once, with keys and values kept. Both and the explained stream
decode greedily. Every figure is the median of several runs, after one that is not counted.

The tokens of a chunk share one forward pass, and each has a backward pass; on a GPU, their backward passes
run as one over a batch of gradients, and tokens of a short text are a batch of rows instead. The product
chooses; ``--routes`` measures each. The file is written after every prompt and route, so that a run that is
stopped leaves what it measured.

Beside the times stands what was done, the same on every machine: the tokens that go forward and backward
through the model, one of each for a token of a row; the passes; and the operations on tensors that a device
is given, of which views are none. Each is divided by the number of new tokens.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tokenlight import Explainer
from tokenlight.explaining import continuations
from tokenlight.explaining.generation import CachedDecoder
from tokenlight.hooks.patching import patched_attributes

PROMPT = (
    "The following is a short encyclopedia article about the city of Paris. Paris is the capital of France. "
    "It lies on the river Seine, and"
)
# How the tokens of a chunk are explained: up to which size of a pass they are a batch of rows, and whether
# their gradients may be a batch.
ROUTES: dict[str, tuple[float, bool | None]] = {
    "chosen": (continuations.MAX_LAUNCH_BOUND_MULTIPLICATIONS, None),
    "shared forward": (0.0, False),
    "shared forward, batched gradients": (0.0, True),
    "batched rows": (float("inf"), None),
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
    CachedDecoder(explainer, prompt).write(num_tokens, frozenset())


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
    max_multiplications, batches_gradients = ROUTES[route]
    with ExitStack() as cleanup:
        patch = cleanup.enter_context
        patch(
            patched_attributes(
                [continuations], MAX_LAUNCH_BOUND_MULTIPLICATIONS=max_multiplications
            )
        )
        if batches_gradients is not None:
            patch(
                patched_attributes(
                    [continuations], can_batch_gradients=lambda _session: batches_gradients
                )
            )
        yield


class WorkCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what a device is given inside the block.

    Attributes:
        counts: Passes, their tokens, and operations on tensors.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()
        self._model = model
        self._num_tokens = 0
        self._cleanup = ExitStack()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        # A view of another tensor needs no kernel.
        if not function.is_view:
            self.counts["operations"] += 1
        return function(*args, **(kwargs or {}))

    def __enter__(self) -> WorkCounter:
        handle = self._model.register_forward_pre_hook(self._count_forward, with_kwargs=True)
        self._cleanup.callback(handle.remove)
        self._grad = torch.autograd.grad
        self._cleanup.enter_context(patched_attributes([torch.autograd], grad=self._count_backward))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._cleanup.close()

    def _count_forward(self, _model: Any, args: Any, kwargs: Any) -> None:
        input_ids = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
        self._num_tokens = input_ids.numel()
        self.counts["forward passes"] += 1
        self.counts["forward tokens"] += self._num_tokens

    def _count_backward(self, outputs: Any, inputs: Any, seeds: Any = None, **options: Any) -> Any:
        is_batch = bool(options.get("is_grads_batched"))
        self.counts["backward passes"] += 1
        self.counts["backward tokens"] += self._num_tokens * (len(seeds) if is_batch else 1)
        return self._grad(outputs, inputs, seeds, **options)


def count_work(
    explainer: Explainer, run: Callable[[], Any], num_new_tokens: int
) -> dict[str, float]:
    """Return what a run gives to the device, per new token."""
    with WorkCounter(explainer.model) as counter:
        run()
    return {name: count / num_new_tokens for name, count in sorted(counter.counts.items())}


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
        A record per route: milliseconds per token of both generations and of the stream, their ratios, and
        what each gives to the device.
    """
    streamed = list(explainer.generate(prompt, method, max_new_tokens=num_tokens))
    last = streamed[-1].attribution
    ids = [*last.row.ids, last.target.index]
    prompt_row = streamed[0].attribution.row
    num_new = len(streamed)

    def run_cached() -> None:
        generate_cached(explainer, prompt_row, num_new)

    def run_forced() -> None:
        generate_forced(explainer, ids, len(prompt_row))

    def run_stream() -> None:
        for _ in explainer.generate(prompt, method, max_new_tokens=num_tokens):
            pass

    cached = measure_seconds(run_cached, repeats)
    forced = measure_seconds(run_forced, repeats)
    for route in routes:
        with forced_route(route):
            stream = measure_seconds(run_stream, repeats)
            stream_work = count_work(explainer, run_stream, num_new)
        yield {
            "model": explainer.name,
            "method": last.method,
            "prompt_tokens": len(prompt_row),
            "new_tokens": num_new,
            "route": route,
            "ms_per_token": {
                "cached generation": 1000 * cached / num_new,
                "teacher-forced generation": 1000 * forced / num_new,
                "explained stream": 1000 * stream / num_new,
            },
            "over_teacher_forced": stream / forced,
            "over_cached": stream / cached,
            "work_per_token": {
                "cached generation": count_work(explainer, run_cached, num_new),
                "teacher-forced generation": count_work(explainer, run_forced, num_new),
                "explained stream": stream_work,
            },
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
