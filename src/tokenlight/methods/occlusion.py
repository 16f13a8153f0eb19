"""Occlusion: how far the target falls when a window of tokens is replaced."""

from typing import Literal

import numpy as np
from torch import Tensor

from tokenlight.errors import BadInput
from tokenlight.methods import _presence
from tokenlight.methods._presence import Baseline, Cost, Count, Tape, Unit


class Occlusion(_presence.UnitMethod):
    r"""Mean fall of the target over the windows that cover a token.

    .. math:: s_i = \frac{1}{|\{w \ni i\}|} \sum_{w \ni i} \bigl( y(x) - y(x_{w \to b}) \bigr)

    Windows of ``window`` tokens every ``stride`` tokens; :math:`x_{w \to b}`, ``token``, has the token
    ``baseline`` in the window's places; larger ``units`` take the place of windows, and their tokens
    share the fall. ``special="keep"`` leaves special tokens in them as they are, ``"replace"`` does not;
    the token a model is asked about always stays. Equals Captum's Occlusion.
    Differs from the Thermostat code (``preset="thermostat"``): it puts the id 0 in, which is ``<s>``
    to RoBERTa and no padding, also in the place of special tokens.
    """

    window: Count = 3
    stride: Count = 1
    baseline: Baseline = "pad"
    special: Literal["keep", "replace"] = "keep"
    units: Unit = "token"
    cites = "zeiler2014visualizing"
    of_tokens = ("window", "stride", "special")
    presets = {"thermostat": {"baseline": 0, "special": "replace"}}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stride > self.window:
            raise BadInput(
                f"stride={self.stride} steps over tokens that no window of {self.window} covers; "
                f"give a stride from 1 to {self.window}."
            )

    def cost(self, tokens: int) -> Cost:
        return Cost(1 + len(self._windows(tokens)), 0)

    def __call__(self, tape: Tape) -> Tensor:
        if self.units != "token":
            return super().__call__(tape)
        keeps, covered = self.special == "keep", [self._windows(len(row)) for row in tape.rows]
        kept = [_presence.kept_always(row, special=keeps) for row in tape.rows]
        gone = [windows & ~own for windows, own in zip(covered, kept, strict=True)]
        falls = zip(self._falls(tape, gone), covered, strict=True)
        scores = [own @ windows / windows.sum(axis=0) for own, windows in falls]
        return _presence.laid_out(tape, scores)

    def measured(self, tape: Tape) -> list[np.ndarray]:
        return [own[None] for own in self._falls(tape, self.units_of(tape))]

    def _falls(self, tape: Tape, gone: list[np.ndarray]) -> list[np.ndarray]:
        left = _presence.values_without(tape, gone, self.baseline)
        return [whole - own for whole, own in zip(tape.rerun.value.tolist(), left, strict=True)]

    def _windows(self, tokens: int) -> np.ndarray:
        """``window token``: true where a window covers a token; the last may reach over the end."""
        width = min(self.window, tokens)
        starts = self.stride * np.arange(-(-(tokens - width) // self.stride) + 1)
        ahead = np.arange(tokens) - starts[:, None]
        covered: np.ndarray = (ahead >= 0) & (ahead < width)
        return covered
