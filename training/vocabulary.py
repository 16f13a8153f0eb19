"""Prune a WordPiece vocabulary to the pieces that English texts need most.

A WordPiece tokenizer takes the longest piece that fits, so a word whose piece is dropped is spelled
with shorter ones. Dropping therefore changes the counts of the remaining pieces, and pruning goes in
rounds: count, drop the rarest, spell again, count again.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from transformers import BertTokenizer

SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CONTINUATION_PREFIX = "##"
INTERMEDIATE_SIZES = (22_000, 16_000, 13_000)
WORD_PATTERN = re.compile(r"[^\W_]+|[^\w\s]|_")
LAST_LATIN_CODE = 0x17F
PUNCTUATION_CODES = range(0x2010, 0x20C0)


def count_words(lines: Iterable[str]) -> Counter[str]:
    """Count words and punctuation marks as BERT normalizes them: lower case, without accents."""
    normalizer = BertNormalizer(lowercase=True)
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(WORD_PATTERN.findall(normalizer.normalize_str(line)))
    return counts


def is_indispensable(piece: str) -> bool:
    """Return whether a piece is special or a single Latin character, with which any word can be spelled.

    Punctuation (dashes, quotes, currency) is kept too; letters of other scripts are not.
    """
    if piece in SPECIAL_PIECES:
        return True
    is_longer_than_prefix = len(piece) > len(CONTINUATION_PREFIX)
    character = piece.removeprefix(CONTINUATION_PREFIX) if is_longer_than_prefix else piece
    if len(character) != 1:
        return False
    code = ord(character)
    is_continuation = piece != character
    is_ascii_letter_or_digit = character.isascii() and character.isalnum()
    if is_continuation and not is_ascii_letter_or_digit:
        is_letter = unicodedata.category(character).startswith("L")
        return code <= LAST_LATIN_CODE and is_letter
    return code <= LAST_LATIN_CODE or code in PUNCTUATION_CODES


def count_pieces(
    words_by_corpus: Mapping[str, Counter[str]], weights: Mapping[str, float], pieces: Iterable[str]
) -> defaultdict[str, float]:
    """Measure how often each piece is used when every word is spelled with ``pieces``.

    Args:
        words_by_corpus: How often each word occurs, by corpus.
        weights: Weight of each corpus.
        pieces: The vocabulary.

    Returns:
        Weighted share of each piece; the shares of a corpus sum to its weight.
    """
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    model = WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100)
    shares: defaultdict[str, float] = defaultdict(float)
    for corpus, words in words_by_corpus.items():
        counts: Counter[str] = Counter()
        for word, occurrences in words.items():
            for token in model.tokenize(word):
                counts[token.value] += occurrences
        scale = weights[corpus] / max(1, counts.total())
        for piece, occurrences in counts.items():
            shares[piece] += occurrences * scale
    return shares


def prune_vocabulary(
    pieces: list[str],
    words_by_corpus: Mapping[str, Counter[str]],
    weights: Mapping[str, float],
    size: int,
) -> list[str]:
    """Keep the ``size`` most used pieces in their old order, special pieces first.

    Args:
        pieces: The vocabulary to prune.
        words_by_corpus: How often each word occurs, by corpus.
        weights: Weight of each corpus.
        size: Number of pieces to keep.

    Returns:
        The pruned vocabulary.
    """
    kept_pieces = list(pieces)
    round_sizes = [round_size for round_size in INTERMEDIATE_SIZES if round_size > size]
    round_sizes.append(size)
    for round_size in round_sizes:
        shares = count_pieces(words_by_corpus, weights, kept_pieces)
        ranked_pieces = sorted(
            kept_pieces, key=lambda piece: (not is_indispensable(piece), -shares[piece], piece)
        )
        most_used = set(ranked_pieces[:round_size])
        kept_pieces = [piece for piece in kept_pieces if piece in most_used]
    ordinary_pieces = [piece for piece in kept_pieces if piece not in SPECIAL_PIECES]
    return [*SPECIAL_PIECES, *ordinary_pieces]


def build_tokenizer(pieces: list[str], max_length: int = 512) -> BertTokenizer:
    """Build a BERT tokenizer over exactly these pieces; it lower-cases and strips accents."""
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    return BertTokenizer(
        vocab=vocabulary,
        do_lower_case=True,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )
