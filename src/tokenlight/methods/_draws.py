"""Random draws that belong to a text: the same alone, in any batch, on any machine."""

import hashlib

import numpy as np

from tokenlight.data.tokens import TokenRow


def generator(seed: int, row: TokenRow, *numbers: int) -> np.random.Generator:
    """Seeded by ``seed`` and the text's token ids; ``numbers`` part the draws of one text."""
    digest = hashlib.blake2b(row.fingerprint.encode(), digest_size=8).digest()
    return np.random.default_rng([seed, int.from_bytes(digest, "little"), *numbers])
