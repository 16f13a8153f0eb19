"""Occlusion: how far the target falls when a window of tokens is replaced."""

from typing import Literal

import numpy as np
from torch import Tensor

from tokenlight.capture.tape import Tape
from tokenlight.data.units import Unit
from tokenlight.errors import BadInput
from tokenlight.methods._method import Cost, Method
from tokenlight.methods._path import at_least_one
from tokenlight.methods._presence import (
    Baseline,
    kept_always,
    laid_out,
    spread_over,
    units_of,
    values_without,
)


class Occlusion(Method):
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

    window: int = 3
    stride: int = 1
    baseline: Baseline = "pad"
    special: Literal["keep", "replace"] = "keep"
    units: Unit = "token"
    cites = "zeiler2014visualizing"
    slow = True
    presets = {"thermostat": {"baseline": 0, "special": "replace"}}
    needs = frozenset()

    def cost(self, tokens: int) -> Cost:
        return Cost(1 + len(self._windows(tokens)), 0)

    def __call__(self, tape: Tape) -> Tensor:
        at_least_one("window", self.window)
        at_least_one("stride", self.stride)
        if self.stride > self.window:
            raise BadInput(
                f"stride={self.stride} steps over tokens that no window of {self.window} covers; "
                f"give a stride from 1 to {self.window}."
            )
        if self.units != "token":
            return self._of_units(tape)
        covered = [self._windows(len(row)) for row in tape.rows]
        kept = [kept_always(row, special=self.special == "keep") for row in tape.rows]
        gone = [windows & ~own for windows, own in zip(covered, kept, strict=True)]
        found = values_without(tape, gone, self.baseline)
        falls = [
            (whole - values) @ windows / windows.sum(axis=0)
            for whole, values, windows in zip(
                tape.rerun.value.tolist(), found, covered, strict=True
            )
        ]
        return laid_out(tape, falls)

    def _of_units(self, tape: Tape) -> Tensor:
        if (self.window, self.stride, self.special) != (3, 1, "keep"):
            raise BadInput("window, stride and special are of tokens; leave them or units out.")
        units = [units_of(row, self.units) for row in tape.rows]
        found = values_without(tape, units, self.baseline)
        falls = zip(tape.rerun.value.tolist(), found, units, strict=True)
        return laid_out(tape, [spread_over(own, whole - left) for whole, left, own in falls])

    def _windows(self, tokens: int) -> np.ndarray:
        """``window token``: true where a window covers a token; the last may reach over the end."""
        width = min(self.window, tokens)
        starts = self.stride * np.arange(-(-(tokens - width) // self.stride) + 1)
        ahead = np.arange(tokens) - starts[:, None]
        covered: np.ndarray = (ahead >= 0) & (ahead < width)
        return covered
