"""The number whose gradient is taken, for many passes over the same examples at once."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from tokenlight.capture.transfer import Fetched, sent
from tokenlight.data.target import Head, ResolvedTarget, TargetLike
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import BadTarget, NotFinite, UnsupportedModel

Of = Literal["target", "loss"]


def slopes(
    model: object, value: Tensor, at: Sequence[Tensor], *, retain_graph: bool = False
) -> list[Tensor]:
    """Gradients of ``value`` at tensors of its graph; one that it does not depend on is refused."""
    name, found = type(model).__name__, list[Tensor | None]()
    said = f"{name} gives no gradient in evaluation mode ("
    end = "); use a method that needs none, such as occlusion or shapley."
    with UnsupportedModel.telling(said, AssertionError, NotImplementedError, end=end):
        if all(tensor.requires_grad for tensor in at):
            found += torch.autograd.grad(value, at, retain_graph=retain_graph, allow_unused=True)
    known = [gradient for gradient in found if gradient is not None]
    if len(known) != len(at):
        raise UnsupportedModel(
            f"the target does not depend on every embedding, hidden state or attention map as {name} "
            "reports them; no gradient can be taken there, so the model is refused."
        )
    return known


@dataclass(frozen=True, eq=False)
class Objective:
    """What is explained of each example, from logits in any order. ``places`` and ``weights``: ``batch
    term``, where in an example's flattened logits each term of its target stands; ``lengths``: ``batch``,
    its tokens; ``one_class``: ``batch``, whether the target is a single class."""

    head: Head
    places: Tensor
    weights: Tensor
    lengths: Tensor
    one_class: Tensor

    @classmethod
    def of(
        cls, head: Head, targets: Sequence[ResolvedTarget], lengths: Tensor, dtype: torch.dtype
    ) -> "Objective":
        """Gather the terms of ``targets``; those with fewer terms than others are filled up by 0."""
        most = max(len(target.terms) for target in targets)
        filled = [[*t.terms, *[(t.terms[0][0], 0.0)] * (most - len(t.terms))] for t in targets]
        places = [[at[0] * 2 + at[1] if at[1:] else at[0] for at, _ in terms] for terms in filled]
        weights = [[weight for _, weight in terms] for terms in filled]
        device, classes = lengths.device, [target.kind == "class" for target in targets]
        laid = sent(places, device), sent(weights, device, dtype)
        return cls(head, *laid, lengths, sent(classes, device))

    def __call__(self, logits: Tensor, examples: Tensor, of: Of = "target") -> Tensor:
        """One number for each row of ``logits``: the target itself, or its cross-entropy."""
        logits = logits.to(self.weights.device, self.weights.dtype)
        chosen = logits.flatten(1).gather(1, self.places[examples])
        value = (self.weights[examples] * chosen).sum(dim=1)
        return value if of == "target" else self._loss(logits, examples, value)

    def _loss(self, logits: Tensor, examples: Tensor, value: Tensor) -> Tensor:
        """−log of the probability the model gives the target: a contrast is a choice between its two sides;
        a span's start and end losses are added, and so are those of the tokens of an answer."""
        if self.head.problem == "regression":
            raise BadTarget(
                "this method explains the cross-entropy of a label, but a regression head has "
                "none; use grad_x_input or integrated_gradients, which explain the output itself."
            )
        if self.head.kind == "span":
            places = torch.arange(logits.shape[1], device=logits.device)
            inside = places < self.lengths[examples, None]
            normaliser = logits.masked_fill(~inside[..., None], -torch.inf).logsumexp(dim=1)
            sides = normaliser.gather(1, self.places[examples] % 2)
            return (self.weights[examples] * sides).sum(dim=1) - value
        if logits.dim() == 3:
            places = self.places[examples]
            chosen, others = (logits.flatten(1).gather(1, places + i) for i in (0, 1))
            weights = self.weights[examples]
            summed = (weights * softplus(others - chosen)).sum(dim=1)
            return torch.where((weights < 0).any(dim=1), softplus(-value), summed)
        if self.head.problem == "multi":
            return softplus(-value)
        whole = logits.logsumexp(dim=1) - value
        return torch.where(self.one_class[examples], whole, softplus(-value))


