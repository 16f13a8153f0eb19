"""The scores of methods on their way from the device."""

from collections.abc import Sequence
from copy import copy

import numpy as np
import torch

from tokenlight.accel.executor import NotCapturable, get_current_executor
from tokenlight.accel.transfer import AsyncTensor, Deferred
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import BadInput, NotFinite, short_repr
from tokenlight.methods.base import Method
from tokenlight.trace.tape import Tape


def launch_scores(methods: Sequence[Method], tape: Tape) -> list["PendingScores"]:
    """Launch the computation of each method's scores."""
    try:
        return [PendingScores(method, method.compute_scores(tape), tape) for method in methods]
    except NotCapturable:
        raise
    except Exception:
        # If the model itself gave NaN, that is the error to report, with its layer.
        tape.recording.check_finite()
        raise


def sum_layers(terms: torch.Tensor) -> torch.Tensor:
    """Sum ``batch layer token`` over layers, in the order in which numpy adds rows.

    The sum is the same to the last bit as on the host.
    """
    first_layer, *other_layers = terms.unbind(dim=1)
    return sum(other_layers, start=first_layer)


class PendingScores:
    """The scores of a method, ``batch token``, or their terms, ``batch layer token``.

    Attributes:
        values: The scores or terms.
        summed_layers: The sum of the terms over layers, where the device computes it.
        note: A note for every Attribution; None if there is none.
        extras: Measurements of each row, maybe not yet computed.
    """

    def __init__(self, method: Method, scores: torch.Tensor, tape: Tape) -> None:
        batch_size, num_tokens = tape.recording.token_mask.shape
        # A plug-in may return anything.
        if not isinstance(scores, torch.Tensor):
            raise BadInput(
                f"{method.name} returns {short_repr(scores)} ({type(scores).__name__}), not a tensor. "
                "A method must return a torch tensor, batch × token or batch × layer × token.",
                code="method-scores-type",
            )
        has_valid_shape = scores.ndim in (2, 3) and (scores.shape[0], scores.shape[-1]) == (
            batch_size,
            num_tokens,
        )
        if not has_valid_shape:
            raise BadInput(
                f"{method.name} gives scores of shape {tuple(scores.shape)} for {batch_size} texts of up to "
                f"{num_tokens} tokens. A method must return batch × token, or batch × layer × token.",
                code="method-scores-shape",
            )
        self.method_name = method.name
        self.dtype = tape.recording.logits.dtype
        self.summed_layers: AsyncTensor | None = None
        can_sum_on_device = scores.is_cuda and scores.is_contiguous() and num_tokens > 1
        if scores.ndim == 3 and can_sum_on_device:
            scores = scores.detach().double()
            self.summed_layers = AsyncTensor(sum_layers(scores))
        self.values = AsyncTensor(scores)
        self.note = method.write_note(tape)
        self.extras = method.measure_extras(tape)
        if isinstance(self.extras, list):
            # Measurements that are already on the host would be those of the first replay for ever.
            get_current_executor().check_can_read()

    def refresh(self) -> "PendingScores":
        """Return the same scores with the values of a replay."""
        refreshed = copy(self)
        refreshed.values = self.values.refresh()
        if self.summed_layers is not None:
            refreshed.summed_layers = self.summed_layers.refresh()
        if isinstance(self.extras, Deferred):
            refreshed.extras = self.extras.refresh()
        return refreshed

    def fetch(self, rows: Sequence[TokenRow]) -> tuple[np.ndarray, np.ndarray | None]:
        """Wait for the device.

        Returns:
            The scores, ``batch token``, and their terms, ``batch layer token``, if the method has them.

        Raises:
            NotFinite: A score of a token is NaN or infinite.
        """
        values = self.values.numpy()
        layer_scores = values if values.ndim == 3 else None
        scores = values
        if self.summed_layers is not None:
            scores = self.summed_layers.numpy()
        elif layer_scores is not None:
            with np.errstate(over="ignore", invalid="ignore"):  # reported below
                scores = layer_scores.sum(axis=1)
        # A sum with NaN or infinity in it is not finite, so the terms need no check.
        if not np.isfinite(scores).all():
            self._check_finite(rows, scores, layer_scores)
        return scores, layer_scores

    def _check_finite(
        self, rows: Sequence[TokenRow], scores: np.ndarray, layer_scores: np.ndarray | None
    ) -> None:
        """Raise for the first token with a score that is not finite; padding may be anything."""
        for row_index, row in enumerate(rows):
            bad_positions = np.flatnonzero(~np.isfinite(scores[row_index, : len(row)]))
            if not len(bad_positions):
                continue
            position = bad_positions[0]
            location = f"token {position}"
            if layer_scores is not None:
                is_finite = np.isfinite(layer_scores[row_index, :, position])
                if not is_finite.all():
                    location = f"layer {is_finite.argmin()}, token {position}"
            raise NotFinite(
                f"{self.method_name} returns NaN or infinity at {location} of a text of {len(row)} tokens, "
                f"because values exceed the range of {self.dtype}. Load the model in a wider dtype "
                "(float32, float64).",
                code="scores-not-finite",
            )
