"""Support of a method is asked on a short row, before anything is explained."""

from __future__ import annotations

import pytest

from tests.helpers.families import build_model
from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tokenlight import Explainer, registry
from tokenlight.data.tokens import TokenRow, Tokens
from tokenlight.errors import UnsupportedModel
from tokenlight.explaining import method_support
from tokenlight.explaining.method_support import supports_method
from tokenlight.methods.attnlrp import AttentionAwareRelevance


def make_row(num_tokens: int) -> TokenRow:
    return Tokens.from_ids([[5 + i % 7 for i in range(num_tokens)]]).rows[0]


@pytest.mark.parametrize("name", ["attnlrp", "integrated_gradients", "attcat"])
def test_bert_supports_the_common_methods(name: str) -> None:
    explainer = Explainer(tiny_bert(), tiny_tokenizer())
    assert supports_method(explainer, registry.build("methods", name), make_row(4))


def test_a_model_with_an_operation_without_rule_does_not_support_relevance() -> None:
    explainer = Explainer(build_model("gpt_oss"))
    assert not supports_method(explainer, registry.build("methods", "attnlrp"), make_row(3))
    assert supports_method(
        explainer, registry.build("methods", "integrated_gradients"), make_row(3)
    )


def test_support_for_a_long_text_is_tried_on_a_short_row(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    record = method_support.record

    def watch(runner, rows, *arguments, **keywords):
        lengths.extend(len(row) for row in rows)
        return record(runner, rows, *arguments, **keywords)

    monkeypatch.setattr(method_support, "record", watch)
    explainer = Explainer(tiny_bert(), tiny_tokenizer())
    assert supports_method(explainer, registry.build("methods", "attnlrp"), make_row(60))
    assert max(lengths) < 60


def test_the_default_method_is_chosen_once_per_kind_of_input(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []

    def refuse(*_):
        calls.append("probe")
        raise UnsupportedModel("no rule for this operation.")

    monkeypatch.setattr(AttentionAwareRelevance, "__call__", refuse)
    explainer = Explainer(tiny_bert(), tiny_tokenizer())
    assert explainer.get_default_method() == "integrated_gradients"
    assert explainer.explain("good film").method == "integrated_gradients"
    assert calls == ["probe"]
