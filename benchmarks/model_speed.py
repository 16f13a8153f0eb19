"""Time whole explain() calls as multiples of the bare model's forward and backward pass.

Every row is a ratio of medians measured in one process: explain() / bare, with peak memory (GPU only). The
bare pass is forward and backward to the embeddings by the model's own SDPA; weights are frozen in both.
Models are random: cost does not depend on what they have learned.

For a whole data set, the time from texts to Attributions is compared with tokenizing and a hand-written loop
of bare passes.

    python benchmarks/model_speed.py                                        # rows that make sense on a CPU
    python benchmarks/model_speed.py --device cuda --texts FILE --json FILE # all rows
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from machine import facts

import tokenlight
from tokenlight import Explainer, Tokens

ONE_PASS = [
    "raw_att", "rollout", "grads", "att_grads", "grad_sam", "att_gradcam", "cam", "gae", "cat",
    "attcat", "gradcam", "grad_x_input", "random",
]  # fmt: skip
# Layers, hidden size, intermediate size, heads, key-value heads, vocabulary.
LLAMAS = {
    "Llama tiny": (4, 256, 688, 8, 4, 1000),
    "Llama 1B": (16, 2048, 8192, 32, 8, 32000),
    "Llama 8B": (32, 4096, 14336, 32, 8, 128256),
}


SMALL_BERT = {
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_attention_heads": 4,
}
LONG_CALL_SECONDS = 12.0  # such a call is timed once
# A GPU captures a pass when its shape has come three times; warm-up calls stop after some seconds.
NUM_WARM_UP_CALLS = 5
MAX_WARM_UP_SECONDS = 6.0
MIN_CALLS = 3
MAX_CALLS = 40
ONE_PASS_LABEL = "13 one-pass methods"


class CallCost(NamedTuple):
    """What a call costs.

    Attributes:
        seconds: Median time.
        peak_bytes: Peak memory above what was allocated before; 0 on a CPU.
    """

    seconds: float
    peak_bytes: int


class ModelRows(NamedTuple):
    """Rows of one model.

    Attributes:
        name: Name of the model.
        build: Builds the model with weights of a dtype.
        dtype: The dtype.
        shapes: Batch size and length with the methods measured there.
    """

    name: str
    build: Callable[[torch.dtype], Any]
    dtype: torch.dtype
    shapes: list[tuple[tuple[int, int], list[Any]]]


def build_llama(name: str, device: str, dtype: torch.dtype) -> Any:
    """Build a Llama with random weights, of a shape in ``LLAMAS``."""
    layers, hidden_size, intermediate_size, heads, key_heads, vocabulary = LLAMAS[name]
    config = transformers.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        max_position_embeddings=1 << 18,
        rope_theta=5e5,
        pad_token_id=0,
        attn_implementation="sdpa",
    )
    return build_random_model(transformers.LlamaForCausalLM, config, device, dtype)


def build_bert(device: str, dtype: torch.dtype) -> Any:
    """Build a classifier of the shape of BERT-base with random weights."""
    config = transformers.BertConfig(num_labels=2, attn_implementation="sdpa")
    return build_random_model(transformers.BertForSequenceClassification, config, device, dtype)


def build_random_model(model_class: Any, config: Any, device: str, dtype: torch.dtype) -> Any:
    """Build a model with frozen random weights, directly on its device."""
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model = model_class(config)
    finally:
        torch.set_default_dtype(torch.float32)
    return model.eval().requires_grad_(False)


def is_causal(model: Any) -> bool:
    """Return whether the model predicts the next token."""
    return hasattr(model, "lm_head")


def run_bare_pass(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Run forward and backward to the embeddings; return gradient × input, ``batch token``."""
    embeddings = model.get_input_embeddings()(ids).detach().requires_grad_(True)
    if is_causal(model):
        output = model(
            inputs_embeds=embeddings, attention_mask=None, use_cache=False, logits_to_keep=1
        )
    else:
        attention_mask = torch.ones_like(ids)
        output = model(inputs_embeds=embeddings, attention_mask=attention_mask, use_cache=False)
    logits = output.logits
    target = logits[:, -1, 7] if logits.dim() == 3 else logits[:, 1]
    (gradient,) = torch.autograd.grad(target.sum(), embeddings)
    return (gradient * embeddings.detach()).sum(dim=-1).float().cpu()