class Predicted(Sequence[ResolvedTarget]):
    """The class that each example's logits are largest for, the first of equals: chosen on the device at
    once (``places``: ``batch``), and named on the host for who looks at it, which waits for the logits."""

    def __init__(self, head: Head, places: Tensor, fetched: Fetched) -> None:
        self._head, self.places, self._fetched = head, places, fetched

    @classmethod
    @torch.inference_mode(mode=False)
    def of(cls, head: Head, logits: Tensor, fetched: Fetched) -> "Predicted":
        return cls(head, logits.detach().argmax(dim=1), fetched)

    def again(self, fetched: Fetched) -> "Predicted":
        """After a replay, which said something else."""
        return Predicted(self._head, self.places, fetched)

    @staticmethod
    def choose(head: Head, targets: Sequence[TargetLike]) -> bool:
        """Whether ``targets`` can be so chosen: all of them are one predicted class."""
        classes = head.kind == "classification" and head.usual == "predicted"
        return classes and all(own == "predicted" for own in targets)

    @cached_property
    def _named(self) -> list[ResolvedTarget]:
        return [self._head.of_class(i) for i in self._fetched.arrived().argmax(axis=1).tolist()]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, place: Any) -> Any:
        return self._named[place]


def terms_of(
    logits: Tensor, targets: Sequence[ResolvedTarget]
) -> tuple[tuple[Tensor, ...], Tensor | None]:
    """Where in ``logits`` the terms of ``targets`` stand; and their weights, None where each is 1."""
    if isinstance(targets, Predicted):
        rows = torch.arange(len(targets), device=logits.device)
        return (rows, targets.places.to(logits.device)), None
    at = tuple(sent(targets, logits.device, by=_places))
    weights = [weight for target in targets for _, weight in target.terms]
    whole = all(weight == 1 for weight in weights)
    return at, None if whole else sent(weights, logits.device, logits.dtype)


def _places(targets: Sequence[ResolvedTarget]) -> list[tuple[int, ...]]:
    """A line for each axis of the logits."""
    terms = ((i, *place) for i, target in enumerate(targets) for place, _ in target.terms)
    return list(zip(*terms, strict=True))


def sum_of_targets(logits: Tensor, targets: Sequence[ResolvedTarget]) -> Tensor:
    """Σ over examples of each one's target, read in one step; examples do not touch each other."""
    at, weights = terms_of(logits, targets)
    if weights is None and len(at) == 2 and len(at[0]) == len(logits):
        # One class an example. The way back of an index sorts, this one does not.
        return logits.gather(1, at[1][:, None]).sum()
    return logits[at].sum() if weights is None else (logits[at] * weights).sum()


def shortened(head: Head, logits: np.ndarray, rows: Sequence[TokenRow]) -> list[np.ndarray]:
    """The logits of each row: of a span head, those of its own tokens."""
    if head.kind != "span":
        return list(logits)
    return [values[: len(row)] for values, row in zip(logits, rows, strict=True)]


def first_not_finite(hidden: Iterable[Tensor]) -> str:
    """The part in which a pass first left the finite numbers, in words."""
    left = (i for i, own in enumerate(hidden) if not bool(torch.isfinite(own.detach()).all()))
    return next((f"hidden state {i} (0 is the embedding)" for i in left), "a logit")


def read_somewhere(count: np.ndarray, targets: Sequence[ResolvedTarget]) -> None:
    """Refuse targets of which the head reads no token at all."""
    unread = np.flatnonzero(count == 0)
    if len(unread):
        raise NotFinite(
            f"the target {targets[unread[0]].name!r} has gradient zero at every token of text "
            f"{unread[0]} of the batch, so the token the head reads cannot be found; the head may be "
            "saturated or dead for this text."
        )
