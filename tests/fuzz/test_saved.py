"""Saved explanations, heads and counts from anywhere: what loads can be shown and saved again."""

from __future__ import annotations

import dataclasses
import json

import tokenlight
from tests.fuzz.outcomes import count_outcomes, mutate
from tests.helpers.tiny import tiny_bert, tiny_bert_qa
from tokenlight import Explainer, Question
from tokenlight.attention_heads.mask import HeadMask, make_head_mask
from tokenlight.evaluation.corpus import DocumentFrequencies
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


def make_bases(tokenizer):
    """Explanations of the kinds a file holds, as JSON values: with layers, a pair, an answer."""
    plain = Explainer(tiny_bert(), tokenizer)
    answers = Explainer(tiny_bert_qa(), tokenizer)
    attribution = plain.explain("good film , slow plot", "attcat")
    extras = {"trust": {"verdict": "it holds", "grade": "strong"}, "conservation": [1.0, 0.9]}
    yield "text", dataclasses.replace(attribution, extras=extras).to_dict(), 240
    yield "pair", plain.explain(("good film", "bad film"), "integrated_gradients").to_dict(), 80
    question = Question("what was good ?", "the film was good")
    yield "answer", answers.explain(question, "lrp").to_dict(), 80


def use_file(file, tmp_path):
    """All that a person does with a saved explanation."""
    attributions = tokenlight.load(file)
    show(attributions)
    for attribution in attributions:
        attribution.to_html()
        attribution.words()
        attribution.top()
        attribution.sentences()
        attribution.segment_shares()
        repr(attribution)
        for ending in ("json", "csv", "parquet"):
            attribution.save(tmp_path / f"again.{ending}")
        tokenlight.load(tmp_path / "again.json")


def test_a_bad_saved_explanation_is_shown_or_refused(tokenizer, tmp_path):
    file = tmp_path / "saved.json"

    def use(text):
        file.write_text(text)
        use_file(file, tmp_path)

    inputs = {f"the file is {text[:20]!r}": text for text in TEXTS}
    for seed, (kind, content, count) in enumerate(make_bases(tokenizer)):
        inputs[f"{kind} as it is"] = json.dumps(content)
        for mutation, value in mutate(content, count, seed).items():
            inputs[f"{kind} {mutation}"] = json.dumps(value)
    assert len(inputs) >= 400
    outcomes = count_outcomes({name: lambda text=text: use(text) for name, text in inputs.items()})
    assert outcomes["right"] >= 3
    assert outcomes["refused"] > 200


def test_a_bad_heads_file_or_corpus_is_read_or_refused(tmp_path):
    file = tmp_path / "file.json"
    heads = {"format": 1, "mask": HeadMask(((1, 0), (0, 2)), ((0, 0), (1, 1))).to_dict()}
    counts = {"format": 1, "tokenizer": "x", "documents": 3, "counts": {"a": 1, "b": 2}}

    def load_mask(text):
        file.write_text(text)
        loaded = make_head_mask(str(file))
        for kind in ("union", "random", "corrupted"):
            loaded.build_components(kind, rate=0.5)

    def load_corpus(text):
        file.write_text(text)
        loaded = DocumentFrequencies.load(file)
        for idf in ("log", "smooth", "none"):
            loaded.idf("a", idf)
        loaded.save(tmp_path / "again.json")

    inputs = {f"heads {text[:20]!r}": lambda text=text: load_mask(text) for text in TEXTS}
    inputs |= {f"corpus {text[:20]!r}": lambda text=text: load_corpus(text) for text in TEXTS}
    for mutation, value in mutate(heads, 60, 5).items():
        inputs[f"heads {mutation}"] = lambda value=value: load_mask(json.dumps(value))
    for mutation, value in mutate(counts, 60, 6).items():
        inputs[f"corpus {mutation}"] = lambda value=value: load_corpus(json.dumps(value))
    inputs["heads of a device that never ends"] = lambda: make_head_mask("/dev/zero")
    inputs["heads of a folder"] = lambda: make_head_mask(str(tmp_path))
    inputs["a corpus that never ends"] = lambda: DocumentFrequencies.load("/dev/zero")
    assert len(inputs) >= 140
    count_outcomes(inputs)
