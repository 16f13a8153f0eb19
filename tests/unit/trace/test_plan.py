"""The plan of a pass follows from the sites that are recorded."""

from __future__ import annotations

import pytest
import torch

from tests.helpers.tiny import tiny_bert
from tokenlight import Explainer
from tokenlight.data.tokens import TokenRow
from tokenlight.explaining.calls import resolve_methods
from tokenlight.hooks.model_cache import get_model_cache
from tokenlight.trace.plan import plan_recording
from tokenlight.trace.record import record
from tokenlight.trace.sites import Site, join_sites

IDS = torch.randint(5, 50, (2, 7), generator=torch.Generator().manual_seed(0))
# One row is shorter.
ROWS = [TokenRow.from_ids(IDS[0].tolist()), TokenRow.from_ids(IDS[1, :5].tolist())]


@pytest.fixture
def runner():
    runner = Explainer(tiny_bert()).runner
    runner.verify(ROWS[0], reads_attention=True, try_attention_hook=True)
    return runner


@pytest.mark.parametrize(
    ("sites", "record_mode"),
    [
        ({Site.HIDDEN_STATES}, "nothing"),
        ({Site.ATTENTION_RECEIVED}, "received attention"),
        ({Site.ATTENTION}, "maps"),
        ({Site.RELEVANCE}, "maps"),
    ],
    ids=str,
)
def test_only_what_a_site_reads_of_attention_is_recorded(runner, sites, record_mode):
    plan = plan_recording(runner, ROWS, frozenset(sites))
    assert plan.record_mode == record_mode
    assert plan.records_attention == (record_mode != "nothing")
    assert plan.attention == (
        "unchanged" if record_mode == "nothing" else runner.recorded_attention
    )
    assert plan.has_padding


@pytest.mark.parametrize(
    ("methods", "needs_model_gradients"),
    [
        (["cat:gradient=cp"], False),
        (["cat:gradient=cp", "attnlrp", "attcat:gradient=attnlrp"], False),
        (
            ["cat:gradient=cp", "raw_att"],
            True,
        ),  # the read-out is where the model's gradient is not zero
        (["cat:gradient=cp", "cat"], True),
        (["cat:gradient=gim"], True),  # its rules leave activations their own slope
        (["cat:gradient=attention_constant"], True),
    ],
    ids=str,
)
def test_the_graph_of_the_models_own_gradient_is_kept_only_for_methods_that_read_it(
    runner, methods, needs_model_gradients
):
    built = resolve_methods(Explainer(tiny_bert()), methods, 0)
    sites = join_sites(method.recorded_sites for method in built)
    plan = plan_recording(runner, ROWS, sites)
    assert plan.backward_requirements.needs_rewritten_gradients
    assert plan.backward_requirements.needs_model_gradients == needs_model_gradients


def test_maps_are_lazy_if_blocks_are_recomputed(runner):
    attention = frozenset({Site.ATTENTION})
    plan = plan_recording(runner, ROWS, attention, recompute="maps and blocks")
    assert plan.record_mode == "operands"
    assert plan.recomputes_blocks
    mixing = plan_recording(runner, ROWS, attention | {Site.MIXING}, recompute="maps and blocks")
    assert mixing.record_mode == "maps"
    assert not mixing.recomputes_blocks


def test_a_site_of_embeddings_needs_no_hidden_states(runner):
    plan = plan_recording(runner, ROWS, frozenset({Site.EMBEDDINGS, Site.EMBEDDING_GRADIENT}))
    assert not plan.returns_hidden_states
    assert plan.needs_gradients
    assert list(plan.embedding_hooks) == ["embeddings"]


def test_the_input_of_the_first_block_is_enough_once_it_was_seen_to_be_h0(runner):
    sites = frozenset({Site.RELEVANCE_GRADIENT})
    first = plan_recording(runner, ROWS, sites)
    assert first.returns_hidden_states
    assert first.captures_first_block
    assert first.is_unchecked
    record(runner, ROWS, sites)
    assert get_model_cache(runner.model).first_block_takes_embeddings
    second = plan_recording(runner, ROWS, sites)
    assert not second.returns_hidden_states
    assert not second.is_unchecked
