"""Which strategy explains which text: the first of the list that applies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.helpers.encoder_decoder_models import make_seq2seq_tokenizer, make_small_llama
from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tokenlight import Continuation, Contrast, Explainer, RankedAbove
from tokenlight.explaining.calls import build_options, resolve_methods
from tokenlight.explaining.explain_options import ExplainOptions
from tokenlight.explaining.input_rows import tokenize_batch
from tokenlight.explaining.strategies import STRATEGIES, BatchedRows, TextRequest, run_strategies
from tokenlight.methods.base import Method

LONG_TEXT = " ".join(["good film"] * 40)


@pytest.fixture(scope="module")
def classifier() -> Explainer:
    return Explainer(tiny_bert(), tiny_tokenizer())


@pytest.fixture(scope="module")
def language_model() -> Explainer:
    return Explainer(make_small_llama(), make_seq2seq_tokenizer(ends=False))


def name_strategy(
    explainer: Explainer, text: Any, target: Any, *, method: str = "grad_x_input", **keywords: Any
) -> str:
    """Return the name of the first strategy that applies."""
    options = build_options(explainer, **keywords)
    methods = resolve_methods(explainer, method, 0)
    request = TextRequest(explainer, text, target, with_methods(options, methods))
    for strategy in STRATEGIES:
        if strategy.applies(request):
            return type(strategy).__name__
    raise AssertionError("the last strategy always applies")


def with_methods(options: ExplainOptions, methods: tuple[Method, ...]) -> ExplainOptions:
    return replace(options, methods=methods)


def test_the_last_strategy_takes_every_text() -> None:
    assert isinstance(STRATEGIES[-1], BatchedRows)


@pytest.mark.parametrize(
    ("text", "target", "keywords", "expected"),
    [
        ("good film", "predicted", {}, "BatchedRows"),
        ("good film", "all", {"long": "stride"}, "BatchedRows"),
        (LONG_TEXT, "predicted", {"long": "stride"}, "OverlappingWindows"),
        (LONG_TEXT, "predicted", {"long": "truncate"}, "BatchedRows"),
        (("good", "film"), RankedAbove("plot", "positive"), {}, "DifferenceOfTwoTexts"),
        ("good film", Contrast("positive", "negative"), {}, "BatchedRows"),
    ],
    ids=["text", "short", "windows", "truncated", "ranking", "contrast"],
)
def test_each_input_of_a_classifier_gets_its_strategy(
    classifier: Explainer, text: Any, target: Any, keywords: dict[str, Any], expected: str
) -> None:
    assert name_strategy(classifier, text, target, **keywords) == expected


@pytest.mark.parametrize(
    ("target", "method", "expected"),
    [
        (Continuation(" the red dog"), "grad_x_input", "ContinuationInOneForward"),
        (Continuation(" the red dog"), "gae", "BatchedRows"),
        (Continuation(" the red dog", joint=True), "grad_x_input", "BatchedRows"),
        ("predicted", "grad_x_input", "BatchedRows"),
        (
            Contrast(Continuation(" red"), Continuation(" dog")),
            "grad_x_input",
            "DifferenceOfTwoTexts",
        ),
    ],
    ids=["prefix-invariant", "attention", "joint", "next-token", "contrast"],
)
def test_each_target_of_a_language_model_gets_its_strategy(
    language_model: Explainer, target: Any, method: str, expected: str
) -> None:
    assert name_strategy(language_model, "the cat sat", target, method=method) == expected


@pytest.mark.parametrize("target", ["predicted", "positive", "all", 0])
@pytest.mark.parametrize("long", ["error", "truncate"])
def test_what_skips_the_list_would_have_come_to_its_last_strategy(
    classifier: Explainer, target: str | int, long: str
) -> None:
    options = build_options(classifier, long=long)
    rows = tokenize_batch(classifier, ["good film", "a dull plot"], options)
    assert all(row is not None for row in rows)
    assert name_strategy(classifier, "good film", target, long=long) == "BatchedRows"


def test_no_text_that_may_need_windows_skips_the_list(classifier: Explainer) -> None:
    options = build_options(classifier, long="stride")
    assert tokenize_batch(classifier, ["good film", LONG_TEXT], options) == [None, None]


def test_texts_of_several_strategies_go_into_one_call(classifier: Explainer) -> None:
    methods = resolve_methods(classifier, ["attcat", "grad_x_input"], 0)
    options = with_methods(build_options(classifier, long="stride", progress=False), methods)
    texts = ["good film", LONG_TEXT, "a dull plot"]
    results = run_strategies(classifier, texts, ["predicted"] * 3, options)
    for text, result in zip(texts, results, strict=True):
        assert [len(group) for group in result.attributions_by_method] == [1, 1]
        assert {attribution.text for attribution in result.attributions} == {text}
