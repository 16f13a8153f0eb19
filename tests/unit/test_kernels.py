"""Kernels against their twins in plain steps, on a GPU, with every kind of mask."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from tokenlight import Explainer, Tokens
from tokenlight.capture import attention, recording, transfer
from tokenlight.capture.attention import Mask, Scoring, Unkept

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
KINDS = ("none", "causal", "padding", "window", "added", "bias of each head", "both")


def masks(kind: str, shape: tuple[int, int, int], real: torch.Tensor) -> Mask:
    batch, heads, n = shape
    place = torch.arange(n, device="cuda")
    window = ((place[:, None] >= place) & (place[:, None] - place < 5)).expand(batch, 1, n, n)
    noise = torch.randn(1, heads, n, n, device="cuda")
    padding = real[:, None, None, :].expand(batch, 1, n, n)
    return {
        "none": Mask(),
        "causal": Mask(causal=True),
        "padding": Mask(allowed=padding),
        "window": Mask(allowed=window),
        "added": Mask(added=noise[:, :1]),
        "bias of each head": Mask(added=noise),
        "both": Mask(allowed=window, added=noise),
    }[kind]


# Nothing is shrunk: each try would compile kernels.
@settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@example("none", torch.float32, 1, (4, 2), 512, 128, 0)
@example("both", torch.float32, 1, (4, 2), 1100, 128, 0)
@given(
    st.sampled_from(KINDS),
    st.sampled_from([torch.bfloat16, torch.float16, torch.float32]),
    st.integers(1, 3),
    st.sampled_from([(1, 1), (4, 2), (8, 2), (12, 12)]),
    st.integers(1, 1100),
    st.sampled_from([8, 32, 64, 80, 128, 256]),
    st.integers(0, 2**31),
)
def test_the_kernel_gives_what_its_twin_gives(kind, dtype, batch, heads, n, width, seed):
    torch.manual_seed(seed)
    query = torch.randn(batch, heads[0], n, width, device="cuda", dtype=dtype)
    key = torch.randn(batch, heads[1], n, width, device="cuda", dtype=dtype)
    lengths = torch.randint(1, n + 1, (batch, 1), device="cuda")
    real = torch.arange(n, device="cuda") < lengths
    mask = masks(kind, (batch, heads[0], n), real)
    weights = real / real.sum(dim=1, keepdim=True) / heads[0]
    how = Scoring(width**-0.5)
    ours = attention.received(query, key, mask, how, weights).sum(dim=1)
    # In float64, from the same rounded inputs; its products and sums take n · width roundings of float32.
    added = None if mask.added is None else mask.added.double()
    twin_mask = Mask(mask.allowed, added, mask.causal)
    twin = attention.received_in_chunks(
        query.double(), key.double(), twin_mask, how, weights.double()
    )
    bound = 4 * (width + n) ** 0.5 * torch.finfo(torch.float32).eps
    assert (ours - twin).abs().max() <= bound * twin.abs().max()
    again = attention.received(query, key, mask, how, weights).sum(dim=1)
    assert torch.equal(ours, again)


@pytest.mark.parametrize("heads", [(8, 8), (8, 2)])
@pytest.mark.parametrize("causal", [True, False])
def test_row_sums_of_the_fused_forward_serve_as_well(heads, causal):
    torch.manual_seed(0)
    n, how = 700, Scoring(0.125)
    query = torch.randn(2, heads[0], n, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    key, value = (
        torch.randn(2, heads[1], n, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for _ in range(2)
    )
    mask = Mask(causal=causal)
    output, sums = attention.attend_fast(query, key, value, mask, how)
    assert sums is not None
    own = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=causal, scale=how.scaling, enable_gqa=True
    )
    assert torch.equal(output, own)
    grads = torch.autograd.grad(output.float().square().sum(), (query, key, value))
    others = torch.autograd.grad(own.float().square().sum(), (query, key, value))
    for ours, theirs in zip(grads, others, strict=True):
        assert (ours - theirs).abs().max() <= 2**-7 * theirs.abs().max()
    real = torch.ones(2, n, dtype=torch.bool, device="cuda")
    weights = real / real.sum(dim=1, keepdim=True) / heads[0]
    by_sums = attention.received(query, key, mask, how, weights, sums).sum(dim=1)
    alone = attention.received(query, key, mask, how, weights).sum(dim=1)
    assert (by_sums - alone).abs().max() <= 1e-4 * alone.abs().max()


@settings(max_examples=40, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@example("none", torch.float32, 1, (4, 2), 130, 256, 0)
@given(
    st.sampled_from(KINDS),
    st.sampled_from([torch.bfloat16, torch.float16, torch.float32]),
    st.integers(1, 3),
    st.sampled_from([(1, 1), (8, 2), (12, 12)]),
    st.integers(1, 300),
    st.sampled_from([8, 64, 80, 128]),
    st.integers(0, 2**31),
)
def test_means_over_heads_are_those_of_the_maps(kind, dtype, batch, heads, n, width, seed):
    torch.manual_seed(seed)
    query, arrived = (
        torch.randn(batch, heads[0], n, width, device="cuda", dtype=dtype) for _ in range(2)
    )
    key, value = (
        torch.randn(batch, heads[1], n, width, device="cuda", dtype=dtype) for _ in range(2)
    )
    real = torch.arange(n, device="cuda") < torch.randint(1, n + 1, (batch, 1), device="cuda")
    mask, how = masks(kind, (batch, heads[0], n), real), Scoring(width**-0.5)
    found = Unkept(mask, how, query, key, value, query).head_means(arrived)
    (alone,) = Unkept(mask, how, query, key, value, query).head_means(None)
    added = None if mask.added is None else mask.added.double()
    wide = [own.double() for own in (query, key, value, query)]
    twin = Unkept(Mask(mask.allowed, added, mask.causal), how, *wide)
    maps, slopes = twin.map(), twin.slope(arrived.double())
    expected = [maps, maps * slopes, (maps * slopes).clamp(min=0)]
    bound = 8 * (width + n) ** 0.5 * torch.finfo(torch.float32).eps
    largest = (maps * slopes).abs().max()
    for ours, theirs, scale in zip(found, expected, (maps.max(), largest, largest), strict=True):
        assert (ours - theirs.mean(dim=1)).abs().max() <= bound * scale
    assert torch.equal(alone, found[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("shape", [(3, 7, 5), (2, 33, 768), (1, 9, 4100)])
def test_dot_products_are_those_of_plain_steps(dtype, shape):
    torch.manual_seed(0)
    first, second = (
        [torch.randn(*shape, device="cuda", dtype=dtype) for _ in range(4)] for _ in range(2)
    )
    second[2] = second[2].mT.contiguous().mT  # as a gradient may lie
    ours = transfer.dotted(first, second, torch.device("cuda", 0))
    pairs = zip(first, second, strict=True)
    theirs = torch.stack([(a.double() * b.double()).sum(dim=-1) for a, b in pairs], dim=1)
    assert ours.shape == theirs.shape
    bound = 4 * shape[-1] ** 0.5 * torch.finfo(torch.float32).eps
    assert (ours - theirs).abs().max() <= bound * theirs.abs().max()


MAPPED = [
    "raw_att",
    "rollout",
    "grads",
    "att_grads",
    "grad_sam",
    "att_gradcam",
    "cam",
    "gae",
    "attcat",
]


@pytest.mark.parametrize("length", [24, 21])
def test_methods_see_no_difference_without_maps(monkeypatch, length):
    """Against float64 the scores without maps are as near as those of the model's own maps."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=100, hidden_size=64, num_hidden_layers=3, num_attention_heads=4,
        intermediate_size=96, num_labels=2, pad_token_id=0,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config).eval().bfloat16()
    ids = torch.randint(5, 100, (4, 24))
    mask = torch.ones_like(ids)
    ids[1:, length:] = mask[1:, length:] = 0  # 21: a padded batch
    tokens = Tokens.from_ids(ids, mask)

    def scores(model, spared):
        monkeypatch.setattr(recording, "_are_spared", lambda *_: spared)
        found = Explainer(model).explain(tokens, MAPPED, target=1)
        return [np.concatenate([x.scores for x in found[i :: len(MAPPED)]]) for i in range(9)]

    on_gpu = model.to("cuda")
    ours, kept = scores(on_gpu, True), scores(on_gpu, False)
    exact = scores(model.to("cpu").double(), False)
    for name, own, other, true in zip(MAPPED, ours, kept, exact, strict=True):
        largest = np.abs(true).max()
        bound = 2 * np.abs(other - true).max() + 2**-7 * largest
        assert np.abs(own - true).max() <= bound, name
