"""The scalar that is differentiated: a target's value or its loss, for many passes over the same examples."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from tokenlight.accel.transfer import AsyncTensor, to_device
from tokenlight.data.alternatives import DEFAULT_ALTERNATIVES
from tokenlight.data.head import Head
from tokenlight.data.target import ResolvedTarget, TargetLike
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import BadTarget, NotFinite, UnsupportedModel

Quantity = Literal["target", "loss"]


def compute_gradients(
    model: object,
    value: Tensor,
    tensors: Sequence[Tensor],
    *,
    optional: Sequence[Tensor] = (),
    retain_graph: bool = False,
) -> list[Tensor]:
    """Compute the gradients of ``value`` with respect to ``tensors``.

    Args:
        model: The model, for its name in messages.
        value: A scalar.
        tensors: Tensors of its graph.
        optional: Further tensors; the gradient is 0 at those that ``value`` does not depend on.
        retain_graph: Whether the graph is needed again.

    Returns:
        The gradients at ``tensors``, then those at ``optional``.

    Raises:
        UnsupportedModel: The model has no backward pass, or ``value`` does not depend on a tensor.
    """
    gradients: list[Tensor | None] = []
    if all(tensor.requires_grad for tensor in tensors):
        try:
            gradients += torch.autograd.grad(
                value, (*tensors, *optional), retain_graph=retain_graph, allow_unused=True
            )
        except (AssertionError, NotImplementedError) as error:
            raise UnsupportedModel(
                f"{type(model).__name__} gives no gradient in evaluation mode ({error}). Use a method that "
                "needs none, such as occlusion or shapley.",
                code="no-backward",
            ) from error
    for index in range(len(tensors), len(gradients)):
        if gradients[index] is None:
            gradients[index] = torch.zeros_like(optional[index - len(tensors)])
    used_gradients = [gradient for gradient in gradients if gradient is not None]
    if len(used_gradients) != len(tensors) + len(optional):
        raise UnsupportedModel(
            f"The target does not depend on every embedding, hidden state or attention map that "
            f"{type(model).__name__} reports, so there is no gradient to take. Use a method that needs none, "
            "such as occlusion or shapley.",
            code="target-independent-of-tensor",
        )
    return used_gradients


@dataclass(frozen=True, eq=False)
class Objective:
    """The targets of a batch, evaluated on logits of any of its examples.

    Attributes:
        head: The meaning of the logits.
        term_indices: ``batch term``; where in the flattened logits of an example each term stands.
        weights: ``batch term``; the weight of each term.
        lengths: ``batch``; the number of tokens of each example.
        has_index: ``batch``; whether the target is one class or token, whose logit is the first term.
    """

    head: Head
    term_indices: Tensor
    weights: Tensor
    lengths: Tensor
    has_index: Tensor

    @classmethod
    def from_targets(
        cls, head: Head, targets: Sequence[ResolvedTarget], lengths: Tensor, dtype: torch.dtype
    ) -> "Objective":
        """Collect the terms of ``targets``, padded with zero weights to the same number of terms.

        Args:
            head: The meaning of the logits.
            targets: One per example.
            lengths: The number of real tokens of each example: a span is read within them.
            dtype: The dtype of the weights, float32 or wider.
        """
        num_terms = max(len(target.terms) for target in targets)
        indices = []
        weights = []
        for target in targets:
            terms = _pad_terms(target.terms, num_terms)
            indices.append([_flatten_index(index) for index, _ in terms])
            weights.append([weight for _, weight in terms])
        has_index = [target.index is not None for target in targets]
        device = lengths.device
        return cls(
            head=head,
            term_indices=to_device(indices, device),
            weights=to_device(weights, device, dtype),
            lengths=lengths,
            has_index=to_device(has_index, device),
        )

    def __call__(self, logits: Tensor, examples: Tensor, quantity: Quantity = "target") -> Tensor:
        """Return one number per row of ``logits``.

        Args:
            logits: The logits of some passes.
            examples: The example of the batch that each row belongs to.
            quantity: ``target`` for the value of the target, ``loss`` for its cross-entropy.

        Raises:
            BadTarget: The cross-entropy of a regression head is requested.
        """
        logits = logits.to(self.weights.device, self.weights.dtype)
        terms = logits.flatten(1).gather(1, self.term_indices[examples])
        value = (self.weights[examples] * terms).sum(dim=1)
        if quantity == "target":
            return value
        return self._loss(logits, examples, value)

    def _loss(self, logits: Tensor, examples: Tensor, value: Tensor) -> Tensor:
        """Return −log of the probability that the model gives the target.

        That of a token is its probability in the whole vocabulary. A contrast is a choice between its two
        sides. The losses of the start and the end of a span are added, and so are those of the tokens of a
        continuation.
        """
        if self.head.problem_type == "regression":
            raise BadTarget(
                "This method explains the cross-entropy of a label, but a regression head has none. Use "
                "grad_x_input or integrated_gradients, which explain the output itself.",
                code="regression-has-no-loss",
            )
        if self.head.task == "question-answering":
            return self._compute_span_loss(logits, examples, value)
        if logits.dim() == 3:
            return self._compute_continuation_loss(logits, examples, value)
        if self.head.problem_type == "multi":
            return softplus(-value)
        first_terms = self.term_indices[examples][:, :1]
        class_loss = logits.logsumexp(dim=1) - logits.gather(1, first_terms)[:, 0]
        return torch.where(self.has_index[examples], class_loss, softplus(-value))

    def _compute_span_loss(self, logits: Tensor, examples: Tensor, value: Tensor) -> Tensor:
        positions = torch.arange(logits.shape[1], device=logits.device)
        is_real = positions < self.lengths[examples, None]
        normalizer = logits.masked_fill(~is_real[..., None], -torch.inf).logsumexp(dim=1)
        # Flat indices alternate between start (even) and end (odd) logits.
        side_normalizers = normalizer.gather(1, self.term_indices[examples] % 2)
        return (self.weights[examples] * side_normalizers).sum(dim=1) - value

    def _compute_continuation_loss(self, logits: Tensor, examples: Tensor, value: Tensor) -> Tensor:
        # Each token of a continuation has two entries: its logit, and that of all other tokens. A term of
        # the second kind makes a contrast of the first, and the loss is that of the token all the same.
        indices = self.term_indices[examples]
        is_token = indices % 2 == 0
        weights = torch.where(is_token, self.weights[examples], 0.0)
        first_indices = indices - indices % 2
        flat_logits = logits.flatten(1)
        token_logits = flat_logits.gather(1, first_indices)
        other_logits = flat_logits.gather(1, first_indices + 1)
        token_losses = (weights * softplus(other_logits - token_logits)).sum(dim=1)
        is_contrast = (weights < 0).any(dim=1)
        return torch.where(is_contrast, softplus(-value), token_losses)


def _pad_terms(terms: Sequence[Any], length: int) -> list[Any]:
    """Pad with zero-weight copies of the first term, so that every target has ``length`` terms."""
    first_index, _ = terms[0]
    return [*terms, *[(first_index, 0.0)] * (length - len(terms))]


def _flatten_index(index: tuple[int, ...]) -> int:
    """Return the position of a term in the flattened logits: by label, or by token and start or end."""
    if len(index) > 1:
        return index[0] * 2 + index[1]
    return index[0]


class ArgmaxTargets(Sequence[ResolvedTarget]):
    """The predicted class or token of each example, the first of equals.

    They are chosen on the device at once; their names are looked up on the host when they are read, which
    waits for the logits.

    Args:
        head: The meaning of the logits.
        term_indices: ``batch term``; the predicted class, and the alternatives of a token, on the device.
        weights: ``batch term``; None if the only term is the predicted class.
        logits: The logits, on their way to the host.
    """

    def __init__(
        self, head: Head, term_indices: Tensor, weights: Tensor | None, logits: AsyncTensor
    ) -> None:
        self._head = head
        self.term_indices = term_indices
        self.weights = weights
        self._logits = logits

    @classmethod
    @torch.inference_mode(mode=False)
    def from_logits(
        cls, head: Head, logits: Tensor, fetched_logits: AsyncTensor, num_alternatives: int = 0
    ) -> "ArgmaxTargets":
        """Choose the largest of ``logits``, ``batch label``, and the next largest as its alternatives.

        Args:
            head: The meaning of the logits.
            logits: Logits on the device, ``batch label``.
            fetched_logits: The same, on their way to the host, which names the classes when they have
                arrived.
            num_alternatives: How many other classes the largest is contrasted with.
        """
        values = logits.detach()
        if not num_alternatives or values.shape[1] < 2:
            return cls(head, values.argmax(dim=1, keepdim=True), None, fetched_logits)
        # Stable, so that of equally likely tokens the device chooses those that the host names.
        order = values.argsort(dim=1, descending=True, stable=True)
        term_indices = order[:, : num_alternatives + 1]
        other_logits = values.gather(1, term_indices[:, 1:])
        dtype = torch.promote_types(values.dtype, torch.float32)
        other_weights = -other_logits.to(dtype).softmax(dim=1)
        weights = torch.cat((torch.ones_like(other_weights[:, :1]), other_weights), dim=1)
        return cls(head, term_indices, weights, fetched_logits)

    def refresh(self, logits: AsyncTensor) -> "ArgmaxTargets":
        """Return the targets after a replay, which wrote other values into the same tensors."""
        return ArgmaxTargets(self._head, self.term_indices, self.weights, logits)

    @staticmethod
    def count_alternatives(head: Head, targets: Sequence[TargetLike]) -> int | None:
        """Return how many alternatives the predicted token has; None if not all targets are predictions.

        It is 0 if only the logit is explained: that of a classifier, or ``"logit"``.
        """
        if head.task == "question-answering" or head.default_target != "predicted":
            return None
        if all(target == "predicted" for target in targets):
            return DEFAULT_ALTERNATIVES if head.is_language_model else 0
        if head.is_language_model and all(target == "logit" for target in targets):
            return 0
        return None

    # Not cached: the parts refer to the whole, and a cycle would keep a pass until it is collected.
    @property
    def parts(self) -> list[tuple[float, Sequence[ResolvedTarget]]]:
        """The ``ResolvedTarget.logit_parts`` of each target, chosen on the device."""
        if self.weights is None:
            return [(1.0, self)]
        token = _ArgmaxPart(self, 0, self.term_indices[:, :1], None)
        others = _ArgmaxPart(self, 1, self.term_indices[:, 1:], -self.weights[:, 1:])
        return [(1.0, token), (-1.0, others)]

    @cached_property
    def _resolved(self) -> list[ResolvedTarget]:
        logits = self._logits.numpy()
        targets = []
        for row_logits in logits:
            index = int(row_logits.argmax())
            if self.weights is None:
                targets.append(self._head.build_class_target(index))
            else:
                num_alternatives = self.term_indices.shape[1] - 1
                targets.append(self._head.build_token_target(index, row_logits, num_alternatives))
        return targets

    def __len__(self) -> int:
        return len(self.term_indices)

    def __getitem__(self, index: Any) -> Any:
        return self._resolved[index]


class _ArgmaxPart(ArgmaxTargets):
    """Only the predicted tokens, or only their alternatives."""

    def __init__(
        self, whole: ArgmaxTargets, part_index: int, term_indices: Tensor, weights: Tensor | None
    ) -> None:
        super().__init__(whole._head, term_indices, weights, whole._logits)
        self._whole = whole
        self._part_index = part_index

    @property
    def parts(self) -> list[tuple[float, Sequence[ResolvedTarget]]]:
        return [(1.0, self)]

    @cached_property
    def _resolved(self) -> list[ResolvedTarget]:
        return [target.logit_parts[self._part_index][1] for target in self._whole]


def locate_terms(
    logits: Tensor, targets: Sequence[ResolvedTarget]
) -> tuple[tuple[Tensor, ...], Tensor | None]:
    """Return where in ``logits`` the terms of ``targets`` stand, and their weights; None if all are 1."""
    if isinstance(targets, ArgmaxTargets):
        term_indices = targets.term_indices.to(logits.device)
        rows = torch.arange(len(targets), device=logits.device)[:, None].expand_as(term_indices)
        indices = (rows.flatten(), term_indices.flatten())
        if targets.weights is None:
            return indices, None
        return indices, targets.weights.to(logits.device, logits.dtype).flatten()
    indices = tuple(to_device(targets, logits.device, convert=_collect_term_indices))
    weights: list[float] = []
    for target in targets:
        weights.extend(weight for _, weight in target.terms)
    if all(weight == 1 for weight in weights):
        return indices, None
    return indices, to_device(weights, logits.device, logits.dtype)


def _collect_term_indices(targets: Sequence[ResolvedTarget]) -> list[tuple[int, ...]]:
    """Return one tuple per axis of the logits, with an entry for each term."""
    term_indices = []
    for row, target in enumerate(targets):
        for index, _ in target.terms:
            term_indices.append((row, *index))
    return list(zip(*term_indices, strict=True))


def sum_targets(logits: Tensor, targets: Sequence[ResolvedTarget]) -> Tensor:
    """Return Σ over examples of the target's value; its gradients are those of the single examples."""
    if isinstance(targets, ArgmaxTargets):
        # The backward pass of indexing sorts its indices, that of gather does not.
        values = logits.gather(1, targets.term_indices.to(logits.device))
        if targets.weights is None:
            return values.sum()
        return (values * targets.weights.to(values)).sum()
    indices, weights = locate_terms(logits, targets)
    has_one_class_each = len(indices) == 2 and len(indices[0]) == len(logits)
    if weights is None and has_one_class_each:
        return logits.gather(1, indices[1][:, None]).sum()
    if weights is None:
        return logits[indices].sum()
    return (logits[indices] * weights).sum()


