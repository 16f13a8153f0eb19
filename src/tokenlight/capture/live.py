"""LiveModel: what must be known of a model before its numbers are believed."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Literal
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tokenlight.capture import seam
from tokenlight.capture.rewired import rewired, takes_seam, token_embeddings
from tokenlight.errors import NotFinite, UnsupportedModel
from tokenlight.target import Head
from tokenlight.tokens import TokenRow

PROBE_TOKENS = 32  # enough to tell two computations apart, and no long text is mapped for it
TAKEN = ("ForSequenceClassification", "ForQuestionAnswering", "ForQuestionAnsweringSimple")
_padding_proof: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
_maps_verified: WeakSet[nn.Module] = WeakSet()


class LiveModel:
    """A transformers model with its head read, its attention route chosen, its padding known."""

    def __init__(self, model: Any, tokenizer: Any = None) -> None:
        self.model = _unwrapped(model)
        self.tokenizer = tokenizer  # names [MASK] and its like, which a config does not
        self.head = _head(self.model)
        self.route: Literal["seam", "eager"] = "seam" if takes_seam(self.model) else "eager"
        self.accepts = set(inspect.signature(self.model.forward).parameters)
        config = self.model.config.get_text_config()
        self.pad_id: int | None = getattr(config, "pad_token_id", None)
        self._embedding = token_embeddings(self.model)[0]
        self.vocabulary = len(self._embedding.weight)  # type: ignore[arg-type]
        # Some models let padding change the tokens beside it; such rows go through alone or with
        # rows of their own length. Found out by verify().
        self.padding_proof = True
        # Encoder-decoder models: tokens and layers are the encoder's.
        self.encoder: nn.Module = (
            self.model.get_encoder() if self.model.config.is_encoder_decoder else self.model
        )
        self._listened = {id(module) for module in self.encoder.modules()}

    @property
    def device(self) -> torch.device:
        """Where token ids go in; a model spread over devices takes the rest from there itself."""
        weight = self._embedding.weight
        assert isinstance(weight, Tensor)
        return weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The floating dtype of the model's embeddings: what it computes in."""
        found: torch.dtype = self.model.dtype
        return found

    @property
    def max_tokens(self) -> int | None:
        """How many tokens the positions of this model reach; None where nothing limits them."""
        config = self.model.config.get_text_config()
        limit = getattr(config, "max_position_embeddings", None)
        for name, module in self.encoder.named_modules():
            # RoBERTa and its kin count positions from behind the padding index.
            if isinstance(module, nn.Embedding) and name.endswith("position_embeddings"):
                start = 0 if module.padding_idx is None else module.padding_idx + 1
                return int(module.num_embeddings - start)
        return limit if isinstance(limit, int) and limit > 0 else None

    def listens_to(self, module: nn.Module) -> bool:
        """Whether ``module`` stands in the part of the model whose tokens are explained."""
        return id(module) in self._listened

    def inputs(
        self, rows: Sequence[TokenRow], width: int | None = None
    ) -> tuple[dict[str, Tensor], Tensor, int | None]:
        """Rows as right-padded arguments of the model; which tokens are real (``batch token``); and
        an id that stands in for the padding id where the model has none."""
        filler = self.pad_id
        if filler is None:
            used = {i for row in rows for i in row.ids}
            filler = next(i for i in range(self.vocabulary + 1) if i not in used)
            if filler == self.vocabulary and len({len(row) for row in rows}) > 1:
                raise UnsupportedModel(
                    "this model has no padding id and the batch uses its whole vocabulary; set "
                    "model.config.pad_token_id."
                )
        width = width or max(len(row) for row in rows)

        def table(values: Sequence[Sequence[int]], fill: int) -> Tensor:
            padded = np.full((len(values), width), fill, dtype=np.int64)
            for into, value in zip(padded, values, strict=True):
                into[: len(value)] = value
            return torch.from_numpy(padded).to(self.device)

        lengths = torch.tensor([len(row) for row in rows], device=self.device)
        real = torch.arange(width, device=self.device)[None, :] < lengths[:, None]
        arguments = {
            "input_ids": table([row.ids for row in rows], filler),
            "attention_mask": table([row.attention for row in rows], 0),
        }
        if "token_type_ids" in self.accepts and any(row.token_types for row in rows):
            # A row without segment ids beside others has zeros, the models' own default.
            types = [row.token_types or (0,) * len(row) for row in rows]
            arguments["token_type_ids"] = table(types, 0)
        return arguments, real, filler

    def call(self, arguments: dict[str, Tensor], **flags: Any) -> Any:
        """The model's own forward; caches, which nobody reads here, are switched off."""
        if "use_cache" in self.accepts or "past_key_values" in self.accepts:
            flags["use_cache"] = False
        return self.model(**arguments, return_dict=True, **flags)

    def logits_of(self, outputs: Any) -> Tensor:
        """``batch label`` of a classifier; ``batch token 2`` (start, end) of a span head."""
        if self.head.kind == "span":
            return torch.stack((outputs.start_logits, outputs.end_logits), dim=-1)
        logits: Tensor = outputs.logits
        if logits.dim() != 2 or logits.shape[1] != len(self.head.labels):
            raise UnsupportedModel(
                f"{type(self.model).__name__} gives logits of shape {tuple(logits.shape)} but its "
                f"config names {len(self.head.labels)} labels; a classifier gives one row a text "
                "with one logit a label."
            )
        return logits

    def verify(self, row: TokenRow, *, maps: bool) -> None:
        """Before a model's first use: find out whether padding beside a text changes its logits;
        and before its attention is first listened to (``maps``), whether that changes them."""
        if self.model in _padding_proof and (not maps or self.model in _maps_verified):
            self.padding_proof = _padding_proof[self.model]
            return
        name = type(self.model).__name__
        row = _short(row, PROBE_TOKENS)
        bare = self._probe(row, None)
        if not bool(torch.isfinite(bare).all()):
            raise NotFinite(f"{name} gives NaN or infinity: {_where(self, row)}.")
        # Norms and softmax of many families compute in float32 whatever the model's dtype.
        precision = max(torch.finfo(self.dtype).eps, torch.finfo(torch.float32).eps) ** 0.5
        allowed = precision * max(1.0, float(bare.abs().max()))
        self.padding_proof = self._padding_gap(row) <= allowed
        _padding_proof[self.model] = self.padding_proof
        if not maps:
            return
        gap = float((bare - self._probe(row, "maps")).abs().max())
        if not gap <= allowed:
            raise UnsupportedModel(
                f"{name} computes other logits when its attention maps are asked for (they differ "
                f"by {gap:.2g}); a method that reads attention would explain another model, so it "
                "is refused."
            )
        _maps_verified.add(self.model)

    def _padding_gap(self, row: TokenRow) -> float:
        """How far five tokens of padding move the logits of a row."""
        room = self.max_tokens
        if room is not None and len(row) + 5 > room:  # keep the last token: some heads read it
            row = _short(row, max(2, len(row) - 5))
        gap = (self._probe(row, None) - self._probe(row, None, padding=5)).abs().max()
        return float(gap.nan_to_num(torch.inf))

    def _probe(self, row: TokenRow, wanted: seam.Wanted | None, padding: int = 0) -> Tensor:
        """Logits of one row: of the bare model, or (``wanted``) with its attention listened to."""
        arguments, real, filler = self.inputs([row], len(row) + padding)
        own = wanted is None or self.route == "eager"
        flags = {"output_attentions": True} if wanted and self.route == "eager" else {}
        listener = seam.Listener(wanted or "nothing", real, self.listens_to)
        name = "own" if own else seam.NAME
        with (
            rewired(self.model, attention=name, gradients=False, filler=filler),
            seam.listening(listener),
        ):
            logits = self.logits_of(self.call(arguments, **flags)).double()
        return logits[:, : len(row)] if self.head.kind == "span" else logits


