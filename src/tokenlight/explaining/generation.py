"""Explain while generating: tokens come one by one, each with its explanation.

The model reads each token once to predict the next one: keys and values of earlier tokens are kept. Gradients
need a pass of their own over the text so far; the tokens of a chunk share it, and each has one backward pass.
Chunks grow from one token, so that the first token does not wait, to :data:`MAX_CHUNK`.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from tokenlight.accel.precision import compute_rounding_eps
from tokenlight.accel.transfer import to_device
from tokenlight.data.alternatives import DEFAULT_ALTERNATIVES
from tokenlight.data.attribution import Attribution
from tokenlight.data.target import Continuation, NextToken
from tokenlight.data.tokenizer import isolated_tokenizer_cache
from tokenlight.data.tokens import LongPromptPolicy, TokenRow
from tokenlight.errors import BadInput, UnsupportedModel
from tokenlight.explaining.batches import explain_rows
from tokenlight.explaining.calls import add_methods, build_options
from tokenlight.explaining.continuations import can_share_forward, explain_continuation
from tokenlight.explaining.default_method import AUTO_METHOD
from tokenlight.explaining.explain_options import ExplainOptions, TargetedRow, normalize_inputs
from tokenlight.explaining.input_rows import (
    check_input_kind,
    check_target_kind,
    encode_input,
    get_model_class_name,
)
from tokenlight.explaining.session import Session, prepare_row, verify_model_for_rows
from tokenlight.explaining.targeted_rows import append_ids, find_eos_ids
from tokenlight.hooks.instrument import instrumented
from tokenlight.hooks.mask_hook import answered_mask_checks
from tokenlight.inputs.prompt import append_generated
from tokenlight.perturb.logits_stream import stream_logits

MAX_CHUNK = 8  # tokens that share one forward pass
# By how much of the range of logits the cache may change the logit of the likeliest token: sums over
# thousands of tokens are added up in another order. Some parts compute in float32 whatever the dtype is.
CACHE_TOLERANCE_STEPS = 2.0**13
MIN_CACHE_TOLERANCE = 1e-6
MAX_CACHE_TOLERANCE = 5e-2


class GeneratedToken(NamedTuple):
    """A token that a model wrote, and why.

    Args:
        token: Its text, with the space that begins a word.
        attribution: Its explanation by the text before it.
    """

    token: str
    attribution: Attribution


def generate_explained(  # noqa: PLR0913 - the keywords users set, each by name
    session: Session,
    prompt: Any,
    method: Any = AUTO_METHOD,
    *,
    max_new_tokens: int = 20,
    against: int | Literal["all"] | None = DEFAULT_ALTERNATIVES,
    long: LongPromptPolicy = "error",
    seed: int = 0,
) -> Iterator[GeneratedToken]:
    """Let a causal language model continue a prompt; see :meth:`Explainer.generate`.

    Args:
        session: The model, its tokenizer and its limits.
        prompt: The input to continue.
        method: One method.
        max_new_tokens: The most tokens to generate.
        against: What each token is contrasted with.
        long: What to do with a prompt that is longer than the model reads.
        seed: The seed of methods that sample.
    """
    target = Continuation(None, max_new_tokens, against=against)
    options = build_options(session, long=long, seed=seed, progress=False)
    prompt = normalize_inputs(prompt, None)
    check_target_kind(session, target)
    _check_prompt(session, prompt)
    if isinstance(method, list) or method == "best":
        raise BadInput(
            f"method={method!r} is not valid: generate() explains each token by one method. Give its "
            "name, or explain(prompt, [methods], Continuation()).",
            code="generate-needs-one-method",
        )
    options = add_methods(session, options, method, prompt)
    return _stream_tokens(session, prompt, target, options)


def _check_prompt(session: Session, prompt: Any) -> None:
    """Refuse what cannot be continued token by token."""
    if session.runner.generates_from_source:
        raise UnsupportedModel(
            f"{get_model_class_name(session)} has an encoder and a decoder; generate() explains causal "
            "language models. Use explain(text, target=Continuation()).",
            code="generate-from-source",
        )
    if isinstance(prompt, TokenRow | list | Iterator) or hasattr(prompt, "rows"):
        raise BadInput(
            f"generate() continues one prompt, not {type(prompt).__name__}. Give a text or a Chat.",
            code="generate-needs-one-prompt",
        )
    if session.runner.vision_inputs is None:
        check_input_kind(session, prompt)


class CachedDecoder:
    """Predicts one token after another, and reads each token once where the model keeps keys and values.

    Args:
        session: The model, its tokenizer and its limits.
        prompt: The prompt.
    """

    def __init__(self, session: Session, prompt: TokenRow) -> None:
        self._runner = session.runner
        self._prompt = prompt
        self._written_ids: list[int] = []
        self._cache: Any = None
        self._num_cached = 0
        self._token_type = 0
        if self._runner.vision_inputs is not None:
            self._token_type = self._runner.vision_inputs.continuation_token_type
        has_cache = {"past_key_values", "use_cache"} <= self._runner.forward_parameters
        is_plain = self._runner.vision_inputs is None and prompt.token_type_ids is None
        # A model that computes long texts in another way than short ones may not go on from a cache.
        self.uses_cache = has_cache and is_plain and not self._runner.batching.has_thresholds

    def write(self, num_tokens: int, stop_ids: Collection[int]) -> tuple[list[int], bool]:
        """Append the most likely tokens, one after another, up to one that ends the text.

        Args:
            num_tokens: The most tokens to write.
            stop_ids: Tokens that end the text; they are not written.

        Returns:
            The ids of the written tokens, and whether the text is ended.
        """
        new_ids: list[int] = []
        # Instrumenting takes a third of the time of a small step, so that all steps share it.
        with self._instrumented_steps():
            while len(new_ids) < num_tokens:
                next_id = self._predict()
                if next_id in stop_ids:
                    return new_ids, True
                self._written_ids.append(next_id)
                new_ids.append(next_id)
        return new_ids, False

    def _instrumented_steps(self) -> AbstractContextManager[Any]:
        """Prepare the model for steps with a cache; passes without one are prepared one by one."""
        if not self.uses_cache:
            return nullcontext()
        return instrumented(self._runner.model, attention="unchanged", gradients=False)

    def _predict(self) -> int:
        """Return the most likely next token."""
        if self.uses_cache:
            logits = self._forward_new_tokens()
            if logits is not None:
                return int(logits.argmax())
        row = append_ids(self._prompt, self._written_ids, self._token_type)
        (row_logits,) = stream_logits(self._runner, [row])
        return int(np.argmax(row_logits))

    def _forward_new_tokens(self) -> torch.Tensor | None:
        """Return the logits after the last token; None if the model returned no cache to go on from."""
        ids = (*self._prompt.ids, *self._written_ids)
        device = self._runner.device
        mask = torch.ones((1, len(ids)), dtype=torch.long, device=device)
        arguments: dict[str, Any] = {
            "input_ids": to_device([ids[self._num_cached :]], device),
            "attention_mask": mask,
            "past_key_values": self._cache,
            "use_cache": True,
        }
        if "logits_to_keep" in self._runner.forward_parameters:
            arguments["logits_to_keep"] = 1
        # Else transformers reads the mask, for which a GPU must finish what it is given.
        with answered_mask_checks([self._prompt], mask.shape, has_padding=False):
            outputs = self._runner.model(**arguments, return_dict=True)
        self._cache = getattr(outputs, "past_key_values", None)
        if self._cache is None:
            self.uses_cache = False
            return None
        self._num_cached = len(ids)
        logits: torch.Tensor = outputs.logits[0, -1]
        return logits


def _stream_tokens(
    session: Session, prompt: Any, target: Continuation, options: ExplainOptions
) -> Iterator[GeneratedToken]:
    """Yield the tokens of a continuation: each chunk is written first, then explained in one pass."""
    with isolated_tokenizer_cache():
        prompt_row = encode_input(session, prompt, options)
    num_steps = target.max_new_tokens
    if session.max_tokens is not None:
        # The last token is only predicted, so one more than the model reads may be written.
        num_steps = min(num_steps, session.max_tokens - len(prompt_row) + 1)
    stop_ids = find_eos_ids(session.runner.model)
    decoder = CachedDecoder(session, prompt_row)
    written_ids: list[int] = []
    chunk_size = 1
    is_ended = False
    while len(written_ids) < num_steps and not is_ended:
        num_explained = len(written_ids)
        # Write first, by the cache of keys and values, which holds no gradient.
        num_wanted = min(chunk_size, num_steps - num_explained)
        new_ids, is_ended = decoder.write(num_wanted, stop_ids)
        written_ids += new_ids
        if not written_ids:
            raise BadInput(
                f"{get_model_class_name(session)} generates nothing after this prompt: its most likely next "
                "token ends the text. Explain 'predicted', give another prompt, or ask an instruct model in "
                "its chat template.",
                code="nothing-to-stream",
            )
        # Then explain what was written, by a pass over the whole text without a cache.
        if len(written_ids) > num_explained:
            attributions = _explain_chunk(
                session, prompt_row, written_ids, num_explained, target, options
            )
            if decoder.uses_cache:
                _check_cache(session, attributions, written_ids[num_explained:])
            for token_id, attribution in zip(
                written_ids[num_explained:], attributions, strict=True
            ):
                yield GeneratedToken(session.runner.head.labels[token_id], attribution)
        chunk_size = min(2 * chunk_size, MAX_CHUNK)


def _explain_chunk(
    session: Session,
    prompt: TokenRow,
    written_ids: Sequence[int],
    num_explained: int,
    target: Continuation,
    options: ExplainOptions,
) -> list[Attribution]:
    """Explain the tokens of a continuation after the first ``num_explained``."""
    token_type = 0
    if session.runner.vision_inputs is not None:
        token_type = session.runner.vision_inputs.continuation_token_type
    with isolated_tokenizer_cache():
        whole_row = append_generated(prompt, written_ids, session.tokenizer, token_type)
    targeted_rows: list[TargetedRow] = []
    for index in range(num_explained, len(written_ids)):
        prefix = whole_row.take(range(len(prompt) + index))
        token = NextToken(written_ids[index], target.against)
        targeted_rows.append((prepare_row(session, prefix, options), token))
    if can_share_forward(session, targeted_rows, options):
        (group,) = explain_continuation(session, targeted_rows, options)
        return list(group)
    verify_model_for_rows(session, [row for row, _ in targeted_rows], options.methods)
    attributions: list[Attribution] = []
    for ((attribution,),) in explain_rows(session, targeted_rows, options):
        attributions.append(attribution)
    return attributions


def _check_cache(
    session: Session, attributions: Sequence[Attribution], token_ids: Sequence[int]
) -> None:
    """Refuse a model that predicts other tokens from its cache than from the text.

    Tokens that are equally likely up to rounding may swap places.
    """
    tolerance = _compute_cache_tolerance(session)
    for attribution, token_id in zip(attributions, token_ids, strict=True):
        logits = attribution.logits
        difference = float(logits.max() - logits[token_id])
        if difference > tolerance * float(logits.max() - logits.min()):
            labels = session.runner.head.labels
            cached_label = labels[token_id]
            label = labels[int(logits.argmax())]
            raise UnsupportedModel(
                f"{get_model_class_name(session)} predicts {cached_label!r} from its cache of keys and "
                f"values, but {label!r} from the text itself. Use explain(prompt, target=Continuation()), "
                "which keeps no cache.",
                code="cache-changes-prediction",
            )


def _compute_cache_tolerance(session: Session) -> float:
    """Return by which share of the range of logits rounding may move one of them."""
    eps = compute_rounding_eps(session.runner.device, session.runner.dtype)
    return min(max(CACHE_TOLERANCE_STEPS * eps, MIN_CACHE_TOLERANCE), MAX_CACHE_TOLERANCE)


def join_generated(attributions: Sequence[Attribution]) -> list[Attribution]:
    """Return explanations of a stream as those of one text, which pictures show together.

    Args:
        attributions: Those of all tokens, in order.
    """
    if not attributions:
        return []
    # The row of the last token holds all others, with their places in the whole text.
    last_row = attributions[-1].row
    joined = []
    for attribution in attributions:
        joined.append(replace(attribution, row=last_row.take(range(len(attribution)))))
    return joined
