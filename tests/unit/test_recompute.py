"""Blocks computed again on the way back: the same numbers, and only where memory asks for it."""

from __future__ import annotations

import pytest
import torch

from tests.families import build
from tests.tiny import randomised
from tests.tolerance import close
from tokenlight import Explainer, Tokens
from tokenlight.capture.rewired import NOTE, blocks_of
from tokenlight.explaining import batch

IDS = torch.randint(5, 120, (1, 12), generator=torch.Generator().manual_seed(2))
METHODS = ["attcat", "attnlrp", "cp_lrp", "grad_x_input", "cat"]


@pytest.fixture
def short_of_memory(monkeypatch):
    """A device on which no pass fits unless its blocks are computed again."""
    own, seen = batch.record, []

    def record(*given, recompute=False, **named):
        seen.append(recompute)
        if not recompute:
            raise torch.OutOfMemoryError("on purpose")
        return own(*given, recompute=recompute, **named)

    monkeypatch.setattr(batch, "record", record)
    return seen


@pytest.mark.parametrize("family", ["bert", "llama", "gpt2", "gemma2"])
@pytest.mark.parametrize("method", [*METHODS, ["attcat", "attnlrp"]], ids=str)
def test_a_pass_that_memory_does_not_hold_gives_the_same_scores(family, method, request):
    model = randomised(build(family), torch.float64)
    asked = method if isinstance(method, list) else [method]
    expected = Explainer(model).explain(Tokens.from_ids(IDS), asked, target=1)
    seen = request.getfixturevalue("short_of_memory")
    for _ in range(2):  # watched for strangers, and not
        found = Explainer(model).explain(Tokens.from_ids(IDS), asked, target=1)
        for ours, theirs in zip(found, expected, strict=True):
            close(ours.scores, theirs.scores)
            assert NOTE in ours.notes
            assert NOTE not in theirs.notes
    assert seen == [False, True] * 2
    assert all("forward" not in vars(module) for module in model.modules())


def test_the_graph_of_a_block_is_not_kept():
    model = randomised(build("llama"), torch.float64)
    live = Explainer(model).live
    rows = Tokens.from_ids(IDS).rows
    sites = frozenset().union(*(m.sites for m in Explainer(model)._methods("grad_x_input", 0)))
    held = []
    for recompute in (False, True):
        kept = []

        def pack(tensor, kept=kept):
            kept.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            batch.record(live, rows, sites, recompute=recompute)
        held.append(sum(kept))
    assert blocks_of(model)
    assert held[1] < held[0] / 4
