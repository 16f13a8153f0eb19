"""Which pieces of the BERT vocabulary English needs: prune WordPiece to a given size.

A WordPiece tokenizer takes the longest piece that fits, so a word whose piece is dropped is spelled
with shorter ones. Dropping therefore changes the counts of what stays, and pruning goes in rounds:
count, drop the rarest, spell again, count again.
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
PREFIX = "##"
ROUNDS = (22_000, 16_000, 13_000)
WORD = re.compile(r"[^\W_]+|[^\w\s]|_")
LAST_LATIN = 0x17F
PUNCTUATION_BLOCK = range(0x2010, 0x20C0)


def count_words(lines: Iterable[str]) -> Counter[str]:
    """How often each word (or sign) occurs, after the lower-casing and accent-stripping of BERT."""
    normalizer = BertNormalizer(lowercase=True)
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(WORD.findall(normalizer.normalize_str(line)))
    return counts


def is_indispensable(piece: str) -> bool:
    """True of special pieces and of single Latin characters, with which any word can be spelled.

    Signs (dashes, quotes, currency) are kept too; letters of other scripts are not.
    """
    if piece in SPECIAL_PIECES:
        return True
    character = piece.removeprefix(PREFIX) if len(piece) > len(PREFIX) else piece
    if len(character) != 1:
        return False
    continues = piece != character
    if continues and not (character.isascii() and character.isalnum()):
        return ord(character) <= LAST_LATIN and unicodedata.category(character).startswith("L")
    return ord(character) <= LAST_LATIN or ord(character) in PUNCTUATION_BLOCK


def count_pieces(
    words_by_corpus: Mapping[str, Counter[str]], weights: Mapping[str, float], pieces: Iterable[str]
) -> defaultdict[str, float]:
    """Weighted share of each piece in the corpora when every word is spelled with ``pieces``."""
    model = WordPiece(
        {piece: index for index, piece in enumerate(pieces)},
        unk_token="[UNK]",
        max_input_chars_per_word=100,
    )
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


def prune(
    pieces: list[str],
    words_by_corpus: Mapping[str, Counter[str]],
    weights: Mapping[str, float],
    size: int,
) -> list[str]:
    """The ``size`` most useful of ``pieces``, in their old order, special pieces first."""
    kept = list(pieces)
    for goal in (*(step for step in ROUNDS if step > size), size):
        shares = count_pieces(words_by_corpus, weights, kept)
        ranked = sorted(
            kept, key=lambda piece: (not is_indispensable(piece), -shares[piece], piece)
        )
        chosen = set(ranked[:goal])
        kept = [piece for piece in kept if piece in chosen]
    plain = [piece for piece in kept if piece not in SPECIAL_PIECES]
    return [*SPECIAL_PIECES, *plain]


def build_tokenizer(pieces: list[str], maximum_length: int = 512) -> BertTokenizer:
    """A lower-casing, accent-stripping BERT tokenizer over exactly these pieces."""
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    return BertTokenizer(
        vocab=vocabulary,
        do_lower_case=True,
        model_max_length=maximum_length,
        clean_up_tokenization_spaces=False,
    )
