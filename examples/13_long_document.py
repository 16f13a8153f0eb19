"""A document longer than the model reads: windows, then sentences, then tokens."""

from tokenlight import Explainer

explainer = Explainer.from_pretrained("tokenlight/sentiment")
middle = "The train goes from town to town. It is spring, and then it is summer. "
document = (
    "I came to this film with no hope at all. "
    + middle * 35
    + "And then the last act is simply wonderful! I left the cinema happy."
)

attribution = explainer.explain(document, long="stride")
print(f"{len(attribution)} tokens: {attribution.notes[-1]}")

# Sentences first: each has the sum of its tokens.
ranked = sorted(attribution.sentences(), key=lambda sentence: -abs(sentence.score))
for sentence in ranked[:3]:
    print(f"{sentence.score:+.4f}  {sentence.text}")

# The terminal shows the strongest sentences; the page shows all, and each opens to its tokens.
attribution.show()
path = attribution.save("document.html")
print(f"wrote {path}")
