"""The fine-tuning recipe: a tiny random encoder learns a planted word, and an answer's place."""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import BertModel

from tests.helpers.tiny import tiny_config, tiny_tokenizer
from tokenlight import Explainer, Question
from training import finetune
from training.tasks import TASKS, encode_rows, read_labels, read_training_rows, shrink_task

FILLERS = ["the", "film", "is", "a", "movie", "plot", "and", "acting", "it", "was", "this", "slow"]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    with torch.random.fork_rng():  # the same encoder whatever tests ran before
        torch.manual_seed(0)
        BertModel(tiny_config(num_hidden_layers=2)).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def write(folder: Path, name: str, rows: list[dict]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with gzip.open(folder / name, "wt", encoding="utf-8") as lines:
        lines.write("".join(json.dumps(row) + "\n" for row in rows))


def make_sentences(count: int, seed: int) -> list[dict]:
    """Fillers around one word that decides: great or dull."""
    generator = random.Random(seed)
    rows = []
    for number in range(count):
        words = generator.choices(FILLERS, k=generator.randint(3, 9))
        words.insert(generator.randint(0, len(words)), ("dull", "great")[number % 2])
        rows.append({"text": " ".join(words), "label": number % 2})
    return rows


@pytest.fixture
def reviews(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "data"
    write(folder / "sst2", "train.jsonl.gz", make_sentences(64, seed=1))
    write(folder / "sst2", "dev.jsonl.gz", make_sentences(40, seed=2))
    (folder / "sst2" / "labels.json").write_text('{"0": "negative", "1": "positive"}')
    monkeypatch.setenv("TOKENLIGHT_DATA", str(folder))
    return folder


@pytest.mark.usefixtures("reviews")
def test_a_tiny_encoder_learns_the_planted_word_and_its_files_explain_themselves(base, tmp_path):
    task = replace(TASKS["sst2"], epochs=30, batch=16, rate=3e-3, max_tokens=24)
    figures = finetune.finetune("sst2", task, finetune.RunSettings(base, tmp_path / "out"))
    assert figures["accuracy"] == 1.0
    assert (figures["rows"], figures["steps"], figures["dev_rows"]) == (64, 120, 40)
    folder = tmp_path / "out" / "sst2"
    assert not [file for file in folder.iterdir() if file.suffix in (".bin", ".pt", ".pkl")]
    explainer = Explainer.from_pretrained(folder)
    assert explainer.labels == ("negative", "positive")
    top_words = {}
    for word, label in (("great", "positive"), ("dull", "negative")):
        text = f"this film was {word} and the plot is slow"
        explained = explainer.explain(text, ("occlusion", {"window": 1}))
        assert explained.prediction.label == label
        top_words[word] = explained.top(1)[0]
    # A text without either word has one of the two classes, so one word may be redundant; not both.
    decisive_word = max(top_words, key=lambda word: top_words[word][1])
    assert top_words[decisive_word][0] == decisive_word


def test_an_answer_is_learned_and_scored_as_squad_does(base, tmp_path, monkeypatch):
    generator = random.Random(3)
    rows = []
    for number in range(64):
        words = generator.choices(FILLERS, k=8)
        answer = ("red", "blue", "green")[number % 3]
        words.insert(generator.randint(0, 8), answer)
        context = " ".join(words)
        answer_span = {"text": answer, "answer_start": context.index(answer)}
        rows.append({"question": "what ?", "context": context, "answers": [answer_span]})
    write(tmp_path / "data" / "squad_v1", "train_subset.jsonl.gz", rows[:48])
    write(tmp_path / "data" / "squad_v1", "dev.jsonl.gz", rows[48:])
    monkeypatch.setenv("TOKENLIGHT_DATA", str(tmp_path / "data"))
    task = replace(TASKS["squad_v1"], epochs=40, batch=16, rate=3e-3)
    figures = finetune.finetune("squad_v1", task, finetune.RunSettings(base, tmp_path / "out"))
    assert figures["exact_match"] >= 0.9
    assert figures["f1"] >= figures["exact_match"]
    explainer = Explainer.from_pretrained(tmp_path / "out" / "squad_v1")
    question = Question(question="what ?", context="the film was blue and slow")
    assert "blue" in explainer.explain(question, "attcat").prediction.label


@pytest.mark.usefixtures("reviews")
def test_weights_depend_on_the_seed_and_on_gaps(base, tmp_path):
    task = shrink_task(TASKS["sst2"])
    weights = {}
    for name, seed in (("one", 20), ("same", 20), ("other", 21)):
        finetune.finetune("sst2", task, finetune.RunSettings(base, tmp_path / name, seed=seed))
        weights[name] = load_file(tmp_path / name / "sst2" / "model.safetensors")
    assert all((weights["one"][key] == weights["same"][key]).all() for key in weights["one"])
    assert any((weights["one"][key] != weights["other"][key]).any() for key in weights["one"])
    masked = replace(task, max_mask_share=0.5)
    finetune.finetune("sst2", masked, finetune.RunSettings(base, tmp_path / "masked"))
    gaps = load_file(tmp_path / "masked" / "sst2" / "model.safetensors")
    assert any(
        (weights["one"][key] != gaps[key]).any() for key in gaps
    )  # it has learned other texts


def test_pairs_are_cut_and_their_second_half_is_the_second_segment():
    rows = [
        {"text_a": "the film is great", "text_b": "it is dull", "label": 2},
        {"text_a": "a " * 40, "text_b": "slow", "label": 0},
    ]
    task = replace(TASKS["qqp"], max_tokens=16)
    encoded = encode_rows(task, tiny_tokenizer(), rows)
    batch = encoded.build_batch(np.array([0, 1]))
    assert encoded.lengths.tolist() == [10, 16]
    assert batch["token_type_ids"][0].tolist() == [0] * 6 + [1] * 4 + [0] * 6
    assert batch["attention_mask"].sum(dim=1).tolist() == [10, 16]
    assert batch["labels"].tolist() == [2, 0]


@pytest.mark.usefixtures("reviews")
def test_rows_are_drawn_by_the_seed_and_another_file_may_add_to_them():
    task = replace(TASKS["sst2"], num_rows=10, extra_training_file=("sst2/dev.jsonl.gz", 5))
    first = read_training_rows(task, 1)
    second = read_training_rows(task, 2)
    assert len(first) == 15
    assert first == read_training_rows(task, 1)
    assert first != second
    assert read_labels(task) == {0: "negative", 1: "positive"}


def test_a_data_set_that_fails_is_named_and_the_others_are_kept(base, reviews, tmp_path):
    write(reviews / "imdb", "train_subset.jsonl.gz", [{"no": "text"}])
    (reviews / "imdb" / "labels.json").write_text('{"0": "a", "1": "b"}')
    tasks = {name: shrink_task(TASKS[name]) for name in ("imdb", "sst2")}
    settings = finetune.RunSettings(base, tmp_path / "out")
    results, errors = finetune.finetune_all(tasks, settings, num_processes=1)
    assert list(results) == ["sst2"]
    assert list(errors) == ["imdb"]
    saved_figures = json.loads((tmp_path / "out" / "figures.json").read_text())
    assert list(saved_figures["figures"]) == ["sst2"]
    assert "| sst2 | 16 | 2 | 8 | accuracy" in finetune.format_results(results)