def time_call(call: Callable[[], Any], device: str) -> float:
    """Return the seconds of one call, until the device is done."""
    start_time = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start_time


def reset_memory(device: str) -> int:
    """Free what is not in use, reset the peak, and return the allocated bytes; 0 on a CPU."""
    gc.collect()
    if device != "cuda":
        return 0
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def measure_call(
    call: Callable[[], Any],
    device: str,
    seconds: float = 1.0,
    num_warm_up_calls: int = NUM_WARM_UP_CALLS,
) -> CallCost:
    """Measure a call after warm-up calls.

    Args:
        call: What is measured.
        device: Name of a torch device.
        seconds: Time for repeated calls, of which there are 3 to 40.
        num_warm_up_calls: Calls that are not measured; a long call is measured without.

    Returns:
        Median time and peak memory.
    """
    start_bytes = reset_memory(device)
    first_seconds = time_call(call, device)
    call_seconds = [first_seconds]
    if first_seconds < LONG_CALL_SECONDS:
        warm_up_seconds = 0.0
        for _ in range(num_warm_up_calls):
            if warm_up_seconds < MAX_WARM_UP_SECONDS:
                warm_up_seconds += time_call(call, device)
        start_bytes = reset_memory(device)
        call_seconds = _repeat_call(call, device, seconds)
    peak_bytes = 0
    if device == "cuda":
        peak_bytes = torch.cuda.max_memory_allocated() - start_bytes
    return CallCost(statistics.median(call_seconds), peak_bytes)


def _repeat_call(call: Callable[[], Any], device: str, seconds: float) -> list[float]:
    """Time repeated calls; a call that has become long is not repeated."""
    end_time = time.perf_counter() + seconds
    call_seconds = [time_call(call, device)]
    if call_seconds[0] >= LONG_CALL_SECONDS:
        return call_seconds
    while len(call_seconds) < MIN_CALLS or (
        time.perf_counter() < end_time and len(call_seconds) < MAX_CALLS
    ):
        call_seconds.append(time_call(call, device))
    return call_seconds


def try_to_measure(call: Callable[[], Any], device: str) -> CallCost | str:
    """Measure a call, or return why it failed."""
    try:
        return measure_call(call, device)
    except Exception as error:  # noqa: BLE001 - a row that cannot be measured says why
        reason = f"{type(error).__name__}: {str(error)[:100]}"
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
    return reason


def list_models(kinds: list[str], device: str) -> Iterator[ModelRows]:
    """Yield the models of each kind of row with their shapes and methods."""
    methods: list[Any] = ["attcat", "attnlrp", "grad_x_input"]
    if "cpu" in kinds:
        build: Callable[[torch.dtype], Any] = partial(build_llama, "Llama tiny", device)
        yield ModelRows("Llama tiny", build, torch.float32, [((1, 2048), methods)])
    if "encoder" in kinds:
        encoder_methods: list[Any] = ["attcat", ONE_PASS, "transatt", "attnlrp"]
        encoder_shapes = [
            ((64, 32), encoder_methods),
            ((64, 128), encoder_methods),
            ((256, 128), encoder_methods[:2]),
        ]
        for dtype in (torch.bfloat16, torch.float32):
            yield ModelRows("BERT-base", partial(build_bert, device), dtype, encoder_shapes)
    for name, kind, lengths in (
        ("Llama 1B", "long", (16384, 65536, 131072)),
        ("Llama 8B", "llm", (512, 2048, 8192)),
    ):
        if kind not in kinds:
            continue
        shapes = []
        for length in lengths:
            attention_methods = ["gae", "transatt"] if length == 2048 else []
            shapes.append(((1, length), [*methods, *attention_methods]))
        yield ModelRows(name, partial(build_llama, name, device), torch.bfloat16, shapes)


