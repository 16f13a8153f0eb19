"""The architecture matrix: families of sequence classifiers, unmodified, through one attention hook.

The support table in docs/architectures.md is generated from ``tests.helpers.families``; these tests
prove its rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.helpers.families import (
    FAMILIES,
    PARTLY_SUPPORTED_FAMILIES,
    SUPPORTED_FAMILIES,
    build_model,
)
from tests.helpers.model_state import assert_unchanged, take_snapshot
from tests.helpers.tolerance import (
    FLOAT32,
    FLOAT64,
    EverythingInFloat64,
    RoundingRecorder,
    assert_close,
    tolerance_for,
)
from tokenlight import Explainer, Tokens
from tokenlight.errors import TokenlightError, UnsupportedModel
from tokenlight.trace.record import record
from tokenlight.trace.sites import Site

WITH_SINK = ["gpt_oss"]  # leave a part of each row of attention to no token
WORKING = [name for name, (_, _, support_level) in FAMILIES.items() if support_level != "refused"]
REFUSED = [name for name, (_, _, support_level) in FAMILIES.items() if support_level == "refused"]


def make_two_texts() -> tuple[Tensor, Tensor]:
    """Return ids and mask of nine tokens, and of seven padded on the right; each ends in the end token."""
    ids = torch.randint(5, 120, (2, 9), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(ids)
    ids[0, 8] = ids[1, 6] = 2
    ids[1, 7:] = mask[1, 7:] = 0
    return ids, mask


@pytest.mark.parametrize("family", WORKING)
def test_a_family_is_explained_and_left_as_it_was(family):
    model = build_model(family)
    ids, mask = make_two_texts()
    with torch.no_grad():
        bare = [
            model(ids[i : i + 1, :n], attention_mask=mask[i : i + 1, :n]).logits[0]
            for i, n in ((0, 9), (1, 7))
        ]
    before = take_snapshot(model)
    explainer = Explainer(model)
    attributions = explainer.explain(Tokens.from_ids(ids, mask), ["attcat", "gae"])
    assert_unchanged(before, take_snapshot(model))
    assert explainer.runner.attention_route == FAMILIES[family][2]
    for text in range(2):
        for attribution in attributions[2 * text : 2 * text + 2]:
            assert_close(attribution.logits, bare[text].numpy(), FLOAT32)
            assert np.isfinite(attribution.scores).all()
            assert np.abs(attribution.scores).max() > 0


@pytest.mark.parametrize("family", WORKING)
def test_a_first_text_of_one_token_is_explained(family):
    model = build_model(family)
    with torch.no_grad():
        bare = model(torch.tensor([[2]])).logits[0]
    attribution = Explainer(model).explain(Tokens.from_ids([[2]]), "gae")
    assert_close(attribution.logits, bare.numpy(), FLOAT32)


@pytest.mark.parametrize("family", WORKING)
def test_attention_rows_sum_to_one(family):
    explainer = Explainer(build_model(family))
    (row, _) = Tokens.from_ids(*make_two_texts())
    explainer.runner.verify(row, reads_attention=True)
    recording = record(explainer.runner, [row], frozenset({Site.ATTENTION}))
    for maps in recording.attention:
        sums = maps.sum(dim=-1)
        if family in WITH_SINK:
            assert float(sums.max()) < 1
        else:
            assert_close(
                sums, np.ones(maps.shape[:-1]), tolerance_for(maps.dtype, 1, maps.shape[-1])
            )


@pytest.mark.parametrize("family", WITH_SINK)
def test_attention_with_a_sink_equals_the_models_own_and_is_noted(family):
    model = build_model(family)
    model.set_attn_implementation("eager")
    ids, mask = make_two_texts()
    with torch.no_grad():
        expected = model(ids[:1], output_attentions=True).attentions
    explainer = Explainer(model)
    (row, _) = Tokens.from_ids(ids, mask)
    actual = record(explainer.runner, [row], frozenset({Site.ATTENTION})).attention
    received = record(
        explainer.runner, [row], frozenset({Site.ATTENTION_RECEIVED})
    ).received_attention
    for our_map, their_map, received_mean in zip(actual, expected, received, strict=True):
        assert_close(our_map, their_map.numpy(), FLOAT32)
        assert_close(received_mean, their_map.mean(dim=(1, 2)).numpy(), FLOAT32)
    assert "sums to less than one" in " ".join(explainer.explain(row, "raw_att").notes)
    assert explainer.explain(row, "grad_x_input").notes == ()


@pytest.mark.parametrize("family", WORKING)
def test_other_texts_and_padding_in_a_batch_change_no_score(family):
    model = build_model(family).double()
    with EverythingInFloat64():
        with torch.no_grad(), RoundingRecorder() as roundings:
            model(make_two_texts()[0], attention_mask=make_two_texts()[1])
        assert roundings.operations == set()
        assert_second_text_is_batch_invariant(model, FLOAT64)


def assert_second_text_is_batch_invariant(model: Any, tolerance: float) -> None:
    """Assert that the second text has the same scores in the batch and by itself."""
    ids, mask = make_two_texts()
    explainer = Explainer(model)
    together = explainer.explain(Tokens.from_ids(ids, mask), ["attcat", "gae"])
    alone = explainer.explain(Tokens.from_ids(ids[1:, :7], mask[1:, :7]), ["attcat", "gae"])
    for actual, expected in zip(together[2:], alone, strict=True):
        assert_close(actual.scores, expected.scores, tolerance)


@pytest.fixture
def float64_by_default() -> Iterator[None]:
    """Make float64 the default dtype, for tensors whose dtype a model does not name (Funnel's positions)."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def compute_logit(model: Any, ids: Tensor, positions: Sequence[int] = ()) -> float:
    """Return logit 1 with the token 7 at ``positions``; the end token stays where the head looks for it."""
    is_fixed = (ids == 2) & bool(model.config.is_encoder_decoder)
    is_replaced = torch.zeros(len(ids), dtype=torch.bool)
    is_replaced[list(positions)] = True
    with torch.no_grad():
        return float(model(torch.where(is_replaced & ~is_fixed, 7, ids)[None]).logits[0, 1])


def compute_gradient_times_input(model: Any, ids: Tensor, family: str) -> np.ndarray:
    """Return gradient × vector of logit 1 at h^0, by token."""
    states = []

    def restart_graph(_module: Any, _arguments: Any, output: Any) -> Any:
        """Detach the embeddings, so that the gradient graph begins there."""
        vectors = output[0] if isinstance(output, tuple) else output
        leaf = vectors.detach().requires_grad_().clone()
        return (leaf, *output[1:]) if isinstance(output, tuple) else leaf

    parts = [model]
    names = ["hidden_states"]
    if model.config.is_encoder_decoder:
        parts = [model.get_encoder(), model.get_decoder()]
        names = ["encoder_hidden_states", "decoder_hidden_states"]
    tables = {part.get_input_embeddings() for part in parts}
    handles = [table.register_forward_hook(restart_graph) for table in tables]
    if family in COPIED:
        source = model.get_submodule(COPIED[family])
        handles.append(
            source.register_forward_hook(lambda *hook_arguments: states.append(hook_arguments[2]))
        )
    outputs = model(ids[None], output_hidden_states=True)
    for handle in handles:
        handle.remove()
    states = states or [getattr(outputs, name)[0] for name in names]
    slopes = torch.autograd.grad(outputs.logits[0, 1], states)
    contributions = [
        (s * g).sum(dim=-1).flatten().detach() for s, g in zip(states, slopes, strict=True)
    ]
    sums = contributions[0][: len(ids)].clone()  # some models pad the text by themselves
    if len(contributions) > 1:  # a decoder reads each token one place later
        sums[:-1] += contributions[1][1:]
        if family in ("mbart", "plbart"):  # and these read the last one first
            sums[-1] += contributions[1][0]
    return sums.numpy()


# The hidden states they report are copies, which no logit depends on; h^0 itself comes from this module.
COPIED = {"longformer": "longformer.embeddings", "xlnet": "transformer.word_embedding"}
PATH = ("integrated_gradients", {"num_steps": 2, "baseline": 7})
OCCLUSION = ("occlusion", {"window": 1, "baseline": 7})
WITHOUT_GRADIENT = [
    name
    for name, (_, _, support_level) in PARTLY_SUPPORTED_FAMILIES.items()
    if support_level == "tokens"
]


@pytest.mark.parametrize("family", SUPPORTED_FAMILIES)
def test_methods_without_attention_are_right_in_every_family(family, float64_by_default):  # noqa: ARG001
    model = build_model(family).double().requires_grad_(False)
    ids, mask = make_two_texts()
    methods = [OCCLUSION] if family in WITHOUT_GRADIENT else [OCCLUSION, PATH, "grad_x_input"]
    with EverythingInFloat64():
        with torch.no_grad():  # some families keep notes of their last pass
            model(ids, attention_mask=mask)
        before = take_snapshot(model)
        explainer = Explainer(model)
        together = explainer.explain(Tokens.from_ids(ids, mask), methods, target=1)
        alone = explainer.explain(Tokens.from_ids(ids[1:, :7]), methods, target=1)
        assert_unchanged(before, take_snapshot(model))
        for expected, actual in zip(alone, together[len(methods) :], strict=True):
            assert_close(actual.scores, expected.scores)
        text = ids[1, :7]
        original = compute_logit(model, text)
        assert_close(
            alone[0].scores,
            np.array([original - compute_logit(model, text, [i]) for i in range(7)]),
        )
        assert_close(alone[0].logits[1], original)
        if len(methods) > 1:
            rise = original - compute_logit(model, text, range(7))
            assert_close(alone[1].extras["convergence"]["rise"], rise)
            assert_close(alone[2].scores, compute_gradient_times_input(model, text, family))


@pytest.mark.parametrize("family", PARTLY_SUPPORTED_FAMILIES)
@pytest.mark.parametrize("method", ["attcat", "gae", "transatt", "rollout"])
def test_a_method_that_reads_attention_is_refused_where_it_cannot_be_read(family, method):
    model = build_model(family)
    with pytest.raises(
        UnsupportedModel, match=rf"{PARTLY_SUPPORTED_FAMILIES[family][0]}|hidden state"
    ):
        Explainer(model).explain(Tokens.from_ids(*make_two_texts()), method)


@pytest.mark.parametrize("family", WITHOUT_GRADIENT)
@pytest.mark.parametrize("method", ["grad_x_input", "integrated_gradients", "simple", "cat"])
def test_a_method_that_reads_gradients_is_refused_where_there_are_none(family, method):
    with pytest.raises(
        UnsupportedModel, match=rf"{PARTLY_SUPPORTED_FAMILIES[family][0]}.* gradient"
    ):
        Explainer(build_model(family)).explain(Tokens.from_ids(*make_two_texts()), method)


@pytest.mark.parametrize("family", REFUSED)
def test_a_family_that_would_give_wrong_numbers_is_refused_by_name(family):
    model = build_model(family)
    with torch.no_grad(), suppress(Exception):  # some families keep notes of their last pass
        model(*make_two_texts())
    before = take_snapshot(model)
    with pytest.raises(TokenlightError) as refusal:
        Explainer(model).explain(Tokens.from_ids(*make_two_texts()), ["attcat", "gae"])
    class_prefix = FAMILIES[family][0]
    assert class_prefix in str(refusal.value) or "hidden state" in str(refusal.value)
    assert_unchanged(before, take_snapshot(model))
