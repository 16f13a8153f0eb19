"""Explanations that come while a model generates are those of the finished text."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers.encoder_decoder_models import (
    make_seq2seq_model,
    make_seq2seq_tokenizer,
    make_small_llama,
)
from tests.helpers.expect import expect_error
from tests.helpers.tiny import tiny_bert_lm, tiny_tokenizer
from tokenlight import Continuation, Explainer
from tokenlight.errors import BadInput, BadTarget, UnsupportedModel
from tokenlight.explaining.generation import join_generated
from tokenlight.plots.html import render_page

PROMPT = "the cat sat on a mat"


def build_explainer(*, ends: bool = False) -> Explainer:
    """A small Llama, which goes on for ever unless it ``ends``."""
    model = make_small_llama()
    if not ends:
        model.generation_config.eos_token_id = None
    return Explainer(model, make_seq2seq_tokenizer(ends=False))


@pytest.fixture(scope="module")
def explainer() -> Explainer:
    return build_explainer()


# attcat reads attention received, which depends on later tokens: a row for each token.
@pytest.mark.parametrize("method", ["attnlrp", "grad_x_input", "attcat"])
@pytest.mark.parametrize("against", [20, None])
def test_streamed_scores_equal_the_scores_of_the_continuation(explainer, method, against):
    streamed = list(explainer.generate(PROMPT, method, max_new_tokens=11, against=against))
    target = Continuation(max_new_tokens=11, against=against)
    whole = explainer.explain(PROMPT, method, target)
    assert len(streamed) == len(whole) == 11  # more than the chunks 1, 2 and 4
    for (token, attribution), other in zip(streamed, whole, strict=True):
        assert attribution.row.ids == other.row.ids
        assert attribution.target.title == other.target.title
        assert attribution.target.index == other.target.index
        assert token == explainer.labels[attribution.target.index]
        scale = np.abs(other.scores).max()
        np.testing.assert_allclose(attribution.scores, other.scores, rtol=0, atol=1e-10 * scale)


def test_every_token_is_read_once_to_generate_and_once_per_chunk_to_explain(explainer):
    list(explainer.generate(PROMPT, "grad_x_input", max_new_tokens=1))  # looks at the model first
    lengths: Counter[int] = Counter()

    def forward(_: Any, __: Any, options: dict[str, Any]) -> None:
        lengths[options["input_ids"].shape[1]] += 1

    hook = explainer.runner.model.register_forward_pre_hook(forward, with_kwargs=True)
    try:
        list(explainer.generate(PROMPT, "grad_x_input", max_new_tokens=7))
    finally:
        hook.remove()
    prompt = len(explainer.explain(PROMPT, "random").row)
    # Chunks of 1, 2 and 4 tokens, each explained by one pass over the text before its last token.
    explained = Counter([prompt, prompt + 2, prompt + 6])
    generated = Counter([prompt, 1, 1, 1, 1, 1, 1])
    assert lengths == explained + generated


def test_tokens_come_before_the_text_is_finished(explainer):
    stream = explainer.generate(PROMPT, "grad_x_input", max_new_tokens=1000)
    token, attribution = next(stream)
    assert token == explainer.labels[attribution.target.index]
    stream.close()


def test_a_stream_ends_where_the_model_ends_the_text():
    explainer = build_explainer(ends=True)
    streamed = list(explainer.generate(PROMPT, "grad_x_input", max_new_tokens=50))
    whole = explainer.explain(PROMPT, "grad_x_input", Continuation(max_new_tokens=50))
    assert 0 < len(streamed) == len(whole) < 50


def test_no_more_is_generated_than_the_model_reads():
    explainer = build_explainer()
    explainer.max_tokens = len(explainer.explain(PROMPT, "random").row) + 2
    assert len(list(explainer.generate(PROMPT, "grad_x_input", max_new_tokens=50))) == 3


def test_the_model_is_as_before_when_a_stream_is_left(explainer):
    before = {name: weight.requires_grad for name, weight in explainer.model.named_parameters()}
    is_training = explainer.model.training
    for _ in explainer.generate(PROMPT, "attnlrp", max_new_tokens=9):
        after = {name: weight.requires_grad for name, weight in explainer.model.named_parameters()}
        assert (after, explainer.model.training) == (before, is_training)
        break


def test_a_joined_stream_is_shown_as_one_text(explainer):
    streamed = list(explainer.generate(PROMPT, "grad_x_input", max_new_tokens=4))
    joined = join_generated([attribution for _, attribution in streamed])
    whole = explainer.explain(PROMPT, "grad_x_input", Continuation(max_new_tokens=4))
    assert [attribution.row for attribution in joined] == [other.row for other in whole]
    assert render_page(joined).count('class="word"') == 4
    assert join_generated([]) == []


def test_a_cache_that_changes_predictions_is_refused():
    explainer = build_explainer()
    model = explainer.runner.model
    forward = model.forward

    def roll_cached_logits(*arguments: Any, **options: Any) -> Any:
        outputs = forward(*arguments, **options)
        if options.get("use_cache"):
            outputs.logits = torch.roll(outputs.logits, 1, dims=-1)
        return outputs

    model.forward = roll_cached_logits
    with expect_error(UnsupportedModel, "cache-changes-prediction"):
        list(explainer.generate(PROMPT, "grad_x_input", max_new_tokens=3))


class TestRefusals:
    @pytest.mark.parametrize(
        "options",
        [{"max_new_tokens": 0}, {"max_new_tokens": 1.5}, {"long": "stride"}, {"seed": -1}],
    )
    def test_bad_options_are_refused_before_anything_runs(self, explainer, options):
        with pytest.raises(BadInput):
            explainer.generate(PROMPT, **options)

    def test_several_methods_are_refused(self, explainer):
        for method in (["attnlrp", "cp_lrp"], "best"):
            with expect_error(BadInput, "generate-needs-one-method"):
                explainer.generate(PROMPT, method)

    @pytest.mark.parametrize(
        "prompt", [[PROMPT, PROMPT], iter([PROMPT]), {"input_ids": [[5, 6, 7]]}]
    )
    def test_several_prompts_and_ids_are_refused(self, explainer, prompt):
        with expect_error(BadInput, "generate-needs-one-prompt"):
            explainer.generate(prompt)

    def test_alternatives_of_a_stream_are_a_number_or_all(self, explainer):
        with pytest.raises(BadInput):
            explainer.generate(PROMPT, against="London")

    def test_models_that_cannot_generate_are_refused(self):
        with expect_error(BadTarget, "model-does-not-write"):
            Explainer(tiny_bert_lm(), tiny_tokenizer()).generate(PROMPT)
        with expect_error(UnsupportedModel, "generate-from-source"):
            Explainer(make_seq2seq_model("bart"), make_seq2seq_tokenizer(ends=True)).generate(
                PROMPT
            )
