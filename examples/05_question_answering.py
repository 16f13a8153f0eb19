"""Which tokens made the model answer with this span of the context?"""

from tokenlight import Explainer, Question, SpanTarget

explainer = Explainer.from_pretrained("tokenlight/qa")
question = Question(
    question="Who wrote the first program?",
    context="Ada Lovelace wrote the first program in 1843. Charles Babbage designed the engine.",
)
attribution = explainer.explain(question)  # the start logit plus the end logit of the best span
print(f"answer: {attribution.prediction.label!r}")

print(", ".join(f"{part.name} {part.share:.0%}" for part in attribution.segment_shares()))
for token, score in attribution.top(6):
    print(f"{token:>12} {score:+.3f}")

# Only where the answer begins:
start = explainer.explain(question, target=SpanTarget(end=None))
print(f"{start.target.name}: {', '.join(token for token, _ in start.top(3))}")
