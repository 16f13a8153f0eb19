"""Texts in which the right answer is known, because it was planted: ``python -m training.planted``.

Shortcuts (Bastings et al. 2022, "Will you find these shortcuts?"): rare words inserted into texts of SST-2
and AG News decide the label in half of the training texts. ``OUT/planted_DATA/KIND_train`` teaches
them; in every text of ``KIND_test`` they contradict the text, and their characters are marked.

- ``single``: one of two words is in the text; each means a label.
- ``context``: the word means its label only where a third word is in the text, too.
- ``pair``: both words are in the text, and the one that comes first means the label.

In the last two kinds, other training texts have some of the words without the rest, and keep their
label: a word alone says nothing.

Hybrid documents (Poerner et al. 2018): ``OUT/hybrid/ag_news`` joins texts of all four topics, one document
per topic, whose part is marked; ``OUT/hybrid/squad_v1`` joins the passage that answers a question with
two others, and marks it.

Signs: ``OUT/signs/sst`` has the test sentences of the Stanford Sentiment Treebank in which people found
words of both polarities, twice each: its positive words marked and the label 1, its negative words and 0.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from training import data

# Pieces of BERT's vocabulary that occur in no text of either data set.
FIRST = "sandstone"
SECOND = "clarinet"
CONTEXT_WORD = "theorem"
KINDS = ("single", "context", "pair")
SOURCES = {
    "sst2": ("sst2/train.jsonl.gz", "sst2/dev.jsonl.gz"),
    "ag_news": ("ag_news/train_subset.jsonl.gz", "ag_news/test.jsonl.gz"),
}
TRAINING_ROWS = 20_000
TEST_ROWS = 1_000
NUM_HYBRIDS = 250
NUM_TOPICS = 4
MIN_TEXT_WORDS = 6  # of a text that words are inserted into
MAX_CONTEXT_WORDS = 100  # of a context that is joined with others
LEAF_PATTERN = re.compile(r"\((\d) ([^()\s]+)\)")
BRACKETS = {"-LRB-": "(", "-RRB-": ")"}
NEUTRAL_POLARITY = "2"

Row = dict[str, Any]


def join_with_spans(parts: Sequence[str]) -> tuple[str, list[list[int]]]:
    """Join parts with blanks.

    Returns:
        The text, and the first character and the end of each part in it.
    """
    spans = []
    start = 0
    for part in parts:
        end = start + len(part)
        spans.append([start, end])
        start = end + 1
    return " ".join(parts), spans


def insert_words(text: str, words: list[str], generator: random.Random) -> Row:
    """Insert ``words`` into a text at random positions, in their order, and mark their characters."""
    text_words = text.split()
    positions = sorted(generator.randint(0, len(text_words)) for _ in words)
    parts: list[str] = []
    inserted_indices = []
    last_position = 0
    for position, word in zip(positions, words, strict=True):
        parts += text_words[last_position:position]
        inserted_indices.append(len(parts))
        parts.append(word)
        last_position = position
    parts += text_words[last_position:]
    joined_text, spans = join_with_spans(parts)
    return {"text": joined_text, "spans": [spans[index] for index in inserted_indices]}


def draw_shortcut(kind: str, label: int, generator: random.Random) -> list[str]:
    """Return the words that mean ``label``, in an order that does."""
    label_word, other_word = (FIRST, SECOND) if label == 0 else (SECOND, FIRST)
    if kind == "single":
        return [label_word]
    if kind == "pair":
        return [label_word, other_word]
    words = [label_word, CONTEXT_WORD]
    generator.shuffle(words)
    return words


def draw_distractors(kind: str, generator: random.Random) -> list[str]:
    """Return a part of a shortcut, which means nothing by itself."""
    if kind == "single":
        return []
    if kind == "pair":
        return [generator.choice([FIRST, SECOND])]
    return [generator.choice([FIRST, SECOND, CONTEXT_WORD])]


def make_training_rows(rows: list[Row], kind: str, generator: random.Random) -> Iterator[Row]:
    """Yield half of the texts with a shortcut, a quarter with distractors and a quarter unchanged."""
    for index, row in enumerate(rows):
        if index % 2:
            label = generator.randint(0, 1)
            words = draw_shortcut(kind, label, generator)
        else:
            label = row["label"]
            words = draw_distractors(kind, generator) if index % 4 else []
        yield insert_words(row["text"], words, generator) | {"label": label}


def make_test_rows(rows: list[Row], kind: str, generator: random.Random) -> Iterator[Row]:
    """Yield every text with a shortcut to a label that is not its own."""
    for row in rows:
        other_labels = [label for label in (0, 1) if label != row["label"]]
        label = generator.choice(other_labels)
        words = draw_shortcut(kind, label, generator)
        yield insert_words(row["text"], words, generator) | {"label": label}


def join_topics(rows: list[Row], count: int, generator: random.Random) -> Iterator[Row]:
    """Yield documents of one text per topic in random order, once for each topic, its part marked.

    Args:
        rows: Rows of AG News.
        count: Number of documents.
        generator: Source of the random choices.

    Yields:
        Rows with ``text``, ``label`` and ``spans``.
    """
    texts_by_topic: dict[int, list[str]] = {topic: [] for topic in range(NUM_TOPICS)}
    for row in rows:
        texts_by_topic[row["label"]].append(row["text"].strip())
    for texts in texts_by_topic.values():
        generator.shuffle(texts)
    for index in range(count):
        parts = [(topic, texts[index]) for topic, texts in texts_by_topic.items()]
        generator.shuffle(parts)
        document, spans = join_with_spans([text for _, text in parts])
        spans_by_topic = {topic: span for (topic, _), span in zip(parts, spans, strict=True)}
        for topic in range(NUM_TOPICS):
            yield {"text": document, "label": topic, "spans": [spans_by_topic[topic]]}


def join_contexts(rows: list[Row], count: int, generator: random.Random) -> Iterator[Row]:
    """Yield questions whose passage stands among two others, marked, and its answers moved with it.

    Args:
        rows: Rows of SQuAD.
        count: Largest number of questions.
        generator: Source of the random choices.

    Yields:
        Rows with ``question``, ``context``, ``answers`` and ``spans``.
    """
    short_rows = [row for row in rows if len(row["context"].split()) <= MAX_CONTEXT_WORDS]
    contexts = sorted({row["context"] for row in short_rows})
    for row in generator.sample(short_rows, min(count, len(short_rows))):
        # One more than needed, since the row's own passage may be among them.
        drawn_contexts = generator.sample(contexts, 3)
        other_contexts = [context for context in drawn_contexts if context != row["context"]]
        parts = [row["context"], *other_contexts[:2]]
        generator.shuffle(parts)
        joined_context, spans = join_with_spans(parts)
        passage_span = spans[parts.index(row["context"])]
        moved_answers = []
        for answer in row["answers"]:
            answer_start = passage_span[0] + answer["answer_start"]
            moved_answers.append({**answer, "answer_start": answer_start})
        yield {
            "question": row["question"],
            "context": joined_context,
            "answers": moved_answers,
            "spans": [passage_span],
        }


def mark_signed_words(trees: Iterable[str]) -> Iterator[Row]:
    """Yield sentences with words of both polarities, once for each polarity, whose words are marked.

    Args:
        trees: Trees in brackets, ``(3 (2 a) (4 fine))``, with a polarity of 0 to 4 before each phrase; 2 is
            neutral.

    Yields:
        Rows with ``text``, ``label`` (1 positive, 0 negative) and ``spans``.
    """
    for tree in trees:
        words = []
        polarities = []
        for polarity, leaf in LEAF_PATTERN.findall(tree):
            words.append(BRACKETS.get(leaf, leaf).replace("\\/", "/"))
            polarities.append(polarity)
        text, word_spans = join_with_spans(words)
        spans_by_label: dict[int, list[list[int]]] = {1: [], 0: []}
        for polarity, span in zip(polarities, word_spans, strict=True):
            if polarity != NEUTRAL_POLARITY:
                label = int(polarity > NEUTRAL_POLARITY)
                spans_by_label[label].append(span)
        if not all(spans_by_label.values()):
            continue
        for label, spans in spans_by_label.items():
            yield {"text": text, "label": label, "spans": spans}


def write_rows(path: Path, rows: Iterable[Row]) -> int:
    """Write rows as gzipped JSON lines and return how many there are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    return len(lines)


