"""Replayed CUDA graphs give the numbers of the eager pass, or are not used."""

import gc
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from weakref import ref

import numpy as np
import pytest
import torch

from tests.helpers.expect import expect_error
from tests.helpers.replayed_graphs import stand_in_for_graphs
from tests.helpers.tiny import tiny_bert
from tokenlight import Explainer, Tokens
from tokenlight.accel import graphs
from tokenlight.accel.executor import (
    CaptureExecutor,
    LoggingExecutor,
    NotCapturable,
    UnreadableRows,
    executing_with,
    get_current_executor,
)
from tokenlight.accel.precision import PrecisionSettings
from tokenlight.accel.transfer import AsyncTensor, Deferred, to_device
from tokenlight.errors import BadInput, NotFinite
from tokenlight.explaining import batches, replay_batches

CPU = torch.device("cpu")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_a_captured_pass_reads_the_inputs_of_the_eager_pass_in_the_same_order():
    logging = LoggingExecutor()
    with executing_with(logging):
        first = to_device([1, 2], CPU)
        second = to_device([3.0], CPU, torch.float64)
    assert not isinstance(get_current_executor(), LoggingExecutor)
    capturing = CaptureExecutor(logging.transfers)
    with executing_with(capturing):
        assert get_current_executor() is capturing
        assert to_device([7, 8], CPU) is first
        assert not capturing.has_read_all
        assert to_device([9.0], CPU, torch.float64) is second
    assert capturing.has_read_all


def test_tensors_of_targets_can_be_refilled_with_other_targets():
    logging = LoggingExecutor()
    with executing_with(logging):
        to_device([1, 2], CPU)
        to_device([1, 2], CPU, convert=lambda targets: [10 * target for target in targets])
    constant, converted = logging.transfers
    assert constant.remake is None
    assert converted.tensor.tolist() == [10, 20]
    assert converted.remake is not None
    assert converted.remake([3, 4]).tolist() == [30, 40]


def test_a_deferred_result_of_a_captured_pass_reads_the_current_values():
    values = torch.tensor([1.0, 2.0], dtype=torch.float64)
    with executing_with(CaptureExecutor([])):
        deferred = Deferred(AsyncTensor(values), lambda array: array.sum())
    values += 1
    assert deferred.refresh()() == 5.0


def test_a_captured_pass_reads_no_flag_and_no_values():
    executor = get_current_executor()
    assert executor.read_flag(lambda: False, fallback=True) is False
    assert executor.guard_rows(["a", "b"]) == ("a", "b")
    with executing_with(CaptureExecutor([])):
        assert get_current_executor().read_flag(lambda: False, fallback=True) is True
        with pytest.raises(NotCapturable):
            AsyncTensor(torch.zeros(1)).numpy()
        assert isinstance(get_current_executor().guard_rows(["a", "b"]), UnreadableRows)


def test_a_deferred_result_takes_arguments_that_are_known_later():
    deferred = Deferred(
        AsyncTensor(torch.tensor([1.0])), lambda values, targets: (values[0], targets)
    )
    assert deferred(["positive"]) == (1.0, ["positive"])


@pytest.mark.parametrize("config", [None, {"width": 3}])
def test_a_module_may_use_the_name_config_for_anything(config):
    model = torch.nn.Linear(2, 2)
    model.config = config
    assert graphs.ModelSnapshot(model).matches(model)


def test_rows_of_a_captured_pass_can_be_counted_but_not_read():
    rows = UnreadableRows(("a", "b"))
    assert len(rows) == 2
    for read in (lambda: rows[0], lambda: list(rows), lambda: "a" in rows):
        with pytest.raises(NotCapturable):
            read()


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.classifier.register_forward_hook(lambda *_: None),
        lambda m: setattr(m.bert.encoder.layer[0].attention.self, "scaling", 0.5),
        lambda m: setattr(m.config, "problem_type", "regression"),
        lambda m: setattr(m.classifier.weight, "data", m.classifier.weight.data.clone()),
        lambda m: setattr(m, "classifier", torch.nn.Linear(16, 3)),
        lambda m: m.train(),
        lambda m: m.add_module("more", torch.nn.Identity()),
    ],
    ids=["hook", "attribute", "config", "weights", "module", "mode", "part"],
)
def test_a_changed_model_does_not_match_its_snapshot(change):
    model = tiny_bert().eval()
    before = graphs.ModelSnapshot(model)
    assert before.matches(model)
    change(model)
    assert not before.matches(model)


