"""Find the modules that turn token ids or image patches into vectors."""

from contextlib import suppress
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from tokenlight.errors import UnsupportedModel


def find_token_embeddings(model: PreTrainedModel) -> list[nn.Module]:
    """Find the modules that turn ids into vectors; an encoder and a decoder may each have their own.

    Raises:
        UnsupportedModel: If the model has no table with one vector per token id.
    """
    if model.main_input_name == "pixel_values":
        return [find_patch_embedding(model)]
    parts = [model]
    if model.config.is_encoder_decoder:
        parts.append(model.get_encoder())
    embeddings: list[nn.Module] = []
    for part in parts:
        embedding = _get_input_embeddings(part)
        weight = getattr(embedding, "weight", None)
        if not isinstance(weight, Tensor) or weight.dim() != 2:
            raise UnsupportedModel(
                f"{type(model).__name__} has no table of token embeddings, so it does not read tokens one "
                "by one, and scores cannot be assigned to tokens. Use a model with token embeddings.",
                code="no-token-embeddings",
            )
        embeddings.append(embedding)
    return list(dict.fromkeys(embeddings))


def list_embedding_inputs(model: PreTrainedModel) -> list[nn.Module]:
    """List the modules at which the graph of a pass begins.

    A decoder next to the encoder reads the text too, so its table belongs to them: what it returns is then
    an activation to relevance, whatever hooks and methods there are.
    """
    modules = find_token_embeddings(model)
    if model.config.is_encoder_decoder:
        decoder_embedding = model.get_decoder().get_input_embeddings()
        if isinstance(decoder_embedding, nn.Module):
            modules.append(decoder_embedding)
    return list(dict.fromkeys(modules))


def _get_input_embeddings(module: Any) -> Any:
    with suppress(AttributeError, NotImplementedError):
        return module.get_input_embeddings()
    return None


def find_patch_embedding(model: PreTrainedModel) -> nn.Module:
    """Find the module that turns patches into vectors: one convolution without overlap.

    Raises:
        UnsupportedModel: If the model does not keep one token per patch.
    """
    embedding = _get_input_embeddings(model)
    root = embedding or model
    convolutions = [module for module in root.modules() if isinstance(module, nn.Conv2d)]
    if len(convolutions) != 1 or hasattr(model.config, "depths"):
        raise make_patch_grid_error(model)
    (convolution,) = convolutions
    if convolution.kernel_size != convolution.stride:
        raise make_patch_grid_error(model)
    return embedding or convolution


def make_patch_grid_error(model: PreTrainedModel) -> UnsupportedModel:
    """Return the error for a model that does not keep its tokens in one grid of patches."""
    return UnsupportedModel(
        f"{type(model).__name__} does not keep one token per patch from layer to layer: its patches "
        "overlap, it mixes, merges or pools them, or it has none, so scores do not fit on one grid. "
        "Use a plain vision Transformer (ViT, DeiT, DINOv2, BEiT).",
        code="no-patch-grid",
    )
