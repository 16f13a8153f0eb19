"""Recording: one forward pass of a rewired model, and only what was asked of it is kept."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn

from tokenlight.capture import seam
from tokenlight.capture.blocks import MixingListener, Parts
from tokenlight.capture.entrance import At, Entered, entrance_of, kept
from tokenlight.capture.kernels import has_kernels
from tokenlight.capture.live import Inputs, LiveModel, source_of
from tokenlight.capture.masks import mask_known
from tokenlight.capture.rewired import beginning, recomputed, rewired
from tokenlight.capture.tape import ENTERED, GRADIENTS, MAPS, Recording, Site, Sites
from tokenlight.capture.transfer import Fetched
from tokenlight.capture.turns import lent
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import UnsupportedModel
from tokenlight.relevance.fork import Passage, Strangers
from tokenlight.relevance.rulesets import ATTNLRP
from tokenlight.relevance.tracing import Ways, attended, forked

WANTING: dict[At, Sites] = {
    "hidden": frozenset({Site.EMBEDDED, Site.EMBEDDED_GRADIENT}),
    "words": frozenset({Site.WORDS}),
}
ENTERING: Sites = frozenset({Site.HIDDEN_GRADIENT, Site.RELEVANCE, Site.RELEVANCE_GRADIENT})
# Shapes of passes whose operations were all found to have a relevance rule.
_looked_at: WeakKeyDictionary[nn.Module, set[tuple[Sites, int, bool]]] = WeakKeyDictionary()
_beginning = WeakSet[nn.Module]()  # models whose first block was seen to take in h^0


@torch.inference_mode(mode=False)
def record(
    live: LiveModel,
    rows: Sequence[TokenRow],
    sites: Sites,
    *,
    budget: int = 2048,
    recompute: bool = False,
    given: Inputs | None = None,
) -> Recording:
    """Run the model once over ``rows``, as ``live.inputs`` lays them out, and keep what ``sites`` asks for;
    with ``recompute`` blocks are computed again on the way back, and maps whenever they are read."""
    (arguments, real, filler), source = given or live.inputs(rows), source_of(rows)
    kept = live.route == "eager" or not (recompute or _are_spared(live, sites, source))
    wanted = _wanted(sites, source, kept=kept)
    eager = live.route == "eager" and wanted != "nothing"
    # A method that reads no attention sees the bare model, whatever its attention is; where gradients
    # are rewritten, attention is one operation.
    rewritten = Site.RELEVANCE_GRADIENT in sites and live.heard
    name = live.listened if rewritten or wanted != "nothing" else "own"
    keeping = [_kept(live, rows[0], at, sites, real) for at in WANTING]
    values, fused = bool({Site.VALUES, Site.MIXING} & sites), Site.RELEVANCE not in sites
    listener = seam.Listener(
        wanted,
        real,
        live.listened_parts,
        keeps_values=values,
        fused=fused,
        crosses=source is not None,
    )
    mixing = MixingListener(listener) if Site.MIXING in sites else None
    # Passes of one model over batches of one shape run the same operations: looked at once.
    shape = sites, real.shape[1], len({len(row) for row in rows}) > 1
    watch = shape not in (looked_at := _looked_at.setdefault(live.model, set()))
    sloped, back = GRADIENTS & sites, {Site.RELEVANCE, Site.RELEVANCE_GRADIENT}
    ways = Ways(
        rules=not fused, gradients=Site.RELEVANCE_GRADIENT in sites, own=bool(sloped - back)
    )
    wired = partial(
        rewired,
        live.model,
        attention=name,
        gradients=bool(sloped),
        whole=bool(sloped - {Site.READOUT}),
        filler=filler,
    )
    following = partial(
        _followed, live.model, ways, fused=rewritten, examples=len(rows), watch=watch
    )
    shown, hearing = _shown(live, sites, heard=wanted != "nothing" or source is not None)
    with (
        wired(),
        mask_known(rows, real.shape),
        seam.listening(listener),
        mixing.hearing(live.encoder) if mixing else nullcontext(),
        following(listener) as fork,
        recomputed(live.model, partial(_again, wired, following, fork, fused))
        if recompute and wanted != "maps"
        else nullcontext(),
        keeping[0] as embedded,
        keeping[1] as words,
        hearing as heard,
    ):
        asked = {"output_attentions": True} if eager else {}
        outputs = live.call(arguments, output_hidden_states=shown, **asked)
        # Relevance has no rule for a normaliser, and starts at none.
        logits = live.logits_of(outputs, arguments, others=not (ways.rules or ways.gradients))
        hidden = live.hidden_states_of(outputs) if shown else tuple(heard)
        attention = _eager_maps(live, outputs) if eager else listener.attention
    lengths = None if source is None or not hidden else (source, real.shape[1] - source)
    parts = lengths and Parts(*lengths, len(outputs.encoder_hidden_states))
    hidden = _laid_over_tokens(live, hidden, real, sites, parts)
    if wanted != "nothing":
        blocks = len(hidden) - 1 if parts is None else parts.maps(len(hidden))
        maps = len(attention) or len(listener.received)
        if maps != blocks:
            raise UnsupportedModel(
                f"{type(live.model).__name__} has {blocks} blocks but {maps} self-attention maps came "
                "through; methods that read attention need exactly one a block (state-space and hybrid "
                "models have none in some)."
            )
    if fork is not None and watch:
        for rules in [None] * ways.rules + [ATTNLRP] * ways.gradients:
            fork[1].check([logits], hidden[0], rules)
        looked_at.add(shape)
        if heard and heard[0] is hidden[0]:
            _beginning.add(live.model)
    if wanted == "maps" and not {Site.ATTENTION_GRADIENT, Site.RELEVANCE} & sites:
        attention = tuple(maps.detach() for maps in attention)
    return Recording(
        tuple(rows),
        real,
        logits,
        Fetched(logits),
        hidden,
        attention,
        tuple(listener.received),
        sites,
        live,
        budget,
        passage=None if fork is None else fork[0],
        contexts=tuple(listener.contexts),
        values=tuple(listener.values),
        mixings=() if mixing is None else mixing.found(hidden),
        embedded=embedded,
        words=words,
        sunk=listener.sunk,
        parts=parts.checked(listener.unkept or attention, live.model) if parts else None,
        padded=shape[2],
        unkept=tuple(listener.unkept),
    )


def _kept(
    live: LiveModel, row: TokenRow, at: At, sites: Sites, real: Tensor
) -> AbstractContextManager[Entered | None]:
    if live.sight is not None and at == "hidden" and sites & ENTERING:
        entrance_of(live, row, at)  # refuses a model whose picture comes in by other ways, too
    if not sites & WANTING[at]:
        return nullcontext()
    return kept(live, entrance_of(live, row, at), real, row.source)


def _shown(live: LiveModel, sites: Sites, *, heard: bool) -> tuple[bool, Any]:
    """Whether the model shows its hidden states, a sixteenth of a graph, since more than embeddings are
    read; and, where a rewritten gradient needs h^0 alone, how that is heard."""
    if heard or not sites <= {*ENTERED, Site.RELEVANCE_GRADIENT}:
        return True, nullcontext(())
    if Site.RELEVANCE_GRADIENT not in sites:
        return False, nullcontext(())
    return live.model not in _beginning, beginning(live.encoder)


@contextmanager
def _followed(
    model: nn.Module, ways: Ways, listener: seam.Listener, *, fused: bool, **how: Any
) -> Iterator[tuple[Passage, Strangers] | None]:
    """Within: operations have other ways back, where any is asked for, ``fused`` attention among them."""
    if not (ways.rules or ways.gradients):
        yield None
        return
    with (
        forked(model, ways=ways, **how) as fork,
        lent([listener], attended=partial(attended, *fork)) if fused else nullcontext(),
    ):
        yield fork


@contextmanager
def _again(
    wired: Callable[[], AbstractContextManager[None]],
    following: Callable[..., AbstractContextManager[Any]],
    fork: tuple[Passage, Strangers] | None,
    fused: bool,
) -> Iterator[None]:
    """Within: a block does what it did in the recorded pass, and nobody listens."""
    nobody = seam.Listener("nothing", torch.empty(0), (), fused=fused)
    passage = None if fork is None else fork[0]
    with wired(), seam.listening(nobody), following(nobody, passage=passage):
        yield


def _are_spared(live: LiveModel, sites: Sites, source: int | None) -> bool:
    """Whether a kernel makes of attention what methods read, faster than they would of maps."""
    whole = {Site.RELEVANCE, Site.VALUES, Site.MIXING}
    fast = live.half and has_kernels(torch.empty(0, device=live.device, dtype=live.dtype))
    return fast and source is None and sites.isdisjoint(whole)


def _wanted(sites: Sites, source: int | None, *, kept: bool) -> seam.Wanted:
    """What is heard of attention; of a decoder's to its source, whole maps or nothing."""
    if MAPS & sites or (source is not None and Site.RECEIVED in sites):
        return "maps" if kept or Site.MIXING in sites else "unkept"
    return "received" if Site.RECEIVED in sites else "nothing"


