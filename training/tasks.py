"""The data sets a base encoder is fine-tuned on: what is read, how much, and how long it is learned."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from training import batches, data
from training.windows import answer_positions, windows

SENTENCE_WORDS = 8
PHRASE_WORDS = 3
Kind = Literal["text", "pair", "question"]


@dataclass(frozen=True, slots=True)
class Task:
    """One data set. ``rows``: drawn of the training file, None for all; ``also``: a second training
    file with the same labels and how many of its rows. ``longest``: tokens of a text, the rest is cut
    off; a question's context is cut into windows instead. ``batch``: texts a step. ``held``: training
    texts kept out, with every row that is a part of one, to choose a layer on. ``hidden``: of half of the
    texts a random share of the tokens, this at most, is [MASK] whenever they are learned."""

    kind: Kind
    train: str
    dev: str
    rows: int | None = None
    also: tuple[str, int] | None = None
    dev_rows: int | None = 5_000
    epochs: int = 2
    batch: int = 64
    rate: float = 1e-4
    longest: int = 128
    held: int = 0
    hidden: float = 0.0


# One step costs about as much whatever the batch, since small kernels leave the device waiting; so
# short texts go many at a time. MNLI's training rows here are few: SNLI's, same labels, help.
TASKS: dict[str, Task] = {
    "sst2": Task(
        "text",
        "sst2/train.jsonl.gz",
        "sst2/dev.jsonl.gz",
        batch=128,
        rate=1.2e-4,
        longest=72,
        held=500,
    ),
    "squad_v1": Task(
        "question", "squad_v1/train_subset.jsonl.gz", "squad_v1/dev.jsonl.gz", epochs=3, batch=32
    ),
    "mnli": Task(
        "pair",
        "mnli/train_subset.jsonl.gz",
        "mnli/dev_matched_partial.jsonl.gz",
        also=("snli/train_subset.jsonl.gz", 30_000),
    ),
    "snli": Task(
        "pair", "snli/train_subset.jsonl.gz", "snli/dev.jsonl.gz", 60_000, batch=128, longest=96
    ),
    "qqp": Task("pair", "qqp/train_subset.jsonl.gz", "qqp/test_subset.jsonl.gz"),
    "ag_news": Task("text", "ag_news/train_subset.jsonl.gz", "ag_news/test.jsonl.gz", held=500),
    "imdb": Task(
        "text",
        "imdb/train_subset.jsonl.gz",
        "imdb/test.jsonl.gz",
        batch=32,
        rate=6e-5,
        longest=512,
    ),
    "yelp": Task(
        "text",
        "yelp/train_subset.jsonl.gz",
        "yelp/test_subset.jsonl.gz",
        epochs=3,
        batch=32,
        rate=6e-5,
        longest=384,
    ),
    "amazon": Task(
        "text",
        "amazon/train_subset.jsonl.gz",
        "amazon/test_subset.jsonl.gz",
        epochs=3,
        batch=32,
        rate=6e-5,
        longest=256,
    ),
}

# Shortcuts put into texts (training.planted): learned in an epoch or two.
TASKS |= {
    f"planted_{name}_{kind}": Task(
        "text",
        f"planted_{name}/{kind}_train.jsonl.gz",
        f"planted_{name}/{kind}_test.jsonl.gz",
        batch=64,
        longest=longest,
    )
    for name, longest in (("sst2", 72), ("ag_news", 128))
    for kind in ("single", "context", "pair")
}

# Models that know gaps, as the metric f_fidelity wants them (Zheng et al. 2025): its β is HIDDEN.
HIDDEN = 0.1
TASKS |= {
    f"masked_{name}": replace(TASKS[name], hidden=HIDDEN, held=0) for name in ("sst2", "ag_news")
}


def quick(task: Task) -> Task:
    """A few short rows and steps: tests the plumbing, not the model."""
    also = None if task.also is None else (task.also[0], 8)
    few = {"rows": 16, "also": also, "dev_rows": 8, "held": min(4, task.held)}
    return replace(task, **few, epochs=1, batch=8, longest=min(48, task.longest))


def training_rows(task: Task, seed: int) -> list[dict[str, Any]]:
    """The rows to learn, drawn by ``seed``."""
    found = _drawn(data.read_rows(task.train), None, seed)
    if task.held:
        together = "\n".join(row["text"] for row in held_rows(task, seed))
        texts = (row["text"].strip() for row in found)
        inside = [len(text.split()) >= PHRASE_WORDS and text in together for text in texts]
        found = [row for row, part in zip(found, inside, strict=True) if not part]
    found = found[: task.rows]
    if task.also is not None:
        found += _drawn(data.read_rows(task.also[0]), task.also[1], seed)
    return found


def held_rows(task: Task, seed: int) -> list[dict[str, Any]]:
    """The first ``held`` of the rows as drawn that are as long as a sentence."""
    if not task.held:
        return []
    drawn = _drawn(data.read_rows(task.train), None, seed)
    return [row for row in drawn if len(row["text"].split()) >= SENTENCE_WORDS][: task.held]


def _drawn(rows: list[dict[str, Any]], most: int | None, seed: int) -> list[dict[str, Any]]:
    order = np.random.default_rng(seed).permutation(len(rows))
    return [rows[i] for i in order[:most]]


def labels_of(task: Task) -> dict[int, str]:
    """Number to name, as ``labels.json`` beside the training file says."""
    place = data.data_folder() / task.train.partition("/")[0] / "labels.json"
    named = json.loads(place.read_text(encoding="utf-8"))
    return {int(number): str(name) for number, name in named.items()}


@dataclass(frozen=True, slots=True)
class Encoded:
    """Rows as one array of ids: where each ends (``row``), where its second segment begins
    (``row``; at its end where it has none), and what is to be said of it: a label (``row``) or the
    first and last token of an answer (``row 2``)."""

    flat: np.ndarray
    ends: np.ndarray
    second: np.ndarray
    said: np.ndarray

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each row."""
        return np.diff(self.ends, prepend=0)

    def batch(self, rows: np.ndarray) -> batches.Batch:
        """The chosen rows as a model takes them, with what it should say."""
        ids, lengths = batches.padded(self.flat, self.ends, rows)
        places = np.arange(ids.shape[1])
        inside = places < lengths[:, None]
        types = (places >= self.second[rows][:, None]) & inside
        said = torch.from_numpy(self.said[rows])
        found = {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy(inside.astype(np.int64)),
            "token_type_ids": torch.from_numpy(types.astype(np.int64)),
        }
        if said.dim() == 1:
            return found | {"labels": said}
        return found | {"start_positions": said[:, 0], "end_positions": said[:, 1]}


