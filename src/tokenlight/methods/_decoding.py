"""From saliency at hidden positions to saliency of the input's own tokens, through an LM head: found,
checked against the encoder, applied."""

import abc
import copy
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Literal
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions as Output

from tokenlight.capture.live import LiveModel
from tokenlight.capture.objective import Of
from tokenlight.errors import BadInput, UnsupportedModel
from tokenlight.methods._maps import Layer, layers_of
from tokenlight.methods._method import Count, GradientMethod, Site, Tape
from tokenlight.models import embedded as models
from tokenlight.models.folder import SAFE, WEIGHTS, check

Special = Literal["exclude", "include"]
# Logits that may be in memory at once; a batch of 512 × 30,000 a text would be gigabytes.
LOGITS = {"cpu": 1 << 24, "cuda": 1 << 27}
_heads: WeakKeyDictionary[nn.Module, dict[str | None, Any]] = WeakKeyDictionary()


class DecodedMethod(GradientMethod):
    """A method that decodes saliency of hidden states. ``of``: what the gradient at them is of."""

    layer: Layer = "middle"
    tau: Count | None = None
    special: Special = "exclude"
    lm: Any = None
    cites = "hou2023decoding"
    signed = False
    of: ClassVar[Of] = "target"
    needs = frozenset({Site.HIDDEN, Site.GRAPH})

    @property
    def options(self) -> dict[str, Any]:
        found = super().options
        return {**found, "lm": _name_of(self.lm)} if "lm" in found else found

    def __call__(self, tape: Tape) -> Tensor:
        head = language_model(tape.recording.live, self.lm)
        decoder = Decoder(tape, head, tau=self.tau, special=self.special)
        layers = layers_of(tape, self.layer)
        # The backward goes no lower than these layers.
        states = [tape.recording.hidden[layer] for layer in layers]
        pairs = zip(layers, tape.rerun.slopes(states, self.of), strict=True)
        found = [self.decoded(decoder, tape.hidden[layer], slope) for layer, slope in pairs]
        return torch.stack(found, dim=1) if self.layer == "all" else found[0]

    @abc.abstractmethod
    def decoded(self, decoder: "Decoder", states: Tensor, gradient: Tensor) -> Tensor:
        """Scores, ``batch token``, of states and their gradient, ``batch token hidden``."""


class Decoder:
    r"""The matrix :math:`\hat D_l` of a batch, ``batch position type``: the probability that the language
    model reads a *type*, a distinct token id of the text, off the state at a position."""

    def __init__(self, tape: Tape, head: Any, *, tau: int | None, special: Special) -> None:
        self.tape, self.head, self.tau = tape, head, tau
        shape = tuple(tape.real.shape)
        types = np.zeros(shape, dtype=np.int64)  # ids of the types
        known = np.zeros(shape, dtype=bool)  # which columns are types
        place = np.full(shape, -1)  # type of each position
        for b, row in enumerate(tape.rows):
            counts = ~np.array(row.special) | (special == "include")
            own, numbers = np.unique(np.array(row.ids)[counts], return_inverse=True)
            place[b, : len(row)][counts] = numbers
            types[b, : len(own)] = own
            known[b, : len(own)] = True
        widest = max(1, int(known.sum(axis=1).max()))
        self.types, self.known, self.place = (
            torch.from_numpy(np.ascontiguousarray(array)).to(tape.real.device)
            for array in (types[:, :widest], known[:, :widest], place)
        )

    def __call__(self, states: Tensor, saliency: Tensor) -> Tensor:
        r""":math:`\sum_j \hat D[u, j]\, s_j` of the type u of each position, ``batch token``, 0 of special
        ones: of one layer's states, ``batch token hidden``, and their saliency. D is zero at padding, at
        columns that are no type, and below the ``tau`` largest of a position."""
        real = self.tape.real
        wanted = self.types[:, None, :].expand(*real.shape, -1)[real]
        found = states.new_zeros((*real.shape, self.types.shape[1]))
        found[real] = probabilities(self.head, states[real], wanted)
        found = found.masked_fill(~self.known[:, None, :], 0.0)
        if self.tau is not None and self.tau < found.shape[-1]:
            best = found.topk(self.tau, dim=-1)
            found = torch.zeros_like(found).scatter(-1, best.indices, best.values)
        scores = torch.einsum("bju,bj->bu", found, saliency.to(found))
        return scores.gather(1, self.place.clamp(min=0)).masked_fill(self.place < 0, 0.0)


