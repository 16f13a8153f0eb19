"""What Python does around the replay of a graph: the device waits for it, so it is counted."""

import sys
from contextlib import contextmanager, nullcontext

import pytest
import torch

from tests.helpers.tiny import tiny_bert
from tokenlight import Explainer, Tokens
from tokenlight.accel import graphs
from tokenlight.accel.transfer import AsyncTensor
from tokenlight.explaining import memory, replay_batches

ONE_PASS_METHODS = [
    "raw_att", "rollout", "grads", "att_grads", "grad_sam", "att_gradcam", "cam", "gae", "cat",
    "attcat", "gradcam", "grad_x_input",
]  # fmt: skip
NUM_TOKENS = 6


class CallCounter:
    """Counts calls of functions, in Python and in C, in the parts of a replayed call.

    Attributes:
        counts: The calls before the launch, until the first results are read, and until the end.
    """

    def __init__(self):
        self.counts = [0, 0, 0]
        self.part = 0

    def reach(self, part):
        self.part = max(self.part, part)

    @contextmanager
    def counting(self):
        self.counts = [0, 0, 0]
        self.part = 0

        def count(_frame, event, _argument):
            if event in ("call", "c_call"):
                self.counts[self.part] += 1

        profiler = sys.getprofile()
        sys.setprofile(count)
        try:
            yield
        finally:
            sys.setprofile(profiler)


@pytest.fixture
def counter(monkeypatch):
    """A stand-in for a GPU whose graphs leave the captured outputs, and a counter of calls around them."""
    call_counter = CallCounter()

    class UnchangingGraph:
        def replay(self):
            call_counter.reach(1)

    read_values = AsyncTensor.numpy

    def read(self):
        if call_counter.part:
            call_counter.reach(2)
        return read_values(self)

    monkeypatch.setattr(AsyncTensor, "numpy", read)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", UnchangingGraph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (8 << 30, 16 << 30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 0)
    monkeypatch.setattr(graphs, "_capturing_graph", lambda *_: nullcontext())
    # A GPU is not asked for its free memory by maps as small as these.
    monkeypatch.setattr(memory, "measure_free_memory", lambda _: 8 << 30)
    monkeypatch.setattr(replay_batches, "is_on_one_gpu", lambda _: True)
    return call_counter


def count_calls(counter, explainer, num_texts, methods):
    """Count the calls around a replay of ``num_texts`` texts by ``methods``."""
    ids = torch.randint(5, 50, (num_texts, NUM_TOKENS), generator=torch.manual_seed(1))
    rows = Tokens.from_ids(ids, torch.ones_like(ids))

    def explain():
        return explainer.explain(rows, methods, target=1, progress=False)

    # Two eager passes, the capture, the comparison with an eager pass, and one more for every cache.
    for _ in range(5):
        explain()
    with counter.counting():
        explain()
    before_launch, while_computing, after_fetch = counter.counts
    assert while_computing  # it was a replay
    return before_launch, after_fetch


# Most calls of functions for one more text or method, in Python and in C. When they were first counted there
# were 31 and 11 for a text, 202 and 21 for a method, and replays took 1.5 times as long as they had before.
MAX_CALLS_PER_TEXT = (25, 10)
MAX_CALLS_PER_METHOD = (130, 20)


def assert_calls_per_item(few, many, num_more, limits):
    """Check how much each of ``num_more`` items adds before the launch and after the fetch."""
    before_launch, after_fetch = (
        (more - less) / num_more for more, less in zip(many, few, strict=True)
    )
    assert before_launch <= limits[0]
    assert after_fetch <= limits[1]


def test_few_calls_per_text_surround_a_replay(counter):
    """The device has nothing to do before the launch, and the user waits after it."""
    explainer = Explainer(tiny_bert(torch.float32))
    few = count_calls(counter, explainer, 8, ["attcat"])
    many = count_calls(counter, explainer, 64, ["attcat"])
    assert_calls_per_item(few, many, 64 - 8, MAX_CALLS_PER_TEXT)


def test_few_calls_per_method_surround_a_replay(counter):
    explainer = Explainer(tiny_bert(torch.float32))
    few = count_calls(counter, explainer, 4, ONE_PASS_METHODS[:2])
    many = count_calls(counter, explainer, 4, ONE_PASS_METHODS)
    assert_calls_per_item(few, many, len(ONE_PASS_METHODS) - 2, MAX_CALLS_PER_METHOD)
