"""Read the outputs of a pass: logits at the target positions, sentence embeddings, hidden states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from tokenlight.accel.transfer import to_device
from tokenlight.errors import UnsupportedModel

if TYPE_CHECKING:
    from tokenlight.model.runner import ModelRunner


def read_logits(
    runner: ModelRunner,
    outputs: Any,
    arguments: dict[str, Tensor],
    *,
    is_linear: bool = False,
) -> Tensor:
    """Return the logits that a target refers to; see :meth:`ModelRunner.read_logits`.

    Args:
        runner: The model that was run.
        outputs: What it returned.
        arguments: The arguments of the pass, which say where a head is read.
        is_linear: Whether they must be sums of the model's logits and constants, for rules of relevance.
    """
    if runner.head.task == "question-answering":
        return torch.stack((outputs.start_logits, outputs.end_logits), dim=-1)
    if runner.head.task == "sentence-similarity":
        return _compute_similarities(runner, outputs, arguments)
    logits: Tensor = outputs.logits
    if "read_positions" in arguments and logits.dim() == 3:
        positions = arguments["read_positions"]
        logits = _select_positions(runner, logits, positions)
        if "continuation_ids" in arguments:
            return _compute_continuation_logits(
                logits,
                arguments["continuation_ids"],
                is_linear=is_linear,
            )
        if positions.dim() == 2:  # several tokens per row, each with logits of its own
            return logits
    num_labels = len(runner.head.labels)
    if logits.dim() != 2 or logits.shape[1] != num_labels:
        raise UnsupportedModel(
            f"{type(runner.model).__name__} gives logits of shape {tuple(logits.shape)}, but one row per "
            f"text with {num_labels} entries was expected, one for each label of its config. Check "
            "model.config.num_labels and the head of the model.",
            code="logits-shape",
        )
    return logits


def _compute_similarities(
    runner: ModelRunner, outputs: Any, arguments: dict[str, Tensor]
) -> Tensor:
    """Return ``batch 1``: the similarity of each sentence embedding to its reference embedding."""
    embeddings = pool_embeddings(runner, outputs, arguments)
    if runner.similarity == "cosine":
        embeddings = normalize(embeddings, dim=-1, eps=1e-12)
    return (embeddings * arguments["reference_embedding"].to(embeddings)).sum(dim=-1, keepdim=True)


def _select_positions(runner: ModelRunner, logits: Tensor, positions: Tensor) -> Tensor:
    """Return the logits at ``positions``, batch (× several) × vocabulary."""
    if "logits_to_keep" in runner.forward_parameters:
        # The model computed logits at the distinct positions only; find each one among these.
        positions = torch.searchsorted(torch.unique(positions), positions)
    rows = torch.arange(len(positions), device=logits.device)
    if positions.dim() == 2:
        rows = rows[:, None]
    return logits[rows, to_device(positions, logits.device)]


def _compute_continuation_logits(
    logits: Tensor, continuation_ids: Tensor, *, is_linear: bool
) -> Tensor:
    """Return ``batch written 2``: each token's logit, and ln Σ exp of the logits of all other tokens."""
    ids = to_device(continuation_ids, logits.device)[..., None]
    other_logits = logits.detach() if is_linear else logits
    other_logits = other_logits.scatter(-1, ids, -torch.inf)
    normalizer = other_logits.logsumexp(dim=-1, keepdim=True)
    if is_linear:
        # Rules know sums and constants, not this function: the mean of the logits, weighted by
        # probabilities that are held constant, has the same gradient.
        mean = (logits * other_logits.softmax(dim=-1)).sum(dim=-1, keepdim=True)
        normalizer = mean + (normalizer - mean.detach())
    return torch.cat((logits.gather(-1, ids), normalizer), dim=-1)


def pool_embeddings(runner: ModelRunner, outputs: Any, arguments: dict[str, Tensor]) -> Tensor:
    """Pool the last hidden states into one embedding per text, ``batch hidden``."""
    hidden_states: Tensor = outputs.last_hidden_state
    attention_mask = arguments["attention_mask"]
    weights = attention_mask.to(hidden_states)
    if runner.pooling == "cls":
        return hidden_states[:, 0]
    if runner.pooling == "last":
        last_positions = attention_mask.cumsum(dim=1).argmax(dim=1)
        rows = torch.arange(len(last_positions), device=last_positions.device)
        return hidden_states[rows, last_positions]
    if runner.pooling == "max":
        return hidden_states.masked_fill(weights[..., None] == 0, -torch.inf).amax(dim=1)
    if runner.pooling == "weightedmean":
        # Later tokens have read more of the text and weigh more.
        positions = torch.arange(1, weights.shape[1] + 1, device=weights.device)
        weights = weights * positions.to(weights)
    divisor = weights.sum(dim=1, keepdim=True)
    if runner.pooling == "mean_sqrt_len":
        divisor = divisor.sqrt()
    return (hidden_states * weights[..., None]).sum(dim=1) / divisor


def read_hidden_states(runner: ModelRunner, outputs: Any) -> tuple[Tensor, ...]:
    """Return h^0 … h^L, each ``batch token hidden``; see :meth:`ModelRunner.read_hidden_states`."""
    names = ["hidden_states"]
    if runner.model.config.is_encoder_decoder:
        names = ["encoder_hidden_states"]
        if runner.generates_from_source:
            names.append("decoder_hidden_states")
    states: list[Any] = []
    for name in names:
        states.extend(getattr(outputs, name, None) or ())
    if not all(isinstance(state, Tensor) for state in states):
        return ()
    return tuple(states)
