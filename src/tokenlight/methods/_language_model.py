"""The language-model head that decodes hidden states: found, checked against the encoder, applied."""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer, modeling_outputs

from tokenlight.capture.live import LiveModel
from tokenlight.errors import BadInput, UnsupportedModel
from tokenlight.models import embedded as models
from tokenlight.models.folder import SAFE, WEIGHTS, check

# Logits that may be in memory at once; a batch of 512 × 30,000 a text would be gigabytes.
LOGITS = {"cpu": 1 << 24, "cuda": 1 << 27}
_found: WeakKeyDictionary[nn.Module, dict[str, "LanguageModel"]] = WeakKeyDictionary()


class _HandedOver(nn.Module):
    """Stands where a language model has its encoder: its output is what it is given."""

    def forward(self, *_: Any, **named: Any) -> Any:
        return modeling_outputs.BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=named["inputs_embeds"]
        )


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """What a language model does behind its encoder: hidden states to logits over the vocabulary.

    ``head`` shares its weights with the model it was taken from, which stays as it is.
    """

    head: Any
    name: str

    @classmethod
    def of(cls, model: Any, name: str) -> "LanguageModel":
        """Take the encoder out of a copy that shares the weights of the rest."""
        prefix = getattr(model, "base_model_prefix", "")
        if prefix not in getattr(model, "_modules", {}) or model.base_model is model:
            raise BadInput(
                f"lm={name!r} is {type(model).__name__}, which has no encoder with a head on it; give "
                "a masked language model such as BertForMaskedLM, or the path of one."
            )
        head = copy.copy(model)
        head._modules = {**model._modules, prefix: _HandedOver()}
        return cls(head, name)

    @torch.no_grad()
    def probabilities(self, states: Tensor, ids: Tensor) -> Tensor:
        """Probability of each wanted token at each state: ``state hidden`` and ``state token`` (ids)
        to ``state token``. The softmax runs over the whole vocabulary, a few states at a time."""
        weight = next(self.head.parameters(), states)  # a head may have none
        most = LOGITS.get(weight.device.type, LOGITS["cpu"])
        size = max(1, most // int(self.head.config.get_text_config().vocab_size))
        found = []
        for some, wanted in zip(torch.split(states, size), torch.split(ids, size), strict=True):
            given = some.to(weight.device, weight.dtype)[None]
            logits = self.head(inputs_embeds=given, return_dict=True).logits[0]
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            chosen = logits.gather(1, wanted.to(logits.device))
            found.append((chosen - logits.logsumexp(dim=1, keepdim=True)).exp())
        return torch.cat(found).to(states)


def language_model(live: LiveModel, given: Any) -> LanguageModel:
    """The language model that fits ``live``: the one given (a path, a model, or a (model, tokenizer)
    pair), else the embedded one for an embedded model, else that of the model's own checkpoint."""
    if live.head.reads == "image":
        raise UnsupportedModel(
            f"{type(live.model).__name__} reads images, and no language model reads words off their "
            "patches; use gradcam or simple, which decode nothing."
        )
    if given is None or isinstance(given, str):
        known = _found.setdefault(live.model, {})
        key = given or ""
        if key not in known:
            known[key] = _fitting(live, *_loaded(live, given))
        return known[key]
    pair = given if isinstance(given, tuple) else (given, None)
    if len(pair) != 2:
        raise BadInput(f"lm={given!r} is not a pair of model and tokenizer; give both, or a path.")
    model, tokenizer = pair
    return _fitting(live, LanguageModel.of(model, name_of(model) or ""), tokenizer)


def name_of(given: Any) -> str | None:
    """How a language model is written down in an Attribution's options."""
    model = given[0] if isinstance(given, tuple) and given else given
    if model is None or isinstance(model, str):
        return model
    config = getattr(model, "config", None)
    return str(getattr(config, "_name_or_path", "")) or type(model).__name__


def _loaded(live: LiveModel, given: str | None) -> tuple[LanguageModel, Any]:
    own = str(getattr(live.model.config, "_name_or_path", ""))
    name = given or own
    dtype = torch.promote_types(live.dtype, torch.float32)
    embedded = given is None and models.FOLDER in Path(own).resolve().parents
    if embedded or given == f"{models.PREFIX}masked_lm":
        model, tokenizer = models.masked_lm(dtype)
        return LanguageModel.of(model.to(live.device), f"{models.PREFIX}masked_lm"), tokenizer
    local = {"local_files_only": given is None}
    why = "it was not loaded from a checkpoint"
    if name:
        models.resolve(name)  # refuses what no file system has for a name
        check(name, name, **local)
    for kind in (AutoModelForMaskedLM, AutoModelForCausalLM) if name else ():
        try:
            with models.quiet(silent=True):
                model, info = kind.from_pretrained(
                    name, dtype=dtype, output_loading_info=True, **WEIGHTS, **local
                )
                tokenizer = AutoTokenizer.from_pretrained(name, **SAFE, **local)
        except (OSError, ValueError) as refused:
            why = f"{name}: {str(refused).splitlines()[0]}"
            continue
        if not info["missing_keys"]:
            return LanguageModel.of(model.to(live.device), name), tokenizer
        why = f"{name}: it lacks {sorted(info['missing_keys'])[0]}"
    raise BadInput(
        f"decoding needs the pre-trained language model that {type(live.model).__name__} was tuned "
        f"from, and none was found ({why}). Give it as the option lm: the path or hub id of a "
        "checkpoint such as BertForMaskedLM, or a loaded model."
    )


def _fitting(live: LiveModel, found: LanguageModel, tokenizer: Any) -> LanguageModel:
    ours, theirs = (m.config.get_text_config() for m in (live.model, found.head))
    name, own = type(live.model).__name__, live.tokenizer
    told_apart = None not in (own, tokenizer) and own is not tokenizer
    if ours.hidden_size != theirs.hidden_size:
        why = f"reads hidden states of width {theirs.hidden_size}, but {name} has width {ours.hidden_size}"
    elif theirs.vocab_size != live.vocabulary:
        why = f"has a vocabulary of {theirs.vocab_size} tokens, but {name} one of {live.vocabulary}"
    elif told_apart and own.get_vocab() != tokenizer.get_vocab():
        why = "gives token ids other meanings than this model's tokenizer does"
    else:
        return found
    raise UnsupportedModel(
        f"the language model {found.name} {why}; give the one it was tuned from."
    )
