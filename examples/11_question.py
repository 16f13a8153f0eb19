"""Why this answer, why not that one: targets of a question-answering model."""

from tokenlight import Contrast, Explainer, Question, SpanTarget

explainer = Explainer.from_pretrained("tokenlight/qa")
question = Question(
    question="Who designed the engine?",
    context="Ada Lovelace wrote the first program in 1843. Charles Babbage designed the engine.",
)

# The best valid span is explained, and the null score says how near "no answer" came.
attribution = explainer.explain(question)
prediction = attribution.prediction
print(
    f"answer {prediction.label!r} scores {prediction.answer_score:.1f}, no answer {prediction.null_score:.1f}"
)
for part in attribution.segment_shares():
    print(f"  {part.name:<9} {part.share:4.0%} of the weight, sum {part.total:+.2f}")

# A given answer is found in the context by its characters; several places need occurrence=….
other = explainer.explain(question, target=SpanTarget(answer="Ada Lovelace"))
print(f"{other.target.name}: {', '.join(token for token, _ in other.top(3))}")

# One answer rather than another: words that speak for both cancel out.
contrast = explainer.explain(question, target=Contrast("Charles Babbage", "Ada Lovelace"))
print(f"{contrast.target.name}:")
for token, score in contrast.top(4):
    print(f"  {token:>9} {score:+.3f}")

# Models trained on unanswerable questions (SQuAD v2) say "no answer" by their first token.
print(explainer.explain(question, target=SpanTarget(no_answer=True)).target.name)
