"""Read the outputs of a pass: logits at the target positions, sentence embeddings, hidden states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from tokenlight.accel.transfer import to_device
from tokenlight.errors import UnsupportedModel

if TYPE_CHECKING:
    from tokenlight.model.live import LiveModel


def read_logits(
    live: LiveModel,
    outputs: Any,
    arguments: dict[str, Tensor],
    *,
    with_normalizer_gradient: bool = True,
) -> Tensor:
    """Return the logits that a target refers to; see :meth:`LiveModel.read_logits`."""
    if live.head.kind == "span":
        return torch.stack((outputs.start_logits, outputs.end_logits), dim=-1)
    if live.head.task == "pair":
        return _similarities(live, outputs, arguments)
    logits: Tensor = outputs.logits
    if "read_positions" in arguments and logits.dim() == 3:
        positions = arguments["read_positions"]
        logits = _select_positions(live, logits, positions)
        if "continuation_ids" in arguments:
            return _continuation_logits(
                logits,
                arguments["continuation_ids"],
                with_normalizer_gradient=with_normalizer_gradient,
            )
        if positions.dim() == 2:  # several tokens per row, each with logits of its own
            return logits
    num_labels = len(live.head.labels)
    if logits.dim() != 2 or logits.shape[1] != num_labels:
        raise UnsupportedModel(
            f"{type(live.model).__name__} gives logits of shape {tuple(logits.shape)}, but one row per text "
            f"with {num_labels} entries was expected, one for each label of its config. Check "
            "model.config.num_labels and the head of the model.",
            code="logits-shape",
        )
    return logits


def _similarities(live: LiveModel, outputs: Any, arguments: dict[str, Tensor]) -> Tensor:
    """Return batch × 1: the similarity of each sentence embedding to its reference embedding."""
    embeddings = pool_embeddings(live, outputs, arguments)
    if live.similarity == "cosine":
        embeddings = normalize(embeddings, dim=-1, eps=1e-12)
    return (embeddings * arguments["reference_embedding"].to(embeddings)).sum(dim=-1, keepdim=True)


def _select_positions(live: LiveModel, logits: Tensor, positions: Tensor) -> Tensor:
    """Return the logits at ``positions``, batch (× several) × vocabulary."""
    if "logits_to_keep" in live.forward_parameters:
        # The model computed logits at the distinct positions only; find each one among these.
        positions = torch.searchsorted(torch.unique(positions), positions)
    rows = torch.arange(len(positions), device=logits.device)
    if positions.dim() == 2:
        rows = rows[:, None]
    return logits[rows, to_device(positions, logits.device)]


def _continuation_logits(
    logits: Tensor, continuation_ids: Tensor, *, with_normalizer_gradient: bool
) -> Tensor:
    """Return batch × written × 2: each token's logit, and ln Σ exp of the logits of all other tokens."""
    ids = to_device(continuation_ids, logits.device)[..., None]
    other_logits = logits
    if not with_normalizer_gradient:
        other_logits = logits.detach()
    other_logits = other_logits.scatter(-1, ids, -torch.inf)
    normalizer = other_logits.logsumexp(dim=-1, keepdim=True)
    return torch.cat((logits.gather(-1, ids), normalizer), dim=-1)


def pool_embeddings(live: LiveModel, outputs: Any, arguments: dict[str, Tensor]) -> Tensor:
    """Pool the last hidden states into one embedding per text, batch × hidden."""
    hidden_states: Tensor = outputs.last_hidden_state
    attention_mask = arguments["attention_mask"]
    weights = attention_mask.to(hidden_states)
    if live.pooling == "cls":
        return hidden_states[:, 0]
    if live.pooling == "last":
        last_positions = attention_mask.cumsum(dim=1).argmax(dim=1)
        rows = torch.arange(len(last_positions), device=last_positions.device)
        return hidden_states[rows, last_positions]
    if live.pooling == "max":
        return hidden_states.masked_fill(weights[..., None] == 0, -torch.inf).amax(dim=1)
    if live.pooling == "weightedmean":
        # Later tokens have read more of the text and weigh more.
        positions = torch.arange(1, weights.shape[1] + 1, device=weights.device)
        weights = weights * positions.to(weights)
    divisor = weights.sum(dim=1, keepdim=True)
    if live.pooling == "mean_sqrt_len":
        divisor = divisor.sqrt()
    return (hidden_states * weights[..., None]).sum(dim=1) / divisor


def read_hidden_states(live: LiveModel, outputs: Any) -> tuple[Tensor, ...]:
    """Return h^0 … h^L, each batch × token × hidden; see :meth:`LiveModel.read_hidden_states`."""
    names = ["hidden_states"]
    if live.model.config.is_encoder_decoder:
        names = ["encoder_hidden_states"]
        if live.generates_from_source:
            names.append("decoder_hidden_states")
    states: list[Any] = []
    for name in names:
        states.extend(getattr(outputs, name, None) or ())
    if not all(isinstance(state, Tensor) for state in states):
        return ()
    return tuple(states)
