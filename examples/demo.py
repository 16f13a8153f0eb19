"""The demo of `make demo`: the embedded sentiment model, several methods, terminal and HTML."""

from pathlib import Path

from tokenlight import Explainer
from tokenlight.plots.html import render_page
from tokenlight.plots.terminal import show
from tokenlight.trust import assess_trust_of_all

SENTENCES = [
    "A charming and often affecting journey.",
    "The plot is thin, but the actors never let it become dull.",
    "I do not like this movie.",
]
METHODS = ["auto", "attcat", "gae", "rollout"]

explainer = Explainer.from_pretrained("tokenlight/sentiment")
attributions = explainer.explain(SENTENCES, METHODS)
# How far can each be believed? Remove its top words and see what the model says.
attributions = assess_trust_of_all(explainer, attributions)
show(attributions, words=True)
path = Path("demo") / "explanations.html"
path.parent.mkdir(exist_ok=True)
path.write_text(render_page(attributions, title="tokenlight demo"), encoding="utf-8")
print(f"\nThe same as one self-contained page: {path.resolve()}")
