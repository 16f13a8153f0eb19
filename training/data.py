"""The public data sets as the recipe reads them, below the folder that TOKENLIGHT_DATA names."""

from __future__ import annotations

import argparse
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

DATA_VARIABLE = "TOKENLIGHT_DATA"
MIN_SENTENCE_WORDS = 12
MIN_PHRASE_WORDS = 3
REVIEW_WORDS = 90
REVIEW_FILES = (
    "imdb/train_subset.jsonl.gz",
    "yelp/train_subset.jsonl.gz",
    "amazon/train_subset.jsonl.gz",
)
HTML_LEFTOVERS = (
    (" #39;", "'"),
    ("#39;", "'"),
    (" #36;", " $"),
    ("#36;", "$"),
    ("&lt;", "<"),
    ("&gt;", ">"),
    ("&amp;", "&"),
    ("\\", " "),
)


def add_data_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--data``, which stands in for the environment variable TOKENLIGHT_DATA."""
    parser.add_argument(
        "--data", type=Path, help="folder of the data sets; TOKENLIGHT_DATA if not given"
    )


def set_data_folder(folder: Path | None) -> None:
    """Read the data sets from ``folder``, here and in child processes; None changes nothing."""
    if folder is not None:
        os.environ[DATA_VARIABLE] = str(folder.resolve())


def find_data_folder() -> Path:
    """Return the folder that TOKENLIGHT_DATA names.

    Raises:
        SystemExit: The variable is not set.
    """
    folder = os.environ.get(DATA_VARIABLE)
    if not folder:
        raise SystemExit(
            "TOKENLIGHT_DATA is not set, so the recipe has no data to read. Set it to the folder "
            "that holds sst2/, ag_news/, squad_v1/, wiki_en/, imdb/, yelp/ and amazon/ (see "
            "training/README.md)."
        )
    return Path(folder)


def read_rows(relative_path: str, max_rows: int | None = None) -> list[dict[str, Any]]:
    """Read a gzipped JSON-lines file below the data folder, or its first ``max_rows`` rows."""
    with gzip.open(find_data_folder() / relative_path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in islice(lines, max_rows)]


def read_paragraphs(part: str, max_paragraphs: int | None = None) -> Iterator[str]:
    """Yield the paragraphs of the Wikipedia text without titles and blank lines."""
    path = find_data_folder() / "wiki_en" / f"{part}.txt.xz"
    num_paragraphs = 0
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            if num_paragraphs == max_paragraphs:
                return
            text = line.strip()
            if not text or text.startswith("= "):
                continue
            num_paragraphs += 1
            yield text


def remove_line_breaks(text: str) -> str:
    """Replace the HTML line breaks of IMDB by blanks."""
    return text.replace("<br />", " ")


def read_reviews(max_rows: int | None = None) -> Iterator[str]:
    """Yield whole IMDB reviews without labels: for the masked LM, text like that of SST-2."""
    for row in read_rows("imdb/train_subset.jsonl.gz", max_rows):
        yield remove_line_breaks(row["text"])


@dataclass(frozen=True, slots=True)
class LabeledText:
    """A text to classify.

    Attributes:
        spellings: One or two spellings of the text; training draws one of them at random.
        label: Number of its class.
    """

    spellings: tuple[str, ...]
    label: int


def join_contractions(text: str) -> str:
    """Spell "does n't", as SST has it, as people do: "doesn't"."""
    return text.replace(" n't", "n't")


def clean_news(text: str) -> str:
    """Turn the leftovers of HTML in AG News ("#39;", backslashes) into the characters meant."""
    for leftover, character in HTML_LEFTOVERS:
        text = text.replace(leftover, character)
    return text


def _label_texts(rows: list[dict[str, Any]], respell: Callable[[str], str]) -> list[LabeledText]:
    labeled_texts = []
    for row in rows:
        text = row["text"]
        respelled = respell(text)
        spellings = (text,) if respelled == text else (text, respelled)
        labeled_texts.append(LabeledText(spellings, row["label"]))
    return labeled_texts


def split_sentiment(
    seed: int, num_held_out: int, max_rows: int | None = None
) -> tuple[list[LabeledText], list[LabeledText]]:
    """Split SST-2 train, with no phrase of a held-out sentence left in training.

    The published training rows are phrases of one another, so a random split would measure memory.

    Args:
        seed: Seed of the choice of sentences.
        num_held_out: Sentences to hold out.
        max_rows: Largest number of rows read; None reads all.

    Returns:
        Training texts and held-out texts.
    """
    rows = read_rows("sst2/train.jsonl.gz", max_rows)
    texts = [row["text"].strip() for row in rows]
    sentences = sorted({text for text in texts if len(text.split()) >= MIN_SENTENCE_WORDS})
    random.Random(seed).shuffle(sentences)
    all_texts = "\n".join(texts)
    held_out_sentences: list[str] = []
    for sentence in sentences:
        # A row that occurs inside another row is a phrase and not a whole sentence.
        if all_texts.count(sentence) == 1:
            held_out_sentences.append(sentence)
        if len(held_out_sentences) == num_held_out:
            break
    held_out_text = "\n".join(held_out_sentences)
    held_out_set = set(held_out_sentences)
    training_rows = []
    held_out_rows = []
    for row, text in zip(rows, texts, strict=True):
        is_held_out_phrase = len(text.split()) >= MIN_PHRASE_WORDS and text in held_out_text
        if not is_held_out_phrase:
            training_rows.append(row)
        if text in held_out_set:
            held_out_rows.append(row)
    training_texts = _label_texts(training_rows, join_contractions)
    held_out_texts = _label_texts(held_out_rows, join_contractions)
    return training_texts, held_out_texts


def read_labeled_reviews(max_rows: int | None = None) -> list[LabeledText]:
    """Read film, place and product reviews: their last ninety words, where the verdict stands."""
    reviews = []
    for relative_path in REVIEW_FILES:
        for row in read_rows(relative_path, max_rows):
            words = remove_line_breaks(row["text"]).split()
            text = " ".join(words[-REVIEW_WORDS:])
            reviews.append(LabeledText((text,), row["label"]))
    return reviews


def split_topics(
    seed: int, num_held_out: int, max_rows: int | None = None
) -> tuple[list[LabeledText], list[LabeledText]]:
    """Split AG News train at random into training and held-out texts."""
    rows = read_rows("ag_news/train_subset.jsonl.gz", max_rows)
    random.Random(seed).shuffle(rows)
    training_texts = _label_texts(rows[num_held_out:], clean_news)
    held_out_texts = _label_texts(rows[:num_held_out], clean_news)
    return training_texts, held_out_texts


def split_questions(
    seed: int, num_held_out: int, max_rows: int | None = None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Split SQuAD train into training and held-out rows, keeping the questions of a context together."""
    rows = read_rows("squad_v1/train_subset.jsonl.gz", max_rows)
    contexts = sorted({row["context"] for row in rows})
    random.Random(seed).shuffle(contexts)
    held_out_contexts = set(contexts[:num_held_out])
    training_rows = []
    held_out_rows = []
    for row in rows:
        is_held_out = row["context"] in held_out_contexts
        (held_out_rows if is_held_out else training_rows).append(row)
    return training_rows, held_out_rows