def describe_cost(cost: CallCost | str, bare: CallCost | str) -> dict[str, Any]:
    """Return the columns of a row: milliseconds and GB, and both as multiples of the bare pass."""
    if isinstance(cost, str):
        return {"failed": cost}
    columns: dict[str, Any] = {
        "ms": round(cost.seconds * 1e3, 2),
        "GB": round(cost.peak_bytes / 1e9, 3),
    }
    if not isinstance(bare, str):
        columns["time"] = round(cost.seconds / bare.seconds, 3)
        columns["memory"] = None
        if bare.peak_bytes:
            columns["memory"] = round(cost.peak_bytes / bare.peak_bytes, 3)
    return columns


def measure_models(kinds: list[str], device: str) -> Iterator[dict[str, Any]]:
    """Yield a row for the bare pass and for each method, of every model and shape."""
    for name, build, dtype, shapes in list_models(kinds, device):
        model = build(dtype)
        explainer = Explainer(model)
        target = 7 if is_causal(model) else 1
        for (batch_size, length), methods in shapes:
            ids = torch.randint(5, 900, (batch_size, length), device=device)
            tokens = Tokens.from_ids(ids, torch.ones_like(ids))
            row = {
                "model": name,
                "dtype": name_dtype(dtype),
                "shape": f"{batch_size}x{length}",
            }
            bare = try_to_measure(partial(run_bare_pass, model, ids), device)
            yield {**row, "method": "bare", **describe_cost(bare, bare)}
            for method in methods:
                # All rows in one batch, as in the bare pass.
                call = partial(
                    explainer.explain, tokens, method, batch_tokens=ids.numel(), target=target
                )
                cost = try_to_measure(call, device)
                label = ONE_PASS_LABEL if isinstance(method, list) else method
                yield {**row, "method": label, **describe_cost(cost, bare)}
        del model, explainer
        reset_memory(device)


def name_dtype(dtype: torch.dtype) -> str:
    """Return the name of a dtype, such as "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def load_tokenizer() -> Any:
    """Load the tokenizer of an embedded model, without its weights."""
    folder = Path(tokenlight.__file__).parent / "models" / "sentiment"
    return transformers.AutoTokenizer.from_pretrained(folder)


def draw_texts(tokenizer: Any, count: int) -> list[str]:
    """Draw texts of random words, as long as sentences and paragraphs are."""
    generator = random.Random(0)
    words = sorted(word for word in tokenizer.get_vocab() if word.isalpha())
    lengths = []
    for _ in range(count):
        length = round(generator.lognormvariate(3.4, 0.7))
        lengths.append(min(200, max(3, length)))
    return [" ".join(generator.choices(words, k=length)) for length in lengths]


def explain_by_hand(
    model: Any, tokenizer: Any, texts: list[str], device: str, batch_tokens: int
) -> list[Any]:
    """Compute gradient × input in the loop that a user would write.

    Tokenizes all texts, sorts them by length and runs one bare pass per batch.

    Args:
        model: A sequence classifier.
        tokenizer: Its tokenizer.
        texts: The texts.
        device: Name of a torch device.
        batch_tokens: Tokens of a batch, with padding.

    Returns:
        Scores of each text, ``token``.
    """
    ids = tokenizer(texts)["input_ids"]
    order = sorted(range(len(ids)), key=lambda index: -len(ids[index]))
    scores_by_text: list[Any] = [None] * len(ids)
    while order:
        width = len(ids[order[0]])
        batch_size = max(1, batch_tokens // width)
        batch = order[:batch_size]
        order = order[batch_size:]
        rows = [torch.tensor(ids[index]) for index in batch]
        input_ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device)
        lengths = torch.tensor([len(row) for row in rows])
        attention_mask = (torch.arange(width) < lengths[:, None]).long().to(device)
        embeddings = model.get_input_embeddings()(input_ids).detach().requires_grad_(True)
        logits = model(inputs_embeds=embeddings, attention_mask=attention_mask).logits
        (gradient,) = torch.autograd.grad(logits.amax(dim=-1).sum(), embeddings)
        scores = (gradient * embeddings.detach()).sum(dim=-1).float().cpu().numpy()
        for row, index in enumerate(batch):
            scores_by_text[index] = scores[row, : len(ids[index])]
    return scores_by_text


def measure_data_set(device: str, file: Path | None) -> Iterator[dict[str, Any]]:
    """Yield rows of a whole data set: a hand-written loop, and explain() of a list and of a stream."""
    tokenizer = load_tokenizer()
    texts = file.read_text("utf-8").splitlines() if file else draw_texts(tokenizer, 64)
    dtypes = (torch.bfloat16, torch.float32) if device == "cuda" else (torch.float32,)
    for dtype in dtypes:
        yield from _measure_texts(tokenizer, texts, device, dtype)


def _measure_texts(
    tokenizer: Any, texts: list[str], device: str, dtype: torch.dtype
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a data set in one dtype."""
    is_cuda = device == "cuda"
    config = transformers.BertConfig(
        num_labels=2,
        vocab_size=len(tokenizer),
        attn_implementation="sdpa",
        **({} if is_cuda else SMALL_BERT),
    )
    model = build_random_model(transformers.BertForSequenceClassification, config, device, dtype)
    explainer = Explainer(model, tokenizer)
    row = {
        "model": "BERT-base" if is_cuda else "BERT, 4 layers, 256 wide",
        "dtype": name_dtype(dtype),
        "shape": f"{len(texts)} texts",
    }
    loop_milliseconds = []
    for batch_tokens in list_loop_batch_tokens(device, dtype):
        call = partial(explain_by_hand, model, tokenizer, texts, device, batch_tokens)
        loop_milliseconds.append(measure_long_call(call, device)["ms"])
    bare_milliseconds = min(loop_milliseconds)
    yield {**row, "method": "tokenising and a loop", "ms": bare_milliseconds, "time": 1.0}
    calls: dict[str, Callable[[], Any]] = {
        "attcat, list": partial(explainer.explain, texts, "attcat", progress=False),
        "attcat, stream": lambda: deque(explainer.explain(iter(texts), "attcat"), 0),
    }
    for label, call in calls.items():
        times = measure_long_call(call, device)
        ratio = round(times["ms"] / bare_milliseconds, 3)
        texts_per_second = round(1e3 * len(texts) / times["ms"])
        yield {
            **row,
            "method": label,
            **times,
            "time": ratio,
            "texts a second": texts_per_second,
        }


