"""Value zeroing and ALTI-Logit against the papers' formulas, token by token, in float64."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.helpers.families import build_model
from tests.helpers.tiny import randomize_weights, tiny_bert, tiny_bert_qa, tiny_tokenizer
from tests.helpers.tolerance import EverythingInFloat64, assert_close
from tests.helpers.twin_inputs import TEXT_IDS, build_gpt2_classifier, make_padded_batch
from tokenlight import Contrast, Explainer, Question, Tokens
from tokenlight.errors import UnsupportedModel

BERT = Explainer(tiny_bert(), tiny_tokenizer())
GPT2 = Explainer(build_gpt2_classifier())


def copy_with_eager_attention(explainer: Explainer) -> Any:
    """Return a copy of the model that computes attention eagerly, and so returns its maps."""
    model = copy.deepcopy(explainer.model).eval()
    model.set_attn_implementation("eager")
    return model


def run_with_maps(model: Any, ids: list[int]) -> Any:
    """Return the model's outputs for one text, with attention maps and hidden states."""
    ids = torch.tensor([ids])
    return model(
        ids,
        attention_mask=torch.ones_like(ids),
        output_attentions=True,
        output_hidden_states=True,
    )


def list_blocks(model: Any) -> Any:
    """Return the blocks of the model."""
    return model.bert.encoder.layer if hasattr(model, "bert") else model.transformer.h


def find_value_projection(block: Any) -> tuple[Any, slice]:
    """Return the linear map that gives a block's values, and which of its outputs they are."""
    if hasattr(block, "attention"):
        return block.attention.self.value, slice(None)
    return block.attn.c_attn, slice(64, 96)


def compute_block_output(model: Any, ids: list[int], layer: int, zeroed: int | None) -> Tensor:
    """Return the output of block ``layer`` with the values of the token ``zeroed`` set to zero."""

    def zero_values(_module: Any, _arguments: Any, output: Any) -> Tensor:
        """Set the values of the token to zero."""
        output = output.clone()
        if zeroed is not None:
            output[:, zeroed, value_slice] = 0
        return output

    def record_output(_module: Any, _arguments: Any, output: Any) -> None:
        """Keep the output of the block."""
        outputs.append(output if isinstance(output, torch.Tensor) else output[0])

    outputs = []
    block = list_blocks(model)[layer]
    linear, value_slice = find_value_projection(block)
    handles = [
        linear.register_forward_hook(zero_values),
        block.register_forward_hook(record_output),
    ]
    with torch.no_grad():
        run_with_maps(model, ids)
    for handle in handles:
        handle.remove()
    return outputs[0][0]


def compute_value_zeroing(model: Any, ids: list[int]) -> Tensor:
    """Return the rolled-out distances that zeroing each token's values causes."""
    flow = torch.eye(len(ids), dtype=torch.float64)
    for layer in range(len(list_blocks(model))):
        clean = compute_block_output(model, ids, layer, None)
        moved = torch.stack(
            [
                1
                - torch.cosine_similarity(clean, compute_block_output(model, ids, layer, j), dim=-1)
                for j in range(len(ids))
            ],
            dim=1,
        )
        flow = moved / moved.sum(dim=1, keepdim=True) @ flow
    return flow


@pytest.mark.parametrize(
    ("explainer", "read_position"), [(BERT, 0), (GPT2, -1)], ids=["bert", "gpt2"]
)
def test_value_zeroing_is_the_rolled_out_distance_of_one_block_at_a_time(explainer, read_position):
    model = copy_with_eager_attention(explainer)
    attributions = explainer.explain(make_padded_batch(), "value_zeroing")
    for ids, attribution in zip(TEXT_IDS, attributions, strict=True):
        expected = compute_value_zeroing(model, ids)[read_position].numpy()
        # The twin's 1 − cos cancels: distances of 1e-4 keep twelve digits.
        np.testing.assert_allclose(attribution.scores, expected, rtol=0, atol=1e-10)
        assert attribution.scores.sum() == pytest.approx(1)


def test_a_value_vector_that_is_zero_has_no_effect():
    model = tiny_bert()
    for block in model.bert.encoder.layer:
        torch.nn.init.zeros_(block.attention.self.value.weight)
        torch.nn.init.zeros_(block.attention.self.value.bias)
    attribution = Explainer(model, tiny_tokenizer()).explain("good film", "value_zeroing")
    assert not attribution.scores.any()


