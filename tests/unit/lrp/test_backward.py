"""The function mode by itself: small modules, operation by operation."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.pytorch_utils import Conv1D

from tests.helpers.expect import expect_error
from tests.helpers.tiny import tiny_bert
from tokenlight import Explainer, Tokens
from tokenlight.errors import NotFinite, UnsupportedModel
from tokenlight.lrp import attnlrp
from tokenlight.lrp.backward import backward_by_rules
from tokenlight.lrp.rule_sets import (
    ATTNLRP_RULES,
    CHEFER,
    CHEFER_ORIG,
    CP_LRP_RULES,
    MASK_LRP_GPT2,
)
from tokenlight.lrp.rules import OPERATIONS_WITHOUT_RULE, STABILIZER, Operation, RuleContext
from tokenlight.lrp.tracing import trace_operations
from tokenlight.trace.relevance import RelevanceResult

SETS = [CHEFER, CHEFER_ORIG, ATTNLRP_RULES, CP_LRP_RULES, MASK_LRP_GPT2]


class Calling(nn.Module):
    """A module that is one function of its input."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, features):
        return self.function(self, features)


def make_features(*shape):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*(shape or (2, 3, 16)), generator=generator, dtype=torch.float64)


def propagate_ones(module, inputs, rules=CHEFER):
    """Return the relevance of the input if that of the output is one; check graph and gradient as well."""
    module = module.double().requires_grad_(False)
    inputs = inputs.clone().requires_grad_()
    with trace_operations(module, batch_size=len(inputs)) as (backward_mode, unsupported_ops):
        start = inputs * 1.0
        output = module(start)
    torch.testing.assert_close(output, module(inputs), rtol=1e-12, atol=1e-12)
    unsupported_ops.check([output], start)
    model_gradient = torch.autograd.grad(module(inputs).sum(), inputs)[0]
    torch.testing.assert_close(
        torch.autograd.grad(output.sum(), inputs, retain_graph=True)[0], model_gradient
    )
    with backward_by_rules(backward_mode, rules):
        (relevance,) = torch.autograd.grad(output, start, torch.ones_like(output))
    return relevance, output


# Modules that conserve relevance within each example. About one draw of weights in several hundred has a sum
# that cancels to zero, which conserves nothing; with this seed there is none.
torch.manual_seed(0)
CONSERVING = {
    "sum of two": Calling(lambda m, x: m.a(x) + m.b(x), a=nn.Linear(16, 16), b=nn.Linear(16, 16)),
    "difference": Calling(lambda m, x: m.a(x) - m.b(x), a=nn.Linear(16, 16), b=nn.Linear(16, 16)),
    "scaled difference": Calling(lambda m, x: torch.sub(x, m.a(x), alpha=2), a=nn.Linear(16, 16)),
    "constant minus": Calling(lambda _, x: 1 - x),
    "augmented sum": Calling(lambda m, x: m.augmented(x, m.a), a=nn.Linear(16, 16)),
    "gate": Calling(lambda m, x: torch.sigmoid(m.a(x)) * x, a=nn.Linear(16, 16)),
    "product": Calling(lambda _, x: x @ x.transpose(1, 2)),
    "batched product": Calling(lambda _, x: torch.bmm(x, x.transpose(1, 2))),
    "offset product": Calling(
        lambda _, x: torch.baddbmm(torch.ones(1, 3, 3).to(x), batch1=x, batch2=x.mT, alpha=0.5)
    ),
    "einsum": Calling(lambda _, x: torch.einsum("bij,bkj->bik", x, x)),
    "constant first": Calling(lambda _, x: torch.ones(2, 5, 3).to(x) @ x),
    "linear": nn.Linear(16, 3),
    "conv1d": Conv1D(5, 16),
    "constant matrix": Calling(lambda _, x: x @ torch.linspace(-1, 1, 32).view(16, 2).to(x)),
    "layer norm": nn.LayerNorm(16),
    "rms norm": nn.RMSNorm(16),
    "llama norm": LlamaRMSNorm(16),
    "gemma norm": GemmaRMSNorm(16),
    "softmax": Calling(lambda _, x: x.softmax(-1)),
    "masked softmax": Calling(lambda _, x: torch.softmax(x.masked_fill(x > 9, -1e9), dim=-1)),
    "mean pool": Calling(lambda _, x: x.mean(dim=1)),
    "sum pool": Calling(lambda _, x: x.sum(1, keepdim=True)),
    "masked mean": Calling(lambda _, x: (x * torch.ones(2, 3, 1).to(x)).sum(dim=1) / 3.0),
    "quotient": Calling(lambda _, x: x / x.norm(dim=-1, keepdim=True)),
    "normalized": Calling(lambda _, x: nn.functional.normalize(x, dim=-1)),
    "rotation": Calling(lambda _, x: x * 0.6 + torch.cat((-x[..., 8:], x[..., :8]), -1) * 0.8),
    "repeat": Calling(lambda _, x: x[:, :, None].expand(2, 3, 2, 16).reshape(2, 6, 16)),
    "index": Calling(lambda _, x: x[:, 0]),
    "highest": Calling(lambda _, x: x.max(dim=1).values),
    **{name: ACT2FN[name] for name in ("gelu", "gelu_new", "quick_gelu", "relu2", "silu", "mish")},
}


