"""As fast as the model itself? Whole explain() calls over the bare model's forward + backward.

Every row is a ratio of medians measured in one process: ours / bare, with peak memory (GPU only). The
bare pass is forward + backward to the embeddings by the model's own SDPA; weights are frozen in both.
Models are random: cost does not depend on what they have learned.

A whole data set is texts in, Attributions out, over tokenising and a loop of bare passes written by hand.

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
from typing import Any

import torch
import transformers
from machine import facts

import tokenlight
from tokenlight import Explainer, Tokens

ONE_PASS = [
    "raw_att", "rollout", "grads", "att_grads", "grad_sam", "att_gradcam", "cam", "gae", "cat",
    "attcat", "gradcam", "grad_x_input", "random",
]  # fmt: skip
# layers, width, inner width, heads, key heads, vocabulary
LLAMAS = {
    "Llama tiny": (4, 256, 688, 8, 4, 1000),
    "Llama 1B": (16, 2048, 8192, 32, 8, 32000),
    "Llama 8B": (32, 4096, 14336, 32, 8, 128256),
}


def llama(name: str, device: str, dtype: torch.dtype) -> Any:
    layers, width, inner, heads, keys, vocabulary = LLAMAS[name]
    config = transformers.LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=keys, max_position_embeddings=1 << 18,
        rope_theta=5e5, pad_token_id=0, attn_implementation="sdpa",
    )  # fmt: skip
    return made(transformers.LlamaForCausalLM, config, device, dtype)


def bert(device: str, dtype: torch.dtype) -> Any:
    config = transformers.BertConfig(num_labels=2, attn_implementation="sdpa")
    return made(transformers.BertForSequenceClassification, config, device, dtype)


def made(cls: Any, config: Any, device: str, dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model = cls(config)
    finally:
        torch.set_default_dtype(torch.float32)
    return model.eval().requires_grad_(False)


def bare(model: Any, ids: torch.Tensor) -> torch.Tensor:
    embeddings = model.get_input_embeddings()(ids).detach().requires_grad_(True)
    more = {"logits_to_keep": 1} if hasattr(model, "lm_head") else {}
    mask = None if hasattr(model, "lm_head") else torch.ones_like(ids)
    logits = model(inputs_embeds=embeddings, attention_mask=mask, use_cache=False, **more).logits
    target = logits[:, -1, 7] if logits.dim() == 3 else logits[:, 1]
    (gradient,) = torch.autograd.grad(target.sum(), embeddings)
    return (gradient * embeddings.detach()).sum(dim=-1).float().cpu()


LONG = 12.0  # seconds; such a call is timed once
# Calls before, and seconds that they may take: a GPU records a pass when its shape has come three times.
WARM = 5
WARMED = 6.0


def timed(
    call: Callable[[], Any], device: str, seconds: float = 1.0, warm: int = WARM
) -> tuple[float, float]:
    """Median seconds of a call, and its peak memory in bytes above what was there before. ``warm``: how
    often it is called first."""

    def once() -> float:
        begin = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    def fresh() -> int:
        gc.collect()
        if device != "cuda":
            return 0
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()

    base = fresh()
    times = [once()]
    if times[0] < LONG:  # else it is not for warming up
        warmed = 0.0
        for _ in range(warm):
            warmed += once() if warmed < WARMED else 0.0
        base = fresh()
        times = []
    since = time.perf_counter()
    while times[:1] < [LONG] and (
        len(times) < 3 or (time.perf_counter() - since < seconds and len(times) < 40)
    ):
        times.append(once())
    peak = torch.cuda.max_memory_allocated() - base if device == "cuda" else 0
    return statistics.median(times), peak


def rows_of(kinds: list[str], device: str) -> Iterator[tuple[str, Any, torch.dtype, list[Any]]]:
    """Name, model maker, dtype, and (shape, methods) of each row."""
    if "cpu" in kinds:
        shapes = [((1, 2048), ["attcat", "attnlrp", "grad_x_input"])]
        yield "Llama tiny", lambda t: llama("Llama tiny", device, t), torch.float32, shapes
    if "encoder" in kinds:
        for dtype in (torch.bfloat16, torch.float32):
            methods = ["attcat", ONE_PASS, "transatt", "attnlrp"]
            yield "BERT-base", lambda t: bert(device, t), dtype, [
                ((64, 32), methods), ((64, 128), methods), ((256, 128), methods[:2]),
            ]  # fmt: skip
    for name, kind, lengths in (
        ("Llama 1B", "long", (16384, 65536, 131072)),
        ("Llama 8B", "llm", (512, 2048, 8192)),
    ):
        if kind in kinds:
            methods = ["attcat", "attnlrp", "grad_x_input"]
            shapes = [((1, n), [*methods, *(["gae", "transatt"] * (n == 2048))]) for n in lengths]
            yield name, lambda t, name=name: llama(name, device, t), torch.bfloat16, shapes


def ratio(ours: tuple[float, float] | str, base: tuple[float, float] | str) -> dict[str, Any]:
    if isinstance(ours, str):
        return {"failed": ours}
    found = {"ms": round(ours[0] * 1e3, 2), "GB": round(ours[1] / 1e9, 3)}
    if not isinstance(base, str):
        found["time"] = round(ours[0] / base[0], 3)
        found["memory"] = round(ours[1] / base[1], 3) if base[1] else None
    return found


def tried(call: Callable[[], Any], device: str, warm: int = WARM) -> tuple[float, float] | str:
    try:
        return timed(call, device, warm=warm)
    except Exception as failed:  # noqa: BLE001 - a row that cannot be measured says why
        reason = f"{type(failed).__name__}: {str(failed)[:100]}"
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
    return reason


def explained(explainer: Explainer, tokens: Tokens, method: Any, target: int) -> Callable[[], Any]:
    """A call of explain() that takes all rows at once."""
    budget = sum(len(row) for row in tokens.rows)
    return partial(explainer.explain, tokens, method, batch_tokens=budget, target=target)


def measured(kinds: list[str], device: str) -> Iterator[dict[str, Any]]:
    for name, make, dtype, shapes in rows_of(kinds, device):
        model = make(dtype)
        explainer = Explainer(model)
        for (batch, length), methods in shapes:
            ids = torch.randint(5, 900, (batch, length), device=device)
            base = tried(partial(bare, model, ids), device)
            tokens = Tokens.from_ids(ids, torch.ones_like(ids))
            target = 7 if hasattr(model, "lm_head") else 1
            row = {"model": name, "dtype": str(dtype)[6:], "shape": f"{batch}x{length}"}
            yield {**row, "method": "bare", **ratio(base, base)}
            for method in methods:
                found = tried(explained(explainer, tokens, method, target), device)
                label = "13 one-pass methods" if isinstance(method, list) else method
                yield {**row, "method": label, **ratio(found, base)}
        del model, explainer
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()


SMALL = {
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_attention_heads": 4,
}


def reading() -> Any:
    """The tokenizer of an embedded model, without its weights."""
    folder = Path(tokenlight.__file__).parent / "models" / "sentiment"
    return transformers.AutoTokenizer.from_pretrained(folder)


def written(tokenizer: Any, count: int) -> list[str]:
    """Texts of random words, as long as sentences and paragraphs are."""
    rng = random.Random(0)
    words = sorted(word for word in tokenizer.get_vocab() if word.isalpha())
    lengths = (min(200, max(3, round(rng.lognormvariate(3.4, 0.7)))) for _ in range(count))
    return [" ".join(rng.choices(words, k=length)) for length in lengths]


def by_hand(model: Any, tokenizer: Any, texts: list[str], device: str, budget: int) -> list[Any]:
    """What somebody would write: tokenise all, sort by length, a bare pass a batch."""
    ids = tokenizer(texts)["input_ids"]
    order = sorted(range(len(ids)), key=lambda i: -len(ids[i]))
    found: list[Any] = [None] * len(ids)
    while order:
        width = len(ids[order[0]])
        pack = order[: max(1, budget // width)]
        order = order[max(1, budget // width) :]
        rows = torch.nn.utils.rnn.pad_sequence(
            [torch.tensor(ids[i]) for i in pack], batch_first=True
        )
        sizes = torch.tensor([len(ids[i]) for i in pack])
        mask = (torch.arange(width) < sizes[:, None]).long().to(device)
        embeddings = model.get_input_embeddings()(rows.to(device)).detach().requires_grad_(True)
        logits = model(inputs_embeds=embeddings, attention_mask=mask).logits
        (gradient,) = torch.autograd.grad(logits.amax(dim=-1).sum(), embeddings)
        scores = (gradient * embeddings.detach()).sum(dim=-1).float().cpu().numpy()
        for row, place in enumerate(pack):
            found[place] = scores[row, : len(ids[place])]
    return found


def data_set(device: str, file: Path | None) -> Iterator[dict[str, Any]]:
    tokenizer = reading()
    texts = file.read_text("utf-8").splitlines() if file else written(tokenizer, 64)
    for dtype in (torch.bfloat16, torch.float32) if device == "cuda" else (torch.float32,):
        size = {} if device == "cuda" else SMALL
        config = transformers.BertConfig(
            num_labels=2, vocab_size=len(tokenizer), attn_implementation="sdpa", **size
        )
        model = made(transformers.BertForSequenceClassification, config, device, dtype)
        explainer = Explainer(model, tokenizer)
        name = "BERT-base" if device == "cuda" else "BERT, 4 layers, 256 wide"
        row = {"model": name, "dtype": str(dtype)[6:], "shape": f"{len(texts)} texts"}
        budgets = (
            (16384, 65536) if dtype == torch.bfloat16 else (16384 if device == "cuda" else 2048,)
        )
        loops = [
            repeated(partial(by_hand, model, tokenizer, texts, device, budget), device)
            for budget in budgets
        ]
        base = min(loop["ms"] for loop in loops)
        yield {**row, "method": "tokenising and a loop", "ms": base, "time": 1.0}
        ways: dict[str, Callable[[], Any]] = {
            "attcat, list": partial(explainer.explain, texts, "attcat", progress=False),
            "attcat, stream": lambda ex=explainer: deque(ex.explain(iter(texts), "attcat"), 0),
        }
        for label, call in ways.items():
            found = repeated(call, device)
            speed = {"texts a second": round(1e3 * len(texts) / found["ms"])}
            yield {**row, "method": label, **found, "time": round(found["ms"] / base, 3), **speed}


def repeated(call: Callable[[], Any], device: str) -> dict[str, float]:
    """Milliseconds of a long call: the first, in which kernels may be compiled and planned, and the median
    of those behind it."""
    times = []
    while len(times) < 2 or (len(times) < 4 and times[-1] < LONG / 3):
        begin = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    first, *others = (round(1e3 * seconds, 1) for seconds in times)
    return {"ms": statistics.median(others), "first call ms": first}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--rows", default=None, help="cpu, encoder, dataset, llm, long; separated by commas"
    )
    parser.add_argument("--texts", type=Path, help="one a line, for the rows of a whole data set")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    everything = "cpu,dataset" if given.device == "cpu" else "encoder,dataset,llm,long"
    kinds = (given.rows or everything).split(",")
    print("| model | dtype | shape | method | time / bare | memory / bare | ms | GB |")
    print("|---|---|---|---|---|---|---|---|")
    rows = []
    dataset = data_set(given.device, given.texts) if "dataset" in kinds else ()
    for row in chain(dataset, measured(kinds, given.device)):
        rows.append(row)
        cells = [row["model"], row["dtype"], row["shape"], row["method"]]
        cells += [row.get(k, row.get("failed", "")) for k in ("time", "memory", "ms", "GB")]
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)
        if given.json:
            content = {"facts": facts(given.device, weights="frozen in both"), "rows": rows}
            given.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
