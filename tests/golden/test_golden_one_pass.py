"""The one-pass methods equal the numbers of the official codes, in float64."""

from __future__ import annotations

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
from tokenlight import SpanTarget, Tokens

AGNOSTIC = {
    "attcat.raw_att": "raw_att",
    "attcat.rollout": "rollout",
    "mask.raw_att": "raw_att",
    "mask.rollout": "rollout",
}
BY_CLASS = {
    "attcat.attcat": "attcat",
    "mask.attcat": "attcat",
    "gae.iccv2021": "gae",
    "attcat.attn_gradcam": "att_gradcam",
    "mask.gradcam_attn": "att_gradcam",
    "mask.cam": "cam",
}
# The official code averages over padded queries; these must equal our own result without padding.
MEANS_OVER_QUERIES = {"attcat", "att_gradcam", "cam"}
TOLERANCE = 1e-7


@pytest.mark.parametrize(("case", "variant"), CASES)
def test_logits_equal_the_official_ones(case, variant):
    attribution = load_classifier().explain(load_tokens(case, variant), "cat")
    assert_close(
        attribution.logits, load_vectors("bert_cls_f64")[f"{case}/{variant}/logits"], TOLERANCE
    )


@pytest.mark.parametrize("array", AGNOSTIC)
@pytest.mark.parametrize(("case", "variant"), CASES)
def test_attention_methods_equal_the_official_code(case, variant, array):
    reference = load_vectors("bert_cls_f64")[f"{case}/{variant}/{array}"]
    for label in range(3):
        attribution = load_classifier().explain(
            load_tokens(case, variant), AGNOSTIC[array], target=label
        )
        assert_close(attribution.scores, reference[: len(attribution)], TOLERANCE)


@pytest.mark.parametrize("array", BY_CLASS)
@pytest.mark.parametrize(("case", "variant"), CASES)
def test_gradient_methods_equal_the_official_code(case, variant, array):
    method = BY_CLASS[array]
    for label in range(3):
        attribution = load_classifier().explain(load_tokens(case, variant), method, target=label)
        if variant == "pad4" and method in MEANS_OVER_QUERIES:
            bare = load_classifier().explain(load_tokens(case, "ones"), method, target=label)
            assert_close(attribution.scores, bare.scores, TOLERANCE)
            continue
        reference = load_vectors("bert_cls_f64")[f"{case}/{variant}/c{label}/{array}"]
        # 0/0 in the official code where the clamped map is constant; zeros here.
        assert_close(
            attribution.scores, np.nan_to_num(reference[: len(attribution)], nan=0.0), TOLERANCE
        )


@pytest.mark.parametrize(("case", "variant"), CASES)
def test_cat_terms_equal_gradient_times_hidden_state(case, variant):
    for label in range(3):
        reference = load_vectors("bert_cls_f64")[f"{case}/{variant}/c{label}/derived.cat_layers"]
        at_inputs = load_classifier().explain(load_tokens(case, variant), "cat", target=label)
        at_outputs = load_classifier().explain(
            load_tokens(case, variant), ("cat", {"preset": "paper"}), target=label
        )
        assert_close(at_inputs.layers, reference[:-1, : len(at_inputs)], TOLERANCE)
        assert_close(at_outputs.layers, reference[1:, : len(at_outputs)], TOLERANCE)
        assert_close(at_inputs.scores, reference[:-1, : len(at_inputs)].sum(axis=0), TOLERANCE)


@pytest.mark.parametrize("case", INPUTS)
@pytest.mark.parametrize("variant", ["ones", "nospecial"])
def test_the_tape_holds_the_official_intermediate_tensors(case, variant):
    from tokenlight.trace.record import record
    from tokenlight.trace.sites import Site

    stored = load_vectors("bert_cls_intermediate_f64")
    (row,) = load_tokens(case, variant)
    everything = {Site.ATTENTION, Site.ATTENTION_GRADIENT, Site.HIDDEN_STATES, Site.HIDDEN_GRADIENT}
    runner = load_classifier().runner
    recording = record(runner, [row], frozenset(everything))
    logits = recording.logits.detach().numpy()[0]
    tape = recording.make_tape(runner.head.resolve("predicted", logits, row), release_graph=True)
    prefix = f"{case}/{variant}"
    assert int(stored[f"{prefix}/pred"]) == int(logits.argmax())
    for name, actual in [
        ("attn", tape.attention),
        ("attn_grad", tape.attention_gradients),
        ("hidden", tape.hidden_states),
        ("hidden_grad", tape.hidden_gradients),
    ]:
        assert_close(torch.stack(actual)[:, 0].numpy(), stored[f"{prefix}/{name}"], TOLERANCE)


@pytest.mark.parametrize("method", ["attcat", "raw_att", "rollout"])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("case", INPUTS)
@pytest.mark.parametrize("family", ["bert_qa", "gpt2_qa"])
def test_question_answering_equals_the_official_code(family, case, side, method):
    explainer = load_question_answerer() if family == "bert_qa" else load_gpt2_question_answerer()
    stored = load_vectors(f"{family}_f64")
    ids = load_vectors("inputs")[case].reshape(1, -1)
    attribution = explainer.explain(Tokens.from_ids(ids), method, target=SIDES[side])
    official = stored[f"{case}/logits_official"]
    assert_close(attribution.logits, official.T.ravel(), TOLERANCE)
    assert_close(attribution.scores, stored[f"{case}/{side}/mask.{method}"], TOLERANCE)


def test_start_and_end_are_explained_by_one_target():
    ids = Tokens.from_ids(load_vectors("inputs")["in3"].reshape(1, -1))
    span = load_question_answerer().explain(ids, "attcat", SpanTarget("argmax", "argmax"))
    sides = [load_question_answerer().explain(ids, "attcat", target) for target in SIDES.values()]
    assert_close(span.scores, sides[0].scores + sides[1].scores, TOLERANCE)