def test_a_model_matches_its_snapshot_after_explaining():
    model = tiny_bert()
    rows = Tokens.from_ids(torch.randint(5, 50, (2, 7)))
    explainer = Explainer(model)
    explainer.explain(rows, ["attcat", "attnlrp"])
    before = graphs.ModelSnapshot(model)
    explainer.explain(rows, ["attcat", "attnlrp"])
    assert before.matches(model)


@dataclass
class Results:
    """The results of the pass in :func:`captured`."""

    values: AsyncTensor

    def fetch_arrays(self):
        return [self.values.numpy()]

    def refresh(self):
        return Results(self.values.refresh())


class FakeGraph:
    """Stand in for a CUDA graph: twice the inputs times the captured weight, plus the targets."""

    def __init__(self, inputs, targets, outputs, weight):
        self.inputs = inputs
        self.targets = targets
        self.outputs = outputs
        self.weight = weight.detach()[0]
        self.num_replays = 0

    def replay(self):
        self.num_replays += 1
        self.outputs.copy_(2 * self.inputs * self.weight + self.targets)


@pytest.fixture
def captured(monkeypatch):
    """A model, its cache with one graph that passed its comparisons, and a function that runs the pass."""
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    model = torch.nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(3.0)
    model.register_buffer("shift", torch.zeros(1))
    cache = graphs.GraphCache(model, torch.float64)
    converted_targets = []
    eager_targets = []

    def run_eagerly(tensors, targets):
        eager_targets.append(targets)
        values = 2 * tensors[0] * model.weight.detach()[0] + torch.tensor(targets)
        return Results(AsyncTensor(values))

    def convert(targets):
        converted_targets.append(targets)
        return targets

    logging = LoggingExecutor()
    with executing_with(logging):
        to_device([0, 0], CPU, convert=convert)
    inputs = torch.zeros(2).double()
    outputs = torch.zeros(2).double()
    with executing_with(CaptureExecutor(logging.transfers)):
        results = Results(AsyncTensor(outputs))
    graph = FakeGraph(inputs, logging.transfers[0].tensor, outputs, model.weight)
    cache._entries["key"] = graphs.CapturedGraph(
        graph,
        [inputs],
        logging.transfers,
        results,
        graphs.ModelSnapshot(model),
        "texts",
        is_checked_on_own_texts=True,
        is_checked_on_other_texts=True,
    )

    def run(values, targets):
        batch = graphs.ReplayBatch(
            [torch.tensor(values).double()], targets, "key", "other texts", PrecisionSettings()
        )
        results = cache.run(batch, lambda tensors: run_eagerly(tensors, targets))
        return results.fetch_arrays()[0].tolist()

    converted_targets.clear()
    return SimpleNamespace(
        model=model,
        cache=cache,
        run=run,
        graph=graph,
        eager_targets=eager_targets,
        converted_targets=converted_targets,
    )


def test_a_graph_is_launched_before_the_model_is_compared(captured, monkeypatch):
    replays_at_comparison = []
    matches = graphs.ModelSnapshot.matches

    def counted_matches(self, model):
        replays_at_comparison.append(captured.graph.num_replays)
        return matches(self, model)

    monkeypatch.setattr(graphs.ModelSnapshot, "matches", counted_matches)
    assert captured.run([1.0, 2.0], [0, 0]) == [6.0, 12.0]
    assert captured.run([2.0, 3.0], [5, 0]) == [17.0, 18.0]
    assert replays_at_comparison == [1, 2]
    assert not captured.eager_targets


def test_weights_written_in_place_are_read_by_a_replay(captured):
    captured.model.weight.data.fill_(1.0)
    assert captured.run([1.0, 2.0], [0, 0]) == [2.0, 4.0]
    assert not captured.eager_targets


def test_a_replay_for_a_changed_model_is_thrown_away(captured):
    assert captured.cache.has_graph("key")
    captured.model.weight = torch.nn.Parameter(torch.full((1, 1), 5.0))
    assert captured.run([1.0, 2.0], [0, 0]) == [10.0, 20.0]  # the graph's would be 6 and 12
    assert captured.graph.num_replays == 1
    assert captured.eager_targets == [[0, 0]]
    assert not captured.cache.has_graph("key")


