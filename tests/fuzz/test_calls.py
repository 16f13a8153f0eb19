"""Calls of the library with what does not belong there."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import tokenlight
from tests.fuzz.outcomes import count_outcomes
from tests.fuzz.public_calls import Fixtures, calls, fuzz_calls
from tests.helpers.tiny import tiny_bert, tiny_bert_lm, tiny_bert_qa
from tokenlight import (
    Attribution,
    Chat,
    Continuation,
    Contrast,
    Explainer,
    NextToken,
    Picture,
    Question,
    SpanTarget,
    Tokens,
    TokenTarget,
    registry,
)
from tokenlight.data import postprocess

TEXT = "good film , slow plot"
QUESTION = Question("who ?", "we love the film")
VALUES = (
    None, True, -1, 0, 3, 10**9, 10**30, 0.5, float("nan"), float("inf"), "", "x", "\ud800", "\x00", "x" * 5000, b"x", [],
    [None], ["x"], [[1]], (), (1, 2), {}, {"a": 1}, object(), int, np.array([]), np.array([1.5]), torch.zeros(2, 2), {1, 2},
)  # fmt: skip


def make_inputs(explainer):
    for value in VALUES:
        yield f"text {value!r:.30}", lambda value=value: explainer.explain(value)
        yield f"texts {value!r:.30}", lambda value=value: explainer.explain([TEXT, value])
        yield f"pair {value!r:.30}", lambda value=value: explainer.explain((TEXT, value))
        yield f"ids {value!r:.30}", lambda value=value: explainer.explain(Tokens.from_ids(value))
        mask = lambda value=value: explainer.explain(Tokens.from_ids([[2, 5, 3]], value))  # noqa: E731
        yield f"mask {value!r:.30}", mask


def make_keywords(explainer):
    """Each keyword of explain() with each value."""
    for word in ("method", "target", "explain_mask", "token_types", "long", "seed", "batch_tokens"):
        for value in VALUES:
            yield (
                f"{word}={value!r:.30}",
                lambda word=word, value=value: explainer.explain(TEXT, **{word: value}),
            )


def make_targets(explainer, answers, words):
    for value in VALUES:
        for name, make_target in {
            "contrast": lambda value: Contrast(value, 0),
            "other contrast": lambda value: Contrast("positive", value),
            "next": NextToken,
            "token": TokenTarget,
            "continuation": Continuation,
        }.items():
            yield (
                f"{name} {value!r:.30}",
                lambda make_target=make_target, value=value: explainer.explain(
                    TEXT, target=make_target(value)
                ),
            )
        for field in ("start", "end", "answer", "occurrence", "characters"):
            yield (
                f"span {field}={value!r:.30}",
                lambda field=field, value=value: answers.explain(
                    QUESTION, target=SpanTarget(**{field: value})
                ),
            )
        yield (
            f"question {value!r:.30}",
            lambda value=value: answers.explain(Question(value, "a film")),
        )
        yield (
            f"context {value!r:.30}",
            lambda value=value: answers.explain(Question("who ?", value)),
        )
        yield (
            f"masked {value!r:.30}",
            lambda value=value: words.explain("the [MASK] was good", target=value),
        )


def make_options(explainer):
    """Every option of every method and metric with a value from the list."""
    chance = random.Random(4)
    for kind in ("methods", "metrics"):
        for name in registry.list_names(kind):
            for option in registry.describe_options(kind, name):
                for value in chance.sample(VALUES, 3):
                    act = (
                        (
                            lambda name=name, o=option, v=value: explainer.explain(
                                "good film", (name, {o: v})
                            )
                        )
                        if kind == "methods"
                        else (
                            lambda name=name, o=option, v=value: registry.build(
                                "metrics", name, {o: v}
                            )
                        )
                    )
                    yield f"{name} {option}={value!r:.30}", act


def make_results(explainer, tmp_path):
    attribution = explainer.explain(TEXT)
    for value in VALUES:
        yield f"evaluate {value!r:.30}", lambda value=value: explainer.evaluate(value, ["aopc"])
        yield f"metrics {value!r:.30}", lambda value=value: explainer.evaluate([attribution], value)
        yield (
            f"labels {value!r:.30}",
            lambda value=value: explainer.evaluate([attribution], ["aopc"], labels=value),
        )
        yield (
            f"spans {value!r:.30}",
            lambda value=value: explainer.evaluate([attribution], ["rationale"], spans=value),
        )
        yield f"words {value!r:.30}", lambda value=value: attribution.words(value)
        yield f"from_dict {value!r:.30}", lambda value=value: Attribution.from_dict(value)
        yield (
            f"load {value!r:.30}",
            lambda value=value: tokenlight.load(value if isinstance(value, str) else str(value)),
        )
        name = "".join(c for c in str(value)[:100] if c.isalnum())
        yield f"save {value!r:.20}", lambda name=name: attribution.save(tmp_path / f"{name}.json")
        yield f"ending {value!r:.20}", lambda name=name: attribution.save(tmp_path / f"it.{name}")
        yield (
            f"merged {value!r:.30}",
            lambda value=value: postprocess.merge_words(attribution, reduction=value),
        )
        yield f"picture {value!r:.30}", lambda value=value: explainer.explain(Picture(value))
        yield f"chat {value!r:.30}", lambda value=value: explainer.explain(Chat(value))


def make_models(bert_folder):
    for value in (
        "",
        "x" * 5000,
        "/" * 5000,
        "\x00",
        "a\nb",
        "..",
        "a/b/c",
        "~",
        "é",
        "-",
        "https://x.y/z",
        "tokenlight/",
        "a" * 97,
    ):
        yield f"model {value[:30]!r}", lambda value=value: Explainer.from_pretrained(value)
    for value in ("meta", "banana", "cuda:99", "cpu:5", "", "mps", 5, -1, [], {}, "x" * 5000):
        yield (
            f"device {value!r:.30}",
            lambda value=value: Explainer.from_pretrained(bert_folder, device=value).explain(TEXT),
        )
    for value in (
        "int8",
        "x" * 5000,
        "nn",
        5,
        [],
        torch.int64,
        torch.bool,
        "complex64",
        "float8_e4m3fn",
        "",
    ):
        yield (
            f"dtype {value!r:.30}",
            lambda value=value: Explainer.from_pretrained(bert_folder, dtype=value).explain(TEXT),
        )
    for word in ("revision", "cache_dir", "subfolder", "token", "device_map", "variant", "banana"):
        for value in (5, [], "x", "../x"):
            yield (
                f"{word}={value!r}",
                lambda word=word, value=value: Explainer.from_pretrained(
                    bert_folder, **{word: value}
                ),
            )


@pytest.fixture(scope="module")
def explainers(tokenizer):
    return SimpleNamespace(
        plain=Explainer(tiny_bert(), tokenizer),
        answers=Explainer(tiny_bert_qa(), tokenizer),
        words=Explainer(tiny_bert_lm(), tokenizer),
    )


def test_a_bad_input_or_keyword_is_explained_or_refused(explainers):
    inputs = {
        **dict(make_inputs(explainers.plain)),
        **dict(make_keywords(explainers.plain)),
    }
    assert len(inputs) >= 300
    count_outcomes(inputs, python=True)


def test_a_bad_target_is_explained_or_refused(explainers):
    inputs = dict(make_targets(explainers.plain, explainers.answers, explainers.words))
    assert len(inputs) >= 300
    count_outcomes(inputs, python=True)


def test_a_bad_option_is_taken_or_refused(explainers):
    inputs = dict(make_options(explainers.plain))
    assert len(inputs) >= 150
    count_outcomes(inputs, python=True)


def test_a_bad_use_of_a_result_gives_an_answer_or_is_refused(explainers, tmp_path):
    inputs = dict(make_results(explainers.plain, tmp_path))
    assert len(inputs) >= 300
    count_outcomes(inputs, python=True)


def test_a_bad_model_name_device_or_dtype_is_refused(bert_folder):
    inputs = dict(make_models(bert_folder))
    assert len(inputs) >= 60
    count_outcomes(inputs, python=True)


def test_every_public_call_answers_or_refuses(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some values are names of files
    public_calls = calls(Fixtures.built(tmp_path))
    count_outcomes(
        {name: call.with_changes({}) for name, call in public_calls.items()}, python=True
    )
    outcomes = count_outcomes(dict(fuzz_calls(public_calls, 1300, seed=30)), python=True)
    assert outcomes["right"] > 100
    assert outcomes["refused"] > 600


def test_the_fuzzed_calls_are_the_same_for_one_seed(tmp_path):
    public_calls = calls(Fixtures.built(tmp_path))
    titles = [[title for title, _ in fuzz_calls(public_calls, 200, seed)] for seed in (1, 1, 2)]
    assert titles[0] == titles[1] != titles[2]


def test_explainer_offers_only_names_that_are_documented():
    public = {name for name in vars(Explainer(tiny_bert())) if not name.startswith("_")}
    public |= {name for name in dir(Explainer) if not name.startswith("_")}
    assert public == {
        "attribute", "evaluate", "explain", "explain_texts", "facts", "from_pretrained", "generate", "get_default_method",
        "labels", "make_mapper", "max_tokens", "model", "name", "refine", "release_memory", "runner",
        "tokenizer",
    }  # fmt: skip
