"""Every block run again on the input it had, while one token's value says nothing.

A pass over the text for each of its tokens: where it enters a block, the block gets what it got in the
clean pass, so that what leaves it shows that block alone.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tokenlight.capture import seam
from tokenlight.capture.graph import blocks_of
from tokenlight.capture.live import LiveModel
from tokenlight.capture.loan import hooked
from tokenlight.capture.packing import in_halves
from tokenlight.capture.rerun import WIDER
from tokenlight.capture.tape import Recording
from tokenlight.capture.turns import pause
from tokenlight.errors import UnsupportedModel

States = list[Tensor]  # one a block, each ``pass token hidden``


class _Blocks:
    """What enters and what leaves each block, in the order in which they run; where a ``clean`` pass is
    given, what entered there enters again, for ``examples``."""

    def __init__(self, live: LiveModel, clean: States | None, examples: Tensor) -> None:
        self.entered, self.left = States(), States()
        self._clean, self._examples = clean, examples
        blocks = blocks_of(live.model)
        heard = [block for block in blocks if any(map(live.listens_to, block.modules()))]
        self.hooks = hooked(heard, entering=self._enter, leaving=self._leave)

    def _enter(self, _block: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        first, *others = given or (named.pop("hidden_states"),)
        number = len(self.entered)
        self.entered.append(first)
        if self._clean is not None:
            first = self._clean[number][self._examples.to(first.device)]
        return (first, *others), named

    def _leave(self, _block: nn.Module, _given: Any, _named: Any, output: Any) -> None:
        self.left.append(output if isinstance(output, Tensor) else output[0])


def distances(recording: Recording) -> Iterator[Tensor]:
    r"""For each block ``batch query key``: the cosine distance of what leaves it at a query to the same
    with the key's value zero, :math:`1-\cos(x_i,\tilde x_i^{\neg j})`."""
    if recording.live.route != "seam":
        raise UnsupportedModel(
            f"{type(recording.live.model).__name__} does not hand its values to transformers' attention "
            "interface, so none can be made zero; use rollout or occlusion."
        )
    clean = _passed(recording, None, torch.arange(len(recording.rows)), None)
    shape = recording.real.shape
    alike = all(state.shape[:2] == shape for state in (*clean.entered, *clean.left))
    if len(clean.left) != len(recording.attention) or not alike:
        raise UnsupportedModel(
            f"{type(recording.live.model).__name__} has {len(recording.attention)} attention maps, but "
            f"{len(clean.left)} blocks that take and give a vector for every token; use rollout or "
            "occlusion."
        )
    whole = [left.new_zeros((*shape, shape[1]), dtype=torch.float64) for left in clean.left]
    every = torch.tensor([(b, j) for b, row in enumerate(recording.rows) for j in range(len(row))])
    budget = recording.budget * WIDER.get(recording.live.device.type, 1)
    for pack in torch.split(every, max(1, budget // shape[1])):
        found = in_halves(partial(_fallen, recording, clean, pack), len(pack))
        for block, matrix in enumerate(whole):
            columns = torch.cat([own[block] for own in found])
            matrix[pack[:, 0], :, pack[:, 1]] = columns
        pause()
    yield from whole


def _fallen(recording: Recording, clean: _Blocks, pack: Tensor, part: slice) -> list[States]:
    """Of each block ``pass query``: the distance of what leaves it to the clean pass's, as half the squared
    distance of unit vectors, where nothing cancels."""
    examples, tokens = pack[part].T
    found = States()
    changed = _passed(recording, clean.entered, examples, tokens)
    for own, other in zip(clean.left, changed.left, strict=True):
        pair = own[examples.to(own.device)], other
        a, b = (nn.functional.normalize(one.double(), dim=-1) for one in pair)
        found.append((a - b).square().sum(dim=-1) / 2)
    return [found]


@torch.inference_mode(mode=False)
def _passed(
    recording: Recording, clean: States | None, examples: Tensor, tokens: Tensor | None
) -> _Blocks:
    live = recording.live
    given = live.inputs(recording.rows, recording.real.shape[1])
    blocks = _Blocks(live, clean, examples)
    listener = seam.Listener("nothing", recording.real, live.listens_to, silent=tokens)
    within = seam.listening(listener), blocks.hooks
    live.run(given, *within, attention=live.listened, examples=examples)
    return blocks