@pytest.mark.parametrize("name", ["weight", "shift"])
def test_a_graph_whose_memory_may_be_freed_is_not_launched(captured, name):
    moved = getattr(captured.model, name)
    moved.data = moved.data.clone()
    assert captured.run([1.0, 2.0], [0, 1]) == [6.0, 13.0]
    assert captured.graph.num_replays == 0
    assert captured.eager_targets == [[0, 1]]
    assert not captured.cache.has_graph("key")


def test_a_first_replay_is_compared_with_the_eager_pass_of_an_unchanged_model(captured):
    entry = captured.cache._entries["key"]
    entry.is_checked_on_other_texts = entry.is_checked_on_own_texts = False
    assert captured.run([1.0, 2.0], [0, 0]) == [6.0, 12.0]
    assert (entry.is_checked_on_own_texts, entry.is_checked_on_other_texts) == (False, True)
    assert captured.eager_targets == [[0, 0]]
    entry.is_checked_on_other_texts = False
    captured.model.eval()
    assert captured.run([1.0, 2.0], [0, 0]) == [6.0, 12.0]
    assert captured.graph.num_replays == 1


def test_equal_targets_are_sent_to_the_device_once(captured):
    for targets in ([0, 0], [0, 0], [4, 0], [4, 0], [0, 0]):
        assert captured.run([1.0, 1.0], targets) == [6.0 + targets[0], 6.0]
    assert captured.converted_targets == [[0, 0], [4, 0], [0, 0]]


@pytest.fixture
def replays(monkeypatch):
    """A device whose graphs leave the captured outputs as they are: the list of graphs replayed."""
    replayed = stand_in_for_graphs(monkeypatch)
    monkeypatch.setattr(replay_batches, "_is_replayable", lambda *_: True)
    return replayed


@pytest.mark.parametrize("target", ["predicted", 1])
def test_a_repeated_call_replays_its_graph(replays, target, monkeypatch):
    explainer = Explainer(tiny_bert())
    methods = ["attcat", "random", "gae"]
    rows = Tokens.from_ids(torch.randint(5, 50, (3, 7), generator=torch.manual_seed(1)))
    expected = explainer.explain(rows, methods, target=target)
    for _ in range(3):
        explainer.explain(rows, methods, target=target)
    assert len(replays) == 1  # compared with the eager pass
    with monkeypatch.context() as never:
        never.setattr(explainer.runner, "forward", None)  # no eager pass
        never.setattr(batches, "choose_recompute", None)  # nor a question about free memory
        attributions = explainer.explain(rows, methods, target=target)
    assert len(replays) == 2
    for actual, reference in zip(attributions, expected, strict=True):
        assert (actual.row, actual.method, actual.target) == (
            reference.row,
            reference.method,
            reference.target,
        )
        np.testing.assert_array_equal(actual.scores, reference.scores)
        np.testing.assert_array_equal(actual.logits, reference.logits)


@pytest.mark.parametrize("captured_under_autocast", [False, True])
def test_a_graph_is_replayed_only_in_the_arithmetic_of_its_capture(
    replays, captured_under_autocast
):
    """The kernels of a graph are those of its capture, whatever autocast says when it is replayed."""

    def arithmetic(is_autocast):
        return torch.autocast("cpu", torch.bfloat16, enabled=is_autocast)

    explainer = Explainer(tiny_bert(torch.float32))
    rows = Tokens.from_ids(torch.randint(5, 50, (3, 7), generator=torch.manual_seed(1)))
    with arithmetic(captured_under_autocast):
        for _ in range(5):
            explainer.explain(rows, "attcat", target=1)
    num_replays = len(replays)
    assert num_replays > 0
    with arithmetic(not captured_under_autocast):
        attributions = explainer.explain(rows, "attcat", target=1)
        expected = Explainer(tiny_bert(torch.float32)).explain(rows, "attcat", target=1)
    assert len(replays) == num_replays
    for ours, theirs in zip(attributions, expected, strict=True):
        np.testing.assert_array_equal(ours.scores, theirs.scores)


