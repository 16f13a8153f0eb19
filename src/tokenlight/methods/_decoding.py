"""Decode saliency at hidden states to saliency of input tokens, through the head of a language model.

The head is found (given, embedded, or from the model's own checkpoint), checked against the explained
model, and applied to its hidden states.
"""

import abc
import copy
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions as Output

from tokenlight.errors import BadInput, UnsupportedModel
from tokenlight.errors.arguments import Count
from tokenlight.methods._maps import Layer, resolve_layers
from tokenlight.methods.base import GradientMethod
from tokenlight.model.objective import Quantity
from tokenlight.model.runner import ModelRunner
from tokenlight.models import embedded as models
from tokenlight.models.loading import check_auto_class, load_tokenizer
from tokenlight.models.safety import SAFE_WEIGHTS_OPTIONS, check_model_files
from tokenlight.trace.sites import Site
from tokenlight.trace.tape import Tape

Special = Literal["exclude", "include"]
# Logits that may be in memory at once; those of a batch of 512 tokens × 30,000 would be gigabytes.
MAX_LOGITS = {"cpu": 1 << 24, "cuda": 1 << 27}


class DecodedMethod(GradientMethod):
    """A method that decodes the saliency of hidden states.

    Args:
        layer: The hidden states: 0 is the embedding, ``"middle"`` half of the blocks up, ``"all"`` returns
            every layer as a term of the score.
        tau: Keep only the ``tau`` largest probabilities of each state.
        special: Whether special tokens get scores; their states are always decoded.
        lm: The language model that the model was fine-tuned from: loaded, or its path or hub id. By
            default the embedded one for an embedded model, else the checkpoint of the model.

    Attributes:
        gradient_of: What the gradient at the hidden states is of: the target or its loss.
    """

    layer: Layer = "middle"
    tau: Count | None = None
    special: Special = "exclude"
    lm: Any = None
    cites = "hou2023decoding"
    signed = False
    gradient_of: ClassVar[Quantity] = "target"
    needs = frozenset({Site.HIDDEN_STATES, Site.GRAPH})

    @property
    def family(self) -> str:
        return "decoded"

    @property
    def options(self) -> dict[str, Any]:
        """The options that differ from their defaults; a loaded language model by its name."""
        options = super().options
        if "lm" in options:
            options = {**options, "lm": _describe_model(self.lm)}
        return options

    def __call__(self, tape: Tape) -> Tensor:
        head = resolve_lm_head(tape.recording.runner, self.lm)
        decoder = Decoder(tape, head, tau=self.tau, special=self.special)
        layers = resolve_layers(tape, self.layer)
        # Gradients of these layers only, so that the backward pass stops at the lowest of them.
        states = [tape.recording.hidden_states[layer] for layer in layers]
        gradients = tape.extra_passes.take_recorded_gradients(states, self.gradient_of)
        scores = []
        for layer, gradient in zip(layers, gradients, strict=True):
            scores.append(self.decode_scores(decoder, tape.hidden_states[layer], gradient))
        if self.layer == "all":
            return torch.stack(scores, dim=1)
        return scores[0]

    @abc.abstractmethod
    def decode_scores(self, decoder: "Decoder", states: Tensor, gradient: Tensor) -> Tensor:
        """Return scores, ``batch token``, from states and their gradient, ``batch token hidden``.

        Args:
            decoder: The head of a language model, applied to intermediate states.
            states: Hidden states of one layer.
            gradient: The gradient of the target at them.
        """


