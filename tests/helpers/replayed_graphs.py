"""A stand-in for CUDA graphs on machines without a GPU."""

from contextlib import nullcontext

import pytest
import torch

from tokenlight.accel import graphs


def stand_in_for_graphs(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Let a device capture graphs that leave the captured outputs as they are.

    Args:
        monkeypatch: Puts everything back after the test.

    Returns:
        The graphs replayed so far, one entry per replay.
    """
    replayed: list[object] = []

    class UnchangingGraph:
        def replay(self) -> None:
            replayed.append(self)

    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", UnchangingGraph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (8 << 30, 16 << 30))
    # On a machine with a GPU the real one would ask for the replaced class above.
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 0)
    monkeypatch.setattr(graphs, "_capturing_graph", lambda *_: nullcontext())
    return replayed
