"""What methods score, on its way from the device."""

from collections.abc import Sequence
from copy import copy

import numpy as np
import torch

from tokenlight.capture.tape import Tape
from tokenlight.capture.transfer import Answer, Fetched, Unrepeatable, repeating
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import BadInput, NotFinite
from tokenlight.methods._method import Method


def queued_by(methods: Sequence[Method], tape: Tape) -> list["Queued"]:
    """The scores of each method, on their way."""
    try:
        return [Queued(method, method.scores(tape), tape) for method in methods]
    except Unrepeatable:
        raise
    except Exception:
        tape.recording.read  # noqa: B018 - where the model itself gave NaN, it says so and where
        raise


def summed(terms: torch.Tensor) -> torch.Tensor:
    """Σ over layers, added up one after the other as numpy adds the rows of a table: the same to the bit,
    where the device does it in no time."""
    first, *others = terms.unbind(dim=1)
    return sum(others, start=first)


class Queued:
    """A method's scores, ``batch token``, or their terms, ``batch layer token``, on their way."""

    def __init__(self, method: Method, raw: torch.Tensor, tape: Tape) -> None:
        batch, tokens = tape.recording.real.shape
        if raw.ndim not in (2, 3) or (raw.shape[0], raw.shape[-1]) != (batch, tokens):
            said = f"{tuple(raw.shape)} for {batch} texts of up to {tokens} tokens"
            kinds = "batch × token, or batch × layer × token"
            raise BadInput(f"{method.name} gives scores of shape {said}; a method gives {kinds}.")
        self.name, self.dtype = method.name, tape.recording.logits.dtype
        self.sums: Fetched | None = None
        if raw.ndim == 3 and raw.is_cuda and raw.is_contiguous() and tokens > 1:
            raw = raw.detach().double()
            self.sums = Fetched(summed(raw))
        self.values = Fetched(raw)
        self.note, self.extras = method.note(tape), method.extras(tape)
        if repeating() and isinstance(self.extras, list):
            raise Unrepeatable

    def again(self) -> "Queued":
        """With the numbers that a replay leaves."""
        found = copy(self)
        found.values = self.values.again()
        found.sums = None if self.sums is None else self.sums.again()
        found.extras = self.extras.again() if isinstance(self.extras, Answer) else self.extras
        return found

    def arrived(self, rows: Sequence[TokenRow]) -> tuple[np.ndarray, np.ndarray | None]:
        """The numbers; refused where one of a text's is not finite."""
        sums = values = self.values.arrived()
        layers = values if values.ndim == 3 else None
        if self.sums is not None:
            sums = self.sums.arrived()
        elif layers is not None:
            with np.errstate(over="ignore", invalid="ignore"):  # told below, in words
                sums = layers.sum(axis=1)
        if np.isfinite(sums).all():  # no sum with NaN or infinity in it is finite
            return sums, layers
        for i, row in enumerate(rows):  # padding may be anything
            wrong = np.flatnonzero(~np.isfinite(sums[i, : len(row)]))
            if len(wrong):
                place = f"token {wrong[0]}"
                if layers is not None:
                    finite = np.isfinite(layers[i, :, wrong[0]])
                    place = place if finite.all() else f"layer {finite.argmin()}, {place}"
                raise NotFinite(
                    f"{self.name} gives NaN or infinity at {place} of a text of {len(row)} tokens: numbers "
                    f"left the range of {self.dtype}; load the model in a wider dtype (float32, float64)."
                )
        return sums, layers
