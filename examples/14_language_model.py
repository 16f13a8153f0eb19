"""Why this word: a masked language model, asked as any causal one is (docs/language-models.md)."""

from tokenlight import Contrast, Explainer, TokenTarget

explainer = Explainer.from_pretrained("tokenlight/masked_lm")
text = "Paris is the capital of [MASK]."
attribution = explainer.explain(text, method="attcat")
likely = zip(attribution.prediction.labels, attribution.prediction.probabilities, strict=True)
print("likeliest:", ", ".join(f"{token.strip()} {chance:.2f}" for token, chance in likely))

# Why France rather than Germany? One number is explained: the difference of two logits.
contrast = explainer.explain(text, target=Contrast("france", "germany"))
print(f"{contrast.target.name}:", ", ".join(f"{t} {s:+.2f}" for t, s in contrast.top(3)))

# Of two blanks, one is asked about by its place.
both = explainer.explain("[MASK] is the capital of [MASK].", target=TokenTarget(1, "paris"))
print(f"token {both.row.target_position} as {both.target.name}:", both.top(2))
