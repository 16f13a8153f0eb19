"""Which tokens made two sentences alike? The encoder of the embedded models, without its head."""

from tokenlight import Explainer

whole = Explainer.from_pretrained("tokenlight/masked_lm")
explainer = Explainer(whole.model.base_model, whole.tokenizer, pooling="mean")

attribution = explainer.explain(
    ("the film is a joy to watch", "this movie is great fun"), method="integrated_gradients"
)
print(f"cosine {attribution.logits[0]:.3f}")
for part in attribution.segment_shares():
    print(f"  {part.name}: {part.share:.0%}")
print("strongest:", ", ".join(f"{token} {score:+.3f}" for token, score in attribution.top(6)))
