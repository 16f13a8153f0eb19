"""Kernels against the same computation in plain torch, on a GPU, with every kind of mask."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from tokenlight import Explainer, Tokens
from tokenlight.accel import half_precision, tensors
from tokenlight.explaining import memory
from tokenlight.hooks import attention
from tokenlight.hooks.attention import AttentionMask, AttentionOperands, AttentionParams
from tokenlight.lrp import rules
from tokenlight.lrp.rules import RuleContext, z_plus
from tokenlight.trace import plan
from tokenlight.trace.attention_maps import LazyAttentionMap

COVERED_MODULES = ("accel/dot_kernel", "accel/head_means_kernel", "accel/received_attention_kernel")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
KINDS = ("none", "causal", "padding", "window", "added", "bias of each head", "both")


def make_mask(kind: str, shape: tuple[int, int, int], real: torch.Tensor) -> AttentionMask:
    batch, heads, n = shape
    position = torch.arange(n, device="cuda")
    distance = position[:, None] - position
    window = ((distance >= 0) & (distance < 5)).expand(batch, 1, n, n)
    noise = torch.randn(1, heads, n, n, device="cuda")
    padding = real[:, None, None, :].expand(batch, 1, n, n)
    return {
        "none": AttentionMask(),
        "causal": AttentionMask(is_causal=True),
        "padding": AttentionMask(allowed=padding),
        "window": AttentionMask(allowed=window),
        "added": AttentionMask(bias=noise[:, :1]),
        "bias of each head": AttentionMask(bias=noise),
        "both": AttentionMask(allowed=window, bias=noise),
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
def test_the_kernel_equals_its_reference_implementation(kind, dtype, batch, heads, n, width, seed):
    torch.manual_seed(seed)
    query = torch.randn(batch, heads[0], n, width, device="cuda", dtype=dtype)
    key = torch.randn(batch, heads[1], n, width, device="cuda", dtype=dtype)
    lengths = torch.randint(1, n + 1, (batch, 1), device="cuda")
    real = torch.arange(n, device="cuda") < lengths
    mask = make_mask(kind, (batch, heads[0], n), real)
    weights = real / real.sum(dim=1, keepdim=True) / heads[0]
    params = AttentionParams(width**-0.5)
    actual = attention.compute_received_attention(query, key, mask, params, weights).sum(dim=1)
    # In float64, from the same rounded inputs; its products and sums take n · width roundings of float32.
    added = None if mask.bias is None else mask.bias.double()
    twin_mask = AttentionMask(mask.allowed, added, mask.is_causal)
    twin = attention.compute_received_attention_in_chunks(
        query.double(), key.double(), twin_mask, params, weights.double()
    )
    bound = 4 * (width + n) ** 0.5 * torch.finfo(torch.float32).eps
    assert (actual - twin).abs().max() <= bound * twin.abs().max()
    repeated = attention.compute_received_attention(query, key, mask, params, weights).sum(dim=1)
    assert torch.equal(actual, repeated)


@pytest.mark.parametrize("heads", [(8, 8), (8, 2)])
@pytest.mark.parametrize("causal", [True, False])
def test_the_kernel_accepts_row_sums_of_the_fused_forward(heads, causal):
    torch.manual_seed(0)
    n = 700
    params = AttentionParams(0.125)
    query = torch.randn(2, heads[0], n, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    key, value = (
        torch.randn(2, heads[1], n, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for _ in range(2)
    )
    mask = AttentionMask(is_causal=causal)
    output, logsumexp = attention.attend_fused(query, key, value, mask, params)
    assert logsumexp is not None
    expected = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=causal, scale=params.scaling, enable_gqa=True
    )
    assert torch.equal(output, expected)
    grads = torch.autograd.grad(output.float().square().sum(), (query, key, value))
    others = torch.autograd.grad(expected.float().square().sum(), (query, key, value))
    for actual, reference in zip(grads, others, strict=True):
        assert (actual - reference).abs().max() <= 2**-7 * reference.abs().max()
    real = torch.ones(2, n, dtype=torch.bool, device="cuda")
    weights = real / real.sum(dim=1, keepdim=True) / heads[0]
    by_sums = attention.compute_received_attention(
        query, key, mask, params, weights, logsumexp
    ).sum(dim=1)
    alone = attention.compute_received_attention(query, key, mask, params, weights).sum(dim=1)
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
def test_means_over_heads_equal_the_means_of_the_maps(kind, dtype, batch, heads, n, width, seed):
    torch.manual_seed(seed)
    query, gradient = (
        torch.randn(batch, heads[0], n, width, device="cuda", dtype=dtype) for _ in range(2)
    )
    key, value = (
        torch.randn(batch, heads[1], n, width, device="cuda", dtype=dtype) for _ in range(2)
    )
    real = torch.arange(n, device="cuda") < torch.randint(1, n + 1, (batch, 1), device="cuda")
    mask = make_mask(kind, (batch, heads[0], n), real)
    params = AttentionParams(width**-0.5)
    lazy_map = LazyAttentionMap(AttentionOperands(mask, params, query, key, value, query))
    means = lazy_map.compute_head_means(gradient)
    (alone,) = lazy_map.compute_head_means(None)
    bias = None if mask.bias is None else mask.bias.double()
    twin_mask = AttentionMask(mask.allowed, bias, mask.is_causal)
    tensors = [tensor.double() for tensor in (query, key, value, query)]
    twin = LazyAttentionMap(AttentionOperands(twin_mask, params, *tensors))
    maps = twin.compute()
    products = maps * twin.compute_gradient_at_map(gradient.double(), 1.0)
    expected = [maps, products, products.clamp(min=0)]
    bound = 8 * (width + n) ** 0.5 * torch.finfo(torch.float32).eps
    largest = products.abs().max()
    for actual, reference, scale in zip(
        means, expected, (maps.max(), largest, largest), strict=True
    ):
        assert (actual - reference.mean(dim=1)).abs().max() <= bound * scale
    assert torch.equal(alone, means[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("shape", [(3, 7, 5), (2, 33, 768), (1, 9, 4100)])
def test_dot_products_equal_plain_torch_operations(dtype, shape):
    torch.manual_seed(0)
    first, second = (
        [torch.randn(*shape, device="cuda", dtype=dtype) for _ in range(4)] for _ in range(2)
    )
    second[2] = second[2].mT.contiguous().mT  # as a gradient may lie
    actual = tensors.compute_dot_products(first, second, torch.device("cuda", 0))
    pairs = zip(first, second, strict=True)
    expected = torch.stack([(a.double() * b.double()).sum(dim=-1) for a, b in pairs], dim=1)
    assert actual.shape == expected.shape
    bound = 4 * shape[-1] ** 0.5 * torch.finfo(torch.float32).eps
    assert (actual - expected).abs().max() <= bound * expected.abs().max()


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
def test_methods_give_the_same_scores_without_stored_maps(monkeypatch, length):
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

    def scores(model, is_lazy):
        monkeypatch.setattr(plan, "_prefers_lazy_maps", lambda *_: is_lazy)
        attributions = Explainer(model).explain(tokens, MAPPED, target=1)
        by_method = [attributions[i :: len(MAPPED)] for i in range(len(MAPPED))]
        return [
            np.concatenate([attribution.scores for attribution in group]) for group in by_method
        ]

    on_gpu = model.to("cuda")
    actual = scores(on_gpu, True)
    with_maps = scores(on_gpu, False)
    exact = scores(model.to("cpu").double(), False)
    for name, without, mapped, true in zip(MAPPED, actual, with_maps, exact, strict=True):
        largest = np.abs(true).max()
        bound = 2 * np.abs(mapped - true).max() + 2**-7 * largest
        assert np.abs(without - true).max() <= bound, name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_gpu_multiplies_in_half_precision_with_float32_sums(dtype):
    torch.manual_seed(0)
    first = torch.randn(65, 96, device="cuda", dtype=dtype)
    second = torch.randn(96, 40, device="cuda", dtype=dtype)
    assert half_precision.supports_half_precision(first, second)
    bound = 96 * 2.0**-23 * (first.double().abs() @ second.double().abs())
    gap = (
        half_precision.multiply_half_precision(first, second).double()
        - first.double() @ second.double()
    )
    assert (gap.abs() <= bound).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_z_plus_rule_gives_the_relevance_of_a_processor(dtype):
    torch.manual_seed(0)
    features = torch.randn(2, 30, 96).to(dtype)
    weight = torch.randn(40, 96).to(dtype)
    output = torch.nn.functional.linear(features, weight)
    relevance = torch.rand(2, 30, 40) * 1e-6
    case = RuleContext(output, (features, weight, None), batch_size=2)
    (expected,) = z_plus(relevance, case)
    on_gpu = RuleContext(output.cuda(), (features.cuda(), weight.cuda(), None), batch_size=2)
    (actual,) = z_plus(relevance.cuda(), on_gpu)
    assert (actual.cpu() - expected).abs().max() <= 1e-4 * expected.abs().max()


@pytest.mark.parametrize("method", ["lrp", "transatt"])
def test_relevance_in_half_precision_equals_float32_rules(monkeypatch, method):
    """Half-precision products move scores by far less than the half-precision forward pass does."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=100, hidden_size=64, num_hidden_layers=3, num_attention_heads=4,
        intermediate_size=96, num_labels=2, pad_token_id=0,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config).eval().bfloat16().cuda()
    tokens = Tokens.from_ids(torch.randint(5, 100, (4, 24)))
    with_half = Explainer(model).explain(tokens, method, target=1)
    monkeypatch.setattr(rules, "supports_half_precision", lambda *_: False)
    with_float32 = Explainer(model).explain(tokens, method, target=1)
    for actual, expected in zip(with_half, with_float32, strict=True):
        assert np.abs(actual.scores - expected.scores).max() <= 1e-3 * np.abs(expected.scores).max()


def test_large_maps_in_float32_are_read_by_kernels(monkeypatch):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=100, hidden_size=64, num_hidden_layers=3, num_attention_heads=4,
        intermediate_size=96, num_labels=2, pad_token_id=0,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config).eval().cuda()
    tokens = Tokens.from_ids(torch.randint(5, 100, (4, 24)))
    from_stored_maps = Explainer(model).explain(tokens, MAPPED, target=1)
    monkeypatch.setattr(memory, "MAX_KEPT_MAP_BYTES", 0)
    read_by_kernel = Explainer(model).explain(tokens, MAPPED, target=1)
    for actual, expected in zip(read_by_kernel, from_stored_maps, strict=True):
        largest = np.abs(expected.scores).max()
        assert np.abs(actual.scores - expected.scores).max() <= 1e-3 * largest, actual.method
