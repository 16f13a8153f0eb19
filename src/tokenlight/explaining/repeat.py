"""Batches whose shape may return, so that their pass through the model may be replayed."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tokenlight.capture.live import Inputs, LiveModel
from tokenlight.capture.objective import Predicted
from tokenlight.capture.replay import Returning
from tokenlight.capture.tape import Site
from tokenlight.data.target import ResolvedTarget, TargetLike
from tokenlight.data.tokens import TokenRow
from tokenlight.explaining.options import How
from tokenlight.methods._method import Method

# Products of a pass that is worth replaying, with weights and in attention: beyond, the device computes
# longer than Python.
SMALL = 2e13
# The same where another pack waits, which Python makes ready meanwhile: in half precision, and wider.
SMALL_OF_MANY = 4e12, 5e11


@dataclass(frozen=True, eq=False)
class Repeat(Returning):
    """With what turns its numbers into arguments of the model."""

    arguments: dict[str, Tensor]
    names: list[str]
    filler: int | None

    def inputs(self, given: Sequence[Tensor]) -> Inputs:
        """Its numbers, or others of the same shape, as the model takes them."""
        *values, real = given
        return {**self.arguments, **dict(zip(self.names, values, strict=True))}, real, self.filler


def repeat_of(
    live: LiveModel,
    rows: Sequence[TokenRow],
    targets: Sequence[TargetLike],
    how: How,
    *,
    alone: bool = True,
) -> Repeat | None:
    """None where a pass cannot be replayed, or is large enough not to need it. ``alone``: no other pack
    goes before it or behind it."""
    small = SMALL if alone else SMALL_OF_MANY[not live.half]
    if not _repeatable(live, rows, how, small):
        return None
    head, chosen = live.head, list[ResolvedTarget]()
    if not Predicted.choose(head, targets):
        # A class is the same for every text.
        alike = len(set(map(type, targets)) - {int, str}) == 0 and len({*targets}) == 1
        apart = 1 if alike and head.reads == "text" else len(rows)
        if any(head.depends_on_logits(target) for target in targets[:apart]):
            return None
        pairs = zip(targets[:apart], rows, strict=False)
        resolved = [head.resolve(target, np.empty(0), row) for target, row in pairs]
        chosen = [own[0] for own in resolved]
        single = all(len(own) == 1 for own in resolved)
        if not single or any(len(one.terms) > 1 or one.terms[0][1] != 1 for one in chosen):
            return None
        chosen *= len(rows) // apart
    arguments, real, filler = live.inputs(rows)
    names = [name for name, value in arguments.items() if value.device == real.device]
    lengths = {len(row.ids) for row in rows}
    asked = [] if head.reads == "text" else [(len(row), row.at) for row in rows]
    hidden = not all([row.all_seen for row in rows])
    key = (real.shape, len(lengths) > 1, hidden, tuple(names), filler, not chosen,
           tuple(how.methods), tuple(asked), torch.backends.cuda.matmul.allow_tf32)  # fmt: skip
    given = [*(arguments[name] for name in names), real]
    texts = tuple(row.ids for row in rows)
    return Repeat(given, chosen, key, texts, arguments, names, filler)


def _repeatable(live: LiveModel, rows: Sequence[TokenRow], how: How, small: float) -> bool:
    """On one GPU, of texts that one part of the model reads, by methods that go through it once."""
    places = getattr(live.model, "hf_device_map", None) or {"": 0}
    return (
        live.device.type == "cuda"
        and len(set(places.values())) == 1
        and how.explain_mask == "none"
        and live.head.kind != "span"
        and live.head.reads in ("text", "next")
        and live.patches is None
        and live.sight is None
        and not live.writes_from_source
        and not any([row.asked or row.answer for row in rows])
        and _products(live, len(rows), max([len(row.ids) for row in rows])) <= small
        and all(map(_once, how.methods))
    )


def _products(live: LiveModel, rows: int, tokens: int) -> float:
    config = live.model.config.get_text_config()
    width, blocks = (getattr(config, n, 0) or 0 for n in ("hidden_size", "num_hidden_layers"))
    return float(rows * tokens * (live.replays.size + 2 * blocks * width * tokens))


def _once(method: Method) -> bool:
    """Whether it goes through the model once, and its options can be told from others."""
    try:
        hash(method)
    except TypeError:  # an option is a table
        return False
    return Site.GRAPH not in method.sites and method.cost(1).forwards == 1
