"""What a pass holds: no more bytes than the bare model's own forward and backward to its embeddings."""

from __future__ import annotations

import gc

import pytest
import torch
import transformers

from tests.live_bytes import LiveBytes
from tokenlight import Explainer, Tokens

IDS = torch.randint(5, 900, (1, 256), generator=torch.Generator().manual_seed(0))


def llama(dtype):
    """As many keys as queries: on a processor grouped ones are written out for every query head."""
    config = transformers.LlamaConfig(
        vocab_size=1000, hidden_size=256, intermediate_size=688, num_hidden_layers=4,
        num_attention_heads=8, pad_token_id=0, attn_implementation="sdpa",
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config).to(dtype).eval().requires_grad_(False)


def bare(model):
    embeddings = model.get_input_embeddings()(IDS).detach().requires_grad_(True)
    logits = model(inputs_embeds=embeddings, use_cache=False, logits_to_keep=1).logits
    (gradient,) = torch.autograd.grad(logits[0, -1, 7], embeddings)
    return (gradient * embeddings.detach()).sum(dim=-1)


def peak(model, call):
    """The most bytes that live at once while ``call`` runs, and those kept for the way back."""
    held = [*model.parameters(), *model.buffers()]
    own, saved = {one.untyped_storage().data_ptr() for one in held}, {}

    def keep(tensor):
        if tensor.untyped_storage().data_ptr() not in own:
            # Held, so that no other takes its place in memory.
            saved[tensor.untyped_storage().data_ptr()] = tensor.detach()
        return tensor

    gc.collect()
    with LiveBytes() as counted:
        call()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        call()
    return counted.peak, sum(one.untyped_storage().nbytes() for one in saved.values())


# Of attnlrp's norms a number a token is left; beside the embeddings stands at most a copy.
@pytest.mark.parametrize(
    ("method", "dtype", "most"),
    [
        ("attnlrp", torch.bfloat16, 0.8),
        ("attnlrp", torch.float32, 0.95),
        ("cp_lrp", torch.bfloat16, 0.8),
        ("grad_x_input", torch.bfloat16, 1.01),
        ("grad_x_input", torch.float32, 1.02),
    ],
)
def test_a_pass_holds_no_more_than_the_bare_model_does(method, dtype, most):
    model = llama(dtype)
    explainer, tokens = Explainer(model), Tokens.from_ids(IDS)

    def explained():
        return explainer.explain(tokens, method, target=7, batch_tokens=IDS.numel())

    for _ in range(2):  # looked at once, and asked what its modules are
        explained()
    theirs, ours = peak(model, lambda: bare(model)), peak(model, explained)
    assert ours[0] <= most * theirs[0], "live at once"
    assert ours[1] <= most * theirs[1], "kept for the way back"