def with_gaps(
    batch: batches.Batch, most: float, tokenizer: Any, random: np.random.Generator
) -> batches.Batch:
    """Half of the texts, drawn anew, with a random share of their tokens replaced by [MASK]: up to
    ``most`` of those that are not special, each with the same probability."""
    ids = batch["input_ids"].numpy()
    plain = (batch["attention_mask"].numpy() > 0) & ~np.isin(ids, tokenizer.all_special_ids)
    share = random.uniform(0.0, most, (len(ids), 1)) * (random.random((len(ids), 1)) < 0.5)
    gone = plain & (random.random(ids.shape) < share)
    return batch | {"input_ids": torch.from_numpy(np.where(gone, tokenizer.mask_token_id, ids))}


def encode(task: Task, tokenizer: Any, rows: list[dict[str, Any]]) -> Encoded:
    """Rows as token ids. Of questions, windows in which the answer does not lie point at [CLS]."""
    if task.kind == "question":
        cut = windows(tokenizer, rows)
        said = [answer_positions(window, rows[window.row]) for window in cut]
        return _laid_out([w.ids for w in cut], [w.context_start for w in cut], said)
    texts = parts(task, rows)
    found = tokenizer(*texts, truncation=True, max_length=task.longest)
    ids = found["input_ids"]
    types = found["token_type_ids"]
    second = [len(own) - sum(kinds) for own, kinds in zip(ids, types, strict=True)]
    return _laid_out(ids, second, [row["label"] for row in rows])


def parts(task: Task, rows: list[dict[str, Any]]) -> list[list[str]]:
    """The texts of classification rows: one list, or two of a pair's halves."""
    if task.kind == "pair":
        return [[row["text_a"] for row in rows], [row["text_b"] for row in rows]]
    return [[row["text"] for row in rows]]


def _laid_out(ids: list[list[int]], second: list[int], said: list[Any]) -> Encoded:
    return Encoded(
        np.concatenate([np.asarray(own, dtype=np.int64) for own in ids]),
        np.cumsum([len(own) for own in ids]),
        np.asarray(second),
        np.asarray(said, dtype=np.int64),
    )
