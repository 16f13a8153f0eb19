"""What explanations ask of a device is counted, so that a regression shows without one."""

import operation_counts
import pytest
import torch
from operation_counts import METHODS, PassCounts, Shape, count_methods, describe

from tokenlight.lrp import rules

NUM_LAYERS = 4
# The most bytes that a method reads and writes, and operations that it launches, as multiples of the bare
# pass: a tenth above what was counted. Relevance by rules moved 12 to 14 times the bytes before its rules
# read half precision as it is.
LIMITS = {
    Shape("BERT", 8, 64): {
        "attcat": (1.5, 1.9),
        "13 one-pass methods": (2.4, 4.0),
        "attnlrp": (1.6, 1.9),
        "lrp": (11.0, 9.4),
        "transatt": (11.9, 10.5),
    },
    Shape("Llama", 1, 256): {"lrp": (11.3, 7.5), "transatt": (13.2, 8.9)},
}


@pytest.mark.parametrize("shape", LIMITS, ids=lambda shape: shape.model)
def test_methods_ask_no_more_of_a_device_than_they_did(shape):
    limits = LIMITS[shape]
    bare = None
    for name, counts, _ in count_methods(shape, torch.bfloat16, list(limits), NUM_LAYERS):
        bare = bare or counts
        if name == "bare":
            continue
        max_bytes, max_operations = limits[name]
        ratios = describe(counts, bare)
        assert ratios["bytes"] <= max_bytes, name
        assert ratios["operations"] <= max_operations, name


def test_an_operation_counts_what_it_reads_and_writes():
    matrix = torch.ones(4, 8)
    vector = torch.ones(8, 1)
    with operation_counts.OperationCounter() as counter:
        product = torch.mm(matrix, vector)
        product.add_(1.0)
        product.view(2, 2)  # a view is free
        torch.mul(product, 2.0, out=torch.empty(4, 1))  # what is written over is not read
    assert counter.num_bytes == {
        "mm float32": 4 * (32 + 8 + 4),
        "add_ float32": 4 * (4 + 4),
        "mul float32": 4 * (4 + 4),
    }
    assert counter.num_multiplications == 4 * 8


def test_products_of_half_precision_take_the_path_of_a_gpu_only_inside_the_block():
    matrix = torch.ones(2, 2, dtype=torch.bfloat16)
    assert not rules.supports_half_precision(matrix, matrix)
    with operation_counts.half_products_as_on_a_gpu():
        assert rules.supports_half_precision(matrix, matrix)
        assert rules.multiply_half_precision(matrix, matrix).tolist() == [[2.0, 2.0], [2.0, 2.0]]
    assert not rules.supports_half_precision(matrix, matrix)


def test_counts_are_described_as_multiples_of_the_bare_pass():
    ratios = describe(PassCounts(30, 50, 20, 11), PassCounts(10, 20, 10, 10))
    assert ratios == {"operations": 3.0, "bytes": 2.5, "products": 2.0, "peak": 1.1}
    assert "transatt" in METHODS