def list_loop_batch_tokens(device: str, dtype: torch.dtype) -> tuple[int, ...]:
    """List the batch sizes of the hand-written loop; its fastest is what explain() is compared with."""
    if dtype == torch.bfloat16:
        return (16384, 65536)
    return (16384,) if device == "cuda" else (2048,)


def measure_long_call(call: Callable[[], Any], device: str) -> dict[str, float]:
    """Return milliseconds of a long call.

    The first call, in which kernels may be compiled and planned, is told apart from the median of the
    others.
    """
    call_seconds: list[float] = []
    while len(call_seconds) < 2 or (
        len(call_seconds) < 4 and call_seconds[-1] < LONG_CALL_SECONDS / 3
    ):
        call_seconds.append(time_call(call, device))
    first, *others = (round(1e3 * seconds, 1) for seconds in call_seconds)
    return {"ms": statistics.median(others), "first call ms": first}


def main() -> None:
    """Measure and print a row per model, shape and method."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--rows", default=None, help="cpu, encoder, dataset, llm, long; separated by commas"
    )
    parser.add_argument("--texts", type=Path, help="one per line, for the rows of a whole data set")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    all_kinds = "cpu,dataset" if arguments.device == "cpu" else "encoder,dataset,llm,long"
    kinds = (arguments.rows or all_kinds).split(",")
    print("| model | dtype | shape | method | time / bare | memory / bare | ms | GB |")
    print("|---|---|---|---|---|---|---|---|")
    rows = []
    data_set_rows: Iterator[dict[str, Any]] = iter(())
    if "dataset" in kinds:
        data_set_rows = measure_data_set(arguments.device, arguments.texts)
    for row in chain(data_set_rows, measure_models(kinds, arguments.device)):
        rows.append(row)
        cells = [row["model"], row["dtype"], row["shape"], row["method"]]
        for column in ("time", "memory", "ms", "GB"):
            cells.append(row.get(column, row.get("failed", "")))
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)
        if arguments.json:
            content = {"facts": facts(arguments.device, weights="frozen in both"), "rows": rows}
            arguments.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