@torch.no_grad()
def probabilities(head: Any, states: Tensor, ids: Tensor) -> Tensor:
    """Probability of each wanted token at each state: ``state hidden`` and ``state token`` (ids) to
    ``state token``. The softmax runs over the whole vocabulary, a few states at a time."""
    weight = next(head.parameters(), states)  # a head may have none
    most = LOGITS.get(weight.device.type, LOGITS["cpu"])
    size = max(1, most // int(head.config.get_text_config().vocab_size))
    found = []
    for some, wanted in zip(torch.split(states, size), torch.split(ids, size), strict=True):
        given = some.to(weight.device, weight.dtype)[None]
        logits = head(inputs_embeds=given, return_dict=True).logits[0]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        chosen = logits.gather(1, wanted.to(logits.device))
        found.append((chosen - logits.logsumexp(dim=1, keepdim=True)).exp())
    return torch.cat(found).to(states)


class _HandedOver(nn.Module):
    """Stands where a language model has its encoder: its output is what it is given."""

    def forward(self, *_: Any, **named: Any) -> Any:
        return Output(last_hidden_state=named["inputs_embeds"])


def head_of(model: Any) -> Any:
    """What a language model does behind its encoder, hidden states to logits over the vocabulary: a copy
    without the encoder that shares the rest's weights; the model stays as it is."""
    prefix = getattr(model, "base_model_prefix", "")
    if prefix not in getattr(model, "_modules", {}) or model.base_model is model:
        raise BadInput(
            f"lm={_name_of(model)!r} is {type(model).__name__}, which has no encoder with a head on it; "
            "give a masked language model such as BertForMaskedLM, or the path of one."
        )
    head = copy.copy(model)
    head._modules = {**model._modules, prefix: _HandedOver()}
    return head


def language_model(live: LiveModel, given: Any) -> Any:
    """The head that fits ``live``: that of the language model given (loaded, or its path), else of the
    embedded one for an embedded model, else of the model's own checkpoint."""
    if live.head.reads == "image":
        raise UnsupportedModel(
            f"{type(live.model).__name__} reads images, and no language model reads words off their "
            "patches; use gradcam or simple, which decode nothing."
        )
    if given is not None and not isinstance(given, str):
        return _fitting(live, given, None)
    known = _heads.setdefault(live.model, {})
    if given not in known:
        known[given] = _fitting(live, *_loaded(live, given))
    return known[given]


def _name_of(model: Any) -> str | None:
    """How a language model is written down in an Attribution's options."""
    if model is None or isinstance(model, str):
        return model
    config = getattr(model, "config", None)
    return str(getattr(config, "_name_or_path", "")) or type(model).__name__


def _loaded(live: LiveModel, given: str | None) -> tuple[Any, Any]:
    own = str(getattr(live.model.config, "_name_or_path", ""))
    name = given or own
    dtype = torch.promote_types(live.dtype, torch.float32)
    embedded = given is None and models.FOLDER in Path(own).resolve().parents
    if embedded or given == f"{models.PREFIX}masked_lm":
        model, tokenizer = models.masked_lm(dtype)
        return model.to(live.device), tokenizer
    local = {"local_files_only": given is None}
    if name:
        models.resolve(name)  # refuses what no file system has for a name
        check(name, name, **local)
    how = {"dtype": dtype, "output_loading_info": True, **WEIGHTS, **local}
    for kind in (AutoModelForMaskedLM, AutoModelForCausalLM) if name else ():
        with suppress(OSError, ValueError), models.quiet(silent=True):
            model, info = kind.from_pretrained(name, **how)
            if not info["missing_keys"]:
                tokenizer = AutoTokenizer.from_pretrained(name, **SAFE, **local)
                return model.to(live.device), tokenizer
    where = f"in {name!r}" if name else "since it was not loaded from a checkpoint"
    raise BadInput(
        f"decoding needs the pre-trained language model that {type(live.model).__name__} was tuned "
        f"from, and none was found {where}. Give it as the option lm: the path or hub id of a "
        "checkpoint such as BertForMaskedLM, or a loaded model."
    )


def _fitting(live: LiveModel, model: Any, tokenizer: Any) -> Any:
    head, own = head_of(model), live.tokenizer
    ours, theirs = (m.config.get_text_config() for m in (live.model, head))
    name, told_apart = type(live.model).__name__, None not in (own, tokenizer)
    if ours.hidden_size != theirs.hidden_size:
        why = f"reads hidden states of width {theirs.hidden_size}, but {name} has width {ours.hidden_size}"
    elif theirs.vocab_size != live.vocabulary:
        why = f"has a vocabulary of {theirs.vocab_size} tokens, but {name} one of {live.vocabulary}"
    elif told_apart and own.get_vocab() != tokenizer.get_vocab():
        why = "gives token ids other meanings than this model's tokenizer does"
    else:
        return head
    given = f"the language model {_name_of(model)}"
    raise UnsupportedModel(f"{given} {why}; give the one it was tuned from.")
