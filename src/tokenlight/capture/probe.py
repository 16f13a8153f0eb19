"""Probes: a few passes before a model's first use that tell whether its numbers can be believed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from tokenlight.capture import seam
from tokenlight.capture.objective import first_not_finite
from tokenlight.capture.rewired import token_embeddings
from tokenlight.capture.turns import hooked
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import NotFinite, UnsupportedModel

if TYPE_CHECKING:
    from tokenlight.capture.live import LiveModel, Route

PROBE_TOKENS = 32  # enough to tell two computations apart, and no long text is mapped for it
# Over one token, or over many that are alike, attention gives the same however it is computed.
DIFFERENT_TOKENS = 8
# Others are quantised, or no arithmetic is defined for them.
CHECKED = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
FLOAT32 = torch.finfo(torch.float32).eps
_padding_proof: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
# By which maps were listened to and found to change no logit.
routes: WeakKeyDictionary[nn.Module, Route] = WeakKeyDictionary()


@torch.inference_mode(mode=False)
def verified(live: LiveModel, row: TokenRow, *, maps: bool) -> bool:
    """Whether padding leaves the logits of a text alone; a model whose numbers would be wrong is
    refused. ``maps``: its attention will be listened to. What was found is found once a model."""
    model = live.model
    live.route = routes.get(model, live.route)
    if model in _padding_proof and (not maps or model in routes):
        return _padding_proof[model]
    name = type(model).__name__
    row = telling(live, replace(row, answer=()))
    bare, spoilt = _sound(live, row)
    # Norms and softmax of many families compute in float32 whatever the model's dtype.
    eps, own_eps = max(torch.finfo(live.dtype).eps, FLOAT32), torch.finfo(live.dtype).eps
    size = max(1.0, float(bare.abs().max()))
    gap = float((bare - _probe(live, row)).abs().max())
    if not gap <= 32 * eps * size:
        raise UnsupportedModel(
            f"{name} gives other logits each time it reads the same text (they differ by {gap:.2g}): "
            "it draws at random. Fix its seed, such as config.hash_seed."
        )
    allowed = eps**0.5 * size
    if live.head.reads == "next" and live.sight is None:
        _check_writing(live, row, allowed)
    # Pictures are never padded: those of one size go together. Of texts only those that padding
    # leaves alone but for rounding in the model's own dtype: MPT counts its bias from the end of the
    # padded row and rounds the sum to float32, which divisions by next to nothing then make large.
    rounding = min(allowed, 1e4 * own_eps * size)
    _padding_proof[model] = live.patches is None and _padding_gap(live, row) <= rounding
    if maps:
        if live.patches is None:
            # Where logits hardly depend on the text, another computation moves them as little.
            moved = float((bare - _probe(live, other_row(live, row))).abs().max())
            rounding = 32 * eps * float(bare.abs().max())
            allowed = min(allowed, rounding + moved / 100)
        _check_maps(live, row, bare, allowed, spoilt)
        routes[model] = live.route
    return _padding_proof[model]


def _sound(live: LiveModel, row: TokenRow) -> tuple[Tensor, list[str]]:
    """The logits of the bare model, and the weights that are not finite: refused where either shows, or such
    a weight takes part, which fused attention may hide; of a table only the rows that are read count."""
    model, took = live.model, set[nn.Module]()
    spoilt = [name for name, weight in model.named_parameters() if not _holds_numbers(weight)]
    owners = [model.get_submodule(name.rpartition(".")[0]) for name in spoilt]
    with hooked({*owners} - {model}, entering=lambda module, *_: took.add(module)):
        bare = _probe(live, row)
    whole = (i for i, own in enumerate(owners) if own in took and not isinstance(own, nn.Embedding))
    first = [spoilt[i] for i in whole]
    if first or not bool(torch.isfinite(bare).all()):
        where = _where(live, row, first or spoilt)
        raise NotFinite(f"{type(model).__name__} gives NaN or infinity: {where}.")
    return bare, spoilt


def _holds_numbers(weight: nn.Parameter) -> bool:
    """Whether none is NaN or infinite, where it can be seen; a mask may hold −inf by right."""
    if not _is_checked(weight):
        return True
    ends = torch.stack(weight.detach().aminmax())  # NaN if any is
    return not bool((~torch.isfinite(ends) if weight.requires_grad else ends.isnan()).any())


def _is_checked(weight: Tensor) -> bool:
    plain = type(weight) in (Tensor, nn.Parameter) and type(weight.data) is Tensor
    return plain and weight.dtype in CHECKED and not weight.is_meta and weight.numel() > 0


def telling(live: LiveModel, row: TokenRow) -> TokenRow:
    """A row like ``row`` on which two computations that differ give different logits: of several tokens, not
    all alike, asked about its last one, which sees all others whatever the model."""
    if live.patches is not None or live.sight is not None:
        return row
    if row.source is not None:
        return _telling_writer(live, row, row.source)
    row = replace(_short(row, PROBE_TOKENS), at=None)
    if live.head.reads == "pair" and row.anchor is None:
        # Compared with nothing, any two computations would look alike.
        width = live.model.config.get_text_config().hidden_size
        row = replace(row, anchor=tuple(np.cos(np.arange(width)).tolist()))
    seen = {i for i, attended in zip(row.ids, row.attention, strict=True) if attended}
    room = PROBE_TOKENS if live.max_tokens is None else min(PROBE_TOKENS, live.max_tokens)
    added = _plain_ids(live, row)[: max(0, min(DIFFERENT_TOKENS - len(seen), room - 1))]
    if not added:
        return row
    return _lengthened(_short(row, room - len(added)), added, before_last=True)


def _telling_writer(live: LiveModel, row: TokenRow, source: int) -> TokenRow:
    """A short source and what is written, unlike in length, so that attention shows by its shape."""
    kept = min(source, DIFFERENT_TOKENS)
    begun = row.take([*[0] * (DIFFERENT_TOKENS - kept), *range(kept - 1), source - 1, source])
    added = _plain_ids(live, row)[:DIFFERENT_TOKENS]
    return replace(_lengthened(begun, added, before_last=False), at=None)


def _lengthened(row: TokenRow, ids: Sequence[int], *, before_last: bool) -> TokenRow:
    """The row with ``ids`` before its last token, or behind it, of whose kind they are."""
    last = len(row) - 1
    longer = row.take([*range(last), *[last] * (len(ids) + 1)])
    place = last if before_last else len(row)
    seen = (*row.attention[:place], *[1] * len(ids), *row.attention[place:])
    return replace(longer, ids=(*row.ids[:place], *ids, *row.ids[place:]), attention=seen)


def _plain_ids(live: LiveModel, row: TokenRow) -> list[int]:
    """Plain ids from all over the vocabulary that are not in ``row``; one at least is left for padding."""
    taken = {*row.ids, *_special_ids(live)}
    step = max(1, live.vocabulary // (4 * DIFFERENT_TOKENS))
    spread = (i for start in range(step) for i in range(start, live.vocabulary, step))
    free = list(islice((i for i in spread if i not in taken), 1, 2 * DIFFERENT_TOKENS + 1))
    table: Any = token_embeddings(live.model)[0].weight
    if not free or not _is_checked(table):
        return free
    numbers = torch.isfinite(table.detach()[free]).all(dim=-1).tolist()
    return [i for i, finite in zip(free, numbers, strict=True) if finite]


def _special_ids(live: LiveModel) -> set[int]:
    """Ids that the tokenizer and the model's config name: padding, start, end and their like."""
    found: set[int] = {*getattr(live.tokenizer, "all_special_ids", ())}
    for config in (live.model.config, live.model.config.get_text_config()):
        for name, value in vars(config).items():
            if name.endswith(("token_id", "token_index")) and value is not None:
                found.update(value if isinstance(value, list | tuple) else [value])
    return found


