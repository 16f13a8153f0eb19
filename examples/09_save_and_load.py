"""An explanation is plain data: save it, load it, and every number is as it was."""

from pathlib import Path

import numpy as np

import tokenlight
from tokenlight.postprocess import absolute, l1_normalise, merge_words

explainer = tokenlight.Explainer.from_pretrained("tokenlight/sentiment")
attributions = explainer.explain(
    ["a great film", "a dull movie , but fun"], method=["attcat", "gae"]
)

path = tokenlight.save(attributions, Path("explanations.json"))  # .html, .csv and .parquet work too
loaded = tokenlight.load(path)
assert all(np.array_equal(a.scores, b.scores) for a, b in zip(attributions, loaded, strict=True))
print(f"{path}: {len(loaded)} explanations, {path.stat().st_size} bytes")

first = loaded[0]
print(f"made by {first.method} with {first.model}, target {first.target.name}, seed {first.seed}")
print("versions:", ", ".join(f"{name} {version}" for name, version in first.versions.items()))

# Postprocessing gives a new Attribution that remembers its steps; the raw one is not touched.
shares = l1_normalise(absolute(merge_words(first)))
print(f"{' → '.join(shares.steps)}: {', '.join(f'{w} {s:.0%}' for w, s in shares.top(3))}")