def _augment(_self, inputs, layer):
    total = layer(inputs)
    total += inputs
    total *= 2.0
    return total


Calling.augmented = _augment


@pytest.mark.parametrize("name", CONSERVING)
def test_an_operation_keeps_all_relevance_within_each_example(name):
    relevance, output = propagate_ones(CONSERVING[name], make_features())
    expected = torch.ones_like(output).flatten(1).sum(dim=1)
    torch.testing.assert_close(relevance.flatten(1).sum(dim=1), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rules", SETS, ids=lambda rules: rules.name)
@pytest.mark.parametrize("name", CONSERVING)
def test_every_rule_set_has_a_rule_for_every_operation(name, rules):
    relevance, _ = propagate_ones(CONSERVING[name], make_features(), rules)
    assert torch.isfinite(relevance).all()
    assert set(rules.rules) == set(Operation) - OPERATIONS_WITHOUT_RULE


def test_a_written_out_activation_passes_relevance_unchanged():
    relevance, _ = propagate_ones(ACT2FN["gelu_new"], make_features())
    torch.testing.assert_close(relevance, torch.ones_like(relevance))


def test_padding_that_a_mean_leaves_out_gets_no_relevance():
    mask = torch.tensor([[1.0, 1, 1], [1, 0, 0]], dtype=torch.float64)[:, :, None]
    pool = Calling(lambda _, x: (x * mask).sum(dim=1) / mask.sum(dim=1))
    relevance, _ = propagate_ones(pool, make_features())
    assert not relevance[1, 1:].any()
    # The stabiliser of the one division takes most of the smallest number.
    lost = float(1.01 * STABILIZER / make_features()[1, 0].abs().min())
    torch.testing.assert_close(
        relevance[1, 0], torch.ones(16, dtype=torch.float64), rtol=0, atol=lost
    )


def test_rounding_in_float32_makes_no_relevance_where_no_sign_agrees():
    layer = nn.Linear(64, 3, bias=False)
    with torch.no_grad():
        layer.weight.copy_(-layer.weight.abs())
    inputs = make_features(2, 64).abs().float().requires_grad_()
    with trace_operations(layer.requires_grad_(False), batch_size=2) as (backward_mode, _):
        output = layer(inputs)
    with backward_by_rules(backward_mode, CHEFER):
        (relevance,) = torch.autograd.grad(output, inputs, torch.ones_like(output))
    assert not relevance.any()


@pytest.mark.parametrize(
    ("function", "operation"),
    [
        (lambda _, x: torch.cumsum(x, dim=1), "cumsum"),
        (lambda _, x: torch.exp(x), "exp"),
        (lambda _, x: 1 / x, "__rdiv__"),
        (lambda _, x: torch.pow(2.0, x), "pow"),
        (lambda _, x: x**x, "pow"),
        (lambda _, x: torch.add(x, x * 2, alpha=2), "add"),
        (lambda _, x: x.sum(), "sum"),
        (lambda _, x: torch.einsum("bij,bkl->bik", x, x), "einsum"),
        (lambda _, x: torch.einsum("bij,bij,bij->bi", x, x, x), "einsum"),
        (lambda _, x: (x * 2).add_(x), "add_"),
        (lambda _, x: nn.functional.conv1d(x, torch.ones(3, 3, 1).to(x)), "conv1d"),
    ],
)
def test_an_operation_without_a_rule_is_named(function, operation):
    # A module without parts that is a function of each element alone would be an activation.
    outer = nn.Sequential(nn.Identity(), Calling(function, part=nn.Identity()))
    inputs = make_features().abs().requires_grad_()
    with trace_operations(outer, batch_size=2) as (_, unsupported_ops):
        start = inputs * 1.0
        output = outer(start)
    with expect_error(
        UnsupportedModel, "operation-without-rule", mentions=f"'{operation}' in 1 (Calling)"
    ):
        unsupported_ops.check([output], start)


def test_an_operation_that_torch_does_not_show_is_refused_all_the_same():
    inputs = make_features().requires_grad_()
    with trace_operations(nn.Identity(), batch_size=2) as (_, unsupported_ops):
        start = inputs * 1.0
    output = start.exp()  # behind the mode's back, as a scripted function would be
    with expect_error(UnsupportedModel, "hidden-operation-without-rule", mentions="'Exp'"):
        unsupported_ops.check([output], start)


def test_operations_off_the_path_need_no_rule():
    inputs = make_features().requires_grad_()
    with trace_operations(nn.Identity(), batch_size=2) as (backward_mode, unsupported_ops):
        start = torch.cumsum(inputs, dim=1) * 1.0
        output = start / start.exp().sum(dim=-1, keepdim=True)
    unsupported_ops.check([output], start)
    with backward_by_rules(backward_mode, CHEFER):
        (relevance,) = torch.autograd.grad(output, start, torch.ones_like(output))
    torch.testing.assert_close(relevance, torch.ones_like(relevance))


def test_a_sum_that_does_not_begin_with_the_batch_is_refused():
    inputs = make_features(3, 4).requires_grad_()
    with trace_operations(nn.Identity(), batch_size=2) as (backward_mode, _):
        output = inputs + inputs * 2.0
    with (
        backward_by_rules(backward_mode, CHEFER),
        expect_error(
            UnsupportedModel,
            "sum-without-batch-axis",
            mentions="(3, 4) does not begin with the batch of 2",
        ),
    ):
        torch.autograd.grad(output, inputs, torch.ones_like(output))


def test_an_error_inside_the_forward_leaves_no_hook():
    def fail(_, inputs):
        raise RuntimeError("on purpose" + str(inputs.shape))

    outer = nn.Sequential(LlamaRMSNorm(16), ACT2FN["gelu_new"], Calling(fail))
    with pytest.raises(RuntimeError, match="on purpose"), trace_operations(outer, batch_size=2):
        outer(make_features().float())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in outer.modules())


