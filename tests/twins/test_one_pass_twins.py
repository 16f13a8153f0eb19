"""Attention and gradient methods against the formulas on paper, one text at a time, in float64.

The twins read the model's own attention maps and hidden states (eager attention) and their gradients;
``r`` is the token the head reads.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2ForSequenceClassification

from tests.helpers.tiny import randomize_weights, tiny_bert, tiny_bert_qa, tiny_tokenizer
from tokenlight import Contrast, Explainer, SpanTarget, Tokens

IDS = [[2, 17, 9, 30, 12, 44, 21, 8, 3], [2, 40, 33, 3]]


def tiny_gpt2():
    config = GPT2Config(
        vocab_size=150, n_embd=32, n_layer=3, n_head=4, n_positions=48, num_labels=3, pad_token_id=0
    )
    return randomize_weights(GPT2ForSequenceClassification(config), torch.float64)


BERT = Explainer(tiny_bert(), tiny_tokenizer())
GPT2 = Explainer(tiny_gpt2())
ANSWERS = Explainer(tiny_bert_qa(), tiny_tokenizer())


class BarePass:
    """One text through the bare model: maps A, their gradients G, states h, their gradients g."""

    def __init__(self, explainer, ids, value):
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
        self.n = ids.shape[1]

    def pairs(self):
        return list(zip(self.maps, self.map_gradients, strict=True))


def row(matrix, r, cleared):
    """Row r; ``cleared``: the token whose own cell is zero, or None."""
    matrix = matrix.clone()
    if cleared is not None:
        matrix[cleared, cleared] = 0
    return matrix[r]


def mean_row(matrix, cleared):
    matrix = matrix.clone()
    if cleared is not None:
        matrix[cleared, cleared] = 0
    return matrix.mean(0)


def grads(bare_pass, r, cleared):  # noqa: ARG001 - nothing is cleared
    return bare_pass.map_gradients[-1].mean(0)[r]


def grads_mean(bare_pass, r, cleared):  # noqa: ARG001
    return bare_pass.map_gradients[-1].mean(0).mean(0)


def att_grads(bare_pass, r, cleared):  # noqa: ARG001
    return sum((maps * gradients).mean(0) for maps, gradients in bare_pass.pairs())[r]


def att_grads_mean(bare_pass, r, cleared):  # noqa: ARG001
    return sum((maps * gradients).mean(0) for maps, gradients in bare_pass.pairs()).mean(0)


def grad_sam(bare_pass, r, cleared):  # noqa: ARG001
    positive_parts = [
        (maps * gradients.clamp(min=0)).mean(0).mean(0) for maps, gradients in bare_pass.pairs()
    ]
    return sum(positive_parts) / len(positive_parts)


def grad_sam_row(bare_pass, r, cleared):  # noqa: ARG001
    positive_parts = [
        (maps * gradients.clamp(min=0)).mean(0)[r] for maps, gradients in bare_pass.pairs()
    ]
    return sum(positive_parts) / len(positive_parts)


def gae(bare_pass, r, cleared):
    relevance = torch.eye(bare_pass.n, dtype=torch.float64)
    for maps, gradients in bare_pass.pairs():
        relevance = relevance + (maps * gradients).clamp(min=0).mean(0) @ relevance
    return row(relevance, r, cleared)


def att_gradcam(bare_pass, r, cleared):
    maps, gradient = bare_pass.pairs()[-1]
    matrix = (gradient.mean((1, 2))[:, None, None] * maps).mean(0).clamp(min=0)
    width = matrix.max() - matrix.min()
    return row((matrix - matrix.min()) / width if width > 0 else matrix * 0, r, cleared)


def cam(bare_pass, r, cleared):  # noqa: ARG001
    scores = bare_pass.map_gradients[-1].mean(0).mean(0).clamp(min=0)
    scores[cleared] = 0
    return scores


def raw_att_row(bare_pass, r, cleared):
    return row(bare_pass.maps[-1].mean(0), r, cleared)


def raw_att_mean(bare_pass, r, cleared):  # noqa: ARG001
    return mean_row(bare_pass.maps[-1].mean(0), cleared)


def partial_products(bare_pass):
    products = [bare_pass.maps[0].mean(0)]
    for maps in bare_pass.maps[1:]:
        products.append(maps.mean(0) @ products[-1])
    return torch.stack(products).mean(0)


def averaged_rollout(bare_pass, r, cleared):  # noqa: ARG001
    return partial_products(bare_pass).mean(0)


def averaged_rollout_row(bare_pass, r, cleared):  # noqa: ARG001
    return partial_products(bare_pass)[r]


def rollout_mean(bare_pass, r, cleared):  # noqa: ARG001
    product = torch.eye(bare_pass.n, dtype=torch.float64)
    for maps in bare_pass.maps:
        product = (maps.mean(0) + torch.eye(bare_pass.n)) / 2 @ product
    return mean_row(product, cleared)


def attcat(bare_pass, r, cleared):  # noqa: ARG001
    activations = [
        (h * g).sum(-1)
        for h, g in zip(bare_pass.states[:-1], bare_pass.state_gradients[:-1], strict=True)
    ]
    return sum(
        maps.mean(0).mean(0) * cat for maps, cat in zip(bare_pass.maps, activations, strict=True)
    )


def attcat_row(bare_pass, r, cleared):  # noqa: ARG001
    return sum(
        maps.mean(0)[r] * (h * g).sum(-1)
        for maps, h, g in zip(
            bare_pass.maps, bare_pass.states[:-1], bare_pass.state_gradients[:-1], strict=True
        )
    )


def attcat_abs(bare_pass, r, cleared):
    return attcat(bare_pass, r, cleared).abs()


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
    ("attcat", {"abs": True}, attcat_abs),
]  # fmt: skip
every_twin = pytest.mark.parametrize(
    ("method", "options", "twin"), TWINS, ids=[f"{m}-{t.__name__}" for m, _, t in TWINS]
)


def assert_scores_close(ours, theirs):
    theirs = np.asarray(theirs)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9 * max(np.abs(theirs).max(), 1e-300))


def batch():
    width = max(map(len, IDS))
    return Tokens.from_ids(
        [ids + [0] * (width - len(ids)) for ids in IDS],
        [[1] * len(ids) + [0] * (width - len(ids)) for ids in IDS],
    )


@pytest.mark.parametrize("explainer", [BERT, GPT2], ids=["first token", "last token"])
@every_twin
def test_a_class_is_explained_as_written(explainer, method, options, twin):
    for label in range(3):
        attributions = explainer.explain(batch(), (method, options), target=label)
        for attribution, ids in zip(attributions, IDS, strict=True):
            r = 0 if explainer is BERT else len(ids) - 1
            bare_pass = BarePass(explainer, ids, lambda out, c=label: out.logits[0, c])
            assert_scores_close(attribution.scores, twin(bare_pass, r, r))
            if attribution.layers is not None:
                assert_scores_close(attribution.layers.sum(axis=0), attribution.scores)


def sum_over_sides(twin, ids, start, end):
    """Start's map plus end's; ``start`` and ``end`` map a position to its weight."""
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
            )
            total += twin(bare_pass, next(iter(position_weights)), 0)
    return total


@pytest.mark.parametrize(
    ("start", "end"), [(5, 6), (5, 5), (0, 0), (4, None), (None, 7)],
    ids=["two tokens", "one token", "no answer", "start alone", "end alone"],
)  # fmt: skip
@every_twin
def test_an_answer_is_its_start_and_its_end_added(start, end, method, options, twin):
    attribution = ANSWERS.explain(
        Tokens.from_ids(IDS[:1]), (method, options), SpanTarget(start, end)
    )
    sides = [{} if position is None else {position: 1.0} for position in (start, end)]
    assert_scores_close(attribution.scores, sum_over_sides(twin, IDS[0], *sides))
    if attribution.layers is not None:
        assert_scores_close(attribution.layers.sum(axis=0), attribution.scores)


@every_twin
def test_answers_of_one_side_and_of_two_may_share_a_batch(method, options, twin):
    targets = [SpanTarget(4, None), SpanTarget(1, 2)]
    attributions = ANSWERS.explain(batch(), (method, options), targets)
    assert_scores_close(attributions[0].scores, sum_over_sides(twin, IDS[0], {4: 1.0}, {}))
    assert_scores_close(attributions[1].scores, sum_over_sides(twin, IDS[1], {1: 1.0}, {2: 1.0}))


def test_two_answers_are_held_against_each_other_side_by_side():
    attribution = ANSWERS.explain(
        Tokens.from_ids(IDS[:1]), "cam", Contrast(SpanTarget(4, 5), SpanTarget(4, 7))
    )
    assert_scores_close(attribution.scores, sum_over_sides(cam, IDS[0], {}, {5: 1.0, 7: -1.0}))


def test_relevance_of_an_answer_is_zero_at_the_first_token_alone():
    ids = Tokens.from_ids(IDS[:1])
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
def test_without_a_mask_mask_lrp_is_transatt_and_asks_for_no_heads(explainer):
    heads = np.ones((3, 4))
    ours, with_heads, theirs = explainer.explain(
        Tokens.from_ids(IDS[:1]),
        [
            ("mask_lrp", {"mask": "none"}),
            ("mask_lrp", {"mask": "none", "heads": heads}),
            "transatt",
        ],
    )
    np.testing.assert_array_equal(ours.scores, theirs.scores)
    assert ours.notes == ()
    assert with_heads.options == ours.options == {"mask": "none"}
