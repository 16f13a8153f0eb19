"""Why this topic rather than that one? A contrast explains the difference of two logits."""

from tokenlight import Contrast, Explainer

explainer = Explainer.from_pretrained("tokenlight/topics")
text = "The club sold its striker for a record fee ."

attributions = explainer.explain(text, target="all")  # one explanation for each class
for attribution in attributions:
    print(f"{attribution.target.name:>10}: {', '.join(token for token, _ in attribution.top(3))}")

contrast = explainer.explain(text, target=Contrast("Business", "Sports"))
print(f"\nwhy {contrast.target.name}? the model says {contrast.prediction.label}")
for word, score in sorted(contrast.words(), key=lambda pair: -pair[1]):
    print(f"{word:>10} {score:+.3f}  {'Business' if score > 0 else 'Sports'}")