def _short(row: TokenRow, length: int) -> TokenRow:
    """The beginning of a row and its last token, which some heads read."""
    return row if len(row) <= length else row.take([*range(length - 1), len(row) - 1])


def _where(live: LiveModel, row: TokenRow) -> str:
    """The first weight or hidden state that is not finite, in words."""
    for name, parameter in live.model.named_parameters():
        if parameter.is_floating_point() and not bool(torch.isfinite(parameter).all()):
            return f"the weight {name} holds NaN or infinity"
    arguments, _, filler = live.inputs([row])
    with rewired(live.model, attention="own", gradients=False, filler=filler):
        outputs = live.call(arguments, output_hidden_states=True)
    for layer, hidden in enumerate(hidden_states_of(live, outputs)):
        if not bool(torch.isfinite(hidden).all()):
            return f"hidden state {layer} (0 is the embedding) is the first that is not finite"
    return "the head is the first that is not finite"


def hidden_states_of(live: LiveModel, outputs: Any) -> tuple[Tensor, ...]:
    """h^0 … h^L, each ``batch token hidden``."""
    name = "encoder_hidden_states" if live.model.config.is_encoder_decoder else "hidden_states"
    states = getattr(outputs, name, None)
    if not states:
        raise UnsupportedModel(
            f"{type(live.model).__name__} does not give its hidden states; tokenlight cannot see "
            "inside it."
        )
    return tuple(states)


def _unwrapped(model: Any) -> PreTrainedModel:
    """The transformers model inside torch.compile's and PEFT's wrappers."""
    model = getattr(model, "_orig_mod", model)
    if hasattr(model, "peft_config") and hasattr(model, "get_base_model"):
        for adapter in model.peft_config.values():
            if getattr(adapter, "is_prompt_learning", False):
                raise UnsupportedModel(
                    f"the PEFT adapter {type(adapter).__name__} puts tokens of its own before the "
                    "text, which no token of the text could be credited with; use an adapter that "
                    "changes weights, such as LoRA."
                )
        model = model.get_base_model()
    if not isinstance(model, PreTrainedModel):
        raise UnsupportedModel(
            f"{type(model).__name__} is no transformers model; give a PreTrainedModel such as "
            "BertForSequenceClassification."
        )
    return model


def _head(model: PreTrainedModel) -> Head:
    name, config = type(model).__name__, model.config
    if "QuestionAnswering" in name:
        return Head("span")
    if "For" in name and not name.endswith(TAKEN):
        raise UnsupportedModel(
            f"{name} has a head tokenlight does not take; it takes "
            f"{', '.join(kind for kind in TAKEN[:2])}."
        )
    if not any("For" in cls.__name__ for cls in type(model).__mro__[:-1]) and (
        model.base_model is model
    ):
        raise UnsupportedModel(
            f"{name} has no head, so there is no output to explain; load the fine-tuned model, for "
            "example with AutoModelForSequenceClassification."
        )
    labels = tuple(str(config.id2label[i]) for i in range(config.num_labels))
    problem = getattr(config, "problem_type", None)
    if problem == "regression" or (problem is None and config.num_labels == 1):
        return Head("classification", labels, "regression")
    if problem == "multi_label_classification":
        return Head("classification", labels, "multi")
    return Head("classification", labels)