def _eager_maps(live: LiveModel, outputs: object) -> Sequence[Tensor]:
    name = "encoder_attentions" if live.model.config.is_encoder_decoder else "attentions"
    maps = tuple(getattr(outputs, name, None) or ())
    if live.writes_from_source:
        kinds = (getattr(outputs, f"{kind}_attentions", None) for kind in ("decoder", "cross"))
        maps += tuple(chain.from_iterable(zip(*kinds, strict=True)))
    square = not live.writes_from_source
    if not maps or not all(_is_map(own, square=square) for own in maps):
        raise UnsupportedModel(
            f"{type(live.model).__name__} neither routes its attention through transformers' "
            "interface nor gives its attention maps; methods that read attention cannot work on it."
        )
    return maps


def _is_map(found: object, *, square: bool) -> bool:
    """Whether rows of ``batch head query key`` sum to one; ``square``: with as many keys as queries."""
    if not isinstance(found, Tensor) or found.dim() != 4:
        return False
    if square and found.shape[2] != found.shape[3]:
        return False
    rows = found.detach().sum(dim=-1)[:, :, 0]  # the first query is never padding
    return bool(((rows - 1).abs() < 1e-2).all())


def _laid_over_tokens(
    live: LiveModel, hidden: tuple[Tensor, ...], real: Tensor, sites: Sites, parts: Parts | None
) -> tuple[Tensor, ...]:
    """h^0 … h^L where each has a vector a token; else none, or refused if ``sites`` reads them."""
    if parts is not None:
        widths = [parts.source] * parts.states + [parts.written] * (len(hidden) - parts.states)
        if [state.shape[1] for state in hidden] == widths:
            return hidden
    elif len({state.shape for state in hidden}) == 1 and hidden[0].shape[:2] == real.shape:
        return hidden
    if sites <= ENTERED:
        return ()
    shapes = ", ".join(str(tuple(state.shape)) for state in hidden)
    why = f"changes the number or width of its tokens between layers ({shapes})"
    raise UnsupportedModel(
        f"{type(live.model).__name__} {why if hidden else 'does not give its hidden states'}, and this "
        "method reads them token by token; use one that needs the embeddings alone (grad_x_input, "
        "integrated_gradients), or occlusion."
    )
