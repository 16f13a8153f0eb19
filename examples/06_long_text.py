"""A text longer than the model reads: refused by default, then explained in overlapping windows."""

from tokenlight import Explainer
from tokenlight.errors import TextTooLong

explainer = Explainer.from_pretrained("tokenlight/sentiment")
assert explainer.max_tokens is not None
filler = "the film goes on and on , and the story with it . "
text = filler * (explainer.max_tokens // 10) + "in the end it is a great and charming movie ."

try:
    explainer.explain(text)
except TextTooLong as refused:
    print(f"refused: {refused}\n")

# The explained number is the mean logit of all windows, so no token is left out.
attribution = explainer.explain(text, long="stride")
print(f"{len(attribution)} tokens, {attribution.notes[-1]}")
for window in attribution.extras["windows"]:
    print(f"  tokens {window['first']} to {window['last']}, weight {window['weight']:.2f}")
print("strongest:", ", ".join(f"{token} {score:+.3f}" for token, score in attribution.top(5)))

# The beginning alone, on purpose: the Attribution says what was cut off.
cut = explainer.explain(text, long="truncate")
print(cut.notes[-1])