def test_the_graph_is_freed_with_the_output():
    layer = nn.Linear(16, 16).double().requires_grad_(False)
    inputs = make_features().requires_grad_()
    with trace_operations(layer, batch_size=2) as (backward_mode, unsupported_ops):
        output = torch.exp(layer(inputs) * 2.0) + 1.0
    freed = weakref.ref(output.grad_fn)
    gc.disable()
    try:
        del output, unsupported_ops
        assert freed() is None
        assert backward_mode.current_rules is None
    finally:
        gc.enable()


def test_two_threads_propagate_different_relevance():
    layer = nn.Linear(16, 16).double().requires_grad_(False)
    results = {}

    def work(name, rules):
        inputs = make_features().requires_grad_()
        with trace_operations(layer, batch_size=2) as (backward_mode, _):
            output = layer(inputs)
        barrier.wait()
        if rules is None:
            (results[name],) = torch.autograd.grad(output, inputs, torch.ones_like(output))
        else:
            with backward_by_rules(backward_mode, rules):
                barrier.wait()
                (results[name],) = torch.autograd.grad(output, inputs, torch.ones_like(output))
                barrier.wait()
            return
        barrier.wait()
        barrier.wait()

    barrier = threading.Barrier(2)
    threads = [
        threading.Thread(target=work, args=("gradient", None)),
        threading.Thread(target=work, args=("relevance", CHEFER)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = torch.ones(2, 3, 16, dtype=torch.float64) @ layer.weight
    torch.testing.assert_close(results["gradient"], expected)
    assert results["relevance"].sum() == pytest.approx(96, abs=1e-5)


def test_relevance_too_large_for_the_dtype_is_an_error_and_no_score():
    model = tiny_bert(torch.float16, num_hidden_layers=8)
    rows = Tokens.from_ids(torch.randint(5, 50, (1, 12)))
    with pytest.raises(NotFinite, match="lrp returns NaN or infinity"):
        Explainer(model).explain(rows, ("lrp", {"rules": "chefer_orig"}))


def test_conservation_is_one_if_no_relevance_is_lost():
    layers = [torch.full((2, 3, 4), 1 / 12), torch.full((2, 3, 4), 1 / 6)]
    conservation = RelevanceResult(layers, [], torch.tensor([1.0, 2.0])).conservation
    torch.testing.assert_close(conservation, torch.tensor([[1.0, 2.0], [0.5, 1.0]]))


@pytest.mark.parametrize("has_weight", [True, False])
def test_one_kernel_computes_the_gradient_of_a_norm_with_constant_deviation(has_weight):
    generator = torch.Generator().manual_seed(3)
    gradient = torch.randn(2, 5, 32, generator=generator)
    scale = torch.rand(2, 5, 1, generator=generator) + 0.1
    weight = torch.randn(32, generator=generator) if has_weight else None
    constants = (scale, weight)
    case = RuleContext(gradient, constants, batch_size=2, settings=(True, 1e-5))
    (expected,) = attnlrp.norm_gradient(gradient.double(), case)
    actual = attnlrp.compute_centered_norm_gradient(gradient, scale, weight)
    # Each entry is a difference of two numbers of about the largest size, rounded a few times.
    torch.testing.assert_close(
        actual.double(), expected, rtol=0, atol=8e-7 * float(expected.abs().max())
    )
