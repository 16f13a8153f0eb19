"""Compute the last block of a classifier only as far as its head reads it: at the first token."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from tokenlight.accel.modules import list_modules
from tokenlight.hooks.blocks import list_blocks
from tokenlight.hooks.patching import patched_attributes
from tokenlight.hooks.uncompiled import runs_code_of_class

# The feed-forward part of a block of BERT and its relatives, which transformers calls through the instance.
FEED_FORWARD_ATTRIBUTE = "feed_forward_chunk"


def find_last_feed_forward(model: PreTrainedModel) -> nn.Module | None:
    """Return the last block, if its feed-forward part can be computed for some tokens only.

    Args:
        model: The model.

    Returns:
        None if its blocks have no such part, or if the caller has hooks or a ``forward`` on a module of the
        model, which may read the tokens that would be missing.
    """
    blocks = [block for block in list_blocks(model) if hasattr(block, FEED_FORWARD_ATTRIBUTE)]
    if not blocks or model.config.is_encoder_decoder:
        return None
    for module in list_modules(model):
        if module._forward_hooks or module._forward_pre_hooks or not runs_code_of_class(module):
            return None
    return blocks[-1]


@contextmanager
def first_token_alone(block: nn.Module) -> Iterator[None]:
    """Let ``block`` return the hidden state of the first token alone inside the block.

    Its attention still reads all tokens. What a feed-forward part computes of one token does not depend on
    the others, so the first hidden state stays the same.
    """
    compute_feed_forward = getattr(block, FEED_FORWARD_ATTRIBUTE)
    compute_first = partial(_compute_first_token, compute_feed_forward)
    with patched_attributes([block], **{FEED_FORWARD_ATTRIBUTE: compute_first}):
        yield


def _compute_first_token(compute_feed_forward: Any, attention_output: Tensor) -> Any:
    return compute_feed_forward(attention_output[:, :1])
