"""Count what explanations ask of a device, without one: operations, bytes and products beside the bare pass.

    python benchmarks/operation_counts.py --json docs/results/cost/operation_counts.json
    python benchmarks/operation_counts.py --methods transatt --details 15     # which operations take part

The counts need no GPU and are the same in every run, so that a regression shows before anything is timed. A
small BERT and a small Llama run on the CPU, in float32 and in bfloat16, with the products of half-precision
matrices that a GPU computes. What is not the same as on a GPU: Triton kernels do not run, so attention maps
are kept, and fused attention is counted as the operations that the CPU uses for it.

Each count is a ratio to the bare forward and backward pass on frozen weights:

* operations: calls of ATen operations that compute something (views are free);
* bytes: the sizes of their inputs and outputs, which is what a device reads and writes without fusion;
* products: multiplications in matrix products;
* peak: the most bytes of tensors that were alive at the same time, made after the start.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import transformers
from machine import facts
from model_speed import ONE_PASS, ONE_PASS_LABEL, run_bare_pass
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.helpers.live_bytes import LiveBytes
from tokenlight import Explainer, Tokens
from tokenlight.accel import half_precision
from tokenlight.lrp import rules

METHODS: dict[str, Any] = {
    "attcat": "attcat",
    ONE_PASS_LABEL: ONE_PASS,
    "attnlrp": "attnlrp",
    "lrp": "lrp",
    "mask_lrp": "mask_lrp",
    "transatt": "transatt",
}
# Names of ATen operations that multiply matrices, or fused attention, whose products are counted.
PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "multiply_half_precision")
# These neither read nor write memory.
FREE = ("_unsafe_view", "detach", "empty", "empty_like", "empty_strided", "new_empty")
NUM_WARM_UP_CALLS = 1  # the first call verifies the model


class Shape(NamedTuple):
    """A model and a batch.

    Attributes:
        model: "BERT" or "Llama".
        num_texts: Rows of the batch.
        num_tokens: Tokens of each row.
    """

    model: str
    num_texts: int
    num_tokens: int


SHAPES = (Shape("BERT", 8, 64), Shape("BERT", 1, 256), Shape("Llama", 1, 256))


@torch.library.custom_op("tokenlight_counts::multiply_half_precision", mutates_args=())
def _multiply_half_precision(first: Tensor, second: Tensor) -> Tensor:
    """Stand in for one product of half-precision matrices with a result in float32."""
    return torch.mm(first.float(), second.float())


def _supports_half_precision(first: Tensor, second: Tensor) -> bool:
    is_half = first.dtype == second.dtype and first.dtype in half_precision.HALF_DTYPES
    return is_half and first.dim() == second.dim() == 2


@contextmanager
def half_products_as_on_a_gpu() -> Iterator[None]:
    """Multiply matrices of half precision by the path of a GPU inside the block, each in one operation."""
    with (
        mock.patch.object(rules, "supports_half_precision", _supports_half_precision),
        mock.patch.object(half_precision, "multiply_half_precision", _multiply_half_precision),
        mock.patch.object(rules, "multiply_half_precision", _multiply_half_precision),
    ):
        yield


class OperationCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count the operations inside the block that compute something.

    Attributes:
        calls: By name: how often it was called.
        num_bytes: By name: the bytes of its inputs and outputs.
        num_multiplications: Multiplications in matrix products.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[str] = Counter()
        self.num_bytes: Counter[str] = Counter()
        self.num_multiplications = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        # A tensor given as ``out`` is written, not read.
        read = {name: value for name, value in (kwargs or {}).items() if name != "out"}
        inputs = _list_tensors((args, read))
        outputs = _list_tensors(output)
        name = func.overloadpacket.__name__
        if not func.is_view and outputs and name not in FREE:
            dtypes = "/".join(sorted({str(t.dtype).removeprefix("torch.") for t in outputs}))
            self.calls[f"{name} {dtypes}"] += 1
            self.num_bytes[f"{name} {dtypes}"] += sum(map(_count_bytes, (*inputs, *outputs)))
            self._count_multiplications(name, inputs, outputs)
        return output

    def _count_multiplications(
        self, name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> None:
        if name in PRODUCTS:
            # The last input is the second factor, whose rows are summed over.
            self.num_multiplications += outputs[0].numel() * inputs[-1].shape[-2]
        elif "scaled_dot_product" in name:
            query, key = [tensor for tensor in inputs if tensor.dim() == 4][:2]
            # Two products forwards; backwards there are five, one of them computed again.
            num_products = 5 if "backward" in name else 2
            self.num_multiplications += num_products * query.numel() * key.shape[-2]


def _list_tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _count_bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


class PassCounts(NamedTuple):
    """What one call asks of a device."""

    operations: int
    num_bytes: int
    multiplications: int
    peak_bytes: int


def count_call(call: Callable[[], Any]) -> tuple[PassCounts, OperationCounter]:
    """Count a call, after others that fill caches."""
    for _ in range(NUM_WARM_UP_CALLS):
        call()
    with OperationCounter() as counter:
        call()
    with LiveBytes() as live:
        call()
    counts = PassCounts(
        counter.calls.total(), counter.num_bytes.total(), counter.num_multiplications, live.peak
    )
    return counts, counter


def build_model(name: str, dtype: torch.dtype, num_layers: int) -> Any:
    """Build a small random model: as wide as it needs to be for products to outweigh what surrounds them."""
    sizes = {
        "num_hidden_layers": num_layers,
        "hidden_size": 256,
        "intermediate_size": 1024,
        "num_attention_heads": 4,
        "vocab_size": 1000,
    }
    torch.manual_seed(0)
    model: Any
    if name == "BERT":
        config: Any = transformers.BertConfig(num_labels=2, **sizes)
        model = transformers.BertForSequenceClassification(config)
    else:
        config = transformers.LlamaConfig(num_key_value_heads=2, **sizes)
        model = transformers.LlamaForCausalLM(config)
    return model.to(dtype).eval().requires_grad_(False)


def count_methods(
    shape: Shape, dtype: torch.dtype, names: Sequence[str], num_layers: int
) -> Iterator[tuple[str, PassCounts, OperationCounter]]:
    """Yield the counts of the bare pass and of each method."""
    model = build_model(shape.model, dtype, num_layers)
    explainer = Explainer(model)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 900, (shape.num_texts, shape.num_tokens), generator=generator)
    yield "bare", *count_call(lambda: run_bare_pass(model, ids))
    tokens = Tokens.from_ids(ids, torch.ones_like(ids))
    target = 7 if shape.model == "Llama" else 1
    for name in names:
        method = METHODS.get(name, name)

        def explain(method: Any = method) -> Any:
            return explainer.explain(
                tokens, method, target=target, batch_tokens=ids.numel(), progress=False
            )

        with half_products_as_on_a_gpu():
            yield name, *count_call(explain)


def describe(counts: PassCounts, bare: PassCounts) -> dict[str, float]:
    """Return the counts of a method as ratios to the bare pass."""
    return {
        "operations": round(counts.operations / bare.operations, 2),
        "bytes": round(counts.num_bytes / bare.num_bytes, 2),
        "products": round(counts.multiplications / bare.multiplications, 2),
        "peak": round(counts.peak_bytes / bare.peak_bytes, 2),
    }


def print_details(counter: OperationCounter, limit: int) -> None:
    """Print the operations that move most bytes."""
    for name, num_bytes in counter.num_bytes.most_common(limit):
        print(f"    {num_bytes / 1e6:10.1f} MB {counter.calls[name]:6} × {name}")


def main() -> None:
    """Count every method on every shape and dtype."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--details", type=int, default=0, help="print this many operations")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for shape in SHAPES:
        for dtype in (torch.float32, torch.bfloat16):
            bare: PassCounts | None = None
            for name, counts, counter in count_methods(
                shape, dtype, arguments.methods, arguments.layers
            ):
                bare = bare or counts
                row = {
                    "model": shape.model,
                    "dtype": str(dtype).removeprefix("torch."),
                    "shape": f"{shape.num_texts}x{shape.num_tokens}",
                    "method": name,
                    **describe(counts, bare),
                }
                rows.append(row)
                print(*row.values(), flush=True)
                print_details(counter, arguments.details)
    if arguments.json:
        content = {"facts": facts("cpu"), "layers": arguments.layers, "rows": rows}
        arguments.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