def test_value_zeroing_takes_two_passes_and_one_per_token():
    batch_sizes = []
    handle = BERT.model.register_forward_pre_hook(
        lambda _m, arguments, keywords: batch_sizes.append(
            len(next(iter([*arguments, *keywords.values()])))
        ),
        with_kwargs=True,
    )
    BERT.explain("the plot is dull", "value_zeroing")
    batch_sizes.clear()
    attribution = BERT.explain("the film is good", "value_zeroing")
    handle.remove()
    assert sum(batch_sizes) == len(attribution) + 2


def test_a_model_outside_the_attention_interface_is_refused_by_value_zeroing():
    with pytest.raises(UnsupportedModel, match="cannot be set to zero"):
        Explainer(build_model("deberta")).explain(Tokens.from_ids([TEXT_IDS[0]]), "value_zeroing")


def apply_linear_norm(norm: Any, vector: Tensor, norm_input: Tensor) -> Tensor:
    """Return a LayerNorm of ``vector`` without its bias, with the deviation of ``norm_input``."""
    return (vector - vector.mean()) * norm.weight / norm_input.std(correction=0)


def run_with_norm_states(
    model: Any, ids: list[int]
) -> tuple[Any, dict[Any, tuple[Tensor, Tensor]]]:
    """Return the outputs for one text, and (input, output) of every norm by its module."""
    norm_states = {}
    handles = [
        module.register_forward_hook(lambda m, g, o: norm_states.__setitem__(m, (g[0][0], o[0])))
        for module in model.modules()
        if isinstance(module, torch.nn.LayerNorm)
    ]
    out = run_with_maps(model, ids)
    for handle in handles:
        handle.remove()
    return out, norm_states


def follow_to_last_state(
    model: Any,
    layer: int,
    vector: Tensor,
    read_position: int,
    norm_states: dict[Any, tuple[Tensor, Tensor]],
) -> Tensor:
    """Return what a vector added by block ``layer`` at ``read_position`` becomes in the last hidden state."""
    if not hasattr(model, "bert"):
        norm = model.transformer.ln_f
        return apply_linear_norm(norm, vector, norm_states[norm][0][read_position])
    for later in model.bert.encoder.layer[layer:]:
        for norm in (later.attention.output.LayerNorm, later.output.LayerNorm):
            vector = apply_linear_norm(norm, vector, norm_states[norm][0][read_position])
    return vector


def compute_values_and_projection(
    model: Any, layer: int, entering: Tensor
) -> tuple[Tensor, Tensor]:
    """Return values, ``token head width``, and the output projection, ``head width hidden``, of a block."""
    block = list_blocks(model)[layer]
    heads = model.config.num_attention_heads
    if hasattr(model, "bert"):
        values = block.attention.self.value(entering)
        matrix = block.attention.output.dense.weight.T
    else:
        values = block.attn.c_attn(block.ln_1(entering))[:, 64:]
        matrix = block.attn.c_proj.weight
    return values.view(len(entering), heads, -1), matrix.reshape(heads, -1, matrix.shape[1])


def compute_mixing_shares(
    model: Any, ids: list[int], out: Any, norm_states: dict[Any, tuple[Tensor, Tensor]], layer: int
) -> Tensor:
    """Return ALTI's shares of one block, by its formula."""
    entering = out.hidden_states[layer][0]
    values, matrix = compute_values_and_projection(model, layer, entering)
    maps = out.attentions[layer][0]
    n = len(ids)
    shares = torch.zeros(n, n, dtype=torch.float64)
    for i in range(n):
        parts = [
            sum(maps[h, i, j] * values[j, h] @ matrix[h] for h in range(len(matrix)))
            + (entering[j] if i == j else 0)
            for j in range(n)
        ]
        if hasattr(model, "bert"):
            norm = list_blocks(model)[layer].attention.output.LayerNorm
            norm_input = norm_states[norm][0][i]
            total = norm_states[norm][1][i]
            parts = [apply_linear_norm(norm, part, norm_input) for part in parts]
        else:
            total = norm_states[list_blocks(model)[layer].ln_2][0][i]
        proximities = [total.abs().sum() - (part - total + 1e-6).abs().sum() for part in parts]
        shares[i] = torch.stack(proximities).clamp(min=0).detach()
        if shares[i].sum() > 0:
            shares[i] /= shares[i].sum()
    return shares


