"""The methods built on relevance equal the numbers of the official codes, in float64.

The official stabiliser also acts where a tensor is merely used twice, which a second backward has no
reason to copy: hence 1e-5 of the maximum, and 1e-4 for the rules whose sums explode.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers.golden_vectors import (
    CASES,
    INPUTS,
    SIDES,
    load_classifier,
    load_gpt2_question_answerer,
    load_question_answerer,
    load_tokens,
    load_vectors,
)
from tests.helpers.tolerance import assert_close
from tokenlight import Explainer, SpanTarget, Tokens
from tokenlight.lrp.rule_sets import CHEFER, CHEFER_ORIG
from tokenlight.methods.mask_lrp import MaskedRelevance
from tokenlight.trace.record import record
from tokenlight.trace.relevance import RelevancePath
from tokenlight.trace.sites import Site

# With the papers' epsilon.
BY_RULES = [("attnlrp", {"propagation": "rules"}), ("cp_lrp", {"propagation": "rules"})]


def load_head_mask() -> np.ndarray:
    """Return the stored mask of attention heads."""
    return load_vectors("inputs")["head_mask"]


# array: (method, options, tolerance)
ARRAYS = {
    "attcat.transatt": ("transatt", {}, 1e-5),
    "attcat.transatt_startlast": ("transatt", {"start_layer": 3}, 1e-5),
    "attcat.partial_lrp_ours": ("partial_lrp", {}, 1e-5),
    "attcat.full_lrp_ours": ("lrp", {}, 1e-5),
    "chefer.partial_lrp_orig": ("partial_lrp", {"preset": "chefer_orig"}, 1e-4),
    "chefer.full_lrp_orig": ("lrp", {"preset": "chefer_orig"}, 1e-4),
    "mask.gae_named": ("transatt", {"preset": "official"}, 1e-5),
    "mask.partial_lrp": ("partial_lrp", {"preset": "official"}, 1e-5),
    "mask.full_lrp": ("lrp", {"preset": "official"}, 1e-5),
    "mask.mgae_none": ("mask_lrp", {"preset": "official", "mask": "none"}, 1e-5),
    "mask.mgae_given": ("mask_lrp", {"preset": "official", "heads": load_head_mask()}, 1e-5),
    "mask.mgae_ones": ("mask_lrp", {"preset": "official", "heads": np.ones((4, 4))}, 1e-5),
    "mask.mgae_zeros": ("mask_lrp", {"preset": "official", "heads": np.zeros((4, 4))}, 1e-5),
    "mask.full_lrp_masked": ("mask_lrp", {"score": "input", "heads": load_head_mask()}, 1e-5),
}


@pytest.mark.parametrize(("case", "variant"), CASES)
def test_relevance_methods_equal_the_official_code(case, variant):
    methods = [(method, options) for method, options, _ in ARRAYS.values()]
    for label in range(3):
        attributions = load_classifier().explain(load_tokens(case, variant), methods, target=label)
        for attribution, (array, (_, _, tolerance)) in zip(
            attributions, ARRAYS.items(), strict=True
        ):
            reference = load_vectors("bert_cls_f64")[f"{case}/{variant}/c{label}/{array}"]
            assert_close(attribution.scores, reference[: len(attribution)], tolerance)
            if variant == "pad4":  # and none of it at padding
                assert_close(reference[len(attribution) :], np.zeros(4), 1e-5)


def record_relevance(explainer: Explainer, row: Any, target: Any = "predicted") -> Any:
    """Return the tape of one text with everything that relevance needs."""
    sites = {
        Site.RELEVANCE,
        Site.ATTENTION_GRADIENT,
        Site.READOUT,
        Site.ATTENTION_VALUES,
        Site.ATTENTION,
    }
    recording = record(explainer.runner, [row], frozenset(sites))
    logits = recording.logits.detach().numpy()[0]
    return recording.make_tape(
        explainer.runner.head.resolve(target, logits, row), release_graph=True
    )


@pytest.mark.parametrize("case", INPUTS)
@pytest.mark.parametrize("variant", ["ones", "nospecial"])
def test_relevance_inside_the_model_is_the_official_one(case, variant):
    stored = load_vectors("bert_cls_intermediate_f64")
    prefix = f"{case}/{variant}"
    (row,) = load_tokens(case, variant)
    tape = record_relevance(load_classifier(), row)

    def stack_layers(maps: Iterable[torch.Tensor]) -> np.ndarray:
        """Return the maps of all layers as one array."""
        return torch.stack(list(maps))[:, 0].numpy()

    actual = tape.propagate_relevance(RelevancePath(CHEFER))
    assert_close(stack_layers(actual.attention), stored[f"{prefix}/attn_R_ours"], 1e-5)
    assert_close(stack_layers(actual.attention), stored[f"{prefix}/mask_attn_R_none"], 1e-5)
    assert_close(actual.hidden_states[0][0].numpy(), stored[f"{prefix}/R_input_ours"], 1e-5)
    orig = tape.propagate_relevance(RelevancePath(CHEFER_ORIG))
    assert_close(stack_layers(orig.attention), stored[f"{prefix}/attn_R_orig"], 1e-4)
    for name, mask in (("given", load_head_mask()), ("ones", np.ones((4, 4)))):
        method = MaskedRelevance(heads=mask)
        saved = method.select_map_relevance(tape, method.propagate(tape))
        assert_close(stack_layers(saved), stored[f"{prefix}/mask_attn_R_{name}"], 1e-5)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("case", INPUTS)
@pytest.mark.parametrize("family", ["bert_qa", "gpt2_qa"])
def test_question_answering_equals_the_official_code(family, case, side):
    explainer = load_question_answerer() if family == "bert_qa" else load_gpt2_question_answerer()
    attributions = explainer.explain(
        Tokens.from_ids(load_vectors("inputs")[case].reshape(1, -1)),
        [
            ("transatt", {"preset": "official"}),
            ("mask_lrp", {"preset": "official", "mask": "none"}),
            ("mask_lrp", {"preset": "official", "heads": load_head_mask()}),
        ],
        target=SIDES[side],
    )
    stored = load_vectors(f"{family}_f64")
    for attribution, array in zip(
        attributions, ("mgae_none", "mgae_none", "mgae_given"), strict=True
    ):
        assert_close(attribution.scores, stored[f"{case}/{side}/mask.{array}"], 1e-5)


@pytest.mark.parametrize("method", ["lrp", "partial_lrp", "transatt", "mask_lrp"])
def test_the_official_preset_records_its_rules_and_explicit_rules_take_precedence(method):
    ids = Tokens.from_ids(load_vectors("inputs")["in2"].reshape(1, -1))
    official = (method, {"preset": "official"})
    with_rules = (method, {"preset": "official", "rules": "chefer"})
    gpt2 = load_gpt2_question_answerer().explain(ids, [official, with_rules], SIDES["start"])
    (bert,) = load_question_answerer().explain(ids, [official], SIDES["start"])
    assert gpt2[0].options == {"rules": "mask_lrp_gpt2", "qa_relevance": "broadcast"}
    assert gpt2[1].options == bert.options == {"qa_relevance": "broadcast"}


@pytest.mark.parametrize("method", ["lrp", "transatt", "partial_lrp"])
def test_a_span_is_the_sum_of_its_start_and_its_end(method):
    ids = Tokens.from_ids(load_vectors("inputs")["in4"].reshape(1, -1))
    span = load_question_answerer().explain(ids, method, SpanTarget("argmax", "argmax"))
    sides = [load_question_answerer().explain(ids, method, target) for target in SIDES.values()]
    assert_close(span.scores, sides[0].scores + sides[1].scores, 1e-12)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("case", INPUTS)
def test_alti_equals_the_official_code(case, p):
    ids = Tokens.from_ids(load_vectors("inputs")[case].reshape(1, -1))
    attribution = load_classifier().explain(ids, ("alti", {"p": p}))
    assert_close(attribution.scores, load_vectors("baselines_f64")[f"{case}/alti.cls_l{p}"], 1e-7)


def test_conservation_reports_how_much_relevance_the_official_gpt2_rules_lose():
    ids = Tokens.from_ids(load_vectors("inputs")["in2"].reshape(1, -1))
    losing, conserving = load_gpt2_question_answerer().explain(
        ids, [("lrp", {"rules": "mask_lrp_gpt2"}), "lrp"], SpanTarget("argmax", None)
    )
    np.testing.assert_allclose(conserving.extras["conservation"], np.ones(5), atol=1e-6)
    # Four Conv1D a block, each handing on at most half of what its branch received.
    figures = [0.138872, 0.344812, 0.554927, 0.867041, 1.0]
    np.testing.assert_allclose(losing.extras["conservation"], figures, atol=1e-5)


def test_conservation_reports_rules_that_do_not_conserve():
    attributions = load_classifier().explain(
        load_tokens("in3", "ones"), [("lrp", {"rules": "chefer_orig"}), *BY_RULES]
    )
    # Doubled in every linear layer; and what the biases took or gave.
    figures = [
        [47235.36, 3221.617, 358.3669, 43.79103, 4.0],
        [0.111146, 0.165730, 0.227815, 0.0064088, 1.163968],
        [0.674968, 1.076939, 0.996935, 0.580861, 1.163968],
    ]
    for attribution, figure in zip(attributions, figures, strict=True):
        np.testing.assert_allclose(attribution.extras["conservation"], figure, rtol=1e-3)
