"""Texts and models of the trust calibration: six tasks, every text held out.

Every text is from a split that no model was trained on. Two models are trained on the way: pairs of questions
and parts of speech, from the embedded encoder.

A first calibration read all sentences of SST-2 dev, but only a sample of AG News test. Two further sources
have texts that it did not read: the sentences of SST test, and the rest of AG News test.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from tokenlight import Explainer, TokenTarget
from tokenlight.files.tables import read_examples
from tokenlight.models import resolve_path

TASKS = {
    "text": "SST-2 dev, sentences",
    "topic": "AG News test",
    "pair": "QQP, pairs of questions",
    "question": "SQuAD v1.1 dev, answer spans",
    "next": "WikiText-103 test, next token of stories15M",
    "token": "UD English EWT test, part of speech of one word",
}
TRAINED_TASKS = ("pair", "token")
FURTHER_TASKS = {
    "text": "SST test, sentences",
    "topic": "further texts of it",
}
NUM_FIRST_TOPICS = 265  # texts of AG News test that the first calibration drew
NEUTRAL = 2  # the label of a sentence of SST that SST-2 leaves out
SMALLEST_SHARED_WORDS = 5  # a shorter sentence may be a phrase of many others
MAX_PASSAGE_WORDS = 75  # a long one costs as much as twenty sentences
MIN_TAGGED_WORDS = 5
TRAINING_STEPS = 150
TRAINING_BATCH = 16
IGNORED_LABEL = -100  # of the loss


def read_texts(task: str, data: Path, count: int) -> list[tuple[Any, Any]]:
    """Return inputs with their targets, in a random order."""
    if task == "token":
        inputs = [(" ".join(words), TokenTarget(i)) for words, _, i in _read_tagged(data, "test")]
    elif task == "next":
        lines = gzip.decompress((data / "wikitext103_eval/wiki.test.tokens.gz").read_bytes())
        inputs = [(_cut_prompt(line), "predicted") for line in lines.decode().splitlines()]
        inputs = [(text, target) for text, target in inputs if text]
    else:
        name = {
            "text": "sst2/dev", "topic": "ag_news/test", "pair": "qqp/test_subset",
            "question": "squad_v1/dev",
        }[task]  # fmt: skip
        inputs = [(e.text, "predicted") for e in read_examples(data / f"{name}.jsonl.gz")]
    if task == "question":
        inputs = [pair for pair in inputs if _is_short(pair[0])]
    order = np.random.default_rng(0).permutation(len(inputs))
    return [inputs[i] for i in order[:count]]


def read_further_texts(task: str, data: Path, count: int) -> list[tuple[Any, Any]]:
    """Return inputs with their targets that the first calibration did not read, in a random order.

    Args:
        task: A key of ``FURTHER_TASKS``.
        data: The folder of public data sets.
        count: The most texts to return.
    """
    if task == "text":
        texts = _read_sst_test(data)
    else:
        lines = _read_lines(data / "ag_news/test.jsonl.gz")
        drawn = set(_draw(lines, NUM_FIRST_TOPICS))
        training_texts = {
            json.loads(line)["text"] for line in _read_lines(data / "ag_news/train_subset.jsonl.gz")
        }
        texts = [json.loads(line)["text"] for line in lines if line not in drawn]
        texts = [text for text in texts if text not in training_texts]
    order = np.random.default_rng(0).permutation(len(texts))
    return [(texts[i], "predicted") for i in order[:count]]


def _read_sst_test(data: Path) -> list[str]:
    """Read the sentences of SST test that are not neutral, spelled as in SST-2.

    Sentences that are also in SST-2 train or dev, or a part of one, are left out. So are very short ones,
    which cannot be compared.
    """
    known = []
    for split in ("train", "dev"):
        for line in _read_lines(data / f"sst2/{split}.jsonl.gz"):
            known.append(json.loads(line)["text"].strip())
    known_text = "\n".join(known)
    sentences = []
    for tree in _read_lines(data / "sst_trees/test.txt.gz"):
        words = re.findall(r"\(\d ([^()]+)\)", tree)
        spelled = " ".join(words).replace("-LRB-", "(").replace("-RRB-", ")").replace("\\/", "/")
        sentence = spelled.lower()
        is_neutral = tree.startswith(f"({NEUTRAL} ")
        is_comparable = len(words) >= SMALLEST_SHARED_WORDS
        if is_comparable and not is_neutral and sentence not in known_text:
            sentences.append(sentence)
    return sentences


def _read_lines(path: Path) -> list[str]:
    return gzip.decompress(path.read_bytes()).decode().splitlines()


def _is_short(question: Any) -> bool:
    return len(question.context.split()) <= MAX_PASSAGE_WORDS


def _cut_prompt(line: str) -> str:
    """Return the first 6 to 40 words of a paragraph; empty if it is a heading or short."""
    words = line.replace(" @-@ ", "-").split()
    length = 6 + sum(map(ord, line)) % 35
    return " ".join(words[:length]) if len(words) > length + 5 and "=" not in words[0] else ""


def _read_tagged(data: Path, split: str) -> Iterator[tuple[list[str], list[str], int]]:
    """Yield words, tags and the index of one word of each sentence."""
    raw = gzip.decompress((data / f"ud_ewt/en_ewt-ud-{split}.conllu.gz").read_bytes()).decode()
    for block in raw.split("\n\n"):
        rows = [line.split("\t") for line in block.splitlines() if line and line[0] != "#"]
        rows = [row for row in rows if row[0].isdigit()]
        if len(rows) >= MIN_TAGGED_WORDS:
            words = [row[1] for row in rows]
            yield words, [row[3] for row in rows], len(words) // 2


def train_model(task: str, data: Path, folder: Path, device: str) -> None:
    """Fine-tune the embedded encoder on pairs or tags: a minute on a GPU. An existing folder is kept.

    Args:
        task: "pair" or "token".
        data: The folder of public data sets.
        folder: Folder for the model.
        device: Name of a torch device.
    """
    if (folder / "config.json").is_file():
        return
    tokenizer = transformers.AutoTokenizer.from_pretrained(resolve_path("tokenlight/masked_lm"))
    rows, labels = _read_training_rows(task, data)
    model = _load_model_with_head(task, labels).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    generator = np.random.default_rng(0)
    for _ in range(TRAINING_STEPS):
        batch = [rows[i] for i in generator.integers(len(rows), size=TRAINING_BATCH)]
        encoded, targets = _encode_batch(task, tokenizer, batch, labels)
        loss = model(**encoded.to(device), labels=targets.to(device)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    # Other processes wait for the folder, so that it must be complete when it appears.
    draft = folder.with_name(f"{folder.name}_draft")
    model.save_pretrained(draft)
    tokenizer.save_pretrained(draft)
    draft.rename(folder)
    print(f"{task}: trained, last loss {loss.item():.3f}", flush=True)


def _read_training_rows(task: str, data: Path) -> tuple[list[Any], list[str]]:
    """Return inputs with their targets, and the names of the labels."""
    if task == "pair":
        examples = read_examples(data / "qqp/train_subset.jsonl.gz")
        rows: list[Any] = [(example.text, int(example.label)) for example in examples]
        return rows, ["different", "duplicate"]
    rows = [(words, tags) for words, tags, _ in _read_tagged(data, "train")]
    labels = sorted({tag for _, tags in rows for tag in tags})
    return rows, labels


def _load_model_with_head(task: str, labels: list[str]) -> Any:
    """Load the embedded encoder with a new head for pairs or tags."""
    model_class: Any = transformers.BertForTokenClassification
    if task == "pair":
        model_class = transformers.BertForSequenceClassification
    id_to_label = dict(enumerate(labels))
    return model_class.from_pretrained(
        resolve_path("tokenlight/masked_lm"),
        num_labels=len(labels),
        id2label=id_to_label,
        label2id={label: index for index, label in id_to_label.items()},
        dtype=torch.float32,
    )


def _encode_batch(
    task: str, tokenizer: Any, batch: list[Any], labels: list[str]
) -> tuple[Any, torch.Tensor]:
    """Return inputs of the model, and the label of each pair or of each token."""
    encoded = tokenizer(
        [text for text, _ in batch],
        is_split_into_words=task == "token",
        padding=True,
        truncation=True,
        max_length=96,
        return_tensors="pt",
    )
    if task == "pair":
        return encoded, torch.tensor([label for _, label in batch])
    targets = torch.full(encoded["input_ids"].shape, IGNORED_LABEL)
    for row, (_, tags) in enumerate(batch):
        for position, word in enumerate(encoded.word_ids(row)):
            if word is not None:
                targets[row, position] = labels.index(tags[word])
    return encoded, targets


@cache
def load_explainer(model: str, device: str) -> Explainer:
    """Load a model once per process, on one thread."""
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    return Explainer.from_pretrained(model, device=device)


def pack(data: Path, folder: Path, count: int) -> None:
    """Copy what measuring reads of DATA: at most ``count`` texts of each task, and what training draws.

    Args:
        data: The folder of public data sets.
        folder: Folder for the copy.
        count: Texts of each task.
    """
    num_trained = TRAINING_STEPS * TRAINING_BATCH  # as many as training draws
    for name, limit in (
        ("sst2/dev.jsonl.gz", count), ("ag_news/test.jsonl.gz", count // 4),
        ("qqp/test_subset.jsonl.gz", count), ("squad_v1/dev.jsonl.gz", count),
        ("wikitext103_eval/wiki.test.tokens.gz", count),
        ("qqp/train_subset.jsonl.gz", num_trained),
    ):  # fmt: skip
        lines = gzip.decompress((data / name).read_bytes()).decode().splitlines()
        if name.startswith("squad"):
            lines = [line for line in lines if _is_short_passage(json.loads(line))]
        elif name.startswith("wiki"):
            lines = [line for line in lines if _cut_prompt(line)]
        _write_packed(folder / name, "\n".join(_draw(lines, limit)) + "\n")
    for split, limit in (("test", count), ("train", num_trained)):
        name = f"ud_ewt/en_ewt-ud-{split}.conllu.gz"
        blocks = gzip.decompress((data / name).read_bytes()).decode().split("\n\n")
        shortened = [list(_shorten_rows(block)) for block in blocks]
        sentences = ["\n".join(rows) for rows in shortened if len(rows) >= MIN_TAGGED_WORDS]
        _write_packed(folder / name, "\n\n".join(_draw(sentences, limit)) + "\n\n")
    (folder / "qqp/labels.json").write_bytes((data / "qqp/labels.json").read_bytes())


def _draw(items: list[str], count: int) -> list[str]:
    """Return so many items, drawn at random, in their order."""
    chosen = np.random.default_rng(1).permutation(len(items))[:count]
    return [items[i] for i in sorted(chosen)]


def _is_short_passage(example: dict[str, Any]) -> bool:
    return len(str(example["context"]).split()) <= MAX_PASSAGE_WORDS


def _shorten_rows(block: str) -> Iterator[str]:
    """Yield the rows of a sentence without comments, with number, word and tag alone."""
    for line in block.splitlines():
        if line and line[0] != "#":
            number, word, _, tag, *_ = line.split("\t")
            if number.isdigit():
                yield "\t".join((number, word, "_", tag))


def _write_packed(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content.encode(), mtime=0))
