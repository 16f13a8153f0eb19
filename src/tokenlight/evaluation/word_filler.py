"""Draw likely words for the places of removed words, so that a perturbed text still reads like a text.

A masked language model proposes the words: the one that comes with the package, which reads the text and not
the tokens of the explained model. A causal language model proposes its own tokens. Each word is predicted
while a random half of the other words is hidden as well; otherwise the words around it would give it away.
Two passes, one per half, predict all words; every draw samples from them.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from tokenlight.data.probabilities import softmax
from tokenlight.data.tokens import TokenRow
from tokenlight.explainer import Explainer
from tokenlight.models.embedded import load_masked_lm, quiet_transformers
from tokenlight.perturb.variants import Variant

NUM_DRAWS = 3  # replacements that are drawn for each word
MAX_CHUNK_TOKENS = 400  # tokens that the masked language model reads at once
NUM_CANDIDATES = 50  # most likely words that are drawn from
NUM_WORDS_PER_DRAW = 8  # a word of several tokens may need several proposed ones


def draw_replacement_ids(
    explainer: Explainer, row: TokenRow, words: Sequence[np.ndarray], generator: np.random.Generator
) -> np.ndarray | None:
    """Draw token ids that a language model would put in the places of words.

    Args:
        explainer: The explained model.
        row: The text.
        words: Token positions of each word.
        generator: The source of randomness.

    Returns:
        Ids of shape ``draw token``, equal to those of the row outside of ``words``; None if no model can
        propose words: a row without a text, or a model without a tokenizer.
    """
    if explainer.runner.head.task == "text-generation" and row.source_length is None:
        return _draw_own_tokens(explainer, row, words, generator)
    has_text = bool(row.texts) and all(_word_text(row, positions) for positions in words)
    if not has_text or explainer.tokenizer is None:
        return None
    drawn = np.tile(np.array(row.ids, dtype=np.int64), (NUM_DRAWS, 1))
    candidates = _MaskedWords(explainer, row, words).draw(generator)
    to_ids = _WordEncoder(explainer.tokenizer)
    for draw in range(NUM_DRAWS):
        for positions, names in zip(words, candidates[draw], strict=True):
            original = _word_text(row, positions)
            ids = to_ids(names, original, len(positions), has_space=_follows_space(row, positions))
            if ids is None:
                return None
            drawn[draw, positions] = ids
    return drawn


def _word_text(row: TokenRow, positions: Sequence[int] | np.ndarray) -> str:
    if row.spans[int(positions[0])] is None:
        return ""
    return row.extract_text([int(i) for i in positions]).strip()


def _follows_space(row: TokenRow, positions: np.ndarray) -> bool:
    """Return whether white space stands before a word, which many tokenizers make part of its token."""
    first = int(positions[0])
    span = row.spans[first]
    segment = row.segments[first]
    if span is None or segment is None:
        return False
    text = row.texts[segment]
    before = text[: span[0]] + text[span[0] : span[1]][:1]
    return bool(before) and (before[-1].isspace() or before[-2:-1].isspace())


class _WordEncoder:
    """Encodes proposed words by the tokenizer of the explained model, to a given number of tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._ids_by_text: dict[str, list[int]] = {}

    def __call__(
        self, names: Sequence[str], original: str, length: int, *, has_space: bool
    ) -> list[int] | None:
        """Return ``length`` ids of the first of ``names``, continued by the next ones if it is shorter."""
        ids: list[int] = []
        for name in names:
            text = _match_case(name, original)
            ids += self._encode(f" {text}" if has_space else text)
            if len(ids) >= length:
                return ids[:length]
        # A tokenizer that knows none of the words.
        return None if not ids else (ids * length)[:length]

    def _encode(self, text: str) -> list[int]:
        if text not in self._ids_by_text:
            encoded = self.tokenizer(text, add_special_tokens=False)
            self._ids_by_text[text] = list(encoded["input_ids"])
        return self._ids_by_text[text]


def _match_case(name: str, original: str) -> str:
    if len(original) > 1 and original.isupper():
        return name.upper()
    if original[:1].isupper():
        return name.capitalize()
    return name


class _MaskedLM(NamedTuple):
    """The embedded masked language model, its tokenizer, and by id whether it is not a whole word."""

    model: Any
    tokenizer: Any
    is_excluded: np.ndarray


@cache
def _load_masked_lm(device: str) -> _MaskedLM:
    """Load the embedded masked language model onto a device."""
    with quiet_transformers():
        model, tokenizer = load_masked_lm()
    model = model.to(device).eval()
    names = tokenizer.convert_ids_to_tokens(list(range(model.config.vocab_size)))
    is_excluded = []
    for name in names:
        is_part = name.startswith("##")
        is_special = name.startswith("[") and name.endswith("]") and len(name) > 2
        is_excluded.append(is_part or is_special)
    return _MaskedLM(model, tokenizer, np.array(is_excluded))


