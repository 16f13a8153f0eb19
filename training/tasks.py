"""The data sets a base encoder is fine-tuned on: what is read, how much, and how long it is trained."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from training import batches, data
from training.windows import cut_windows, locate_answer

MIN_SENTENCE_WORDS = 8
MIN_PHRASE_WORDS = 3
TaskKind = Literal["text", "pair", "question"]


@dataclass(frozen=True, slots=True)
class Task:
    """A data set and how a model is fine-tuned on it.

    Attributes:
        kind: What a row is: a text, a pair of texts, or a question with its context.
        train: Path of the training file below the data folder.
        dev: Path of the rows to measure on.
        num_rows: Training rows to draw; None takes all.
        extra_training_file: A second training file with the same labels, and how many rows to draw from it.
        dev_rows: Largest number of rows to measure on; None takes all.
        epochs: Passes over the training rows.
        batch: Rows per step.
        rate: Peak learning rate.
        max_tokens: Length at which texts are truncated; contexts of questions are cut into windows instead.
        num_held_out: Training sentences kept out, with every row that is a part of one, to choose a layer on.
        max_mask_share: Largest share of tokens masked in a text; half of the texts are masked, anew in each
            epoch.
    """

    kind: TaskKind
    train: str
    dev: str
    num_rows: int | None = None
    extra_training_file: tuple[str, int] | None = None
    dev_rows: int | None = 5_000
    epochs: int = 2
    batch: int = 64
    rate: float = 1e-4
    max_tokens: int = 128
    num_held_out: int = 0
    max_mask_share: float = 0.0


# One step costs about as much whatever the batch size, since small kernels leave the device waiting; so
# batches of short texts are large. MNLI has few training rows here; those of SNLI have the same labels.
TASKS: dict[str, Task] = {
    "sst2": Task(
        kind="text",
        train="sst2/train.jsonl.gz",
        dev="sst2/dev.jsonl.gz",
        batch=128,
        rate=1.2e-4,
        max_tokens=72,
        num_held_out=500,
    ),
    "squad_v1": Task(
        kind="question",
        train="squad_v1/train_subset.jsonl.gz",
        dev="squad_v1/dev.jsonl.gz",
        epochs=3,
        batch=32,
    ),
    "mnli": Task(
        kind="pair",
        train="mnli/train_subset.jsonl.gz",
        dev="mnli/dev_matched_partial.jsonl.gz",
        extra_training_file=("snli/train_subset.jsonl.gz", 30_000),
    ),
    "snli": Task(
        kind="pair",
        train="snli/train_subset.jsonl.gz",
        dev="snli/dev.jsonl.gz",
        num_rows=60_000,
        batch=128,
        max_tokens=96,
    ),
    "qqp": Task(
        kind="pair",
        train="qqp/train_subset.jsonl.gz",
        dev="qqp/test_subset.jsonl.gz",
    ),
    "ag_news": Task(
        kind="text",
        train="ag_news/train_subset.jsonl.gz",
        dev="ag_news/test.jsonl.gz",
        num_held_out=500,
    ),
    "imdb": Task(
        kind="text",
        train="imdb/train_subset.jsonl.gz",
        dev="imdb/test.jsonl.gz",
        batch=32,
        rate=6e-5,
        max_tokens=512,
    ),
    "yelp": Task(
        kind="text",
        train="yelp/train_subset.jsonl.gz",
        dev="yelp/test_subset.jsonl.gz",
        epochs=3,
        batch=32,
        rate=6e-5,
        max_tokens=384,
    ),
    "amazon": Task(
        kind="text",
        train="amazon/train_subset.jsonl.gz",
        dev="amazon/test_subset.jsonl.gz",
        epochs=3,
        batch=32,
        rate=6e-5,
        max_tokens=256,
    ),
}

# Shortcuts planted by training.planted, which a model learns in an epoch or two.
for _name, _max_tokens in (("sst2", 72), ("ag_news", 128)):
    for _shortcut in ("single", "context", "pair"):
        TASKS[f"planted_{_name}_{_shortcut}"] = Task(
            kind="text",
            train=f"planted_{_name}/{_shortcut}_train.jsonl.gz",
            dev=f"planted_{_name}/{_shortcut}_test.jsonl.gz",
            max_tokens=_max_tokens,
        )

# Models that have seen [MASK], as the metric f_fidelity needs them (Zheng et al. 2025, β).
MAX_MASK_SHARE = 0.1
for _name in ("sst2", "ag_news"):
    TASKS[f"masked_{_name}"] = replace(TASKS[_name], max_mask_share=MAX_MASK_SHARE, num_held_out=0)


def shrink_task(task: Task) -> Task:
    """Reduce a task to a few short rows and steps, which tests the pipeline and not the model."""
    extra_training_file = None
    if task.extra_training_file is not None:
        extra_training_file = (task.extra_training_file[0], 8)
    return replace(
        task,
        num_rows=16,
        extra_training_file=extra_training_file,
        dev_rows=8,
        num_held_out=min(4, task.num_held_out),
        epochs=1,
        batch=8,
        max_tokens=min(48, task.max_tokens),
    )


def read_training_rows(task: Task, seed: int) -> list[dict[str, Any]]:
    """Draw the rows to train on, without parts of held-out sentences."""
    rows = _draw_rows(data.read_rows(task.train), None, seed)
    if task.num_held_out:
        held_out_text = "\n".join(row["text"] for row in read_held_out_rows(task, seed))
        rows = [row for row in rows if not _is_phrase_of(row["text"].strip(), held_out_text)]
    rows = rows[: task.num_rows]
    if task.extra_training_file is not None:
        path, num_rows = task.extra_training_file
        rows += _draw_rows(data.read_rows(path), num_rows, seed)
    return rows


def _is_phrase_of(text: str, held_out_text: str) -> bool:
    """Return whether a text of at least three words is a part of held-out text."""
    return len(text.split()) >= MIN_PHRASE_WORDS and text in held_out_text


def read_held_out_rows(task: Task, seed: int) -> list[dict[str, Any]]:
    """Draw the rows kept out of training, each at least as long as a sentence."""
    if not task.num_held_out:
        return []
    rows = _draw_rows(data.read_rows(task.train), None, seed)
    sentences = [row for row in rows if len(row["text"].split()) >= MIN_SENTENCE_WORDS]
    return sentences[: task.num_held_out]


def _draw_rows(rows: list[dict[str, Any]], num_rows: int | None, seed: int) -> list[dict[str, Any]]:
    order = np.random.default_rng(seed).permutation(len(rows))
    return [rows[index] for index in order[:num_rows]]


def read_labels(task: Task) -> dict[int, str]:
    """Read the name of each label from ``labels.json`` beside the training file."""
    folder = data.find_data_folder() / task.train.partition("/")[0]
    names = json.loads((folder / "labels.json").read_text(encoding="utf-8"))
    return {int(number): str(name) for number, name in names.items()}


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Token ids and labels of rows of unequal length.

    Attributes:
        flat: Ids of all rows, laid end to end.
        ends: Where each row ends in ``flat``, ``row``.
        second_starts: Where the second segment of each row begins, ``row``; at its end if it has none.
        labels: Label of each row, ``row``, or first and last token of its answer, ``row 2``.
    """

    flat: np.ndarray
    ends: np.ndarray
    second_starts: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each row, ``row``."""
        return np.diff(self.ends, prepend=0)

    def build_batch(self, rows: np.ndarray) -> batches.Batch:
        """Build a batch of the chosen rows with their labels."""
        ids, lengths = batches.pad_rows(self.flat, self.ends, rows)
        inputs = batches.build_inputs(ids, lengths, self.second_starts[rows])
        labels = torch.from_numpy(self.labels[rows])
        if labels.dim() == 1:
            return inputs | {"labels": labels}
        return inputs | {"start_positions": labels[:, 0], "end_positions": labels[:, 1]}


def mask_random_tokens(
    batch: batches.Batch, max_share: float, tokenizer: Any, generator: np.random.Generator
) -> batches.Batch:
    """Mask a random share of the tokens in a random half of the texts.

    Args:
        batch: The inputs of a model.
        max_share: Largest share; tokens that are not special are masked with equal probability.
        tokenizer: Names [MASK] and the special tokens.
        generator: Source of the random choices.

    Returns:
        The batch with masked ``input_ids``.
    """
    ids = batch["input_ids"].numpy()
    is_special = np.isin(ids, tokenizer.all_special_ids)
    is_ordinary = (batch["attention_mask"].numpy() > 0) & ~is_special
    column_shape = (len(ids), 1)
    drawn_shares = generator.uniform(0.0, max_share, column_shape)
    is_masked_text = generator.random(column_shape) < 0.5
    is_masked = is_ordinary & (generator.random(ids.shape) < drawn_shares * is_masked_text)
    masked_ids = np.where(is_masked, tokenizer.mask_token_id, ids)
    return batch | {"input_ids": torch.from_numpy(masked_ids)}


def encode_rows(task: Task, tokenizer: Any, rows: list[dict[str, Any]]) -> EncodedRows:
    """Encode rows; windows of a question that do not hold the answer point to [CLS]."""
    if task.kind == "question":
        windows = cut_windows(tokenizer, rows)
        answers = [locate_answer(window, rows[window.row]) for window in windows]
        window_ids = [window.ids for window in windows]
        context_starts = [window.context_start for window in windows]
        return _build_encoded_rows(window_ids, context_starts, answers)
    columns = split_pair_columns(task, rows)
    encoded = tokenizer(*columns, truncation=True, max_length=task.max_tokens)
    second_starts = []
    for ids, token_types in zip(encoded["input_ids"], encoded["token_type_ids"], strict=True):
        second_starts.append(len(ids) - sum(token_types))
    labels = [row["label"] for row in rows]
    return _build_encoded_rows(encoded["input_ids"], second_starts, labels)


def split_pair_columns(task: Task, rows: list[dict[str, Any]]) -> list[list[str]]:
    """Return the texts of classification rows as one list, or the halves of pairs as two."""
    if task.kind == "pair":
        return [[row["text_a"] for row in rows], [row["text_b"] for row in rows]]
    return [[row["text"] for row in rows]]


def _build_encoded_rows(
    ids: list[list[int]], second_starts: list[int], labels: list[Any]
) -> EncodedRows:
    row_arrays = [np.asarray(row_ids, dtype=np.int64) for row_ids in ids]
    return EncodedRows(
        flat=np.concatenate(row_arrays),
        ends=np.cumsum([len(row_ids) for row_ids in ids]),
        second_starts=np.asarray(second_starts),
        labels=np.asarray(labels, dtype=np.int64),
    )
