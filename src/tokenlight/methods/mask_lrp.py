"""Mask-LRP: transformer attribution with relevance through syntactic and positional heads only."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from tokenlight.accel.tensors import upcast_all
from tokenlight.accel.transfer import to_device
from tokenlight.attention_heads.mask import MaskKind, MaskValues, make_head_mask
from tokenlight.attention_heads.statistics import find_positional_heads
from tokenlight.lrp.rules import RuleContext, compute_contributions, safe_divide
from tokenlight.methods._relevance import RuleBasedRelevance
from tokenlight.plugin import BadInput, Seed, Share, Site, Tape
from tokenlight.trace.relevance import RelevanceGate, RelevancePath, RelevanceResult

Conserve = Literal["none", "paper", "abs"]
RANDOM_MASKS = ("random", "corrupted")  # masks that depend on the option seed
# Without heads, the other masks use the positional heads of each text's own attention.
MASKS_NEEDING_HEADS = ("syntactic", *RANDOM_MASKS, "empty")
OWN_HEADS_NOTE = (
    "no heads were given: positional heads were taken from each text's own attention, syntactic "
    "heads left out; for both, run: tokenlight heads MODEL --conllu FILE -o heads.json"
)


class MaskedRelevance(RuleBasedRelevance):
    r"""Propagate relevance only through heads that attend to a syntactic or positional neighbor.

    With :math:`C` the relevance at a block's attention context (``batch head token width``) and
    :math:`M` the head mask (``layer head``):

    .. math:: R_A, R_V \leftarrow \operatorname{matmul}(M\odot C)/2 \text{ (propagated)},\quad
        \tilde R_A = \operatorname{matmul}(C) \text{ (kept)},\quad
        M^l = \tfrac1H\sum_h(G^l\odot\tilde R^l_A)^+

    rolled out and read as in the method transatt. Mask-LRP.
    Differs from the paper: the default is the official code, which keeps the unmasked, unhalved
    relevance and normalizes nothing. ``preset="paper"`` keeps the masked one, rescales each part so that
    the relevance of the block is conserved, and has no row norm.

    Args:
        heads: A heads file, a HeadMask, or layers × heads. Without one, positional heads come from each
            text's own attention, and a note says so.
        mask: Which heads propagate relevance. ``"empty"`` is a control in which none does; ``"none"`` is the
            method transatt.
        mask_values: Whether the mask is binary.
        corruption: The share of heads that ``mask="corrupted"`` changes.
        seed: Seed of the random masks.
        head_relevance: Which relevance of the maps is kept.
        halve_saved: Halve the kept relevance, too.
        conserve: ``"abs"`` conserves the relevance of each block; ``"paper"`` is the formula of the paper to
            the letter, which conserves only if both parts have the same sign.
        row_normalize: Divide each row by its sum before blocks are multiplied.
        score: ``"rollout"``, or ``"input"`` for the masked relevance at h^0.
        rules: As in lrp.
        qa_relevance: As in lrp.
    """

    heads: Any = None
    mask: Literal[MaskKind, "none"] = "union"
    mask_values: MaskValues = "binary"
    corruption: Share = 0.0
    seed: Seed = 0
    head_relevance: Literal["unmasked", "masked"] = "unmasked"
    halve_saved: bool = False
    conserve: Conserve = "none"
    row_normalize: bool = True
    score: Literal["rollout", "input"] = "rollout"
    cites = "song2024mask"
    stochastic = True
    presets = dict(
        official=dict(qa_relevance="broadcast"),
        paper=dict(head_relevance="masked", halve_saved=True, conserve="abs", row_normalize=False),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        # Options that have no effect are reset, so that equal explanations have equal options.
        seed = self.seed if self.mask in RANDOM_MASKS else 0
        heads = self.heads if self.mask != "none" else None
        if heads is None and self.mask in MASKS_NEEDING_HEADS:
            raise BadInput(
                f"mask={self.mask!r} needs heads=…: without them only the positional heads of each text's "
                "own attention are known. Run: tokenlight heads MODEL --conllu FILE -o heads.json",
                code="mask-needs-heads",
            )
        if heads is not None and not isinstance(heads, str):
            heads = make_head_mask(heads).to_dict()  # options are written to files as plain values
        self.__dict__.update(seed=seed, heads=heads)  # the dataclass is frozen

    @property
    def needs(self) -> frozenset[Site]:
        sites = {Site.RELEVANCE, Site.ATTENTION_GRADIENT, Site.READOUT}
        if self.mask != "none":
            sites |= {Site.ATTENTION_VALUES, Site.ATTENTION}
        return frozenset(sites)

    def write_note(self, tape: Tape) -> str | None:
        notes = []
        if self.heads is None and self.mask != "none":
            notes.append(OWN_HEADS_NOTE)
        relevance_note = super().write_note(tape)
        if relevance_note:
            notes.append(relevance_note)
        return "; ".join(notes) or None

    def choose_relevance_path(self, tape: Tape, **gate_options: Any) -> RelevancePath:
        if self.mask != "none":
            gate_options = {"gates": self._build_gates(tape, self.mask), "gates_key": id(self)}
        return super().choose_relevance_path(tape, **gate_options)

    def _build_gates(self, tape: Tape, mask: MaskKind) -> dict[int, RelevanceGate]:
        """Return a gate for every block, lowest first.

        Without conservation, the parts of the mask act as their sum, which is at most one if the mask is
        binary (a head may be both syntactic and positional).
        """
        parts = self._build_mask_parts(tape, mask)
        if self.conserve == "none":
            total = torch.stack(parts).sum(dim=0)
            if self.mask_values == "binary":
                total = total.clamp(max=1)
            parts = [total]
        gates: dict[int, Callable[[Tensor], Tensor]] = {}
        for block in range(len(parts[0])):
            # From ``batch head`` to the shape of the context, ``batch head token width``.
            block_masks = [part[block][..., None, None] for part in parts]
            gates[block] = partial(_apply_head_masks, block_masks, self.conserve)
        return gates

    def _build_mask_parts(self, tape: Tape, mask: MaskKind) -> list[Tensor]:
        """Return the parts of the mask, each ``layer batch head`` or ``layer 1 head``."""
        attention = tape.recording.attention
        if self.heads is None:
            return [find_positional_heads(attention, tape.token_mask)]
        components = make_head_mask(self.heads).build_components(
            mask, values=self.mask_values, rate=self.corruption, seed=self.seed
        )
        first_map = attention[0]
        mask_shape = components[0].shape
        model_shape = (len(attention), first_map.shape[1])
        if mask_shape != model_shape:
            raise BadInput(
                f"The head mask has {mask_shape[0]} layers × {mask_shape[1]} heads, but this model has "
                f"{model_shape[0]} × {model_shape[1]}. Run 'tokenlight heads' on this model.",
                code="head-mask-of-other-model",
            )
        parts = []
        for component in components:
            layer_mask = to_device(component, first_map.device, first_map.dtype)
            parts.append(layer_mask[:, None, :])
        return parts

    def score_logit(self, tape: Tape) -> Tensor:
        result = self.propagate(tape)
        if self.score == "input":
            return tape.zero_readout_token(result.hidden_states[0].sum(dim=-1))
        saved = self.select_map_relevance(tape, result)
        return self.roll_out_relevance(tape, saved, row_normalize=self.row_normalize)

    def select_map_relevance(self, tape: Tape, result: RelevanceResult) -> Sequence[Tensor]:
        """Return the relevance of each map that the rollout reads, ``batch head query key``."""
        if self.mask == "none":
            return result.attention
        scale = 1.0 if self.halve_saved else 2.0
        recording = tape.recording

        def compute_saved(block: int, context_relevance: Tensor) -> Tensor:
            if self.head_relevance == "masked":
                return scale * result.attention[block]
            operands = (recording.attention[block].detach(), recording.values[block].detach())
            ctx = RuleContext(recording.contexts[block].detach(), operands, len(tape.rows))
            return scale / 2 * compute_contributions(context_relevance, ctx)[0]

        return upcast_all(result.contexts, compute_saved, is_lazy=True)


def _apply_head_masks(masks: Sequence[Tensor], conserve: Conserve, relevance: Tensor) -> Tensor:
    r"""Mask relevance C (``batch head token width``): :math:`R_x = M_x\odot C`, then

    .. math:: R_x \leftarrow R_x\,\frac{|\sum R_x|}{D}\,\frac{\sum C}{\sum R_x}

    with :math:`D=|\sum_x\sum R_x|` (``"paper"``, to the letter) or :math:`\sum_x|\sum R_x|`
    (``"abs"``, which conserves for all signs). Sums run over one example.
    """
    parts = [mask * relevance for mask in masks]
    if conserve == "none":
        return parts[0]
    total = relevance.sum(dim=(1, 2, 3), keepdim=True)
    part_sums = torch.stack([part.sum(dim=(1, 2, 3), keepdim=True) for part in parts])
    denominator = part_sums.abs().sum(dim=0)
    if conserve == "paper":
        denominator = part_sums.sum(dim=0).abs()
    rescaled = torch.zeros_like(relevance)
    for part, part_sum in zip(parts, part_sums, strict=True):
        share = safe_divide(part_sum.abs(), denominator)
        rescaled = rescaled + part * safe_divide(share * total, part_sum)
    return rescaled
