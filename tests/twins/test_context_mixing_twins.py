"""Value zeroing and ALTI-Logit against the papers' formulas, token by token, in float64."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from tests.families import build
from tests.tiny import randomised, tiny_bert, tiny_bert_qa, tiny_tokenizer
from tests.tolerance import EverythingInFloat64, close
from tests.twins.test_one_pass_twins import IDS, tiny_gpt2
from tokenlight import Contrast, Explainer, Question, Tokens
from tokenlight.errors import UnsupportedModel

BERT, GPT2 = Explainer(tiny_bert(), tiny_tokenizer()), Explainer(tiny_gpt2())


def batch():
    """Both texts, the shorter one padded."""
    ids = [[*own, *[0] * (len(IDS[0]) - len(own))] for own in IDS]
    return Tokens.from_ids(ids, [[int(i < len(own)) for i in range(len(IDS[0]))] for own in IDS])


def bare(explainer):
    model = copy.deepcopy(explainer.model).eval()
    model.set_attn_implementation("eager")
    return model


def passed(model, ids):
    ids = torch.tensor([ids])
    return model(
        ids,
        attention_mask=torch.ones_like(ids),
        output_attentions=True,
        output_hidden_states=True,
    )


def blocks_of(model):
    return model.bert.encoder.layer if hasattr(model, "bert") else model.transformer.h


def value_maker(block):
    """The linear map that gives a block's values, and which of its outputs they are."""
    if hasattr(block, "attention"):
        return block.attention.self.value, slice(None)
    return block.attn.c_attn, slice(64, 96)


def leaving(model, ids, layer, zeroed):
    """What leaves block ``layer`` of the whole model, the values of the token ``zeroed`` being zero in it."""

    def zero(_module, _given, output):
        output = output.clone()
        if zeroed is not None:
            output[:, zeroed, part] = 0
        return output

    def keep(_module, _given, output):
        kept.append(output if isinstance(output, torch.Tensor) else output[0])

    kept = []
    block = blocks_of(model)[layer]
    linear, part = value_maker(block)
    handles = [linear.register_forward_hook(zero), block.register_forward_hook(keep)]
    with torch.no_grad():
        passed(model, ids)
    for handle in handles:
        handle.remove()
    return kept[0][0]


def zeroing_twin(model, ids):
    flow = torch.eye(len(ids), dtype=torch.float64)
    for layer in range(len(blocks_of(model))):
        clean = leaving(model, ids, layer, None)
        moved = torch.stack(
            [
                1 - torch.cosine_similarity(clean, leaving(model, ids, layer, j), dim=-1)
                for j in range(len(ids))
            ],
            dim=1,
        )
        flow = moved / moved.sum(dim=1, keepdim=True) @ flow
    return flow


@pytest.mark.parametrize(("explainer", "read"), [(BERT, 0), (GPT2, -1)], ids=["bert", "gpt2"])
def test_value_zeroing_is_the_rolled_out_distance_of_one_block_at_a_time(explainer, read):
    model = bare(explainer)
    found = explainer.explain(batch(), "value_zeroing")
    for ids, one in zip(IDS, found, strict=True):
        expected = zeroing_twin(model, ids)[read].numpy()
        # The twin's 1 − cos cancels: distances of 1e-4 keep twelve digits.
        np.testing.assert_allclose(one.scores, expected, rtol=0, atol=1e-10)
        assert one.scores.sum() == pytest.approx(1)


def test_a_value_that_is_zero_already_says_nothing():
    model = tiny_bert()
    for block in model.bert.encoder.layer:
        torch.nn.init.zeros_(block.attention.self.value.weight)
        torch.nn.init.zeros_(block.attention.self.value.bias)
    found = Explainer(model, tiny_tokenizer()).explain("good film", "value_zeroing")
    assert not found.scores.any()


def test_value_zeroing_takes_a_pass_for_each_token_beside_two():
    calls = []
    handle = BERT.model.register_forward_pre_hook(
        lambda _m, given, named: calls.append(len(next(iter([*given, *named.values()])))),
        with_kwargs=True,
    )
    BERT.explain("the plot is dull", "value_zeroing")
    calls.clear()
    found = BERT.explain("the film is good", "value_zeroing")
    handle.remove()
    assert sum(calls) == len(found) + 2


def test_a_model_outside_the_attention_interface_is_refused_by_value_zeroing():
    with pytest.raises(UnsupportedModel, match="none can be made zero"):
        Explainer(build("deberta")).explain(Tokens.from_ids([IDS[0]]), "value_zeroing")


def linear_norm(norm, vector, given):
    """A LayerNorm without its bias, its deviation that of ``given``."""
    return (vector - vector.mean()) * norm.weight / given.std(correction=0)


def traced(model, ids):
    """The states around every norm of one text: module to (given, output)."""
    seen = {}
    handles = [
        module.register_forward_hook(lambda m, g, o: seen.__setitem__(m, (g[0][0], o[0])))
        for module in model.modules()
        if isinstance(module, torch.nn.LayerNorm)
    ]
    out = passed(model, ids)
    for handle in handles:
        handle.remove()
    return out, seen


