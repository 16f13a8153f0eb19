"""Which tokens made the model answer with this span of the context?"""

from tokenlight import Explainer, Question, SpanTarget

explainer = Explainer.from_pretrained("tokenlight/qa")
asked = Question(
    question="Who wrote the first program?",
    context="Ada Lovelace wrote the first program in 1843. Charles Babbage designed the engine.",
)
found = explainer.explain(asked)  # the start logit plus the end logit of the best span
print(f"answer: {found.prediction.label!r}")

shares = found.segment_shares()
print(f"share of the question {shares[0]:.0%}, of the context {shares[1]:.0%}")
for token, score in found.top(6):
    print(f"{token:>12} {score:+.3f}")

# Only where the answer begins:
start = explainer.explain(asked, target=SpanTarget(end=None))
print(f"{start.target.name}: {', '.join(token for token, _ in start.top(3))}")
