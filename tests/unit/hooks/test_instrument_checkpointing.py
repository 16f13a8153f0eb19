"""Blocks computed again in the backward pass: the same scores, and only where memory is short."""

from __future__ import annotations

import pytest
import torch

from tests.helpers.families import build_model
from tests.helpers.tiny import randomize_weights
from tests.helpers.tolerance import assert_close
from tokenlight import Explainer, Tokens
from tokenlight.explaining import batches
from tokenlight.explaining.calls import resolve_methods
from tokenlight.hooks.blocks import RECOMPUTED_NOTE, list_blocks

IDS = torch.randint(5, 120, (1, 12), generator=torch.Generator().manual_seed(2))
METHODS = ["attcat", "attnlrp", "cp_lrp", "grad_x_input", "cat"]


@pytest.fixture
def short_of_memory(monkeypatch):
    """A device on which no pass fits unless its blocks are computed again: ``recompute`` of each call."""
    original_record = batches.record
    calls = []

    def record(*args, recompute="nothing", **kwargs):
        calls.append(recompute)
        if recompute == "nothing":
            raise torch.OutOfMemoryError("on purpose")
        return original_record(*args, recompute=recompute, **kwargs)

    monkeypatch.setattr(batches, "record", record)
    return calls


@pytest.mark.parametrize("family", ["bert", "llama", "gpt2", "gemma2"])
@pytest.mark.parametrize("method", [*METHODS, ["attcat", "attnlrp"]], ids=str)
def test_a_pass_that_does_not_fit_in_memory_gives_the_same_scores(family, method, request):
    model = randomize_weights(build_model(family), torch.float64)
    methods = method if isinstance(method, list) else [method]
    expected = Explainer(model).explain(Tokens.from_ids(IDS), methods, target=1)
    recompute_calls = request.getfixturevalue("short_of_memory")
    for _ in range(2):  # with and without a check of the operations
        attributions = Explainer(model).explain(Tokens.from_ids(IDS), methods, target=1)
        for actual, reference in zip(attributions, expected, strict=True):
            assert_close(actual.scores, reference.scores)
            assert RECOMPUTED_NOTE in actual.notes
            assert RECOMPUTED_NOTE not in reference.notes
    assert recompute_calls == ["nothing", "maps and blocks"] * 2
    assert all("forward" not in vars(module) for module in model.modules())


def test_the_graph_of_a_block_is_not_kept():
    model = randomize_weights(build_model("llama"), torch.float64)
    runner = Explainer(model).runner
    rows = Tokens.from_ids(IDS).rows
    sites = frozenset().union(
        *(m.recorded_sites for m in resolve_methods(Explainer(model), "grad_x_input", 0))
    )
    saved_elements = []
    for recompute in ("nothing", "maps and blocks"):
        sizes = []

        def pack(tensor, sizes=sizes):
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            batches.record(runner, rows, sites, recompute=recompute)
        saved_elements.append(sum(sizes))
    assert list_blocks(model)
    assert saved_elements[1] < saved_elements[0] / 4