def onwards(model, layer, vector, read, seen):
    """A vector that block ``layer``'s attention adds at token ``read``, at the last hidden state."""
    if not hasattr(model, "bert"):
        norm = model.transformer.ln_f
        return linear_norm(norm, vector, seen[norm][0][read])
    for later in model.bert.encoder.layer[layer:]:
        for norm in (later.attention.output.LayerNorm, later.output.LayerNorm):
            vector = linear_norm(norm, vector, seen[norm][0][read])
    return vector


def attention_weights(model, layer, entering):
    """Values ``token head width`` and the output projection ``head width hidden`` of a block."""
    block, heads = blocks_of(model)[layer], model.config.num_attention_heads
    if hasattr(model, "bert"):
        values = block.attention.self.value(entering)
        matrix = block.attention.output.dense.weight.T
    else:
        values = block.attn.c_attn(block.ln_1(entering))[:, 64:]
        matrix = block.attn.c_proj.weight
    return values.view(len(entering), heads, -1), matrix.reshape(heads, -1, matrix.shape[1])


def mixing_twin(model, ids, out, seen, layer):
    """ALTI's shares of one block, written out."""
    entering = out.hidden_states[layer][0]
    values, matrix = attention_weights(model, layer, entering)
    maps, n = out.attentions[layer][0], len(ids)
    shares = torch.zeros(n, n, dtype=torch.float64)
    for i in range(n):
        parts = [
            sum(maps[h, i, j] * values[j, h] @ matrix[h] for h in range(len(matrix)))
            + (entering[j] if i == j else 0)
            for j in range(n)
        ]
        if hasattr(model, "bert"):
            norm = blocks_of(model)[layer].attention.output.LayerNorm
            given, whole = seen[norm][0][i], seen[norm][1][i]
            parts = [linear_norm(norm, part, given) for part in parts]
        else:
            whole = seen[blocks_of(model)[layer].ln_2][0][i]
        near = [whole.abs().sum() - (part - whole + 1e-6).abs().sum() for part in parts]
        shares[i] = torch.stack(near).clamp(min=0).detach()
        if shares[i].sum() > 0:
            shares[i] /= shares[i].sum()
    return shares


def logit_twin(model, ids, read, weights):
    """Scores for the weighted sum of logits ``weights``."""
    out, seen = traced(model, ids)
    last = out.hidden_states[-1]
    (slope,) = torch.autograd.grad((out.logits[0] * weights).sum(), last)
    n = len(ids)
    scores, below = torch.zeros(n, dtype=torch.float64), torch.eye(n, dtype=torch.float64)
    for layer in range(len(blocks_of(model))):
        values, matrix = attention_weights(model, layer, out.hidden_states[layer][0])
        maps = out.attentions[layer][0]
        added = torch.zeros(n, dtype=torch.float64)
        for j in range(n):
            brought = sum(maps[h, read, j] * values[j, h] @ matrix[h] for h in range(len(matrix)))
            added[j] = (onwards(model, layer, brought, read, seen) @ slope[0, read]).detach()
        scores += added @ below
        below = mixing_twin(model, ids, out, seen, layer) @ below
    return scores.numpy()


@pytest.mark.parametrize(("explainer", "read"), [(BERT, 0), (GPT2, -1)], ids=["bert", "gpt2"])
def test_alti_logit_is_what_attention_adds_to_the_logit_tracked_to_the_input(explainer, read):
    model = bare(explainer)
    found = explainer.explain(batch(), "alti_logit", 1)
    weights = torch.zeros(model.config.num_labels, dtype=torch.float64)
    weights[1] = 1
    for ids, one in zip(IDS, found, strict=True):
        expected = logit_twin(model, ids, read % len(ids), weights)
        close(one.scores, expected)


def test_alti_logit_of_a_contrast_is_the_difference_of_two():
    this, that = (BERT.explain("the film is good", "alti_logit", target) for target in (0, 1))
    both = BERT.explain("the film is good", "alti_logit", Contrast(0, 1))
    np.testing.assert_allclose(both.scores, this.scores - that.scores, rtol=0, atol=1e-12)


def test_alti_logit_explains_answers():
    question = Question(question="who sat on the mat ?", context="the cat sat on the mat in town .")
    found = Explainer(tiny_bert_qa(), tiny_tokenizer()).explain(question, "alti_logit")
    assert np.isfinite(found.scores).all()
    assert found.scores.any()


def test_alti_logit_of_a_model_without_biases_adds_up_to_what_attention_adds():
    model = randomised(build("llama"), torch.float64).eval()
    added, given = [], []
    handles = [
        block.self_attn.o_proj.register_forward_hook(lambda _m, _g, out: added.append(out[0, -1]))
        for block in model.model.layers
    ]
    norm = model.model.norm
    handles.append(norm.register_forward_pre_hook(lambda _m, g: given.append(g[0][0, -1])))
    with EverythingInFloat64():
        passed(model, IDS[0])
        for handle in handles:
            handle.remove()
        found = Explainer(model).explain(Tokens.from_ids([IDS[0]]), "alti_logit", 1)
    scale = norm.weight / given[0].square().mean().sqrt()
    expected = sum((one * scale) @ model.score.weight[1] for one in added).item()
    assert found.scores.sum() == pytest.approx(expected, rel=1e-9)


def test_a_stack_whose_last_norm_is_not_known_is_refused_by_alti_logit():
    with pytest.raises(UnsupportedModel, match="cannot be followed to its last hidden state"):
        Explainer(build("gemma")).explain(Tokens.from_ids([IDS[0]]), "alti_logit")