def test_a_graph_that_differs_from_the_eager_pass_is_not_used_again(replays):
    explainer = Explainer(tiny_bert())
    eager = Explainer(tiny_bert())
    first, other = (
        Tokens.from_ids(torch.randint(5, 50, (3, 7), generator=torch.manual_seed(i)))
        for i in (1, 2)
    )
    for _ in range(5):
        explainer.explain(first, "attcat", target=1)
    # The outputs of the graph are still those of the first texts.
    attributions = explainer.explain(other, "attcat", target=1)
    expected = eager.explain(other, "attcat", target=1)
    for actual, reference in zip(attributions, expected, strict=True):
        np.testing.assert_allclose(actual.scores, reference.scores, rtol=1e-12)
    assert len(replays) == 3  # two of them compared
    assert graphs.NOT_CAPTURABLE in explainer.runner.graph_cache._entries.values()


def test_a_dropped_explainer_frees_its_graphs_without_a_garbage_collection(replays):
    explainer = Explainer(tiny_bert())
    rows = Tokens.from_ids(torch.randint(5, 50, (3, 7), generator=torch.manual_seed(1)))
    for _ in range(5):
        explainer.explain(rows, "attcat", target=1)
    assert len(replays) == 2
    (captured,) = explainer.runner.graph_cache._entries.values()
    inputs = ref(captured.inputs[0])
    gc.collect()
    gc.disable()
    try:
        del explainer, captured
        replays.clear()
        assert inputs() is None
    finally:
        gc.enable()


@pytest.mark.usefixtures("replays")
def test_memory_is_released_on_request():
    explainer = Explainer(tiny_bert())
    rows = Tokens.from_ids(torch.randint(5, 50, (3, 7), generator=torch.manual_seed(1)))
    for _ in range(4):
        explainer.explain(rows, "attcat", target=1)
    assert explainer.runner.graph_cache._entries
    explainer.release_memory()
    assert not explainer.runner.graph_cache._entries


class NoisyPass:
    """A pass whose sums come out otherwise in every ``period``-th run."""

    def __init__(self, noise, period):
        self.noise = noise
        self.period = period
        self.num_passes = 0

    def run(self, _tensors):
        self.num_passes += 1
        is_off = self.num_passes % self.period == 0
        return ConstantResults(np.array([1.0, 0.5 + is_off * self.noise]))


@dataclass
class ConstantResults:
    values: np.ndarray

    def fetch_arrays(self):
        return [self.values]

    def refresh(self):
        return self


@pytest.mark.parametrize(
    ("noise", "period", "offset", "num_passes", "is_used"),
    [
        (0.0, 2, 0.001, 1, True),  # within the rounding of bfloat16
        (0.0, 2, 0.004, 4, False),  # the eager passes agree, the graph does not
        (0.004, 2, 0.006, 2, True),  # two eager passes differ as much
        (0.004, 4, 0.006, 4, True),  # the first eager passes agreed by chance
        (0.004, 2, 0.5, 4, False),  # stale values
        (0.004, 2, np.nan, 4, False),
    ],
)
def test_a_replay_is_compared_within_the_noise_of_the_eager_pass(
    monkeypatch, noise, period, offset, num_passes, is_used
):
    noisy = NoisyPass(noise, period)
    assert (
        compare_replay(monkeypatch, torch.bfloat16, PrecisionSettings(), noisy, offset) is is_used
    )
    # Noise is measured only where the replay was not the same to rounding.
    assert noisy.num_passes == num_passes


@pytest.mark.parametrize(
    ("dtype", "arithmetic", "offset", "is_used"),
    [
        (torch.float32, PrecisionSettings(), 1e-4, False),
        (torch.float32, PrecisionSettings("tf32"), 1e-4, True),
        (torch.float32, PrecisionSettings("tf32"), 1e-3, False),
        (torch.float32, PrecisionSettings("bf16"), 1e-3, True),
        (torch.float32, PrecisionSettings("ieee", torch.float16), 1e-4, True),
        (torch.float32, PrecisionSettings("ieee", torch.bfloat16), 1e-3, True),
        (torch.float32, PrecisionSettings("ieee", torch.bfloat16), 4e-3, False),
        # Both settings are those of float32.
        (torch.float64, PrecisionSettings("tf32", torch.bfloat16), 1e-4, False),
    ],
)
def test_the_tolerance_of_a_replay_follows_the_arithmetic_in_force(
    monkeypatch, dtype, arithmetic, offset, is_used
):
    exact = NoisyPass(0.0, 2)
    assert compare_replay(monkeypatch, dtype, arithmetic, exact, offset) is is_used


