"""Texts whose right answer was put there: marks stand where the words are, chance is what it should be."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
import torch

from tests.helpers.handmade_attributions import make_attribution, make_row, split_words
from tokenlight import SpanTarget, registry
from tokenlight.data.head import Head
from tokenlight.files.tables import parse_example
from tokenlight.metrics.base import Case
from tokenlight.perturb.variants import Perturber, ReplacementIds
from training import packed, planted, tasks

HEAD = Head("text-classification", labels=("negative", "positive"))
ROWS = [
    {"text": f"the {first} {second} of a {third} film was long", "label": n % 2}
    for n, (first, second, third) in enumerate(
        [("old", "plot", "dull"), ("new", "cast", "fine"), ("odd", "end", "sad"), ("tame", "joke", "flat")]
    )
]  # fmt: skip


@pytest.mark.parametrize("kind", planted.KINDS)
def test_marks_cover_the_planted_words_and_contradict_the_text(kind):
    planted_rows = list(planted.make_test_rows(ROWS * 25, kind, random.Random(1)))
    for row, source_row in zip(planted_rows, ROWS * 25, strict=True):
        words = [row["text"][start:end] for start, end in row["spans"]]
        assert row["label"] != source_row["label"]
        remaining_words = row["text"].split()
        for word in words:
            remaining_words.remove(word)
        assert remaining_words == source_row["text"].split()
        planted_phrase, other = (planted.FIRST, planted.SECOND)[:: 1 if row["label"] == 0 else -1]
        expected_words = {"single": [planted_phrase], "pair": [planted_phrase, other]}
        assert words == expected_words.get(kind, words)
        if kind == "context":
            assert sorted(words) == sorted([planted_phrase, planted.CONTEXT_WORD])


@pytest.mark.parametrize("kind", planted.KINDS)
def test_half_of_the_training_texts_are_decided_and_a_part_of_a_shortcut_decides_nothing(kind):
    rows = ROWS * 50
    planted_rows = list(planted.make_training_rows(rows, kind, random.Random(2)))
    decided = planted_rows[1::2]
    assert {row["label"] for row in decided} == {0, 1}
    for row, source_row in zip(planted_rows[::2], rows[::2], strict=True):
        assert row["label"] == source_row["label"]
        assert len(row["spans"]) <= (kind != "single")


@pytest.mark.parametrize("kind", planted.KINDS)
def test_the_oracle_finds_every_shortcut_and_a_random_order_as_many_as_chance(kind):
    metric = registry.build("metrics", "rationale", {"report": "f1"})
    pointing = registry.build("metrics", "pointing_game", {})
    generator = np.random.default_rng(0)
    oracle = []
    chance = []
    random_values = []
    expected = []
    for row in planted.make_test_rows(ROWS * 100, kind, random.Random(3)):
        tokens = make_row([row["text"]], [split_words(row["text"])])
        spans = tuple((0, start, end) for start, end in row["spans"])
        marked = [
            float(span is not None and any(s <= span[0] < e for _, s, e in spans))
            for span in tokens.spans
        ]
        for scores, values in (
            (marked, oracle),
            (generator.normal(size=len(marked)), random_values),
        ):
            case = Case(
                make_attribution(tokens, scores),
                Perturber(tokens, ReplacementIds(0, 0)),
                HEAD,
                spans=spans,
            )
            values.append(metric.measure(case, []).value)
            if values is oracle:
                assert pointing.measure(case, []).value == 1.0
                chance.append(pointing.measure(case, []).parts["chance"])
        expected.append(len(spans) / (len(tokens) - 2))
    assert min(oracle) >= 0.98
    assert chance == pytest.approx(expected)
    # Of k marked among m the share in k random ones is k / m in the mean; 400 texts, four standard errors.
    assert (
        abs(np.mean(random_values) - np.mean(expected))
        < 4 * np.std(random_values) / len(random_values) ** 0.5
    )


def test_hybrid_documents_mark_each_topics_own_part():
    rows = [{"text": f" topic {n} text {i} ", "label": n} for n in range(4) for i in range(5)]
    planted_rows = list(planted.join_topics(rows, 3, random.Random(4)))
    assert len(planted_rows) == 12
    for row in planted_rows:
        ((start, end),) = row["spans"]
        assert row["text"][start:end].startswith(f"topic {row['label']} ")
        assert row["text"][start:end] == row["text"][start:end].strip()
    for first, second in pairwise(planted_rows[:4]):
        assert first["text"] == second["text"]


def test_a_passage_among_others_is_marked_and_its_answers_move_with_it():
    rows = [
        {
            "question": f"what is {n} ?",
            "context": f"passage {n} says {n} . it is short .",
            "answers": [
                {"text": f"{n}", "answer_start": 15},
                {"text": "short", "answer_start": 25},
            ],
        }
        for n in range(8)
    ]
    planted_rows = list(planted.join_contexts(rows, 8, random.Random(5)))
    assert len(planted_rows) == 8
    for row in planted_rows:
        ((start, end),) = row["spans"]
        passage = row["context"][start:end]
        assert passage in {source_row["context"] for source_row in rows}
        assert len(row["context"]) == 3 * len(passage) + 2
        for answer in row["answers"]:
            at = answer["answer_start"]
            assert row["context"][at : at + len(answer["text"])] == answer["text"]
            assert start <= at < end


def test_a_question_is_explained_for_its_true_answer_and_its_marks_are_the_passage():
    row = {"question": "who ?", "context": "a b c", "spans": [[0, 3]]}
    rows_by_kind = {
        "hybrid": row | {"answers": [{"text": "b", "answer_start": 2}]},
        "plain": {
            "question": "who ?",
            "context": "a b c",
            "answers": [{"text": "c", "answer_start": 4}],
        },
        "unanswered": {"question": "who ?", "context": "a b c", "answers": []},
        "label": {"text": "a b c", "label": 1},
    }
    truths = {
        name: parse_example(fields, name).true_target for name, fields in rows_by_kind.items()
    }
    assert truths == {
        "hybrid": SpanTarget(characters=(2, 3)),
        "plain": SpanTarget(characters=(4, 5)),
        "unanswered": SpanTarget(no_answer=True),
        "label": 1,
    }
    assert parse_example(rows_by_kind["hybrid"], "").spans == ((0, 3),)


def test_a_question_counts_neither_as_right_nor_as_wrong_in_the_pointing_game():
    tokens = make_row(["who ?", "a b c d"], [split_words("who ?"), split_words("a b c d")])
    spans = ((1, 0, 3),)
    scores = [9.0 if part == 0 else 0.0 for part in tokens.segments]
    scores[[i for i, part in enumerate(tokens.segments) if part == 1][1]] = 1.0  # b
    case = Case(
        make_attribution(tokens, scores), Perturber(tokens, ReplacementIds(0, 0)), HEAD, spans=spans
    )
    measurement = registry.build("metrics", "pointing_game", {}).measure(case, [])
    assert measurement.value == 1.0
    assert measurement.parts["chance"] == 0.5


def test_texts_kept_out_of_training_take_their_phrases_with_them(monkeypatch):
    rows = [{"text": f"one two three four five six seven number {n}", "label": 0} for n in range(9)]
    rows += [{"text": f"six seven number {n}", "label": 0} for n in range(9)]
    rows += [{"text": "seven", "label": 1}]
    monkeypatch.setattr(tasks.data, "read_rows", lambda *_: rows)
    task = tasks.Task("text", "x", "x", num_held_out=3)
    held = [row["text"] for row in tasks.read_held_out_rows(task, 0)]
    learned = [row["text"] for row in tasks.read_training_rows(task, 0)]
    assert len(held) == 3
    assert len(learned) == 19 - 6
    assert not any(text in held_text for held_text in held for text in learned if text != "seven")


def test_packed_weights_come_back_within_half_a_step():
    weights = {"a": torch.randn(5, 7), "b": torch.randn(7), "zero": torch.zeros(2, 3)}
    for bits in (6, 8):
        small = packed.quantize(weights, bits)
        back = packed.dequantize(small)
        assert set(back) == set(weights)
        assert small["a.rows"].dtype == torch.int8
        scale = small["a.scale"].float()
        assert ((back["a"] - weights["a"]).abs() <= 0.5 * scale * 1.001).all()
        assert (back["b"] - weights["b"]).abs().max() < 2e-3
        assert (back["zero"] == 0).all()


def test_words_of_both_polarities_are_marked_with_their_polarity_as_the_label():
    trees = [
        "(3 (2 (4 Fine) (2 -LRB-)) (1 (2 (0 dull) (3 good)) (2 and\\/or)))",
        "(3 (2 all) (4 good))",
    ]
    rows = list(planted.mark_signed_words(trees))
    assert [row["label"] for row in rows] == [1, 0]
    assert {row["text"] for row in rows} == {"Fine ( dull good and/or"}
    marked = [[row["text"][start:end] for start, end in row["spans"]] for row in rows]
    assert marked == [["Fine", "good"], ["dull"]]


def test_gaps_leave_half_of_the_texts_and_all_special_tokens_unchanged():
    class Names:
        all_special_ids = (0, 2, 3, 4)
        mask_token_id = 4

    ids = torch.arange(5, 105).repeat(400, 1)
    ids[:, 0] = 2
    ids[:, 90] = 3
    ids[:, 91:] = 0
    batch = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    generator = np.random.default_rng(0)
    masked_ids = tasks.mask_random_tokens(batch, 0.2, Names, generator)["input_ids"]
    is_masked = (masked_ids != ids).numpy()
    assert (masked_ids[torch.from_numpy(is_masked)] == 4).all()
    assert not is_masked[:, [0, *range(90, 100)]].any()
    # Half of the rows have none; of the others a share uniform on [0, 0.2] of 89 tokens. A row of those
    # is untouched with probability below 1/17: none with mean 0.5 + 0.5 · 5.6 %. Five deviations wide.
    shares = is_masked[:, 1:90].mean(axis=1)
    untouched = float((shares == 0).mean())
    assert abs(untouched - 0.528) < 5 * np.sqrt(0.25 / 400)
    assert abs(float(shares.mean()) - 0.05) < 5 * 0.065 / 20
    assert tasks.TASKS["masked_sst2"].max_mask_share == 0.1
    assert tasks.TASKS["sst2"].max_mask_share == 0.0
