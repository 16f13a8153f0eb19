"""Which tokens of a sentence spoke for the prediction, and which against it?"""

from tokenlight import Explainer

explainer = Explainer.from_pretrained("tokenlight/sentiment")
attribution = explainer.explain("the story is thin , but the cast is charming .")

print(f"{attribution.prediction.label} with probability {attribution.prediction.probability:.2f}")
for token, score in attribution.top(5):
    print(
        f"{token:>12} {score:+.3f}  {'for' if score > 0 else 'against'} {attribution.target.name}"
    )

# Words instead of word pieces; the raw scores in attribution.scores stay as they are.
print(" ".join(f"{word}({score:+.2f})" for word, score in attribution.words()))

attribution.show()  # green for, red against, darker is stronger