def compare_replay(monkeypatch, dtype, arithmetic, noisy_pass, offset):
    """Return whether a graph that is off by ``offset`` is used after its comparison."""
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch, "_foreach_copy_", lambda *_: None)
    cache = graphs.GraphCache(torch.nn.Linear(1, 1), dtype)
    replayed = ConstantResults(np.array([1.0, 0.5 + offset]))
    graph = SimpleNamespace(replay=lambda: None)
    snapshot = graphs.ModelSnapshot(cache._model)
    cache._entries["key"] = graphs.CapturedGraph(graph, [], [], replayed, snapshot, "texts")
    batch = graphs.ReplayBatch([torch.zeros(1)], [], "key", "other texts", arithmetic)
    cache.run(batch, noisy_pass.run)
    return cache.has_graph("key")


@pytest.fixture
def device_memory(monkeypatch, replays):  # noqa: ARG001 - its device is used
    """A device of 100 GiB whose captures take as many bytes as the test says."""
    memory = SimpleNamespace(
        free=90 << 30,
        cached=0,
        reserved=0,
        capture_bytes=0,
        captures_fail=False,
        num_emptied=0,
        streams=[],
    )

    def empty_cache():
        memory.num_emptied += 1
        memory.free += memory.cached
        memory.cached = 0

    @contextmanager
    def capture(_graph, _pool, get_stream):
        memory.streams.append(get_stream())
        memory.reserved += memory.capture_bytes
        if memory.captures_fail:
            raise RuntimeError("operation not permitted when stream is capturing")
        yield

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (memory.free, 100 << 30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: memory.reserved + memory.cached)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: memory.reserved)
    monkeypatch.setattr(torch.cuda, "empty_cache", empty_cache)
    monkeypatch.setattr(graphs, "_capturing_graph", capture)
    monkeypatch.setattr(torch.cuda, "Stream", object)
    return memory


def explain_shape(explainer, length, count=1):
    rows = Tokens.from_ids(torch.randint(5, 50, (2, length), generator=torch.manual_seed(1)))
    for _ in range(count):
        explainer.explain(rows, "attcat", target=1)


def count_graphs(explainer):
    entries = explainer.runner.graph_cache._entries.values()
    return sum(isinstance(entry, graphs.CapturedGraph) for entry in entries)


def test_graphs_that_exceed_their_memory_are_dropped_for_the_latest_one(device_memory):
    explainer = Explainer(tiny_bert(), cuda_graph_bytes=10 << 30)
    device_memory.capture_bytes = 4 << 30
    explain_shape(explainer, 4, count=3)
    explain_shape(explainer, 5, count=3)
    assert count_graphs(explainer) == 2
    explain_shape(explainer, 6, count=3)  # 12 GiB
    assert count_graphs(explainer) == 0
    assert device_memory.num_emptied == 1
    explain_shape(explainer, 6)
    assert count_graphs(explainer) == 1


def test_a_capture_that_failed_takes_nothing_of_the_limit(device_memory):
    explainer = Explainer(tiny_bert(), cuda_graph_bytes=10 << 30)
    device_memory.capture_bytes = 4 << 30
    device_memory.captures_fail = True
    explain_shape(explainer, 4, count=3)
    device_memory.captures_fail = False
    explain_shape(explainer, 5, count=3)
    explain_shape(explainer, 6, count=3)
    assert count_graphs(explainer) == 2  # 8 GiB
    assert device_memory.num_emptied == 0


def test_all_captures_of_a_model_share_one_stream(device_memory):
    explainer = Explainer(tiny_bert())
    for length in (4, 5, 6):
        explain_shape(explainer, length, count=3)
    assert len(device_memory.streams) == 3
    assert len(set(map(id, device_memory.streams))) == 1


def test_a_pass_too_large_for_the_memory_limit_is_captured_only_once(device_memory):
    explainer = Explainer(tiny_bert(), cuda_graph_bytes=1 << 30)
    device_memory.capture_bytes = 2 << 30
    explain_shape(explainer, 4, count=6)
    assert count_graphs(explainer) == 0
    assert device_memory.reserved == 2 << 30  # by one capture


def test_a_shape_is_captured_again_when_memory_is_freed(device_memory):
    explainer = Explainer(tiny_bert())
    device_memory.free = 4 << 30
    explain_shape(explainer, 4, count=4)
    assert count_graphs(explainer) == 0
    device_memory.cached = 50 << 30  # of torch's own cache, which a capture cannot use
    explain_shape(explainer, 4)
    assert count_graphs(explainer) == 1
    assert device_memory.num_emptied == 1