def trim_logits(head: Head, logits: np.ndarray, rows: Sequence[TokenRow]) -> list[np.ndarray]:
    """Return the logits of each row; for a span head without those of padding.

    Args:
        head: The meaning of the logits.
        logits: Logits of a batch; of a span head with padding.
        rows: The rows of the batch.
    """
    if head.task != "question-answering":
        return list(logits)
    return [values[: len(row)] for values, row in zip(logits, rows, strict=True)]


def describe_first_nonfinite(hidden_states: Iterable[Tensor]) -> str:
    """Name the first hidden state with NaN or infinity; ``a logit`` if all hidden states are finite."""
    for layer, state in enumerate(hidden_states):
        if not bool(torch.isfinite(state.detach()).all()):
            return f"hidden state {layer} (0 is the embedding)"
    return "a logit"


def check_readout_found(count: np.ndarray, targets: Sequence[ResolvedTarget]) -> None:
    """Refuse targets for which no token is read by the head.

    Args:
        count: For each example, the number of tokens at which the target has a gradient.
        targets: The targets.

    Raises:
        NotFinite: A count is 0.
    """
    unread = np.flatnonzero(count == 0)
    if len(unread):
        raise NotFinite(
            f"The target {targets[unread[0]].name!r} has zero gradient at every token of text {unread[0]} of "
            "the batch, so the token that the head reads cannot be found. The head may be saturated or "
            "dead for this text; choose another target or method.",
            code="target-gradient-zero",
        )
