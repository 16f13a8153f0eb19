"""The vocabulary of relevance: the kinds of operation, and one executed operation as a rule sees it."""

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


class Operation(enum.Enum):
    """Every operation of a Transformer that relevance passes through, by its meaning.

    LINEAR, CONV1D: features × weight (+ bias); the second is GPT-2's own module. MATMUL: matrix
    product of two activations, or an einsum of them. GATE: their element-wise product. ADD: their
    sum. SHIFT, SCALE: an activation plus, or times, a constant. QUOTIENT: an activation over
    another. TOTAL: sum or mean over axes. ATTENTION: queries, keys and values in one fused call.
    MAP: any other linear map, or a choice among numbers (convolution, top-k).
    """

    LINEAR = "linear"
    CONV1D = "conv1d"
    MATMUL = "matmul"
    GATE = "gate"
    ADD = "add"
    SHIFT = "shift"
    SCALE = "scale"
    QUOTIENT = "quotient"
    TOTAL = "total"
    SOFTMAX = "softmax"
    ACTIVATION = "activation"
    NORM = "norm"
    ATTENTION = "attention"
    MAP = "map"


# A gradient goes through these by itself; a rule would have to take them apart.
WITHOUT_RULE = frozenset({Operation.ATTENTION, Operation.MAP})


@dataclass(frozen=True, slots=True)
class RuleCase:
    """One executed operation: its output, its operands, and what else a rule must know.

    ``operands``: tensors, or None. ``examples``: size of the batch, since some rules take sums over
    one example. ``detail``: an operation's own settings, such as the axis of a softmax. ``active``:
    which operands are activations.
    """

    output: Tensor
    operands: tuple[Any, ...]
    examples: int
    detail: Any = None
    active: tuple[bool, ...] = ()


# Relevance of the output in, relevance of the operands out (None: takes no part, nor do those that
# are left out behind the last).
# An operand that was broadcast may be answered in the output's shape: autograd sums it back.
Rule = Callable[[Tensor, RuleCase], Sequence[Tensor | None]]
# Which operands are activations in, the share of its own gradient that each keeps out.
Split = Callable[[tuple[bool, ...]], tuple[float, ...]]


@dataclass(frozen=True)
class RuleSet:
    """A table operation → rule, and where relevance starts.

    ``starts_at_value``: from the explained logit itself, so that scores share it out (the epsilon
    family); else from one (Chefer et al.). ``divides_clones``: relevance of a value that several
    operations read is divided by it and multiplied again (Chefer et al.'s Clone).
    ``rewrites_gradients``: what goes down is the gradient, and relevance is value × gradient;
    ``rules`` then answer with gradients, ``splits`` scale them, and any other operation keeps its own.
    """

    name: str
    rules: Mapping[Operation, Rule]
    starts_at_value: bool = False
    divides_clones: bool = False
    rewrites_gradients: bool = False
    splits: Mapping[Operation, Split] = field(default_factory=dict)
