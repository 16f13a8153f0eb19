"""Three ways to remove words from a text, and the probability of a target after a removal.

Words are deleted, masked, or replaced by what a language model would put there. Each way has its own
artifacts: a text without words may be no sentence, a model may never have seen [MASK], and a likely word may
say what the removed one said. What holds under all of them is a property of the model, not of the removal.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.data.image import Fill
from tokenlight.data.tokens import TokenRow
from tokenlight.data.units import group_by_word
from tokenlight.evaluation.word_filler import draw_replacement_ids
from tokenlight.explainer import Explainer
from tokenlight.perturb.logits_stream import stream_logits
from tokenlight.perturb.target_probability import compute_target_probability
from tokenlight.perturb.variants import Perturber, ReplacementIds, Variant

LogitsCache = dict[Hashable, np.ndarray]  # logits of perturbed texts by their deduplication keys
# Names of removals, as files have them.
DELETE = "delete"
MASK = "mask"
INFILL = "infill"
_MASK_ACTIONS = {
    "mask": "masked",
    "pad": "replaced by [PAD]",
    "unk": "replaced by the unknown token",
    "eos": "replaced by the end-of-text token",
}
_FILL_ACTIONS: dict[Fill, str] = {
    "mean": "hidden by the image's mean colour",
    "blur": "blurred",
    "zero": "hidden by a grey patch",
}


@dataclass(frozen=True, eq=False)
class Removal:
    """One way to remove words.

    Attributes:
        name: ``delete``, ``mask`` or ``infill``; ``mean``, ``blur`` or ``zero`` for patches of an image.
        action: What is done to a removed word, as in "words are deleted".
        row: The text; of an image, with the fill that replaces its patches.
        replacement_ids: Ids of shape ``draw token`` that replace removed tokens; None to delete them.
    """

    name: str
    action: str
    row: TokenRow
    replacement_ids: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class AppliedRemoval:
    """One removal of the tokens at some positions of a text.

    Attributes:
        removal: How the tokens are removed.
        positions: The removed tokens.
        draw: Which of the drawn replacements is used.
    """

    removal: Removal
    positions: np.ndarray
    draw: int = 0

    def build(self, special_ids: ReplacementIds, outside: np.ndarray) -> Variant:
        """Return the text as the model reads it, also without the tokens ``outside`` of a window."""
        row = self.removal.row
        if row.image is not None or self.removal.replacement_ids is None:
            removed = np.concatenate([self.positions, outside])
            return Perturber(row, special_ids).remove_tokens(removed)
        draws = self.removal.replacement_ids
        new_ids = draws[self.draw % len(draws)][self.positions]
        if not len(outside):
            return Perturber(row, special_ids).replace_tokens(self.positions, new_ids)
        ids = np.array(row.ids)
        ids[self.positions] = new_ids
        replaced_row = replace(row, ids=tuple(ids.tolist()))
        return Perturber(replaced_row, special_ids).delete_tokens(outside)


def list_removals(
    explainer: Explainer, row: TokenRow, words: Sequence[np.ndarray], generator: np.random.Generator
) -> list[Removal]:
    """Return the removals that a text has, the cheapest first; no two of them give the same texts.

    Args:
        explainer: The explained model.
        row: The text.
        words: Token positions of each word that may be removed.
        generator: Draws the words that replace removed ones.
    """
    if row.image is not None:
        return _list_fills(row)
    removals = [Removal(DELETE, "deleted", row)]
    special_ids = ReplacementIds.from_model(explainer.runner, explainer.tokenizer)
    mask_ids = np.full((1, len(row)), special_ids.mask_id)
    removals.append(
        Removal(
            name=MASK,
            action=_MASK_ACTIONS[special_ids.mask_name],
            row=row,
            replacement_ids=mask_ids,
        )
    )
    likely_ids = draw_replacement_ids(explainer, row, words, generator)
    if likely_ids is not None:
        removals.append(
            Removal(
                name=INFILL,
                action="replaced by likely words",
                row=row,
                replacement_ids=likely_ids,
            )
        )
    return removals


def _list_fills(row: TokenRow) -> list[Removal]:
    """Return one removal per fill of an occluded patch, that of the explanation first."""
    assert row.image is not None
    fills = dict.fromkeys((row.image.fill, *_FILL_ACTIONS))
    removals = []
    for fill in fills:
        filled = replace(row, image=replace(row.image, fill=fill))
        removals.append(Removal(fill, _FILL_ACTIONS[fill], filled))
    return removals


class RemovalRunner:
    """Runs one text without some of its tokens, and reads the probability of one target.

    A text that was read in windows is read in the same windows again, each without the removed tokens. Its
    logits are the weighted mean over windows, as for the explanation.

    Args:
        explainer: The explained model.
        attribution: An explanation of the text for the target.
        logits_cache: Logits that are known already; new ones are added.

    Attributes:
        removable_positions: Tokens that may be removed and that some window reads.
        words: The removable positions of each word; a token outside of any word is a group of its own.
    """

    def __init__(
        self, explainer: Explainer, attribution: Attribution, logits_cache: LogitsCache
    ) -> None:
        self.runner = explainer.runner
        self.row = attribution.row
        self.target = attribution.target
        self.logits_cache = logits_cache
        self.special_ids = ReplacementIds.from_model(explainer.runner, explainer.tokenizer)
        # Each window as (weight, positions outside of it).
        self.windows: list[tuple[float, np.ndarray]] = []
        outside_masks = []
        for weight, outside in _find_windows(attribution):
            self.windows.append((weight, np.flatnonzero(outside)))
            outside_masks.append(outside)
        # A token that no window with a weight reads cannot change the probability.
        unread = np.flatnonzero(np.all(outside_masks, axis=0))
        rankable = Perturber(self.row, self.special_ids).rankable_positions
        self.removable_positions = np.setdiff1d(rankable, unread)
        self.words = _group_words(self.row, self.removable_positions)

    def compute_probabilities(
        self, removals: Sequence[np.ndarray], removal: Removal | None = None
    ) -> np.ndarray:
        """Return the probability that remains after each removal, given as token positions.

        Args:
            removals: Token positions that are removed, for each perturbed text.
            removal: How they are removed; by default they are deleted.
        """
        removal = removal or Removal(DELETE, "deleted", self.row)
        return self.run([AppliedRemoval(removal, positions) for positions in removals])

    def run(self, removals: Sequence[AppliedRemoval]) -> np.ndarray:
        """Return the probability that each removal leaves; all texts are packed together."""
        texts = [self._make_window_variants(removal) for removal in removals]
        # Keys are computed once: each serializes a whole text.
        keys = []
        for variants in texts:
            keys.append([variant.dedup_key for variant in variants])
        self._fill_cache(texts, keys)
        probabilities = []
        for variants, window_keys in zip(texts, keys, strict=True):
            logits: Any = 0.0
            for (weight, _), key in zip(self.windows, window_keys, strict=True):
                logits = logits + weight * self.logits_cache[key]
            probabilities.append(
                compute_target_probability(
                    self.runner.head, self.target, variants[0], np.asarray(logits)
                )
            )
        return np.array(probabilities)

    def _make_window_variants(self, removal: AppliedRemoval) -> list[Variant]:
        """Return the text without the removed tokens, once for each window."""
        variants = []
        for _, outside in self.windows:
            variants.append(removal.build(self.special_ids, outside))
        return variants

    def _fill_cache(
        self, texts: Sequence[Sequence[Variant]], keys: Sequence[Sequence[Hashable]]
    ) -> None:
        """Run the model on every variant that has no logits yet."""
        missing: dict[Hashable, Variant] = {}
        for variants, window_keys in zip(texts, keys, strict=True):
            for variant, key in zip(variants, window_keys, strict=True):
                if key not in self.logits_cache:
                    missing[key] = variant
        if missing:
            logits = stream_logits(self.runner, missing.values())
            self.logits_cache.update(zip(missing, logits, strict=True))


def _group_words(row: TokenRow, removable_positions: np.ndarray) -> list[np.ndarray]:
    """Return the removable token positions of each word that has any."""
    words = []
    for group in group_by_word(row):
        positions = np.array(group)
        removable = positions[np.isin(positions, removable_positions)]
        if len(removable):
            words.append(removable)
    return words


def _find_windows(attribution: Attribution) -> list[tuple[float, np.ndarray]]:
    """Return (weight, mask of the tokens outside) of each window; a short text is one window."""
    row = attribution.row
    whole_text = {"weight": 1.0, "first": 0, "last": len(row)}
    windows: Any = attribution.extras.get("windows") or [whole_text]
    # Special tokens, and the first text of a pair, are part of every window.
    last_segment = max(segment or 0 for segment in row.segments)
    is_in_last_segment = np.array([segment == last_segment for segment in row.segments])
    is_windowed = is_in_last_segment & ~np.array(row.special_tokens_mask)
    positions = np.arange(len(attribution))
    weighted_masks = []
    for window in windows:
        if window["weight"]:
            is_outside = (positions < window["first"]) | (positions > window["last"])
            weighted_masks.append((float(window["weight"]), is_windowed & is_outside))
    return weighted_masks