class Decoder:
    r"""The matrix :math:`\hat D_l` of a batch, ``batch position type``.

    Its entries are the probabilities that the language model reads a *type*, a distinct token id of the
    text, from the hidden state at a position.

    Args:
        tape: The tape.
        head: The head of a language model.
        tau: Keep only the ``tau`` largest entries of each position.
        special: Whether special tokens are types.
    """

    def __init__(self, tape: Tape, head: Any, *, tau: int | None, special: Special) -> None:
        self.tape = tape
        self.head = head
        self.tau = tau
        shape = tuple(tape.token_mask.shape)
        type_ids = np.zeros(shape, dtype=np.int64)  # ``batch type``: token ids of the types
        type_mask = np.zeros(shape, dtype=bool)  # ``batch type``: which columns are types
        type_index = np.full(shape, -1)  # ``batch position``: the type of each position
        for example, row in enumerate(tape.rows):
            is_counted = ~np.array(row.special_tokens_mask) | (special == "include")
            unique_ids, inverse = np.unique(np.array(row.ids)[is_counted], return_inverse=True)
            type_index[example, : len(row)][is_counted] = inverse
            type_ids[example, : len(unique_ids)] = unique_ids
            type_mask[example, : len(unique_ids)] = True
        num_types = max(1, int(type_mask.sum(axis=1).max()))
        device = tape.token_mask.device
        self.type_ids = torch.from_numpy(type_ids[:, :num_types].copy()).to(device)
        self.type_mask = torch.from_numpy(type_mask[:, :num_types].copy()).to(device)
        self.type_index = torch.from_numpy(type_index).to(device)

    def __call__(self, states: Tensor, saliency: Tensor) -> Tensor:
        r"""Return :math:`\sum_j \hat D[u, j]\, s_j` of the type u of each position.

        The matrix is zero at padding, at columns that are no type, and below the ``tau`` largest entries.

        Args:
            states: Hidden states of one layer, ``batch token hidden``.
            saliency: Their saliency s, ``batch token``.

        Returns:
            ``batch token``; zero for tokens without a type.
        """
        token_mask = self.tape.token_mask
        ids_per_token = self.type_ids[:, None, :].expand(*token_mask.shape, -1)
        matrix = states.new_zeros((*token_mask.shape, self.type_ids.shape[1]))
        matrix[token_mask] = compute_token_probabilities(
            self.head, states[token_mask], ids_per_token[token_mask]
        )
        matrix = matrix.masked_fill(~self.type_mask[:, None, :], 0.0)
        if self.tau is not None and self.tau < matrix.shape[-1]:
            largest = matrix.topk(self.tau, dim=-1)
            matrix = torch.zeros_like(matrix).scatter(-1, largest.indices, largest.values)
        type_scores = torch.einsum("bju,bj->bu", matrix, saliency.to(matrix))
        has_no_type = self.type_index < 0
        scores = type_scores.gather(1, self.type_index.clamp(min=0))
        return scores.masked_fill(has_no_type, 0.0)