@pytest.mark.parametrize(("setting", "num_captured"), [("0", 0), ("9000000000", 1)])
def test_an_environment_variable_limits_or_turns_off_graphs(
    device_memory, monkeypatch, setting, num_captured
):
    monkeypatch.setenv(graphs.GRAPH_BYTES_VARIABLE, setting)
    explainer = Explainer(tiny_bert())
    explain_shape(explainer, 4, count=4)
    assert count_graphs(explainer) == num_captured
    assert device_memory.num_emptied == 0


def test_a_limit_that_is_no_number_of_bytes_is_refused(monkeypatch):
    with expect_error(BadInput, "graph-bytes"):
        Explainer(tiny_bert(), cuda_graph_bytes=-1)
    monkeypatch.setenv(graphs.GRAPH_BYTES_VARIABLE, "2 GB")
    with expect_error(BadInput, "graph-bytes-variable"):
        graphs.get_default_graph_bytes()


def make_padded_batches(count, shape=(3, 9), seed=0):
    draw = torch.Generator().manual_seed(seed)
    for _ in range(count):
        ids = torch.randint(5, 50, shape, generator=draw)
        lengths = torch.randint(shape[1] - 2, shape[1] + 1, shape[:1], generator=draw)
        lengths[0] = shape[1]
        yield Tokens.from_ids(ids, (torch.arange(shape[1]) < lengths[:, None]).long())


@needs_gpu
@pytest.mark.parametrize("target", ["predicted", 1])
@pytest.mark.parametrize(
    "method", ["attcat", "attnlrp", "transatt", "gae", ["rollout", "random", "cat"]]
)
def test_a_replayed_pass_equals_the_eager_pass(method, target, monkeypatch):
    model = tiny_bert().cuda()
    explainer = Explainer(model)
    eager = Explainer(model)
    for tokens in make_padded_batches(8):
        attributions = explainer.explain(tokens, method, target=target)
        with monkeypatch.context() as never:
            never.setattr(replay_batches, "MAX_REPLAYED_MULTIPLICATIONS", 0)
            expected = eager.explain(tokens, method, target=target)
        for actual, reference in zip(attributions, expected, strict=True):
            assert actual.target == reference.target
            assert actual.extras.keys() == reference.extras.keys()
            np.testing.assert_allclose(
                actual.scores, reference.scores, atol=1e-6 * np.abs(reference.scores).max(), rtol=0
            )
    entries = list(explainer.runner.graph_cache._entries.values())
    assert any(
        isinstance(entry, graphs.CapturedGraph)
        and entry.is_checked_on_other_texts
        and not entry.is_checked_on_own_texts
        for entry in entries
    )


@needs_gpu
def test_a_check_of_a_replayed_pass_names_the_target_of_its_own_batch():
    model = tiny_bert().cuda()
    explainer = Explainer(model)
    for tokens in make_padded_batches(6):
        explainer.explain(tokens, "rollout")
    model.classifier.weight.data.zero_()  # in place: the same model to a replay
    with pytest.raises(NotFinite, match=r"target '\w+' has zero gradient at every token of text 0"):
        explainer.explain(tokens, "rollout")


@needs_gpu
def test_a_changed_model_is_not_replayed():
    model = tiny_bert().cuda()
    explainer = Explainer(model)
    for tokens in make_padded_batches(6):
        before = explainer.explain(tokens, "attcat", target=1)
    model.classifier.weight = torch.nn.Parameter(3 * model.classifier.weight.detach())
    after = explainer.explain(tokens, "attcat", target=1)
    for old, new in zip(before, after, strict=True):
        np.testing.assert_allclose(3 * old.scores, new.scores, rtol=1e-4, atol=1e-12)


@needs_gpu
def test_a_pass_that_reads_from_the_device_is_not_captured():
    model = tiny_bert().cuda()
    model.bert.register_forward_hook(lambda *_: float(torch.ones(1, device="cuda").sum()) and None)
    explainer = Explainer(model)
    for tokens in make_padded_batches(5):
        explainer.explain(tokens, "attcat", target=1)
    assert list(explainer.runner.graph_cache._entries.values()).count(graphs.NOT_CAPTURABLE) >= 1
    assert torch.rand(3, device="cuda").isfinite().all()
