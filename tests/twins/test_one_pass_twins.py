"""Attention and gradient methods against the formulas on paper, one text at a time, in float64.

The twins read the model's own attention maps and hidden states (eager attention) and their gradients.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.helpers.tiny import tiny_bert, tiny_bert_qa, tiny_tokenizer
from tests.helpers.twin_inputs import TEXT_IDS, build_gpt2_classifier, make_padded_batch
from tokenlight import Contrast, Explainer, SpanTarget, Tokens

BERT = Explainer(tiny_bert(), tiny_tokenizer())
GPT2 = Explainer(build_gpt2_classifier())
ANSWERS = Explainer(tiny_bert_qa(), tiny_tokenizer())


class BarePass:
    """One text through the bare model: maps A, their gradients G, states h, their gradients g."""

    def __init__(
        self,
        explainer: Explainer,
        ids: list[int],
        value: Callable[[Any], Tensor],
        read_position: int,
        cleared_position: int,
    ) -> None:
        model = copy.deepcopy(explainer.model).eval()
        model.set_attn_implementation("eager")
        ids = torch.tensor([ids])
        out = model(
            ids,
            attention_mask=torch.ones_like(ids),
            output_attentions=True,
            output_hidden_states=True,
        )
        maps = out.attentions
        states = out.hidden_states
        gradients = torch.autograd.grad(value(out), [*maps, *states])
        self.maps = [attention_map[0].detach() for attention_map in maps]
        self.map_gradients = [gradient[0] for gradient in gradients[: len(maps)]]
        self.states = [state[0].detach() for state in states]
        self.state_gradients = [gradient[0] for gradient in gradients[len(maps) :]]
        self.num_tokens = ids.shape[1]
        self.read_position = read_position  # the token whose state the head reads
        self.cleared_position = cleared_position  # the token whose own cell is set to zero

    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        """Return (map, gradient) of each layer."""
        return list(zip(self.maps, self.map_gradients, strict=True))


def clear_own_cell(matrix: Tensor, bare_pass: BarePass) -> Tensor:
    """Return a copy of the matrix in which the cell of the cleared token with itself is zero."""
    matrix = matrix.clone()
    position = bare_pass.cleared_position
    matrix[position, position] = 0
    return matrix


def read_row(matrix: Tensor, bare_pass: BarePass) -> Tensor:
    """Return the row of the token that the head reads."""
    return clear_own_cell(matrix, bare_pass)[bare_pass.read_position]


def average_rows(matrix: Tensor, bare_pass: BarePass) -> Tensor:
    """Return the mean over all rows."""
    return clear_own_cell(matrix, bare_pass).mean(0)


def grads(bare_pass: BarePass) -> Tensor:
    """The gradient of the last map, at the row that the head reads."""
    return bare_pass.map_gradients[-1].mean(0)[bare_pass.read_position]


def grads_mean(bare_pass: BarePass) -> Tensor:
    """The gradient of the last map, averaged over its rows."""
    return bare_pass.map_gradients[-1].mean(0).mean(0)


def att_grads(bare_pass: BarePass) -> Tensor:
    """Map × gradient, summed over layers, at the row that the head reads."""
    return sum((maps * gradients).mean(0) for maps, gradients in bare_pass.pairs())[
        bare_pass.read_position
    ]


def att_grads_mean(bare_pass: BarePass) -> Tensor:
    """Map × gradient, summed over layers and averaged over rows."""
    return sum((maps * gradients).mean(0) for maps, gradients in bare_pass.pairs()).mean(0)


def grad_sam(bare_pass: BarePass) -> Tensor:
    """Map × positive gradient, averaged over layers, heads and rows."""
    positive_parts = [
        (maps * gradients.clamp(min=0)).mean(0).mean(0) for maps, gradients in bare_pass.pairs()
    ]
    return sum(positive_parts) / len(positive_parts)


def grad_sam_row(bare_pass: BarePass) -> Tensor:
    """Map × positive gradient, averaged over layers and heads, at the row that the head reads."""
    positive_parts = [
        (maps * gradients.clamp(min=0)).mean(0)[bare_pass.read_position]
        for maps, gradients in bare_pass.pairs()
    ]
    return sum(positive_parts) / len(positive_parts)


def gae(bare_pass: BarePass) -> Tensor:
    """Relevance R ← R + (A × G)⁺ R, from the first layer to the last."""
    relevance = torch.eye(bare_pass.num_tokens, dtype=torch.float64)
    for maps, gradients in bare_pass.pairs():
        relevance = relevance + (maps * gradients).clamp(min=0).mean(0) @ relevance
    return read_row(relevance, bare_pass)


def att_gradcam(bare_pass: BarePass) -> Tensor:
    """The last map weighted by its heads' mean gradients, scaled to [0, 1]."""
    maps, gradient = bare_pass.pairs()[-1]
    matrix = (gradient.mean((1, 2))[:, None, None] * maps).mean(0).clamp(min=0)
    width = matrix.max() - matrix.min()
    return read_row((matrix - matrix.min()) / width if width > 0 else matrix * 0, bare_pass)