@torch.no_grad()
def compute_token_probabilities(head: Any, states: Tensor, ids: Tensor) -> Tensor:
    """Return the probability of some tokens at each hidden state.

    The softmax runs over the whole vocabulary, for a few states at a time.

    Args:
        head: The head of a language model.
        states: ``state hidden``.
        ids: The token ids of interest, ``state token``.

    Returns:
        ``state token``.
    """
    weight = next(head.parameters(), states)  # a head may have no parameters
    max_logits = MAX_LOGITS.get(weight.device.type, MAX_LOGITS["cpu"])
    chunk_size = max(1, max_logits // int(head.config.get_text_config().vocab_size))
    chunks = zip(torch.split(states, chunk_size), torch.split(ids, chunk_size), strict=True)
    probabilities = []
    for chunk_states, chunk_ids in chunks:
        embeddings = chunk_states.to(weight.device, weight.dtype)[None]
        logits = head(inputs_embeds=embeddings, return_dict=True).logits[0]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        chosen_logits = logits.gather(1, chunk_ids.to(logits.device))
        log_normalizer = logits.logsumexp(dim=1, keepdim=True)
        probabilities.append((chosen_logits - log_normalizer).exp())
    return torch.cat(probabilities).to(states)


class _PassThroughEncoder(nn.Module):
    """Replaces the encoder of a language model: its output is its input."""

    def forward(self, *_: Any, **inputs: Any) -> Any:
        return Output(last_hidden_state=inputs["inputs_embeds"])


def extract_lm_head(model: Any) -> Any:
    """Return a copy of a language model without its encoder, from hidden states to logits.

    The copy shares the remaining weights with the model, which stays as it is.

    Raises:
        BadInput: The model has no encoder with a head.
    """
    prefix = getattr(model, "base_model_prefix", "")
    if prefix not in getattr(model, "_modules", {}) or model.base_model is model:
        raise BadInput(
            f"lm={_describe_model(model)!r} is a {type(model).__name__}, which has no encoder with a head "
            "on it. Give a masked language model such as BertForMaskedLM, or the path of one.",
            code="lm-without-head",
        )
    head = copy.copy(model)
    head._modules = {**model._modules, prefix: _PassThroughEncoder()}
    return head


def resolve_lm_head(runner: ModelRunner, lm: Any) -> Any:
    """Return the head of a language model that fits the explained model.

    Args:
        runner: The explained model.
        lm: The language model, loaded or as a path. None stands for the embedded one of an embedded
            model, else for the checkpoint of the explained model.

    Raises:
        UnsupportedModel: The explained model reads images, or the language model does not fit it.
        BadInput: No language model was found.
    """
    if runner.head.task == "image-classification":
        raise UnsupportedModel(
            f"{type(runner.model).__name__} reads images, and no language model reads words from their "
            "patches. Use gradcam or simple, which decode nothing.",
            code="image-not-decodable",
        )
    if lm is not None and not isinstance(lm, str):
        return _check_lm_head(runner, lm, None)
    # Heads that were loaded by name are kept with the model, since loading takes seconds.
    if lm not in runner.lm_heads:
        model, tokenizer = _load_language_model(runner, lm)
        runner.lm_heads[lm] = _check_lm_head(runner, model, tokenizer)
    return runner.lm_heads[lm]


def _describe_model(model: Any) -> str | None:
    """Return a language model as it is written into the options of an Attribution."""
    if model is None or isinstance(model, str):
        return model
    config = getattr(model, "config", None)
    return str(getattr(config, "_name_or_path", "")) or type(model).__name__


def _load_language_model(runner: ModelRunner, lm: str | None) -> tuple[Any, Any]:
    """Load a language model and its tokenizer.

    Raises:
        BadInput: There is none at that path, or all of its weights would be new.
    """
    checkpoint = str(getattr(runner.model.config, "_name_or_path", ""))
    name = lm or checkpoint
    dtype = torch.promote_types(runner.dtype, torch.float32)
    is_embedded = lm is None and models.MODELS_FOLDER in Path(checkpoint).resolve().parents
    if is_embedded or lm == f"{models.NAME_PREFIX}masked_lm":
        model, tokenizer = models.load_masked_lm(dtype)
        return model.to(runner.device), tokenizer
    if not name:
        raise BadInput(
            f"Decoding needs the pre-trained language model that {type(runner.model).__name__} was "
            "fine-tuned from, but the model was not loaded from a checkpoint. Give it as the option lm: the "
            "path or hub id of a checkpoint such as BertForMaskedLM, or a loaded model.",
            code="lm-unknown",
        )
    # A model that was not named is looked for on this machine only.
    download_options = {"local_files_only": lm is None}
    models.resolve_path(name)  # raises if the name cannot be a path
    check_model_files(name, name, **download_options)
    for auto_class in (AutoModelForMaskedLM, AutoModelForCausalLM):
        with suppress(OSError, ValueError), models.quiet_transformers(hide_warnings=True):
            check_auto_class(name, auto_class, download_options)
            model, loading_info = auto_class.from_pretrained(
                name,
                dtype=dtype,
                output_loading_info=True,
                **SAFE_WEIGHTS_OPTIONS,
                **download_options,
            )
            # Missing weights would be random: the checkpoint has no such head.
            if not loading_info["missing_keys"]:
                return model.to(runner.device), load_tokenizer(name, name, download_options)
    raise BadInput(
        f"Decoding needs the pre-trained language model that {type(runner.model).__name__} was fine-tuned "
        f"from, but none was found in {name!r}. Give it as the option lm: the path or hub id of a "
        "checkpoint such as BertForMaskedLM, or a loaded model.",
        code="lm-not-found",
    )


def _check_lm_head(runner: ModelRunner, model: Any, tokenizer: Any) -> Any:
    """Return the head of a language model if its width and vocabulary are those of the model.

    Raises:
        UnsupportedModel: They are not.
    """
    head = extract_lm_head(model)
    config = runner.model.config.get_text_config()
    lm_config = head.config.get_text_config()
    if config.hidden_size != lm_config.hidden_size:
        raise UnsupportedModel(
            f"The language model {_describe_model(model)} reads hidden states of width "
            f"{lm_config.hidden_size}, but {type(runner.model).__name__} has width {config.hidden_size}. "
            "Give the language model that it was fine-tuned from.",
            code="lm-width",
        )
    if lm_config.vocab_size != runner.vocab_size:
        raise UnsupportedModel(
            f"The language model {_describe_model(model)} has a vocabulary of {lm_config.vocab_size} "
            f"tokens, but {type(runner.model).__name__} has one of {runner.vocab_size}. Give the language "
            "model that it was fine-tuned from.",
            code="lm-vocabulary-size",
        )
    has_both_tokenizers = runner.tokenizer is not None and tokenizer is not None
    if has_both_tokenizers and runner.tokenizer.get_vocab() != tokenizer.get_vocab():
        raise UnsupportedModel(
            f"The language model {_describe_model(model)} maps token ids to other tokens than the "
            "tokenizer of this model. Give the language model that it was fine-tuned from.",
            code="lm-vocabulary",
        )
    return head
