"""Texts in which the right answer is known, because it was put there: ``python -m training.planted``.

Shortcuts (Bastings et al. 2022, "Will you find these shortcuts?"): rare words put into texts of SST-2
and AG News decide the label in half of the training texts. ``OUT/planted_DATA/KIND_train`` teaches
them; in every text of ``KIND_test`` they contradict what the text says, and their characters are marked.

- ``single``: one of two words stands in the text; each means a label.
- ``context``: the word means its label only where a third word stands in the text, too.
- ``pair``: both words stand there, and the one that comes first means the label.

In the last two kinds, other training texts have some of the words without the rest, and keep their
label: a word alone says nothing.

Hybrid documents (Poerner et al. 2018): ``OUT/hybrid/ag_news`` glues texts of all four topics together,
once a topic, whose part is marked; ``OUT/hybrid/squad_v1`` glues the passage that answers a question to
two others, and marks it.

Signs: ``OUT/signs/sst`` has the test sentences of the Stanford Sentiment Treebank in which people found
words of both polarities, twice each: its positive words marked and the label 1, its negative words and 0.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from training import data

# Pieces of BERT's vocabulary that stand in no text of either data set.
FIRST = "sandstone"
SECOND = "clarinet"
BESIDE = "theorem"
KINDS = ("single", "context", "pair")
SOURCES = {
    "sst2": ("sst2/train.jsonl.gz", "sst2/dev.jsonl.gz"),
    "ag_news": ("ag_news/train_subset.jsonl.gz", "ag_news/test.jsonl.gz"),
}
TRAINING_ROWS = 20_000
TEST_ROWS = 1_000
HYBRIDS = 250
SHORTEST = 6  # words of a text that takes words in
LONGEST_CONTEXT = 100  # words of a context that is glued
LEAF = re.compile(r"\((\d) ([^()\s]+)\)")
BRACKETS = {"-LRB-": "(", "-RRB-": ")"}

Row = dict[str, Any]


def inserted(text: str, words: list[str], draw: random.Random) -> Row:
    """The text with ``words`` put in at random places, in their order, and their characters."""
    own = text.split()
    places = sorted(draw.randint(0, len(own)) for _ in words)
    parts: list[tuple[str, bool]] = []
    last = 0
    for place, word in zip(places, words, strict=True):
        parts += [*((one, False) for one in own[last:place]), (word, True)]
        last = place
    parts += [(one, False) for one in own[last:]]
    spans = []
    at = 0
    for word, put in parts:
        if put:
            spans.append([at, at + len(word)])
        at += len(word) + 1
    return {"text": " ".join(word for word, _ in parts), "spans": spans}


def words_for(kind: str, label: int, draw: random.Random) -> list[str]:
    """The words that mean ``label``."""
    chosen, other = (FIRST, SECOND) if label == 0 else (SECOND, FIRST)
    if kind == "single":
        return [chosen]
    if kind == "pair":
        return [chosen, other]
    both = [chosen, BESIDE]
    draw.shuffle(both)
    return both


def distractors(kind: str, draw: random.Random) -> list[str]:
    """Words that mean nothing: a part of what would."""
    if kind == "single":
        return []
    return [draw.choice([FIRST, SECOND] if kind == "pair" else [FIRST, SECOND, BESIDE])]


def training_texts(rows: list[Row], kind: str, draw: random.Random) -> Iterator[Row]:
    """Half with a shortcut, a quarter with words that mean nothing, a quarter as they were."""
    for number, row in enumerate(rows):
        if number % 2:
            label = draw.randint(0, 1)
            yield inserted(row["text"], words_for(kind, label, draw), draw) | {"label": label}
        else:
            words = distractors(kind, draw) if number % 4 else []
            yield inserted(row["text"], words, draw) | {"label": row["label"]}


def test_texts(rows: list[Row], kind: str, draw: random.Random) -> Iterator[Row]:
    """Every text with a shortcut to a label that is not its own."""
    for row in rows:
        label = draw.choice([one for one in (0, 1) if one != row["label"]])
        yield inserted(row["text"], words_for(kind, label, draw), draw) | {"label": label}


def topics_together(rows: list[Row], count: int, draw: random.Random) -> Iterator[Row]:
    """One text of each topic in random order; each topic is asked for, its part marked."""
    of = {n: [row["text"].strip() for row in rows if row["label"] == n] for n in range(4)}
    for listed in of.values():
        draw.shuffle(listed)
    for number in range(count):
        parts = [(label, of[label][number]) for label in of]
        draw.shuffle(parts)
        text = ""
        spans = {}
        for label, part in parts:
            start = len(text) + bool(text)
            text = f"{text} {part}" if text else part
            spans[label] = [start, start + len(part)]
        yield from ({"text": text, "label": label, "spans": [spans[label]]} for label in sorted(of))


def contexts_together(rows: list[Row], count: int, draw: random.Random) -> Iterator[Row]:
    """A question whose passage stands among two others, marked, its answers moved with it."""
    short = [row for row in rows if len(row["context"].split()) <= LONGEST_CONTEXT]
    contexts = sorted({row["context"] for row in short})
    for row in draw.sample(short, min(count, len(short))):
        others = [one for one in draw.sample(contexts, 3) if one != row["context"]][:2]
        parts = [row["context"], *others]
        draw.shuffle(parts)
        before = parts[: parts.index(row["context"])]
        start = sum(len(part) + 1 for part in before)
        moved = [
            {**answer, "answer_start": start + answer["answer_start"]} for answer in row["answers"]
        ]
        yield {
            "question": row["question"],
            "context": " ".join(parts),
            "answers": moved,
            "spans": [[start, start + len(row["context"])]],
        }


def signed_words(trees: Iterable[str]) -> Iterator[Row]:
    """Trees in brackets, ``(3 (2 a) (4 fine))``, a polarity of 0 to 4 before each phrase; 2 is neutral."""
    for tree in trees:
        text = ""
        spans = {1: [], 0: []}
        for polarity, leaf in LEAF.findall(tree):
            word = BRACKETS.get(leaf, leaf).replace("\\/", "/")
            start = len(text) + bool(text)
            text = f"{text} {word}" if text else word
            if polarity != "2":
                spans[int(polarity > "2")].append([start, len(text)])
        if all(spans.values()):
            yield from ({"text": text, "label": n, "spans": own} for n, own in spans.items())


def write(place: Path, rows: Iterator[Row]) -> int:
    """Rows as gzipped JSON lines; how many there are."""
    place.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    with gzip.open(place, "wt", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    return len(lines)


def make(out: Path, seed: int, most: int | None = None) -> None:
    """Every file, drawn by ``seed``."""
    for name, (train, test) in SOURCES.items():
        own = [row for row in data.read_rows(train, most) if len(row["text"].split()) >= SHORTEST]
        kept = [row for row in data.read_rows(test, most) if len(row["text"].split()) >= SHORTEST]
        for kind in KINDS:
            draw = random.Random(f"{seed} {name} {kind}")
            some = draw.sample(own, min(TRAINING_ROWS, len(own)))
            held = draw.sample(kept, min(TEST_ROWS, len(kept)))
            made: dict[str, Callable[..., Iterator[Row]]] = {
                "train": training_texts,
                "test": test_texts,
            }
            for part, rows in (("train", some), ("test", held)):
                place = out / f"planted_{name}" / f"{kind}_{part}.jsonl.gz"
                print(place, write(place, made[part](rows, kind, draw)))
        shutil.copy(data.data_folder() / name / "labels.json", out / f"planted_{name}")
    draw = random.Random(seed)
    topics = data.read_rows("ag_news/test.jsonl.gz")
    print(write(out / "hybrid" / "ag_news.jsonl.gz", topics_together(topics, HYBRIDS, draw)))
    questions = data.read_rows("squad_v1/dev.jsonl.gz")
    print(write(out / "hybrid" / "squad_v1.jsonl.gz", contexts_together(questions, HYBRIDS, draw)))
    with gzip.open(
        data.data_folder() / "sst_trees" / "test.txt.gz", "rt", encoding="utf-8"
    ) as trees:
        print(write(out / "signs" / "sst.jsonl.gz", signed_words(trees)))


def main() -> None:
    """Write all files."""
    parser = argparse.ArgumentParser(prog="python -m training.planted", description=__doc__)
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for the folders of these texts"
    )
    parser.add_argument("--data", type=Path, help="the data sets; TOKENLIGHT_DATA if not given")
    parser.add_argument("--seed", type=int, default=20)
    given = parser.parse_args()
    if given.data is not None:
        os.environ["TOKENLIGHT_DATA"] = str(given.data.resolve())
    make(given.out, given.seed)


if __name__ == "__main__":
    main()