def compute_alti_logit(
    model: Any, ids: list[int], read_position: int, weights: Tensor
) -> np.ndarray:
    """Return ALTI-Logit's scores for the weighted sum of logits."""
    out, norm_states = run_with_norm_states(model, ids)
    last = out.hidden_states[-1]
    (slope,) = torch.autograd.grad((out.logits[0] * weights).sum(), last)
    n = len(ids)
    scores = torch.zeros(n, dtype=torch.float64)
    below = torch.eye(n, dtype=torch.float64)
    for layer in range(len(list_blocks(model))):
        values, matrix = compute_values_and_projection(model, layer, out.hidden_states[layer][0])
        maps = out.attentions[layer][0]
        added = torch.zeros(n, dtype=torch.float64)
        for j in range(n):
            contribution = sum(
                maps[h, read_position, j] * values[j, h] @ matrix[h] for h in range(len(matrix))
            )
            in_last_state = follow_to_last_state(
                model, layer, contribution, read_position, norm_states
            )
            added[j] = (in_last_state @ slope[0, read_position]).detach()
        scores += added @ below
        below = compute_mixing_shares(model, ids, out, norm_states, layer) @ below
    return scores.numpy()


@pytest.mark.parametrize(
    ("explainer", "read_position"), [(BERT, 0), (GPT2, -1)], ids=["bert", "gpt2"]
)
def test_alti_logit_is_what_attention_adds_to_the_logit_tracked_to_the_input(
    explainer, read_position
):
    model = copy_with_eager_attention(explainer)
    attributions = explainer.explain(make_padded_batch(), "alti_logit", 1)
    weights = torch.zeros(model.config.num_labels, dtype=torch.float64)
    weights[1] = 1
    for ids, attribution in zip(TEXT_IDS, attributions, strict=True):
        expected = compute_alti_logit(model, ids, read_position % len(ids), weights)
        assert_close(attribution.scores, expected)


def test_alti_logit_of_a_contrast_is_the_difference_of_two():
    this, that = (BERT.explain("the film is good", "alti_logit", target) for target in (0, 1))
    contrast = BERT.explain("the film is good", "alti_logit", Contrast(0, 1))
    np.testing.assert_allclose(contrast.scores, this.scores - that.scores, rtol=0, atol=1e-12)


def test_alti_logit_explains_answers():
    question = Question(question="who sat on the mat ?", context="the cat sat on the mat in town .")
    attribution = Explainer(tiny_bert_qa(), tiny_tokenizer()).explain(question, "alti_logit")
    assert np.isfinite(attribution.scores).all()
    assert attribution.scores.any()


def test_alti_logit_of_a_model_without_biases_adds_up_to_what_attention_adds():
    model = randomize_weights(build_model("llama"), torch.float64).eval()
    added = []
    norm_inputs = []
    handles = [
        block.self_attn.o_proj.register_forward_hook(lambda _m, _g, out: added.append(out[0, -1]))
        for block in model.model.layers
    ]
    norm = model.model.norm
    handles.append(norm.register_forward_pre_hook(lambda _m, g: norm_inputs.append(g[0][0, -1])))
    with EverythingInFloat64():
        run_with_maps(model, TEXT_IDS[0])
        for handle in handles:
            handle.remove()
        attribution = Explainer(model).explain(Tokens.from_ids([TEXT_IDS[0]]), "alti_logit", 1)
    scale = norm.weight / norm_inputs[0].square().mean().sqrt()
    expected = sum((output * scale) @ model.score.weight[1] for output in added).item()
    assert attribution.scores.sum() == pytest.approx(expected, rel=1e-9)


def test_a_stack_whose_last_norm_is_not_known_is_refused_by_alti_logit():
    with pytest.raises(UnsupportedModel, match="cannot be followed to its last hidden state"):
        Explainer(build_model("gemma")).explain(Tokens.from_ids([TEXT_IDS[0]]), "alti_logit")
