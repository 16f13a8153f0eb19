"""Perturbed inputs: one row of tokens, some of which are deleted, replaced or hidden, or lose embeddings.

A :class:`Perturber` holds one input and builds its :class:`Variant` objects; :class:`ReplacementIds` says
which token ids take the place of the removed ones. ``logits_stream.py`` sends the variants through the model.

What becomes of the tokens, by the function of ``Perturber``:

- ``delete_tokens``: id and attention mask are gone, and later tokens move up.
- ``replace_tokens``: the id is [PAD] or another one; attention mask and position stay.
- ``hide_tokens``: the id is [MASK] or another one, the attention mask 0; the position stays.
- ``drop_embeddings``: id, attention mask and position stay; random entries of the embedding are 0.
- ``remove_tokens``: ``delete_tokens`` for texts, ``replace_tokens`` (occlusion) for patches of an image.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tokenlight.data.image import OCCLUDED_ID, PatchImage
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import BadInput
from tokenlight.model.runner import ModelRunner

REPLACEMENT_NAMES = {"pad": "[PAD]", "mask": "[MASK]", "unk": "unknown", "eos": "end-of-text"}


@dataclass(frozen=True, slots=True, eq=False)
class EmbeddingDropout:
    """Random zeros in the token embeddings of one input.

    The draw depends only on ``seed``, so it is the same in any batch and on any device.

    Attributes:
        keep_probabilities: For each token, the probability that an entry of its embedding is kept.
        seed: Seed of the draw.
    """

    keep_probabilities: np.ndarray
    seed: int

    def draw_zeros(self, hidden_size: int) -> np.ndarray:
        """Return a boolean array, tokens × ``hidden_size``, that is true where an entry becomes zero."""
        generator = np.random.default_rng(self.seed)
        shape = (len(self.keep_probabilities), hidden_size)
        draws = generator.random(shape, dtype=np.float32)
        is_zero: np.ndarray = draws >= self.keep_probabilities[:, None]
        return is_zero


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """One perturbed input, as it goes into the model. Every array has one entry per token.

    Attributes:
        row: The input that was perturbed.
        ids: Token ids.
        attention_mask: 1 at tokens that are attended to, 0 elsewhere.
        token_type_ids: Segment ids, or None.
        target_position: The token at which a head is read; None for the last one.
        target_positions: The tokens that are read together, where a target covers several.
        source_length: The number of tokens that an encoder reads; None if one stack reads all.
        original_positions: Where each token stood in ``row``; None if no token has moved.
        embedding_dropout: Random zeros in the embeddings, or None.

    Example:
        >>> from tokenlight import Tokens
        >>> from tokenlight.plugin import Variant
        >>> variant = Variant.from_row(Tokens.from_ids([[2, 7, 8, 3]]).rows[0])
        >>> variant.ids.tolist(), variant.attention_mask.tolist()
        ([2, 7, 8, 3], [1, 1, 1, 1])
    """

    row: TokenRow
    ids: np.ndarray
    attention_mask: np.ndarray
    token_type_ids: np.ndarray | None
    target_position: int | None
    target_positions: tuple[int, ...]
    source_length: int | None
    original_positions: np.ndarray | None = None
    embedding_dropout: EmbeddingDropout | None = None

    @classmethod
    def from_row(cls, row: TokenRow) -> "Variant":
        """Build the unperturbed variant of a row.

        Args:
            row: A row of tokens.

        Returns:
            A variant with copies of its ids and masks, which may be changed.

        Example:
            >>> from tokenlight import Tokens
            >>> from tokenlight.plugin import Variant
            >>> len(Variant.from_row(Tokens.from_ids([[2, 7, 8, 3]]).rows[0]))
            4
        """
        token_type_ids = None
        if row.token_type_ids is not None:
            token_type_ids = np.array(row.token_type_ids, dtype=np.int8)
        return cls(
            row=row,
            ids=np.array(row.ids, dtype=np.int32),
            attention_mask=np.array(row.attention_mask, dtype=np.int8),
            token_type_ids=token_type_ids,
            target_position=row.target_position,
            target_positions=row.target_positions,
            source_length=row.source_length,
        )

    def __len__(self) -> int:
        return len(self.ids)

    # Perturbing tokens does not change these; batches read them from rows and variants alike.

    @property
    def reference_embedding(self) -> tuple[float, ...] | None:
        """The vector that a sentence embedding is compared with."""
        return self.row.reference_embedding

    @property
    def image(self) -> PatchImage | None:
        """The image whose patches are among the tokens."""
        return self.row.image

    @property
    def continuation_ids(self) -> tuple[int, ...]:
        """Ids whose prediction is read in one pass."""
        return self.row.continuation_ids

    @property
    def dedup_key(self) -> Hashable:
        """A key that is equal for variants that the model cannot tell apart."""
        token_bytes = []
        for array in (self.ids, self.attention_mask, self.token_type_ids):
            token_bytes.append(None if array is None else array.tobytes())
        dropout_key = None
        if self.embedding_dropout is not None:
            dropout = self.embedding_dropout
            dropout_key = (dropout.seed, dropout.keep_probabilities.tobytes())
        return (
            *token_bytes,
            self.target_position,
            self.reference_embedding,
            self.source_length,
            self.continuation_ids,
            self.target_positions,
            None if self.image is None else self.image.digest,
            dropout_key,
        )

    def find_position(self, position: int) -> int | None:
        """Find where a token of the original input stands now.

        Args:
            position: Its position in ``row``.

        Returns:
            Its position here; None if it was deleted.

        Example:
            >>> from dataclasses import replace
            >>> import numpy as np
            >>> from tokenlight import Tokens
            >>> from tokenlight.plugin import Variant
            >>> variant = Variant.from_row(Tokens.from_ids([[2, 8, 3]]).rows[0])
            >>> shortened = replace(variant, original_positions=np.array([0, 2, 3]))
            >>> shortened.find_position(2), shortened.find_position(1)
            (1, None)
        """
        if self.original_positions is None:
            return position
        matches = np.flatnonzero(self.original_positions == position)
        return int(matches[0]) if len(matches) else None


@dataclass(frozen=True, slots=True)
class ReplacementIds:
    """The token ids that take the place of removed tokens.

    A model without [PAD] or [MASK] uses another token for both.

    Attributes:
        pad_id: The id for ``perturb="pad"``.
        mask_id: The id for ``perturb="mask"``.
        pad_name: Which token ``pad_id`` is, a key of ``REPLACEMENT_NAMES``; ``patch`` for images,
            where the patch is occluded instead.
        mask_name: Which token ``mask_id`` is, in the same way.
    """

    pad_id: int
    mask_id: int
    pad_name: str = field(default="pad", compare=False)
    mask_name: str = field(default="mask", compare=False)

    @classmethod
    def from_model(cls, runner: ModelRunner, tokenizer: Any = None) -> "ReplacementIds":
        """Read the ids from a tokenizer and a model.

        Args:
            runner: The model that will read the perturbed inputs.
            tokenizer: Its tokenizer; the config of the model is read where it names no id.

        Returns:
            The ids of [PAD] and [MASK]. If there is no [PAD], the unknown token or the end of the text
            stands in for it; if there is no [MASK], the padding token does.

        Raises:
            BadInput: Neither names a padding, unknown or end token.
        """
        if runner.head.task == "image-classification":
            return cls(OCCLUDED_ID, OCCLUDED_ID, "patch", "patch")
        ids = {}
        for name in ("pad", "unk", "eos", "mask"):
            token_id = _find_special_id(name, runner, tokenizer)
            if token_id is not None:
                ids[name] = token_id
        pad_name = next((name for name in ("pad", "unk", "eos") if name in ids), None)
        if pad_name is None:
            raise BadInput(
                f"{type(runner.model).__name__} defines no padding, unknown or end token, so no token can "
                "replace a removed one. Set model.config.pad_token_id.",
                code="no-replacement-token",
            )
        mask_name = "mask" if "mask" in ids else pad_name
        return cls(ids[pad_name], ids[mask_name], pad_name, mask_name)

    def find_replacement(self, perturb: str) -> str | int:
        """Find what takes the place of removed tokens: an id, ``patch`` for images, or ``delete`` for
        nothing.

        Two settings that give equal inputs have equal results.

        Args:
            perturb: ``delete``, ``pad`` or ``mask``.
        """
        if self.pad_name == "patch":
            return "patch"
        if perturb == "pad":
            return self.pad_id
        if perturb == "mask":
            return self.mask_id
        return perturb

    def describe_stand_in(self, perturb: str) -> str | None:
        """Return a note that names the token used for want of [PAD] or [MASK]; None if the model has it.

        Args:
            perturb: ``pad`` or ``mask``.
        """
        name = self.pad_name if perturb == "pad" else self.mask_name
        if name in (perturb, "patch"):
            return None
        return (
            f"the tokenizer has no {REPLACEMENT_NAMES[perturb]} token; its {REPLACEMENT_NAMES[name]} "
            "token replaces removed tokens instead"
        )


def _find_special_id(name: str, runner: ModelRunner, tokenizer: Any) -> int | None:
    """Return the id of a special token by the tokenizer, else by the config, if it is in the vocabulary."""
    attribute = f"{name}_token_id"
    token_id = getattr(tokenizer, attribute, None)
    if token_id is None:
        token_id = getattr(runner.model.config.get_text_config(), attribute, None)
    if isinstance(token_id, list):  # some configs name several end tokens
        token_id = token_id[0]
    if token_id is None or not 0 <= token_id < runner.vocab_size:
        return None
    return int(token_id)


class Perturber:
    """Builds perturbed variants of one input.

    Special tokens have attention 1 even if the explained pass masked them (``explain_mask``), because
    the official implementations of the metrics predict without a mask. An input that loses all its
    tokens becomes a single padding token.

    Args:
        row: The input.
        replacement_ids: The ids that take the place of removed tokens.

    Attributes:
        rankable_positions: Positions of the tokens that metrics rank and remove.

    Example:
        >>> from tokenlight import Tokens
        >>> from tokenlight.perturb.variants import ReplacementIds
        >>> from tokenlight.plugin import Perturber
        >>> row = Tokens.from_ids([[2, 7, 8, 3]]).rows[0]
        >>> perturber = Perturber(row, ReplacementIds(pad_id=0, mask_id=4))
        >>> perturber.delete_tokens([1]).ids.tolist(), perturber.hide_tokens([1]).ids.tolist()
        ([2, 8, 3], [2, 4, 8, 3])
    """

    def __init__(self, row: TokenRow, replacement_ids: ReplacementIds) -> None:
        self.row = row
        self.replacement_ids = replacement_ids
        is_special = np.array(row.special_tokens_mask, dtype=bool)
        variant = Variant.from_row(row)
        attention_mask = variant.attention_mask | is_special.astype(np.int8)
        self._unperturbed = replace(variant, attention_mask=attention_mask)
        # Structural special tokens are never ranked, whereas [UNK] is a token of the text. The tokens
        # that the target refers to stay as well: without them there is nothing to predict.
        is_rankable = ~is_special
        is_rankable[row.required_positions] = False
        self.rankable_positions: np.ndarray = np.flatnonzero(is_rankable)

    def __len__(self) -> int:
        return len(self.row)

    def make_unperturbed(self) -> Variant:
        """Make the variant with all tokens of the input.

        Returns:
            The variant with which perturbed ones are compared.

        Example:
            >>> from tokenlight import Tokens
            >>> from tokenlight.perturb.variants import ReplacementIds
            >>> from tokenlight.plugin import Perturber
            >>> row = Tokens.from_ids([[2, 7, 8, 3]]).rows[0]
            >>> perturber = Perturber(row, ReplacementIds(pad_id=0, mask_id=4))
            >>> perturber.make_unperturbed().ids.tolist()
            [2, 7, 8, 3]
        """
        return self._unperturbed

    def delete_tokens(self, positions: Sequence[int] | np.ndarray) -> Variant:
        """Delete tokens; the tokens after them move up.

        Args:
            positions: Positions of the tokens to delete.

        Returns:
            The shorter variant. If no token of the text (or of its source) is left, one padding token is
            put first.

        Raises:
            BadInput: The input is an image, or the target refers to a deleted token.

        Example:
            >>> from tokenlight import Tokens
            >>> from tokenlight.perturb.variants import ReplacementIds
            >>> from tokenlight.plugin import Perturber
            >>> row = Tokens.from_ids([[2, 7, 8, 3]]).rows[0]
            >>> perturber = Perturber(row, ReplacementIds(pad_id=0, mask_id=4))
            >>> shorter = perturber.delete_tokens([1])
            >>> shorter.ids.tolist(), shorter.original_positions.tolist()
            ([2, 8, 3], [0, 2, 3])
        """
        if self.row.image is not None:
            raise BadInput(
                "A patch cannot be deleted, because the image would lose its grid. Give perturb='mask', "
                "which occludes the patch instead.",
                code="patch-deleted",
            )
        original = self._unperturbed
        is_kept = np.ones(len(self), dtype=bool)
        is_kept[_as_positions(positions)] = False
        kept_positions = np.flatnonzero(is_kept)
        source_length = None
        if original.source_length is not None:
            source_length = int(is_kept[: original.source_length].sum())
        # The first token of a continuation is predicted from the token before it, so one has to be there.
        num_written = 0
        if source_length is None and not original.target_positions:
            num_written = max(0, len(original.continuation_ids) - 1)
        if len(kept_positions) <= num_written or source_length == 0:
            return self._start_with_padding(kept_positions)
        self._check_targets_kept(is_kept)
        target_position = None
        if original.target_position is not None:
            target_position = int(np.searchsorted(kept_positions, original.target_position))
        return self._take_positions(
            kept_positions, source_length=source_length, target_position=target_position
        )

    def _start_with_padding(self, kept_positions: np.ndarray) -> Variant:
        """Put one padding token in place of a text or a source of which no token is left."""
        # Position −1 stands for the new token; the values that indexing reads there are overwritten.
        variant = self._take_positions(
            np.concatenate(([-1], kept_positions)),
            source_length=None if self._unperturbed.source_length is None else 1,
            target_position=None,
        )
        variant.ids[0] = self.replacement_ids.pad_id
        variant.attention_mask[0] = 1
        if variant.token_type_ids is not None:
            variant.token_type_ids[0] = 0
        return variant

    def _take_positions(
        self, positions: np.ndarray, *, source_length: int | None, target_position: int | None
    ) -> Variant:
        """Return the variant that consists of the tokens at ``positions``, in ascending order."""
        original = self._unperturbed
        token_type_ids = original.token_type_ids
        if token_type_ids is not None:
            token_type_ids = token_type_ids[positions]
        target_positions = np.searchsorted(positions, original.target_positions)
        return replace(
            original,
            ids=original.ids[positions],
            attention_mask=original.attention_mask[positions],
            token_type_ids=token_type_ids,
            original_positions=positions,
            target_position=target_position,
            target_positions=tuple(map(int, target_positions)),
            source_length=source_length,
        )

    def _check_targets_kept(self, is_kept: np.ndarray) -> None:
        """Refuse to delete a token that the target refers to."""
        required = [*self._unperturbed.target_positions]
        if self._unperturbed.target_position is not None:
            required.append(self._unperturbed.target_position)
        for position in required:
            if not is_kept[position]:
                raise BadInput(
                    f"The target is read at token {position}, so this token cannot be deleted. "
                    "Leave it out of the positions.",
                    code="target-token-deleted",
                )

    def replace_tokens(
        self, positions: Sequence[int] | np.ndarray, token_id: int | np.ndarray | None = None
    ) -> Variant:
        """Replace tokens by ``token_id``, which is attended to in the same way.

        Args:
            positions: Positions of the tokens to replace.
            token_id: The new id, or one for each position; by default that of [PAD].

        Returns:
            A variant of the same length.

        Example:
            >>> from tokenlight import Tokens
            >>> from tokenlight.perturb.variants import ReplacementIds
            >>> from tokenlight.plugin import Perturber
            >>> row = Tokens.from_ids([[2, 7, 8, 3]]).rows[0]
            >>> perturber = Perturber(row, ReplacementIds(pad_id=0, mask_id=4))
            >>> perturber.replace_tokens([1, 2], 9).ids.tolist()
            [2, 9, 9, 3]
        """
        if token_id is None:
            token_id = self.replacement_ids.pad_id
        ids = self._unperturbed.ids.copy()
        ids[_as_positions(positions)] = token_id
        return replace(self._unperturbed, ids=ids)

    def hide_tokens(
        self, positions: Sequence[int] | np.ndarray, token_id: int | None = None
    ) -> Variant:
        """Replace tokens by ``token_id`` and set their attention mask to 0.

        Where no token would be left to attend to, the mask stays as it is: a softmax over no keys is
        not a valid input of any model.

        Args:
            positions: Positions of the tokens to hide.
            token_id: The new id; by default that of [MASK].

        Returns:
            A variant of the same length.

        Example:
            >>> from tokenlight import Tokens
            >>> from tokenlight.perturb.variants import ReplacementIds
            >>> from tokenlight.plugin import Perturber
            >>> row = Tokens.from_ids([[2, 7, 8, 3]]).rows[0]
            >>> perturber = Perturber(row, ReplacementIds(pad_id=0, mask_id=4))
            >>> perturber.hide_tokens([1]).attention_mask.tolist()
            [1, 0, 1, 1]
        """
        if self.row.image is not None:
            # The pixels of an occluded patch are replaced, so no attention mask is needed.
            return self.replace_tokens(positions, token_id)
        if token_id is None:
            token_id = self.replacement_ids.mask_id
        variant = self.replace_tokens(positions, token_id)
        attention_mask = variant.attention_mask.copy()
        attention_mask[_as_positions(positions)] = 0
        # An encoder-decoder model attends to source and continuation separately.
        for part in np.split(attention_mask, [self.row.source_length or 0]):
            if len(part) and not part.any():
                return variant
        return replace(variant, attention_mask=attention_mask)

    def drop_embeddings(self, keep_probabilities: np.ndarray, seed: int) -> Variant:
        """Set random entries of the embeddings to zero.

        Args:
            keep_probabilities: For each token, the probability that an entry of its embedding is kept.
            seed: Seed of the draw.

        Returns:
            A variant with the same tokens, whose embeddings are changed in the pass.

        Example:
            >>> import numpy as np
            >>> from tokenlight import Tokens
            >>> from tokenlight.perturb.variants import ReplacementIds
            >>> from tokenlight.plugin import Perturber
            >>> row = Tokens.from_ids([[2, 7, 8, 3]]).rows[0]
            >>> perturber = Perturber(row, ReplacementIds(pad_id=0, mask_id=4))
            >>> variant = perturber.drop_embeddings(np.array([1.0, 0.0, 1.0, 1.0]), seed=0)
            >>> variant.embedding_dropout.draw_zeros(hidden_size=2).any(axis=1).tolist()
            [False, True, False, False]
        """
        dropout = EmbeddingDropout(keep_probabilities.astype(np.float32), seed)
        return replace(self._unperturbed, embedding_dropout=dropout)

    def remove_tokens(self, positions: Sequence[int] | np.ndarray) -> Variant:
        """Delete tokens of a text, or occlude patches of an image.

        Args:
            positions: Positions of the tokens or patches to remove.

        Returns:
            The shorter text, or the image with its fill in place of the patches.

        Example:
            >>> from tokenlight import Tokens
            >>> from tokenlight.perturb.variants import ReplacementIds
            >>> from tokenlight.plugin import Perturber
            >>> row = Tokens.from_ids([[2, 7, 8, 3]]).rows[0]
            >>> perturber = Perturber(row, ReplacementIds(pad_id=0, mask_id=4))
            >>> perturber.remove_tokens([1, 2]).ids.tolist()
            [2, 3]
        """
        if self.row.image is not None:
            return self.replace_tokens(positions)
        return self.delete_tokens(positions)


def _as_positions(positions: Sequence[int] | np.ndarray) -> np.ndarray:
    # The dtype is given because numpy would turn an empty list into an array of floats.
    return np.asarray(positions, dtype=np.int64)