class _MaskedWords:
    """The words of a text as the embedded masked language model predicts them."""

    def __init__(self, explainer: Explainer, row: TokenRow, words: Sequence[np.ndarray]) -> None:
        device = explainer.runner.device
        self.device = device if device.type != "meta" else torch.device("cpu")
        self.model, self.tokenizer, self.is_excluded = _load_masked_lm(str(self.device))
        self.texts = [_word_text(row, positions) for positions in words]
        encoded = self.tokenizer(self.texts, add_special_tokens=False)["input_ids"]
        self.word_ids = [ids or [self.tokenizer.unk_token_id] for ids in encoded]
        self.chunks = self._split()

    def _split(self) -> list[range]:
        """Cut the words into runs that the masked language model can read."""
        chunks = []
        start = 0
        num_tokens = 0
        for i, ids in enumerate(self.word_ids):
            if num_tokens + len(ids) > MAX_CHUNK_TOKENS and i > start:
                chunks.append(range(start, i))
                start = i
                num_tokens = 0
            num_tokens += len(ids)
        chunks.append(range(start, len(self.word_ids)))
        return chunks

    def draw(self, generator: np.random.Generator) -> list[list[list[str]]]:
        """Return the proposed words of each draw and word, the first one first."""
        rows = []
        hidden_words = []  # the words of the masks in each row
        for chunk in self.chunks:
            shuffled = generator.permutation(list(chunk))
            for half in np.array_split(shuffled, 2):
                if len(half):
                    rows.append(self._hide(chunk, set(half.tolist())))
                    hidden_words += sorted(half.tolist())
        logits = np.concatenate(self._predict(rows))
        proposals: list[list[list[str]]] = [[[] for _ in self.texts] for _ in range(NUM_DRAWS)]
        for word, word_logits in zip(hidden_words, logits, strict=True):
            samples = self._sample(self.texts[word], word_logits, generator)
            for draw, names in enumerate(samples):
                proposals[draw][word] = names
        return proposals

    def _hide(self, chunk: range, hidden_words: set[int]) -> list[int]:
        """Return the ids of a chunk with one [MASK] for each hidden word."""
        ids = [self.tokenizer.cls_token_id]
        for word in chunk:
            ids += [self.tokenizer.mask_token_id] if word in hidden_words else self.word_ids[word]
        return [*ids, self.tokenizer.sep_token_id]

    @torch.no_grad()
    def _predict(self, rows: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Return, for each row, the logits at its masks, of shape ``mask vocab``."""
        width = max(len(ids) for ids in rows)
        input_ids = torch.full((len(rows), width), self.tokenizer.pad_token_id)
        attention_mask = torch.zeros((len(rows), width), dtype=torch.long)
        for i, ids in enumerate(rows):
            input_ids[i, : len(ids)] = torch.tensor(ids)
            attention_mask[i, : len(ids)] = 1
        is_mask = input_ids == self.tokenizer.mask_token_id
        arguments = {"input_ids": input_ids, "attention_mask": attention_mask}
        arguments = {name: value.to(self.device) for name, value in arguments.items()}
        hidden_states = self.model.bert(**arguments).last_hidden_state
        # The vocabulary is large: logits are computed only at the masks. Their places are known here, so
        # that a GPU need not be asked how many there are.
        mask_rows, mask_columns = is_mask.nonzero(as_tuple=True)
        at_masks = hidden_states[mask_rows.to(self.device), mask_columns.to(self.device)]
        logits = self.model.cls(at_masks).float().cpu().numpy()
        return np.split(logits, np.cumsum(is_mask.sum(dim=1).numpy())[:-1])

    def _sample(
        self, original: str, logits: np.ndarray, generator: np.random.Generator
    ) -> list[list[str]]:
        """Draw words by their probability, never the original one: some for each draw."""
        allowed = np.where(self.is_excluded, -np.inf, logits)
        likely = np.argpartition(-allowed, NUM_CANDIDATES)[: NUM_CANDIDATES + 1]
        likely = likely[np.argsort(-allowed[likely], kind="stable")]
        names = self.tokenizer.convert_ids_to_tokens(likely.tolist())
        is_other = np.array([name.casefold() != original.casefold() for name in names])
        likely = likely[is_other][:NUM_CANDIDATES]
        probabilities = softmax(allowed[likely].astype(np.float64))
        drawn = generator.choice(likely, size=(NUM_DRAWS, NUM_WORDS_PER_DRAW), p=probabilities)
        return [list(self.tokenizer.convert_ids_to_tokens(row)) for row in drawn.tolist()]


@torch.no_grad()
def _draw_own_tokens(
    explainer: Explainer, row: TokenRow, words: Sequence[np.ndarray], generator: np.random.Generator
) -> np.ndarray:
    """Draw tokens from the predictions of a causal language model, each from the tokens before it."""
    runner = explainer.runner
    inputs = runner.build_inputs([Variant.from_row(row)])
    arguments = inputs.arguments
    arguments.pop("continuation_ids", None)
    arguments["read_positions"] = torch.arange(len(row))[None]  # logits at every token
    _, row_logits = runner.run(inputs)
    logits = row_logits[0].float().cpu().numpy().astype(np.float64)
    for special_id in getattr(explainer.tokenizer, "all_special_ids", ()):
        if special_id < logits.shape[1]:
            logits[:, special_id] = -np.inf
    drawn = np.tile(np.array(row.ids, dtype=np.int64), (NUM_DRAWS, 1))
    for position in np.concatenate(list(words)):
        # Nothing stands before the first token: it is drawn like one further on.
        previous = position - 1 if position else int(generator.integers(len(row)))
        token_logits = logits[previous].copy()
        token_logits[row.ids[position]] = -np.inf
        likely = np.argsort(-token_logits)[:NUM_CANDIDATES]
        probabilities = softmax(token_logits[likely])
        drawn[:, position] = generator.choice(likely, size=NUM_DRAWS, p=probabilities)
    return drawn
