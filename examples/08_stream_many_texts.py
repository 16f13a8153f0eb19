"""An iterator in, an iterator out: as many texts as you like, in constant memory."""

import csv
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from tokenlight import Explainer

ADJECTIVES = ("great", "dull", "charming", "slow", "funny", "empty")
NOUNS = ("plot", "cast", "script", "ending", "camera work", "dialogue")


def reviews() -> Iterator[str]:
    """Stands for a file or a database that is too large to hold."""
    for first in ADJECTIVES:
        for second in ADJECTIVES:
            for noun in NOUNS:
                yield f"the {noun} is {first} and the music is {second} ."


explainer = Explainer.from_pretrained("tokenlight/sentiment")
spoke_for: Counter[str] = Counter()

with Path("scores.csv").open("w", newline="", encoding="utf-8") as file:
    table = csv.writer(file)
    table.writerow(["predicted", "word", "score"])
    for attribution in explainer.explain(islice(reviews(), 60), method="attcat", target="positive"):
        for word, score in attribution.words():
            table.writerow([attribution.prediction.label, word, f"{score:.6f}"])
            spoke_for[word] += score

print("most in favor over all texts:", ", ".join(word for word, _ in spoke_for.most_common(5)))
print(f"wrote scores.csv, {len(Path('scores.csv').read_text('utf-8').splitlines()) - 1} rows")