def cam(bare_pass: BarePass) -> Tensor:
    """The positive mean gradient of the last map, per key."""
    scores = bare_pass.map_gradients[-1].mean(0).mean(0).clamp(min=0)
    scores[bare_pass.cleared_position] = 0
    return scores


def raw_att_row(bare_pass: BarePass) -> Tensor:
    """The last map at the row that the head reads."""
    return read_row(bare_pass.maps[-1].mean(0), bare_pass)


def raw_att_mean(bare_pass: BarePass) -> Tensor:
    """The last map, averaged over its rows."""
    return average_rows(bare_pass.maps[-1].mean(0), bare_pass)


def average_partial_products(bare_pass: BarePass) -> Tensor:
    """Return the mean of the products of the first 1, 2 … L maps."""
    products = [bare_pass.maps[0].mean(0)]
    for maps in bare_pass.maps[1:]:
        products.append(maps.mean(0) @ products[-1])
    return torch.stack(products).mean(0)


def averaged_rollout(bare_pass: BarePass) -> Tensor:
    """The averaged rollout, averaged over its rows."""
    return average_partial_products(bare_pass).mean(0)


def averaged_rollout_row(bare_pass: BarePass) -> Tensor:
    """The averaged rollout at the row that the head reads."""
    return average_partial_products(bare_pass)[bare_pass.read_position]


def rollout_mean(bare_pass: BarePass) -> Tensor:
    """The product of (A + I)/2 over layers, averaged over its rows."""
    product = torch.eye(bare_pass.num_tokens, dtype=torch.float64)
    for maps in bare_pass.maps:
        product = (maps.mean(0) + torch.eye(bare_pass.num_tokens)) / 2 @ product
    return average_rows(product, bare_pass)


def attcat(bare_pass: BarePass) -> Tensor:
    """Attention received × state × gradient, summed over layers."""
    activations = [
        (h * g).sum(-1)
        for h, g in zip(bare_pass.states[:-1], bare_pass.state_gradients[:-1], strict=True)
    ]
    return sum(
        maps.mean(0).mean(0) * cat for maps, cat in zip(bare_pass.maps, activations, strict=True)
    )


def attcat_row(bare_pass: BarePass) -> Tensor:
    """Attention from the token that the head reads × state × gradient, summed over layers."""
    return sum(
        maps.mean(0)[bare_pass.read_position] * (h * g).sum(-1)
        for maps, h, g in zip(
            bare_pass.maps, bare_pass.states[:-1], bare_pass.state_gradients[:-1], strict=True
        )
    )


def attcat_abs(bare_pass: BarePass) -> Tensor:
    """The absolute values of AttCAT."""
    return attcat(bare_pass).abs()


MEAN = {"reduce": "mean_query"}
BARE = {"preset": "attcat_qa"}
TWINS = [
    ("grads", {}, grads), ("grads", MEAN, grads_mean),
    ("att_grads", {}, att_grads), ("att_grads", MEAN, att_grads_mean),
    ("att_grads", {"variant": "grad_sam"}, grad_sam),
    ("att_grads", {"variant": "gradcam_last"}, att_gradcam),
    ("grad_sam", {}, grad_sam), ("grad_sam", {"reduce": "cls_row"}, grad_sam_row),
    ("gae", {}, gae), ("att_gradcam", {}, att_gradcam), ("cam", {}, cam),
    ("raw_att", {"reduce": "cls_row"}, raw_att_row), ("raw_att", MEAN, raw_att_mean),
    ("rollout", MEAN, rollout_mean), ("rollout", BARE, averaged_rollout),
    ("rollout", {**BARE, "reduce": "cls_row"}, averaged_rollout_row),
    ("attcat", {}, attcat), ("attcat", {"attn_reduce": "cls"}, attcat_row),
    ("attcat", {"absolute": True}, attcat_abs),
]  # fmt: skip
every_twin = pytest.mark.parametrize(
    ("method", "options", "twin"), TWINS, ids=[f"{m}-{t.__name__}" for m, _, t in TWINS]
)


def assert_scores_close(actual: Any, expected: Any) -> None:
    """Assert that scores agree within 1e-9 of the largest."""
    expected = np.asarray(expected)
    np.testing.assert_allclose(
        actual, expected, rtol=0, atol=1e-9 * max(np.abs(expected).max(), 1e-300)
    )


