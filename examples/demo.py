"""The demo of `make demo`: the embedded sentiment model, several methods, terminal and HTML."""

from pathlib import Path

from tokenlight import Explainer
from tokenlight.plots.html import page
from tokenlight.plots.terminal import show
from tokenlight.trust import all_trusted

SENTENCES = [
    "A charming and often affecting journey.",
    "The plot is thin, but the actors never let it become dull.",
    "I do not like this movie.",
]
METHODS = ["auto", "attcat", "gae", "rollout"]

explainer = Explainer.from_pretrained("tokenlight/sentiment")
found = explainer.explain(SENTENCES, METHODS)
# How far can each be believed? Remove its top words and see what the model says.
found = all_trusted(explainer, found)
show(found, words=True)
place = Path("demo") / "explanations.html"
place.parent.mkdir(exist_ok=True)
place.write_text(page(found, title="tokenlight demo"), encoding="utf-8")
print(f"\nThe same as one self-contained page: {place.resolve()}")
