"""Occlusion: how far the target drops when a window of tokens is replaced."""

from typing import Literal

import numpy as np
from torch import Tensor

from tokenlight.data.units import Unit
from tokenlight.methods import _perturbation
from tokenlight.methods._perturbation import Baseline
from tokenlight.plugin import BadInput, Count, PassCounts, Tape


class Occlusion(_perturbation.UnitMethod):
    r"""Mean drop of the target over the windows that cover a token.

    .. math:: s_i = \frac{1}{|\{w \ni i\}|} \sum_{w \ni i} \bigl( y(x) - y(x_{w \to b}) \bigr)

    :math:`x_{w \to b}`, ``token``, has the baseline token b at the positions of the window w. A token
    that the target is read at always stays. Equals Captum's Occlusion.
    Differs from the Thermostat code (``preset="thermostat"``): it uses the id 0, which is ``<s>`` and no
    padding in RoBERTa, and replaces special tokens, too.

    Args:
        window: Tokens in a window.
        stride: Tokens from one window to the next.
        baseline: The token that replaces others.
        special: Whether special tokens within a window stay (``"keep"``) or not (``"replace"``).
        units: Units larger than a token take the place of windows; their tokens share the fall.
    """

    window: Count = 3
    stride: Count = 1
    baseline: Baseline = "pad"
    special: Literal["keep", "replace"] = "keep"
    units: Unit = "token"
    cites = "zeiler2014visualizing"
    token_only_options = ("window", "stride", "special")
    presets = {"thermostat": {"baseline": 0, "special": "replace"}}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stride > self.window:
            raise BadInput(
                f"stride={self.stride} skips tokens that no window of {self.window} covers. Give a stride "
                f"from 1 to {self.window}.",
                code="stride-over-window",
            )

    def count_passes(self, num_tokens: int) -> PassCounts:
        return PassCounts(1 + len(self._build_window_mask(num_tokens)), 0)

    def __call__(self, tape: Tape) -> Tensor:
        if self.units != "token":
            return super().__call__(tape)
        protect_special = self.special == "keep"
        window_masks = []
        removed_tokens = []
        for row in tape.rows:
            windows = self._build_window_mask(len(row))
            protected = _perturbation.find_protected_tokens(row, protect_special=protect_special)
            window_masks.append(windows)
            removed_tokens.append(windows & ~protected)
        drops = self._measure_target_drops(tape, removed_tokens)
        scores = []
        for window_drops, windows in zip(drops, window_masks, strict=True):
            scores.append(window_drops @ windows / windows.sum(axis=0))
        return _perturbation.pad_scores(tape, scores)

    def measure_units(self, tape: Tape) -> list[np.ndarray]:
        drops = self._measure_target_drops(tape, self.make_unit_masks(tape))
        return [unit_drops[None] for unit_drops in drops]

    def _measure_target_drops(self, tape: Tape, removed: list[np.ndarray]) -> list[np.ndarray]:
        """Return for each example how far the target drops in each variant."""
        values = _perturbation.compute_values_without(tape, removed, self.baseline)
        full_values = tape.extra_passes.target_value.tolist()
        drops = []
        for full, without, removed_tokens in zip(full_values, values, removed, strict=True):
            # A text without changes has the same value, whatever the rounding of the sum of its logits.
            is_changed = removed_tokens.any(axis=1)
            drops.append(np.where(is_changed, full - without, 0.0))
        return drops

    def _build_window_mask(self, num_tokens: int) -> np.ndarray:
        """Return ``window token``: true where a window covers a token; the last may pass the end."""
        width = min(self.window, num_tokens)
        num_steps = -(-(num_tokens - width) // self.stride)  # rounded up
        starts = self.stride * np.arange(num_steps + 1)
        offsets = np.arange(num_tokens) - starts[:, None]
        is_covered: np.ndarray = (offsets >= 0) & (offsets < width)
        return is_covered
