"""An explanation is plain data: save it, load it, and every number is as it was."""

from pathlib import Path

import numpy as np

import tokenlight
from tokenlight.postprocess import absolute, l1_normalise, merge_words

explainer = tokenlight.Explainer.from_pretrained("tokenlight/sentiment")
found = explainer.explain(["a great film", "a dull movie , but fun"], method=["attcat", "gae"])

place = tokenlight.save(found, Path("explanations.json"))  # .html, .csv and .parquet work too
again = tokenlight.load(place)
assert all(np.array_equal(a.scores, b.scores) for a, b in zip(found, again, strict=True))
print(f"{place}: {len(again)} explanations, {place.stat().st_size} bytes")

one = again[0]
print(f"made by {one.method} with {one.model}, target {one.target.name}, seed {one.seed}")
print("versions:", ", ".join(f"{name} {version}" for name, version in one.versions.items()))

# Postprocessing gives a new Attribution that remembers its steps; the raw one is not touched.
shares = l1_normalise(absolute(merge_words(one)))
print(f"{' → '.join(shares.steps)}: {', '.join(f'{w} {s:.0%}' for w, s in shares.top(3))}")
