"""Golden numbers: results that the official codes of the papers computed, which must not change."""
