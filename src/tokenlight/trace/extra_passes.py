"""Further passes over the texts of a tape.

Another backward pass over the recorded graph, forward and backward passes at other embeddings, and forward
passes over other tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from tokenlight.accel.tensors import upcast
from tokenlight.accel.transfer import to_device
from tokenlight.data.target import ResolvedTarget
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import BadInput
from tokenlight.hooks.locks import call_between_passes
from tokenlight.lrp.backward import backward_by_rules
from tokenlight.lrp.rules import RuleSet
from tokenlight.model.batch_inputs import ModelInputs
from tokenlight.model.embedding_hooks import EmbeddingSite
from tokenlight.model.embeddings import compute_embeddings, find_embedding_hooks
from tokenlight.model.objective import Objective, Quantity, compute_gradients
from tokenlight.model.packing import run_in_halves
from tokenlight.perturb.logits_stream import stream_logits
from tokenlight.perturb.variants import ReplacementIds, Variant

if TYPE_CHECKING:
    from tokenlight.trace.recording import Recording

BaselineToken = Literal["pad", "mask", "unk", "zero"]
# Without a graph a batch may have this many times the tokens of one that is explained.
NO_GRAD_BATCH_FACTOR = {"cuda": 4}
ResultT = TypeVar("ResultT")
ReadLogits = Callable[[ResolvedTarget, np.ndarray], float]


class ExtraPasses:
    """Further passes over one recording for its targets, packed by the recording's token budget.

    A method gets it as ``tape.extra_passes``.

    Args:
        recording: The recorded pass.
        targets: One per example.
        gradient_rules: Rewrite gradients of the recorded graph by these rules.
    """

    def __init__(
        self,
        recording: Recording,
        targets: Sequence[ResolvedTarget],
        gradient_rules: RuleSet | None = None,
    ) -> None:
        self.recording = recording
        self.targets = tuple(targets)
        self.gradient_rules = gradient_rules
        self.runner = recording.runner
        self._cache: dict[Hashable, Any] = {}

    def compute_once(self, key: Hashable, compute: Callable[[], ResultT]) -> ResultT:
        """Return ``compute()`` of the first call with ``key``.

        The scores of a method and what it reports about them then come from the same passes.
        """
        if key not in self._cache:
            self._cache[key] = compute()
        return self._cache[key]  # type: ignore[no-any-return]

    @cached_property
    @torch.inference_mode(mode=False)
    def objective(self) -> Objective:
        """The quantity that is explained of each example."""
        logits = self.recording.logits
        lengths = to_device([len(row) for row in self.recording.rows], logits.device)
        dtype = torch.promote_types(logits.dtype, torch.float32)
        return Objective.from_targets(self.runner.head, self.targets, lengths, dtype)

    @cached_property
    def target_value(self) -> Tensor:
        """The target's value in the recorded pass, ``batch``."""
        return self.objective(self.recording.logits.detach(), self._all_examples)

    @torch.inference_mode(mode=False)
    def take_recorded_gradients(
        self, tensors: Sequence[Tensor], quantity: Quantity = "target"
    ) -> list[Tensor]:
        """Compute gradients at tensors of the recording.

        Args:
            tensors: Tensors on the recorded graph, which Site.GRAPH keeps.
            quantity: The quantity to differentiate.

        Returns:
            The gradient at each tensor, in float32 or wider.
        """
        with torch.enable_grad():
            total = self.objective(self.recording.logits, self._all_examples, quantity).sum()
        with backward_by_rules(self.recording.backward_mode, self.gradient_rules):
            gradients = compute_gradients(self.runner.model, total, tensors, retain_graph=True)
        return [self._upcast(gradient) for gradient in gradients]

    def compute_gradients_at_points(
        self,
        examples: Tensor,
        embeddings_for: Callable[[Tensor], Tensor],
        *,
        site: EmbeddingSite,
        quantity: Quantity = "target",
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Run forward and backward passes at other embeddings, pack by pack.

        Args:
            examples: The example of each pass; an example may be named several times.
            embeddings_for: Returns the embeddings of passes, ``pass position hidden``, from their indices
                into ``examples``.
            site: Which embeddings are replaced.
            quantity: The quantity to differentiate.

        Yields:
            Indices of passes; their values (``pass``); and the gradients at their embeddings
            (``pass position hidden``).
        """
        size = self.recording.count_passes_at_once(self.recording.batch_tokens, gradients=True)
        all_passes = torch.arange(len(examples), device=examples.device)

        def run(pack: Tensor, part: slice) -> list[tuple[Tensor, Tensor, Tensor]]:
            indices = pack[part]
            values, gradients = self.compute_gradient_at(
                examples[indices], embeddings_for(indices), site=site, quantity=quantity
            )
            return [(indices, values, gradients)]

        for pack in torch.split(all_passes, size):
            yield from run_in_halves(partial(run, pack), len(pack))
            call_between_passes()

    @torch.inference_mode(mode=False)
    def compute_gradient_at(
        self,
        examples: Tensor,
        embeddings: Tensor,
        *,
        site: EmbeddingSite,
        quantity: Quantity = "target",
    ) -> tuple[Tensor, Tensor]:
        """Run one forward and backward pass of ``examples`` with other embeddings.

        Args:
            examples: Which example of the recording each pass is of; repetitions are allowed.
            embeddings: The embeddings that each pass reads instead, ``pass token hidden``.
            site: Where they enter: h^0, or token embeddings before positions.
            quantity: What is differentiated.

        Returns:
            The value of each pass, and the gradient at its embeddings.
        """
        examples = _as_normal_tensor(examples)
        embeddings = _as_normal_tensor(embeddings)
        leaf = embeddings.detach().to(self.runner.dtype).requires_grad_(True)
        values = self._run_at(examples, leaf, site, quantity)
        (gradient,) = compute_gradients(self.runner.model, values.sum(), [leaf])
        return values.detach(), self._upcast(gradient)

    @torch.inference_mode(mode=False)
    def compute_value_at(self, embeddings: Tensor, *, site: EmbeddingSite) -> Tensor:
        """Return the target with other embeddings, ``batch position hidden``: ``batch``."""
        with torch.no_grad():
            return self._run_at(
                self._all_examples, embeddings.to(self.runner.dtype), site, "target"
            )

    def _run_at(
        self, examples: Tensor, embeddings: Tensor, site: EmbeddingSite, quantity: Quantity
    ) -> Tensor:
        first_row = self.recording.rows[0]
        hooks = find_embedding_hooks(self.runner, first_row, site)
        replaced = hooks.replaced_embeddings(self.runner.model, embeddings, first_row.source_length)
        gradients = embeddings.requires_grad
        with torch.set_grad_enabled(gradients):
            _, logits = self.runner.run(
                self._inputs, replaced, gradients=gradients, examples=examples
            )
            return self.objective(logits, examples, quantity)

    def compute_embeddings(
        self, rows: Sequence[TokenRow], site: EmbeddingSite = "embeddings"
    ) -> Tensor:
        """Compute embeddings of other tokens, ``batch position hidden``.

        Args:
            rows: One row per example, as long as that example.
            site: ``embeddings`` for h^0, ``token_embeddings`` for the output of the token tables.
        """
        hooks = find_embedding_hooks(self.runner, self.recording.rows[0], site)
        width = self.recording.token_mask.shape[1]
        return self._upcast(compute_embeddings(self.runner, rows, width, hooks))

    def compute_target_values(
        self,
        variants: Sequence[Sequence[Variant]],
        read_logits: ReadLogits = ResolvedTarget.compute_value,
    ) -> list[np.ndarray]:
        """Compute the target of changed texts.

        Args:
            variants: The changed texts of each example. Tokens may be replaced, but not moved where a target
                names positions, as a span does.
            read_logits: Reads a number from a target and the logits; by default the target's value.

        Returns:
            One array per example with one number per changed text.
        """
        budget = self.recording.batch_tokens * NO_GRAD_BATCH_FACTOR.get(self.runner.device.type, 1)
        logits = stream_logits(self.runner, chain.from_iterable(variants), batch_tokens=budget)
        values: list[np.ndarray] = []
        for target, example_variants in zip(self.targets, variants, strict=True):
            logit_values = [float(read_logits(target, next(logits))) for _ in example_variants]
            values.append(np.array(logit_values))
        return values

    def find_baseline_id(self, name: BaselineToken | int) -> int:
        """Return the token id of a baseline.

        Args:
            name: An id, or a named token; ``zero`` is the id 0.

        Raises:
            BadInput: If the model has no such token.
        """
        if name == "pad":
            return ReplacementIds.from_model(self.runner, self.runner.tokenizer).pad_id
        token_id: int | None
        if isinstance(name, int):
            token_id = name
        elif name == "zero":
            token_id = 0
        else:
            token_id = getattr(self.runner.tokenizer, f"{name}_token_id", None)
        if token_id is None or not 0 <= token_id < self.runner.vocab_size:
            raise BadInput(
                f"baseline={name!r} is not a token of this model, which knows the ids 0 to "
                f"{self.runner.vocab_size - 1} and the names that its tokenizer has, if any. "
                "Use baseline='pad' or an id.",
                code="baseline-not-a-token",
            )
        return int(token_id)

    def replace_ids(self, row: TokenRow, mask: np.ndarray, token_id: int) -> TokenRow:
        """Return ``row`` with ``token_id`` at the tokens where ``mask`` is true.

        Args:
            row: A row of the recording.
            mask: ``token``: true where the id is replaced.
            token_id: The new id.
        """
        ids: list[int] = []
        for old_id, is_replaced in zip(row.ids, mask, strict=True):
            ids.append(token_id if is_replaced else old_id)
        return replace(row, ids=tuple(ids))

    def _upcast(self, tensor: Tensor) -> Tensor:
        return upcast(tensor, self.recording.logits.device)

    @cached_property
    @torch.inference_mode(mode=False)
    def _all_examples(self) -> Tensor:
        return torch.arange(len(self.recording.rows), device=self.recording.logits.device)

    @cached_property
    @torch.inference_mode(mode=False)
    def _inputs(self) -> ModelInputs:
        return self.runner.build_inputs(self.recording.rows, self.recording.token_mask.shape[1])


def _as_normal_tensor(tensor: Tensor) -> Tensor:
    """Copy a tensor that a method made inside torch.inference_mode(), so that gradients can pass it."""
    if tensor.is_inference():
        return tensor.clone()
    return tensor
