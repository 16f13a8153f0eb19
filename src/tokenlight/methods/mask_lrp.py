"""Mask-LRP: transformer attribution whose relevance passes through syntactic and positional heads."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from tokenlight.capture.rerun import Flow, Gate, Route
from tokenlight.capture.transfer import all_widened, sent
from tokenlight.errors import BadInput
from tokenlight.heads.mask import MaskKind, Values, head_mask
from tokenlight.heads.statistics import own_positional_heads
from tokenlight.methods._method import Share, Site, Tape
from tokenlight.methods._relevance import RuledRelevance
from tokenlight.relevance.rules import RuleCase, contributions, safe_divide

Conserve = Literal["none", "paper", "abs"]
DRAWN = ("random", "corrupted")  # masks that the option seed decides
NEEDS_HEADS = ("syntactic", *DRAWN, "empty")  # the others take each text's own attention without
# What is computed of a text's own attention where no heads are given.
OWN_HEADS = (
    "no heads were given: positional heads were taken from each text's own attention, syntactic "
    "heads left out; for both, run: tokenlight heads MODEL --conllu FILE -o heads.json"
)


class MaskedRelevance(RuledRelevance):
    r"""Send relevance on only through heads that look at a syntactic or positional neighbour.

    With :math:`C` the relevance at a block's attention context (``batch head token width``) and
    :math:`M` the head mask (``layer head``):

    .. math:: R_A, R_V \leftarrow \operatorname{matmul}(M\odot C)/2 \text{ (sent on)},\quad
        \tilde R_A = \operatorname{matmul}(C) \text{ (kept)},\quad
        M^l = \tfrac1H\sum_h(G^l\odot\tilde R^l_A)^+

    rolled out and read as in the method transatt. Mask-LRP.
    Differs from the paper: the default is the official code, which keeps the unmasked, unhalved
    relevance and normalises nothing. ``preset="paper"`` keeps the masked one
    (``head_relevance="masked"``), rescales each part so that the block's relevance is conserved
    (``conserve="abs"``; ``"paper"`` is its formula to the letter, which conserves only where both
    parts have one sign) and has no row norm. ``score="input"`` gives the masked relevance at h^0.
    ``heads``: a heads file, a HeadMask, or layers × heads; without one, see the note it leaves.
    ``mask="empty"``: no head lets any through, a control; ``"none"``: the method transatt.
    """

    heads: Any = None
    mask: Literal[MaskKind, "none"] = "union"
    mask_values: Values = "binary"
    corruption: Share = 0.0
    seed: int = 0
    head_relevance: Literal["unmasked", "masked"] = "unmasked"
    halve_saved: bool = False
    conserve: Conserve = "none"
    row_normalize: bool = True
    score: Literal["rollout", "input"] = "rollout"
    cites = "song2024mask"
    draws = True
    presets = dict(
        official=dict(qa_relevance="broadcast"),
        paper=dict(head_relevance="masked", halve_saved=True, conserve="abs", row_normalize=False),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        seed = self.seed if self.mask in DRAWN else 0  # one that draws nothing says nothing
        heads = None if self.mask == "none" else self.heads  # nor do heads that mask nothing
        if heads is None and self.mask in NEEDS_HEADS:
            raise BadInput(
                f"mask={self.mask!r} needs heads=…: without them only positional heads are known, "
                "those of each text's own attention. "
                "Run: tokenlight heads MODEL --conllu FILE -o heads.json"
            )
        if heads is not None and not isinstance(heads, str):
            heads = head_mask(heads).to_dict()  # options are written to files: plain values
        self.__dict__.update(seed=seed, heads=heads)

    @property
    def needs(self) -> frozenset[Site]:
        sites = {Site.RELEVANCE, Site.ATTENTION_GRADIENT, Site.READOUT}
        return frozenset(sites if self.mask == "none" else sites | {Site.VALUES, Site.ATTENTION})

    def note(self, tape: Tape) -> str | None:
        own = OWN_HEADS if self.heads is None and self.mask != "none" else None
        return "; ".join(filter(None, (own, super().note(tape)))) or None

    def route(self, tape: Tape, **gated: Any) -> Route:
        if self.mask != "none":
            gated = {"gates": self._gates(tape, self.mask), "key": id(self)}
        return super().route(tape, **gated)

    def _gates(self, tape: Tape, mask: MaskKind) -> dict[int, Gate]:
        """A gate for every block, lowest first. Without conservation the parts of the mask act as their
        sum, which ``binary`` caps at one (a head may be in both)."""
        attention = tape.recording.attention
        if self.heads is None:
            parts = [own_positional_heads(attention, tape.real)]  # layer batch head
        else:
            chosen = head_mask(self.heads).parts(
                mask, values=self.mask_values, rate=self.corruption, seed=self.seed
            )
            first = attention[0]
            given, own = chosen[0].shape, (len(attention), first.shape[1])
            if given != own:
                raise BadInput(
                    f"the head mask is {given[0]} layers × {given[1]} heads, but this model has "
                    f"{own[0]} × {own[1]}; run 'tokenlight heads' on this model."
                )
            # layer 1 head
            parts = [sent(part, first.device, first.dtype)[:, None, :] for part in chosen]
        if self.conserve == "none":
            whole = torch.stack(parts).sum(dim=0)
            parts = [whole.clamp(max=1) if self.mask_values == "binary" else whole]
        blocks = enumerate(zip(*(part[..., None, None] for part in parts), strict=True))
        return {block: partial(_let_through, masks, self.conserve) for block, masks in blocks}

    def of_logit(self, tape: Tape) -> Tensor:
        flow = self.flow(tape)
        if self.score == "input":
            return tape.without_readout(flow.hidden[0].sum(dim=-1))
        saved = self.saved(tape, flow)
        return tape.read(self.rollout(tape, saved, row_normalize=self.row_normalize))

    def saved(self, tape: Tape, flow: Flow) -> Sequence[Tensor]:
        """The relevance of each map that the rollout reads, ``batch head query key``."""
        if self.mask == "none":
            return flow.attention
        scale = 1.0 if self.halve_saved else 2.0
        recording = tape.recording

        def saved(block: int, arriving: Tensor) -> Tensor:
            if self.head_relevance == "masked":
                return scale * flow.attention[block]
            operands = recording.attention[block].detach(), recording.values[block].detach()
            case = RuleCase(recording.contexts[block].detach(), operands, len(tape.rows))
            return scale / 2 * contributions(arriving, case)[0]

        return all_widened(flow.contexts, saved, in_turn=True)


def _let_through(masks: Sequence[Tensor], conserve: Conserve, arriving: Tensor) -> Tensor:
    r"""Of relevance C (``batch head token width``) :math:`R_x = M_x\odot C`, then

    .. math:: R_x \leftarrow R_x\,\frac{|\sum R_x|}{D}\,\frac{\sum C}{\sum R_x}

    with :math:`D=|\sum_x\sum R_x|` (``"paper"``, to the letter) or :math:`\sum_x|\sum R_x|`
    (``"abs"``, which conserves whatever the signs). Sums run over one example.
    """
    parts = [mask * arriving for mask in masks]
    if conserve == "none":
        return parts[0]
    *sums, total = (part.sum(dim=(1, 2, 3), keepdim=True) for part in (*parts, arriving))
    values = torch.stack(sums)
    whole = values.sum(dim=0).abs() if conserve == "paper" else values.abs().sum(dim=0)
    carried = torch.zeros_like(arriving)
    for part, value in zip(parts, sums, strict=True):
        carried = carried + part * safe_divide(safe_divide(value.abs(), whole) * total, value)
    return carried
