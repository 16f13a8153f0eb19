"""Occlusion: how far the target falls when a window of tokens is replaced."""

from typing import Literal

import numpy as np
from torch import Tensor

from tokenlight.data.units import Unit
from tokenlight.errors import BadInput
from tokenlight.methods._method import Cost, Count, Tape
from tokenlight.methods._presence import Baseline, UnitMethod, kept_always, laid_out, values_without


class Occlusion(UnitMethod):
    r"""Mean fall of the target over the windows that cover a token.

    .. math:: s_i = \frac{1}{|\{w \ni i\}|} \sum_{w \ni i} \bigl( y(x) - y(x_{w \to b}) \bigr)

    Windows of ``window`` tokens every ``stride`` tokens; :math:`x_{w \to b}`, ``token``, has the token
    ``baseline`` in the window's places; ``units="document"`` (``"sentence"``, ``"word"``) takes each
    unit in the place of windows, and its tokens share the fall. ``special="keep"`` leaves special
    tokens in them as they are, ``"replace"`` does not; the token a model is asked about always stays.
    Signed. Equals Captum's Occlusion.
    Differs from the Thermostat code (``preset="thermostat"``): it puts the id 0 in, which is ``<s>``
    to RoBERTa and no padding, also in the place of special tokens.
    """

    window: Count = 3
    stride: Count = 1
    baseline: Baseline = "pad"
    special: Literal["keep", "replace"] = "keep"
    units: Unit = "token"
    cites = "zeiler2014visualizing"
    presets = {"thermostat": {"baseline": 0, "special": "replace"}}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stride > self.window:
            raise BadInput(
                f"stride={self.stride} steps over tokens that no window of {self.window} covers; "
                f"give a stride from 1 to {self.window}."
            )
        if self.units != "token" and (self.window, self.stride, self.special) != (3, 1, "keep"):
            raise BadInput("window, stride and special are of tokens; leave them or units out.")

    def cost(self, tokens: int) -> Cost:
        return Cost(1 + len(self._windows(tokens)), 0)

    def __call__(self, tape: Tape) -> Tensor:
        if self.units != "token":
            return super().__call__(tape)
        covered = [self._windows(len(row)) for row in tape.rows]
        kept = [kept_always(row, special=self.special == "keep") for row in tape.rows]
        gone = [windows & ~own for windows, own in zip(covered, kept, strict=True)]
        falls = zip(self._falls(tape, gone), covered, strict=True)
        return laid_out(tape, [own @ windows / windows.sum(axis=0) for own, windows in falls])

    def measured(self, tape: Tape) -> list[np.ndarray]:
        return [own[None] for own in self._falls(tape, self.units_of(tape))]

    def _falls(self, tape: Tape, gone: list[np.ndarray]) -> list[np.ndarray]:
        left = values_without(tape, gone, self.baseline)
        return [whole - own for whole, own in zip(tape.rerun.value.tolist(), left, strict=True)]

    def _windows(self, tokens: int) -> np.ndarray:
        """``window token``: true where a window covers a token; the last may reach over the end."""
        width = min(self.window, tokens)
        starts = self.stride * np.arange(-(-(tokens - width) // self.stride) + 1)
        ahead = np.arange(tokens) - starts[:, None]
        covered: np.ndarray = (ahead >= 0) & (ahead < width)
        return covered