@pytest.mark.parametrize("explainer", [BERT, GPT2], ids=["first token", "last token"])
@every_twin
def test_scores_of_a_class_equal_the_formula(explainer, method, options, twin):
    for label in range(3):
        attributions = explainer.explain(make_padded_batch(), (method, options), target=label)
        for attribution, ids in zip(attributions, TEXT_IDS, strict=True):
            position = 0 if explainer is BERT else len(ids) - 1
            bare_pass = BarePass(
                explainer, ids, lambda out, c=label: out.logits[0, c], position, position
            )
            assert_scores_close(attribution.scores, twin(bare_pass))
            if attribution.layers is not None:
                assert_scores_close(attribution.layers.sum(axis=0), attribution.scores)


def sum_over_sides(
    twin: Callable[[BarePass], Tensor],
    ids: list[int],
    start: dict[int, float],
    end: dict[int, float],
) -> Tensor:
    """Return the twin's scores of start plus end; each maps a position to its weight."""
    total = torch.zeros(len(ids), dtype=torch.float64)
    for logits, position_weights in (("start_logits", start), ("end_logits", end)):
        if position_weights:
            bare_pass = BarePass(
                ANSWERS,
                ids,
                lambda out, logits=logits, position_weights=position_weights: sum(
                    weight * out[logits][0, position]
                    for position, weight in position_weights.items()
                ),
                read_position=next(iter(position_weights)),
                cleared_position=0,
            )
            total += twin(bare_pass)
    return total


@pytest.mark.parametrize(
    ("start", "end"), [(5, 6), (5, 5), (0, 0), (4, None), (None, 7)],
    ids=["two tokens", "one token", "no answer", "start alone", "end alone"],
)  # fmt: skip
@every_twin
def test_scores_of_an_answer_are_the_sum_of_its_start_and_its_end(
    start, end, method, options, twin
):
    attribution = ANSWERS.explain(
        Tokens.from_ids(TEXT_IDS[:1]), (method, options), SpanTarget(start, end)
    )
    sides = [{} if position is None else {position: 1.0} for position in (start, end)]
    assert_scores_close(attribution.scores, sum_over_sides(twin, TEXT_IDS[0], *sides))
    if attribution.layers is not None:
        assert_scores_close(attribution.layers.sum(axis=0), attribution.scores)


@every_twin
def test_answers_of_one_side_and_of_two_may_share_a_batch(method, options, twin):
    targets = [SpanTarget(4, None), SpanTarget(1, 2)]
    attributions = ANSWERS.explain(make_padded_batch(), (method, options), targets)
    assert_scores_close(attributions[0].scores, sum_over_sides(twin, TEXT_IDS[0], {4: 1.0}, {}))
    assert_scores_close(
        attributions[1].scores, sum_over_sides(twin, TEXT_IDS[1], {1: 1.0}, {2: 1.0})
    )


def test_the_shared_start_of_two_answers_cancels_in_their_contrast():
    attribution = ANSWERS.explain(
        Tokens.from_ids(TEXT_IDS[:1]), "cam", Contrast(SpanTarget(4, 5), SpanTarget(4, 7))
    )
    assert_scores_close(attribution.scores, sum_over_sides(cam, TEXT_IDS[0], {}, {5: 1.0, 7: -1.0}))


def test_relevance_of_an_answer_is_zero_only_at_the_first_token():
    ids = Tokens.from_ids(TEXT_IDS[:1])
    span = SpanTarget(5, 6)
    methods = [
        ("lrp", {"zero_readout": False}),
        "lrp",
        ("mask_lrp", {"score": "input", "mask": "none"}),
    ]
    unzeroed, *zeroed = ANSWERS.explain(ids, methods, span)
    assert unzeroed.scores[0] != 0
    for attribution in zeroed:
        assert_scores_close(
            attribution.scores, np.where(np.arange(len(unzeroed)) == 0, 0.0, unzeroed.scores)
        )


@pytest.mark.parametrize("explainer", [BERT, GPT2], ids=["bert", "gpt2"])
def test_without_a_mask_mask_lrp_equals_transatt_and_needs_no_heads(explainer):
    heads = np.ones((3, 4))
    actual, with_heads, expected = explainer.explain(
        Tokens.from_ids(TEXT_IDS[:1]),
        [
            ("mask_lrp", {"mask": "none"}),
            ("mask_lrp", {"mask": "none", "heads": heads}),
            "transatt",
        ],
    )
    np.testing.assert_array_equal(actual.scores, expected.scores)
    assert actual.notes == ()
    assert with_heads.options == actual.options == {"mask": "none"}
