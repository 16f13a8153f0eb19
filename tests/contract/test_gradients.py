"""The laws of rewritten gradients, in every family that attnlrp can explain.

Each gradient has the meaning that its twin gives it; a text has the same scores alone and in any batch; the
model is as before; and what reads a gradient that a rule removes is refused.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.expect import expect_error
from tests.helpers.families import FAMILIES, build_model
from tests.helpers.model_state import assert_unchanged, take_snapshot
from tests.helpers.relevance_families import (
    GRADIENT_FAMILIES,
    TEXTS,
    build_exact_classifier,
    make_padded_tokens,
)
from tests.helpers.tolerance import EverythingInFloat64, assert_close
from tokenlight import Explainer, Tokens, registry
from tokenlight.errors import BadInput, UnsupportedModel
from tokenlight.methods.base import GRADIENT_RULE_SETS, GradientMethod
from tokenlight.trace import gradients as gradients_module

GRADIENTS = list(GRADIENT_RULE_SETS)
READS_STATES = [name for name in GRADIENT_FAMILIES if name in FAMILIES]
READERS = [
    name
    for name in registry.list_loadable("methods")
    if issubclass(registry.load_class("methods", name), GradientMethod)
]


@pytest.mark.parametrize("family", READS_STATES)
def test_every_gradient_is_the_same_in_any_batch(family):
    model = build_exact_classifier(family)
    before = take_snapshot(model)
    explainer = Explainer(model)
    methods = [("cat", {"gradient": gradient}) for gradient in GRADIENTS]
    with EverythingInFloat64():
        together = explainer.explain(make_padded_tokens(), methods, target=1)
        alone = [explainer.explain(Tokens.from_ids([text]), methods, target=1) for text in TEXTS]
    for attribution, expected in zip(together, [*alone[0], *alone[1]], strict=True):
        assert np.abs(expected.scores).max() > 0
        assert_close(attribution.scores, expected.scores)
    assert_unchanged(before, take_snapshot(model))


@pytest.mark.parametrize("method", READERS)
@pytest.mark.parametrize("gradient", GRADIENTS)
def test_every_method_that_reads_a_gradient_takes_every_name(method, gradient):
    method_class = registry.load_class("methods", method)
    if method == "gim" and gradient != "gim":
        with pytest.raises(BadInput, match="gradient"):
            method_class(gradient=gradient)
    elif method == "gae" and GRADIENT_RULE_SETS[gradient].map_share == 0:
        with expect_error(BadInput, "attention-without-gradient", mentions=gradient):
            method_class(gradient=gradient)
    else:
        assert method_class(gradient=gradient).gradient == gradient


@pytest.mark.parametrize("method", READERS)
def test_an_unknown_gradient_is_refused(method):
    with pytest.raises(BadInput, match="gradient"):
        registry.load_class("methods", method)(gradient="libre")


def test_a_rewritten_gradient_takes_one_backward_pass():
    for method in READERS:
        method_class = registry.load_class("methods", method)
        gradient = "gim" if method == "gim" else "attnlrp"
        assert method_class(gradient=gradient).count_passes(9).backwards == 1
    passes = []
    explainer = Explainer(build_exact_classifier("bert"))
    methods = ("cat", {"gradient": "cp"})
    expected = explainer.explain(make_padded_tokens(), methods, target=1)
    compute_gradients = gradients_module.compute_gradients
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            gradients_module,
            "compute_gradients",
            lambda *args, **kwargs: (passes.append(1), compute_gradients(*args, **kwargs))[1],
        )
        counted = explainer.explain(make_padded_tokens(), methods, target=1)
    assert len(passes) == 1
    for attribution, other in zip(counted, expected, strict=True):
        assert_close(attribution.scores, other.scores)


@pytest.mark.parametrize("gradient", ["attnlrp", "cp", "libra"])
def test_a_gate_that_is_not_recognized_is_refused(gradient):
    with expect_error(UnsupportedModel, "gate-not-recognized", mentions=gradient):
        Explainer(build_model("gpt_oss")).explain(
            make_padded_tokens(), ("cat", {"gradient": gradient})
        )


def test_biases_of_modules_without_a_gradient_are_left_out():
    model = build_exact_classifier("axk2")  # chooses tokens by modules that run without gradients
    methods = [("fullgrad_plus", {"gradient": gradient}) for gradient in ("model", "libra")]
    for attribution in Explainer(model).explain(make_padded_tokens(), methods, target=1):
        assert np.abs(attribution.scores).max() > 0
