"""A pair of texts: what each of its parts weighs, in numbers and in the picture."""

from tokenlight import Explainer

# Any classifier reads a pair; one with the label "entailment" names its parts premise and hypothesis.
explainer = Explainer.from_pretrained("tokenlight/topics")
pair = ("The club sold its striker for a record fee.", "Shares of the company rose by ten percent.")

for attribution in explainer.explain(pair, target="all"):
    shares = ", ".join(f"{part.name} {part.share:.0%}" for part in attribution.segment_shares())
    print(f"{attribution.target.name:<9} {shares}")

# The signed sums say which part speaks for the class and which against it.
attribution = explainer.explain(pair, target="Business")
for part in attribution.segment_shares():
    print(f"for Business: {part.name:<7} {part.total:+.3f}")
attribution.show()
