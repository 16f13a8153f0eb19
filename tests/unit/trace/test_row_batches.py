"""Further rows in batches of few shapes, replayed where a device has graphs."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.helpers.replayed_graphs import stand_in_for_graphs
from tests.helpers.tiny import tiny_bert
from tokenlight import Contrast, Explainer, Tokens
from tokenlight.accel import graphs
from tokenlight.explaining import replay_batches
from tokenlight.model.padding import choose_replayed_width
from tokenlight.trace import row_batches

METHOD = "subset_relevance"


@pytest.fixture
def explainer():
    return Explainer(tiny_bert())


@pytest.fixture
def replays(monkeypatch):
    """Let partial texts be replayed on a device that is no GPU: the list of graphs replayed."""
    monkeypatch.setattr(row_batches, "is_on_one_gpu", lambda _: True)
    monkeypatch.setattr(replay_batches, "is_on_one_gpu", lambda _: True)
    monkeypatch.setattr(row_batches, "MIN_REPLAYED_TOKENS", 1)
    return stand_in_for_graphs(monkeypatch)


def draw_tokens(count, length, seed):
    generator = torch.Generator().manual_seed(seed)
    return Tokens.from_ids(torch.randint(5, 50, (count, length), generator=generator))


def make_rows(lengths):
    return [SimpleNamespace(ids=(5,) * length) for length in lengths]


def list_shapes(runner, batches, lengths):
    shapes = []
    for batch in batches:
        longest = max(lengths[index] for index in batch)
        shapes.append((len(batch), choose_replayed_width(runner, longest)))
    return shapes


def test_the_width_of_a_batch_decides_how_many_rows_it_has(explainer):
    """Random draws change lengths, but hardly the shapes; every row is in one batch."""
    shapes = set()
    for seed in range(6):
        lengths = 2 + np.random.default_rng(seed).binomial(38, 0.5, 256)
        batches = row_batches.pack_replayed_rows(explainer.runner, make_rows(lengths), 2048)
        assert sorted(index for batch in batches for index in batch) == list(range(256))
        found = list_shapes(explainer.runner, batches, lengths)
        assert all(rows * width <= 2048 for rows, width in found)
        shapes |= set(found[:-1])
    by_width = dict((width, rows) for rows, width in shapes)
    assert len(by_width) == len(shapes) <= 5


def test_rows_of_a_pass_that_computes_for_long_are_packed_as_ever(explainer, monkeypatch):
    runner = explainer.runner
    rows = make_rows([40] * 64)
    monkeypatch.setattr(row_batches, "estimate_multiplications", lambda *_: 1e12)
    assert row_batches.count_replayed_rows(runner, 40, 2048) == 0
    assert row_batches.pack_replayed_rows(runner, rows, 2048) is None


@pytest.mark.parametrize("readout", ["cat", "attcat", "embeddings"])
@pytest.mark.parametrize("target", ["predicted", 1])
def test_partial_texts_in_replayed_batches_have_the_same_scores(
    explainer, monkeypatch, replays, readout, target
):
    method = (METHOD, {"readout": readout})
    tokens = draw_tokens(6, 24, seed=0)
    with monkeypatch.context() as never:
        never.setattr(row_batches, "is_on_one_gpu", lambda _: False)
        never.setattr(replay_batches, "is_on_one_gpu", lambda _: False)
        expected = explainer.explain(tokens, method, target=target)
    for _ in range(4):
        attributions = explainer.explain(tokens, method, target=target)
    assert replays
    for actual, reference in zip(attributions, expected, strict=True):
        np.testing.assert_allclose(actual.scores, reference.scores, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(
            actual.standard_errors,
            reference.standard_errors,
            rtol=1e-9,
            atol=1e-12,
        )


@pytest.mark.parametrize("methods", [METHOD, ["random", METHOD, "attnlrp"]])
def test_a_repeated_call_launches_no_pass_kernel_by_kernel(
    explainer, monkeypatch, replays, methods
):
    tokens = draw_tokens(6, 24, seed=0)
    expected = explainer.explain(tokens, methods, target=1)
    for _ in range(4):
        explainer.explain(tokens, methods, target=1)
    cache = explainer.runner.graph_cache._entries.values()
    assert any(isinstance(entry, graphs.CapturedGraph) for entry in cache)
    num_replays = len(replays)
    with monkeypatch.context() as never:
        never.setattr(explainer.runner, "forward", None)
        attributions = explainer.explain(tokens, methods, target=1)
    assert len(replays) > num_replays + 1  # the whole texts, and the partial texts
    for actual, reference in zip(attributions, expected, strict=True):
        assert (actual.method, actual.target) == (reference.method, reference.target)
        np.testing.assert_array_equal(actual.scores, reference.scores)
        np.testing.assert_array_equal(actual.logits, reference.logits)
        assert actual.extras == reference.extras


def test_a_target_of_several_logits_is_not_replayed(explainer, monkeypatch, replays):
    monkeypatch.setattr(row_batches, "build_replay_batch", None)
    attribution = explainer.explain(draw_tokens(1, 12, seed=0), METHOD, target=Contrast(1, 0))
    assert np.isfinite(attribution.scores).all()
    assert not replays
