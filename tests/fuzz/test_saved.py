"""Saved explanations, heads and counts from anywhere: what loads can be shown and saved again."""

from __future__ import annotations

import dataclasses
import json

import tokenlight
from tests.fuzz.judge import judge, mutations
from tests.tiny import tiny_bert, tiny_bert_qa
from tokenlight import Explainer, Question
from tokenlight.evaluation.corpus import Frequencies
from tokenlight.heads.mask import HeadMask, head_mask
from tokenlight.plots.terminal import show

TEXTS = (
    "",
    "null",
    "5",
    '"x"',
    "[",
    "[" * 3000,
    "[]",
    "{}",
    '{"a":' * 500,
    "9" * 5000,
    "\x00",
    "[[]]",
    "NaN",
)


def bases(tokenizer):
    """Explanations of the kinds a file holds, as JSON values: with layers, a pair, an answer."""
    plain = Explainer(tiny_bert(), tokenizer)
    answers = Explainer(tiny_bert_qa(), tokenizer)
    found = plain.explain("good film , slow plot", "attcat")
    extras = {"trust": {"verdict": "it holds", "grade": "strong"}, "conservation": [1.0, 0.9]}
    yield "text", dataclasses.replace(found, extras=extras).to_dict(), 240
    yield "pair", plain.explain(("good film", "bad film"), "integrated_gradients").to_dict(), 80
    asked = Question("what was good ?", "the film was good")
    yield "answer", answers.explain(asked, "lrp").to_dict(), 80


def used(file, tmp_path):
    """All that a person does with a saved explanation."""
    found = tokenlight.load(file)
    show(found)
    for one in found:
        one.to_html()
        one.words(), one.top(), one.sentences(), one.segment_shares(), repr(one)
        for ending in ("json", "csv", "parquet"):
            one.save(tmp_path / f"again.{ending}")
        tokenlight.load(tmp_path / "again.json")


def test_a_bad_saved_explanation_is_shown_or_refused_in_words(tokenizer, tmp_path):
    file = tmp_path / "saved.json"

    def use(text):
        file.write_text(text)
        used(file, tmp_path)

    inputs = {f"the file is {text[:20]!r}": text for text in TEXTS}
    for seed, (kind, content, count) in enumerate(bases(tokenizer)):
        inputs[f"{kind} as it is"] = json.dumps(content)
        for said, value in mutations(content, count, seed).items():
            inputs[f"{kind} {said}"] = json.dumps(value)
    assert len(inputs) >= 400
    found = judge({name: lambda text=text: use(text) for name, text in inputs.items()})
    assert found["right"] >= 3
    assert found["refused"] > 200


def test_a_bad_heads_file_or_corpus_is_read_or_refused_in_words(tmp_path):
    file = tmp_path / "file.json"
    heads = {"format": 1, "mask": HeadMask(((1, 0), (0, 2)), ((0, 0), (1, 1))).to_dict()}
    counts = {"format": 1, "tokenizer": "x", "documents": 3, "counts": {"a": 1, "b": 2}}

    def mask(text):
        file.write_text(text)
        made = head_mask(str(file))
        for kind in ("union", "random", "corrupted"):
            made.parts(kind, rate=0.5)

    def corpus(text):
        file.write_text(text)
        made = Frequencies.load(file)
        for how in ("log", "smooth", "none"):
            made.idf("a", how)
        made.save(tmp_path / "again.json")

    inputs = {f"heads {text[:20]!r}": lambda text=text: mask(text) for text in TEXTS}
    inputs |= {f"corpus {text[:20]!r}": lambda text=text: corpus(text) for text in TEXTS}
    for said, value in mutations(heads, 60, 5).items():
        inputs[f"heads {said}"] = lambda value=value: mask(json.dumps(value))
    for said, value in mutations(counts, 60, 6).items():
        inputs[f"corpus {said}"] = lambda value=value: corpus(json.dumps(value))
    inputs["heads of a device that never ends"] = lambda: head_mask("/dev/zero")
    inputs["heads of a folder"] = lambda: head_mask(str(tmp_path))
    inputs["a corpus that never ends"] = lambda: Frequencies.load("/dev/zero")
    assert len(inputs) >= 140
    judge(inputs)