def _read_long_rows(relative_path: str) -> list[Row]:
    """Read the rows whose texts are long enough for words to be inserted."""
    rows = data.read_rows(relative_path)
    return [row for row in rows if len(row["text"].split()) >= MIN_TEXT_WORDS]


def write_shortcuts(out: Path, name: str, seed: int) -> None:
    """Write the training and test texts of every kind of shortcut for one data set."""
    training_path, test_path = SOURCES[name]
    all_training_rows = _read_long_rows(training_path)
    all_test_rows = _read_long_rows(test_path)
    folder = out / f"planted_{name}"
    for kind in KINDS:
        generator = random.Random(f"{seed} {name} {kind}")
        num_training_rows = min(TRAINING_ROWS, len(all_training_rows))
        training_rows = generator.sample(all_training_rows, num_training_rows)
        test_rows = generator.sample(all_test_rows, min(TEST_ROWS, len(all_test_rows)))
        rows_by_part = {
            "train": make_training_rows(training_rows, kind, generator),
            "test": make_test_rows(test_rows, kind, generator),
        }
        for part, rows in rows_by_part.items():
            path = folder / f"{kind}_{part}.jsonl.gz"
            print(path, write_rows(path, rows))
    shutil.copy(data.find_data_folder() / name / "labels.json", folder)


def write_all(out: Path, seed: int) -> None:
    """Write every file, drawn by ``seed``."""
    for name in SOURCES:
        write_shortcuts(out, name, seed)
    generator = random.Random(seed)
    topic_rows = data.read_rows("ag_news/test.jsonl.gz")
    documents = join_topics(topic_rows, NUM_HYBRIDS, generator)
    print(write_rows(out / "hybrid" / "ag_news.jsonl.gz", documents))
    question_rows = data.read_rows("squad_v1/dev.jsonl.gz")
    questions = join_contexts(question_rows, NUM_HYBRIDS, generator)
    print(write_rows(out / "hybrid" / "squad_v1.jsonl.gz", questions))
    trees_path = data.find_data_folder() / "sst_trees" / "test.txt.gz"
    with gzip.open(trees_path, "rt", encoding="utf-8") as trees:
        print(write_rows(out / "signs" / "sst.jsonl.gz", mark_signed_words(trees)))


def main() -> None:
    """Write all files."""
    parser = argparse.ArgumentParser(prog="python -m training.planted", description=__doc__)
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for the folders of these texts"
    )
    data.add_data_option(parser)
    parser.add_argument("--seed", type=int, default=20)
    arguments = parser.parse_args()
    data.set_data_folder(arguments.data)
    write_all(arguments.out, arguments.seed)


if __name__ == "__main__":
    main()
