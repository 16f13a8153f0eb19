"""A pass holds no more bytes than the forward and backward of the bare model to its embeddings."""

from __future__ import annotations

import pytest
import torch
import transformers

from tests.helpers.garbage import collect_garbage
from tests.helpers.live_bytes import LiveBytes
from tokenlight import Explainer, NextToken, Tokens

IDS = torch.randint(5, 900, (1, 256), generator=torch.Generator().manual_seed(0))


def build_llama(dtype):
    """A Llama with as many keys as queries: on a CPU grouped ones are repeated for every query head."""
    config = transformers.LlamaConfig(
        vocab_size=1000, hidden_size=256, intermediate_size=688, num_hidden_layers=4,
        num_attention_heads=8, pad_token_id=0, attn_implementation="sdpa",
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config).to(dtype).eval().requires_grad_(False)


def explain_bare_model(model):
    embeddings = model.get_input_embeddings()(IDS).detach().requires_grad_(True)
    logits = model(inputs_embeds=embeddings, use_cache=False, logits_to_keep=1).logits
    (gradient,) = torch.autograd.grad(logits[0, -1, 7], embeddings)
    return (gradient * embeddings.detach()).sum(dim=-1)


def measure_peak(model, call):
    """Return the most bytes alive at once while ``call`` runs, and those saved for the backward pass."""
    model_tensors = [*model.parameters(), *model.buffers()]
    model_addresses = {tensor.untyped_storage().data_ptr() for tensor in model_tensors}
    saved = {}

    def save(tensor):
        address = tensor.untyped_storage().data_ptr()
        if address not in model_addresses:
            # The tensor is held, so that no other is stored at its address.
            saved[address] = tensor.detach()
        return tensor

    collect_garbage()
    with LiveBytes() as counted:
        call()
    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        call()
    return counted.peak, sum(tensor.untyped_storage().nbytes() for tensor in saved.values())


# Of attnlrp's norms one number per token is saved, and of the embeddings at most one copy.
@pytest.mark.parametrize(
    ("method", "dtype", "max_ratio"),
    [
        ("attnlrp", torch.bfloat16, 0.8),
        ("attnlrp", torch.float32, 0.95),
        ("cp_lrp", torch.bfloat16, 0.8),
        # It holds the gradients of all hidden states beside what cp_lrp holds.
        ("cat:gradient=cp", torch.float32, 1.01),
        ("grad_x_input", torch.bfloat16, 1.01),
        ("grad_x_input", torch.float32, 1.02),
    ],
)
def test_a_pass_holds_no_more_than_the_bare_model(method, dtype, max_ratio):
    model = build_llama(dtype)
    explainer = Explainer(model)
    tokens = Tokens.from_ids(IDS)

    def explain():
        target = NextToken(7, against=None)
        return explainer.explain(tokens, method, target=target, batch_tokens=IDS.numel())

    for _ in range(2):  # what is found out once is not measured
        explain()
    expected = measure_peak(model, lambda: explain_bare_model(model))
    actual = measure_peak(model, explain)
    assert actual[0] <= max_ratio * expected[0], "alive at once"
    assert actual[1] <= max_ratio * expected[1], "saved for the backward pass"
