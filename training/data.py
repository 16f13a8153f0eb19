"""The public data sets as the recipe reads them; the folder is named by TOKENLIGHT_DATA."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

SENTENCE_WORDS = 12
PHRASE_WORDS = 3
REVIEW_WORDS = 90


def data_folder() -> Path:
    """Where the data sets lie: the environment variable TOKENLIGHT_DATA."""
    given = os.environ.get("TOKENLIGHT_DATA")
    if not given:
        raise SystemExit(
            "TOKENLIGHT_DATA is not set, so the recipe has no data to read. Set it to the folder "
            "that holds sst2/, ag_news/, squad_v1/, wiki_en/, imdb/, yelp/ and amazon/ (see "
            "training/README.md)."
        )
    return Path(given)


def read_rows(relative: str, most: int | None = None) -> list[dict[str, Any]]:
    """Rows of a gzipped JSON-lines file below the data folder: all, or the first ``most``."""
    with gzip.open(data_folder() / relative, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in islice(lines, most)]


def read_paragraphs(part: str, most: int | None = None) -> Iterator[str]:
    """Paragraphs of the Wikipedia text, titles and blank lines left out: all, or the first."""
    with lzma.open(data_folder() / "wiki_en" / f"{part}.txt.xz", "rt", encoding="utf-8") as lines:
        texts = (line.strip() for line in lines)
        yield from islice((text for text in texts if text and not text.startswith("= ")), most)


def read_reviews(most: int | None = None) -> Iterator[str]:
    """Whole IMDB reviews, unlabeled here: text like that of SST-2 for the masked LM."""
    for row in read_rows("imdb/train_subset.jsonl.gz", most):
        yield row["text"].replace("<br />", " ")


@dataclass(frozen=True, slots=True)
class Labelled:
    """One text to classify, in one or two spellings of which training picks one at random."""

    spellings: tuple[str, ...]
    label: int


def joined_contractions(text: str) -> str:
    """SST writes "does n't"; people write "doesn't"."""
    return text.replace(" n't", "n't")


def without_markup(text: str) -> str:
    """AG News with its leftovers of HTML ("#39;", backslashes) turned into the signs meant."""
    for leftover, sign in (
        (" #39;", "'"),
        ("#39;", "'"),
        (" #36;", " $"),
        ("#36;", "$"),
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&amp;", "&"),
        ("\\", " "),
    ):
        text = text.replace(leftover, sign)
    return text


def _labeled(rows: list[dict[str, Any]], respell: Callable[[str], str]) -> list[Labelled]:
    examples = []
    for row in rows:
        other = respell(row["text"])
        spellings = (row["text"],) if other == row["text"] else (row["text"], other)
        examples.append(Labelled(spellings, row["label"]))
    return examples


def sentiment_split(
    seed: int, held_out: int, most: int | None = None
) -> tuple[list[Labelled], list[Labelled]]:
    """SST-2 train as (training, held out), with no phrase of a held-out sentence left in training.

    The published train rows are phrases of one another; a random split would measure memory.
    """
    rows = read_rows("sst2/train.jsonl.gz", most)
    rows_text = [row["text"].strip() for row in rows]
    sentences = sorted({text for text in rows_text if len(text.split()) >= SENTENCE_WORDS})
    random.Random(seed).shuffle(sentences)
    everything = "\n".join(rows_text)
    chosen: list[str] = []
    for sentence in sentences:
        # A row found inside another row is a phrase, not a whole sentence.
        if everything.count(sentence) == 1:
            chosen.append(sentence)
        if len(chosen) == held_out:
            break
    together = "\n".join(chosen)
    outside = set(chosen)
    training = [
        row
        for row, text in zip(rows, rows_text, strict=True)
        if not (len(text.split()) >= PHRASE_WORDS and text in together)
    ]
    kept_out = [row for row, text in zip(rows, rows_text, strict=True) if text in outside]
    return _labeled(training, joined_contractions), _labeled(kept_out, joined_contractions)


def labeled_reviews(most: int | None = None) -> list[Labelled]:
    """The last ninety words, where the verdict stands, of film, place and product reviews."""
    examples = []
    for relative in (
        "imdb/train_subset.jsonl.gz",
        "yelp/train_subset.jsonl.gz",
        "amazon/train_subset.jsonl.gz",
    ):
        for row in read_rows(relative, most):
            words = row["text"].replace("<br />", " ").split()
            examples.append(Labelled((" ".join(words[-REVIEW_WORDS:]),), row["label"]))
    return examples


def topics_split(
    seed: int, held_out: int, most: int | None = None
) -> tuple[list[Labelled], list[Labelled]]:
    """AG News train as (training, held out), drawn at random."""
    rows = read_rows("ag_news/train_subset.jsonl.gz", most)
    random.Random(seed).shuffle(rows)
    return _labeled(rows[held_out:], without_markup), _labeled(rows[:held_out], without_markup)


def questions_split(
    seed: int, held_out: int, most: int | None = None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """SQuAD train as (training, held out); the questions of one context stay on one side."""
    rows = read_rows("squad_v1/train_subset.jsonl.gz", most)
    contexts = sorted({row["context"] for row in rows})
    random.Random(seed).shuffle(contexts)
    outside = set(contexts[:held_out])
    training = [row for row in rows if row["context"] not in outside]
    return training, [row for row in rows if row["context"] in outside]
