"""Several methods on one text: side by side in one HTML file, and how far they agree."""

from pathlib import Path

import numpy as np

from tokenlight import Explainer, save

explainer = Explainer.from_pretrained("tokenlight/sentiment")
text = "the acting is great but the plot is slow and the film never ends ."
methods = ["attcat", "gae", "rollout", "grad_x_input", "random"]
attributions = explainer.explain(text, method=methods)  # one forward pass serves all of them

for attribution in attributions:
    strongest = ", ".join(token for token, _ in attribution.top(3))
    print(f"{attribution.method:>14}: {strongest}")

ranks = [np.argsort(np.argsort(-np.abs(attribution.scores))) for attribution in attributions]
agreement = np.corrcoef(ranks)
print("rank correlation with attcat:")
for attribution, value in zip(attributions, agreement[0], strict=True):
    print(f"{attribution.method:>14}: {value:+.2f}")

path = save(attributions, Path("compare.html"))  # self-contained: mail it, open it offline
print(f"wrote {path}")