def other_row(live: LiveModel, row: TokenRow, *, ends: bool = False) -> TokenRow:
    """``row`` with other tokens wherever none is special; with ``ends``, in the last place, too."""
    special = _special_ids(live)
    plain = _plain_ids(live, row) or [i for i in row.ids[::-1] if i not in special] or [0]
    last = len(row) - 1 if ends else None
    ids = [
        own if own in special and place != last else plain[place % len(plain)]
        for place, own in enumerate(row.ids)
    ]
    if row.image is not None:  # a text with a picture: another picture
        turned = np.ascontiguousarray(-row.image.pixels[:, ::-1, ::-1])
        row = replace(row, image=replace(row.image, pixels=turned))
    return replace(row, ids=tuple(ids))


def _check_writing(live: LiveModel, row: TokenRow, allowed: float) -> None:
    """Refuse a model whose earlier tokens see later ones: it could not have written them."""
    half = max(len(row) // 2, (row.source or 0) + 1)
    if half in (0, len(row)):
        return
    alone = _probe(live, row.take(range(half)))
    gap = float((_probe(live, replace(row, at=half - 1)) - alone).abs().max())
    if not gap <= allowed:
        raise UnsupportedModel(
            f"{type(live.model).__name__} cannot write as it is configured: its tokens see those "
            f"behind them (logits move by {gap:.2g}). Set config.is_decoder, or load it with a "
            "head for its task."
        )


def _check_maps(
    live: LiveModel, row: TokenRow, bare: Tensor, allowed: float, spoilt: Sequence[str]
) -> None:
    """Refuse a model that computes something else while its attention is listened to."""
    name = type(live.model).__name__
    listened = _probe(live, row, maps=True)
    if not bool(torch.isfinite(listened).all()):
        raise NotFinite(
            f"{name} gives NaN or infinity where its attention maps are computed, though its fused "
            f"attention hides it: {_where(live, row, spoilt, maps=True)}."
        )
    gap = float((bare - listened).abs().max())
    if not gap <= allowed:
        if live.route == "seam":  # a part of it may go another way than through the interface
            live.route = "eager"
            _check_maps(live, row, bare, allowed, spoilt)
            return
        raise UnsupportedModel(
            f"{name} computes other logits when its attention maps are asked for (they differ "
            f"by {gap:.2g}); a method that reads attention would explain another model, so it "
            "is refused."
        )


def _padding_gap(live: LiveModel, row: TokenRow) -> float:
    """How far five tokens of padding move the logits of a row; fewer where more have no place."""
    room = PROBE_TOKENS + 5 if live.max_tokens is None else live.max_tokens
    padding = min(5, room // 2)
    if live.sight is None:
        row = _short(row, room - padding)  # keeps the last token: some heads read it
    gap = (_probe(live, row) - _probe(live, row, padding=padding)).abs().max()
    return float(gap.nan_to_num(torch.inf))


def _probe(live: LiveModel, row: TokenRow, **how: Any) -> Tensor:
    logits = _passed(live, row, **how)[1].cpu().double()
    return logits[:, : len(row)] if live.head.kind == "span" else logits


def _passed(
    live: LiveModel, row: TokenRow, *, maps: bool = False, padding: int = 0, **flags: Any
) -> tuple[Any, Tensor]:
    """What the bare model gives for one row, and its logits; ``maps``: with its attention listened to."""
    given = live.inputs([row], len(row) + padding)
    if maps and live.route == "eager":
        flags["output_attentions"] = True
    wanted: seam.Wanted = "maps" if maps else "nothing"
    crosses = live.writes_from_source
    listener = seam.Listener(wanted, given[1], live.listened_parts, crosses=crosses)
    attention = live.listened if maps else "own"
    return live.run(given, seam.listening(listener), attention=attention, **flags)


def _where(live: LiveModel, row: TokenRow, spoilt: Sequence[str], *, maps: bool = False) -> str:
    """The first weight or hidden state that is not finite, in words."""
    if spoilt:
        return f"the weight {spoilt[0]} holds NaN or infinity"
    outputs, _ = _passed(live, row, maps=maps, output_hidden_states=True)
    return f"{first_not_finite(live.hidden_states_of(outputs))} is the first that is not finite"


def _short(row: TokenRow, length: int) -> TokenRow:
    """The beginning of a row and its last token, which some heads read."""
    return row if len(row) <= length else row.take([*range(length - 1), len(row) - 1])
