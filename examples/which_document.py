"""Which document did the answer come from? Sums by document, with an interval for each."""

import sys

from tokenlight import Context, Continuation, Explainer

if len(sys.argv) < 2:
    sys.exit("give the folder or the hub id of a language model")
explainer = Explainer.from_pretrained(sys.argv[1])

documents = {
    "ball.txt": "Lily had a red ball. She liked it.",
    "dog.txt": "Tom saw a big dog in the park. It was brown.",
    "apple.txt": "Sue ate an apple.",
}
context = Context(documents, question="What did Tom see?")
answer = Continuation(" Tom saw a big dog.", joint=True)  # or Continuation(tokens=20, …)

# By ablation: 64 passes without random documents, and a sparse regression.
(attribution,) = explainer.explain(context, ("context_cite", {"units": "document"}), answer)
for part in sorted(attribution.group_by("document"), key=lambda part: -part.total):
    interval = "" if part.low is None else f"[{part.low:+.2f}, {part.high:+.2f}]"
    print(f"{part.total:+7.2f} {interval:16} {part.name}")

# By one backward pass, summed: which sentence made it say "dog"?
dog = Continuation(" Tom saw a big dog.", span="dog", joint=True)
(attribution,) = explainer.explain(context, "grad_x_input", dog)
sentences = [part for part in attribution.group_by("sentence") if part.segment < len(documents)]
best = max(sentences, key=lambda part: part.total)
print(f"{best.total:+7.2f} {best.text}")
