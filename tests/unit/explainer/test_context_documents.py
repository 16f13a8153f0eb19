"""Documents behind an answer: contexts, whole answers in one pass, and their parts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers.encoder_decoder_models import (
    make_seq2seq_model,
    make_seq2seq_tokenizer,
    make_small_llama,
)
from tests.helpers.tolerance import EverythingInFloat64, assert_close
from tokenlight import Attribution, Context, Continuation, Explainer
from tokenlight.data.head import Head
from tokenlight.data.target import ResolvedTarget
from tokenlight.model.objective import Objective
from tokenlight.perturb.variants import Perturber, ReplacementIds

DOCUMENTS = ("the cat sat on a mat! the dog ran.", "a red dog sat and ran.")
PROMPT = Context(DOCUMENTS, "the cat on a mat", template="{documents} and {question}")
WRITTEN = "the red dog"
JOINT_CONTINUATION = Continuation(" the red dog", joint=True)


@pytest.fixture(scope="module")
def llama() -> Explainer:
    return Explainer(make_small_llama(), make_seq2seq_tokenizer(ends=False))


@pytest.fixture(scope="module")
def bart() -> Explainer:
    return Explainer(make_seq2seq_model("bart"), make_seq2seq_tokenizer())


def compute_log_probabilities(explainer: Explainer, attribution: Attribution) -> torch.Tensor:
    """The model's own log-probabilities of each written token, by a plain pass."""
    ids = torch.tensor([attribution.row.ids])
    decoder_inputs = {}
    if attribution.row.source_length is not None:
        decoder_inputs = {"decoder_input_ids": ids[:, attribution.row.source_length :]}
        ids = ids[:, : attribution.row.source_length]
    logits = explainer.runner.model(input_ids=ids, use_cache=False, **decoder_inputs).logits[0]
    continuation_ids = torch.tensor(attribution.row.continuation_ids)
    return (
        logits[-len(continuation_ids) :]
        .log_softmax(dim=-1)[range(len(continuation_ids)), continuation_ids]
        .detach()
    )


@pytest.mark.parametrize("name", ["llama", "bart"])
class TestAWholeAnswer:
    @pytest.fixture
    def explainer(self, name: str, request: pytest.FixtureRequest) -> Explainer:
        result: Explainer = request.getfixturevalue(name)
        return result

    def test_the_probability_of_an_answer_is_the_product_of_its_tokens(
        self, explainer: Explainer
    ) -> None:
        with EverythingInFloat64():
            (attribution,) = explainer.explain(PROMPT, "grad_x_input", JOINT_CONTINUATION)
            alone = compute_log_probabilities(explainer, attribution)
        assert attribution.prediction.probability == pytest.approx(
            float(alone.sum().exp()), rel=1e-12
        )
        assert attribution.prediction.label == attribution.target.name.strip("‘’") == WRITTEN

    @pytest.mark.parametrize("method", ["grad_x_input", "integrated_gradients", "attnlrp"])
    def test_the_scores_of_an_answer_are_the_sum_over_its_tokens(
        self, explainer: Explainer, method: str
    ) -> None:
        with EverythingInFloat64():
            continuation = Continuation(" the red dog", against=None)
            (joint,) = explainer.explain(PROMPT, method, replace(continuation, joint=True))
            rows = explainer.explain(PROMPT, method, continuation)
        total = np.zeros(len(joint))
        for row in rows:
            total[: len(row)] += row.scores
        assert_close(joint.scores, total)

    def test_the_gradients_of_log_odds_sum_to_their_change(self, explainer: Explainer) -> None:
        """Integrated gradients of an answer follow the odds of each token along the path."""
        method = ("integrated_gradients", {"num_steps": 200})
        with EverythingInFloat64():
            (joint,) = explainer.explain(PROMPT, method, JOINT_CONTINUATION)
            alone = compute_log_probabilities(explainer, joint)
        log_odds = alone - torch.log1p(-alone.exp())
        logits = joint.logits.reshape(2, -1)
        assert logits[0].sum() - logits[1].sum() == pytest.approx(float(log_odds.sum()))
        gap = joint.extras["convergence"]["gap_percent"]
        assert gap < 1

    def test_an_answer_is_asked_rather_than_anything_else(self, explainer: Explainer) -> None:
        (odds,) = explainer.explain(PROMPT, "attnlrp", JOINT_CONTINUATION)
        assert odds.question == f"‘{WRITTEN}’ rather than anything else"
        only_logits = replace(JOINT_CONTINUATION, against=None)
        (logits,) = explainer.explain(PROMPT, "attnlrp", only_logits)
        assert logits.question == f"‘{WRITTEN}’"
        assert odds.prediction == logits.prediction

    def test_a_span_of_an_answer_sums_only_its_tokens(self, explainer: Explainer) -> None:
        continuation = Continuation(" the red dog", span="red", against=None)
        with EverythingInFloat64():
            (span,) = explainer.explain(PROMPT, "grad_x_input", replace(continuation, joint=True))
            (token,) = explainer.explain(PROMPT, "grad_x_input", continuation)
        assert_close(span.scores[: len(token)], token.scores)
        assert not span.scores[len(token) :].any()  # what comes after foretells nothing
        assert span.target.name == "‘red’"

    def test_an_answer_does_not_depend_on_others_in_the_batch(self, explainer: Explainer) -> None:
        others = [
            Continuation(" the", joint=True),
            JOINT_CONTINUATION,
            Continuation(" a mat", joint=True),
        ]
        with EverythingInFloat64():
            attributions = explainer.explain([PROMPT] * 3, "occlusion", others)
            (alone,) = explainer.explain(PROMPT, "occlusion", JOINT_CONTINUATION)
        assert_close(attributions[1].scores, alone.scores)

    def test_an_explained_answer_can_be_saved_and_measured(
        self, explainer: Explainer, tmp_path: Any
    ) -> None:
        attributions = explainer.explain(PROMPT, "occlusion", JOINT_CONTINUATION)
        loaded = Attribution.load(attributions[0].save(tmp_path / "whole.json"))
        assert loaded.row == attributions[0].row
        assert loaded.target == attributions[0].target
        assert np.isfinite(explainer.evaluate(attributions, "aopc").summary["aopc"]["mean"])

    def test_documents_and_question_are_parts_with_names(self, explainer: Explainer) -> None:
        (attribution,) = explainer.explain(PROMPT, "grad_x_input", JOINT_CONTINUATION)
        parts = attribution.group_by("document")
        assert [part.name for part in parts] == ["document 1", "document 2", "question", "written"]
        assert [part.text for part in parts] == [*DOCUMENTS, PROMPT.question, "the red"]
        text_positions = [
            i for i, special in enumerate(attribution.row.special_tokens_mask) if not special
        ]
        for unit in ("document", "sentence", "word", "token"):
            total = sum(part.total for part in attribution.group_by(unit))
            assert total == pytest.approx(attribution.scores[text_positions].sum(), abs=1e-12)
        sentences = [part.text for part in attribution.group_by("sentence")][:3]
        assert sentences == ["the cat sat on a mat!", "the dog ran.", "a red dog sat and ran."]


@pytest.mark.parametrize("weights", [(1.0,), (1.0, -1.0)], ids=["logits", "log-odds"])
def test_the_cross_entropy_of_an_answer_is_minus_its_log_probability(weights: Any) -> None:
    logits = torch.tensor([[[1.0, 2.0], [-3.0, 0.5], [0.25, 0.0]]], dtype=torch.float64)
    terms = []
    for position in (0, 2):
        terms += [((position, entry), weight) for entry, weight in enumerate(weights)]
    target = ResolvedTarget("continuation", "‘x’", tuple(terms))
    head = Head("text-generation", ("a", "b"))
    loss = Objective.from_targets(head, [target], torch.tensor([5]), torch.float64)
    shares = [math.exp(z) / (math.exp(z) + math.exp(o)) for z, o in ((1.0, 2.0), (0.25, 0.0))]
    loss_value = float(loss(logits, torch.tensor([0]), "loss"))
    assert loss_value == pytest.approx(-math.log(shares[0] * shares[1]), rel=1e-12)


def test_the_generated_tokens_of_an_answer_are_never_removed(llama: Explainer) -> None:
    (attribution,) = llama.explain(PROMPT, ("shapley", {"num_samples": 2}), JOINT_CONTINUATION)
    assert not attribution.scores[-2:].any()
    assert attribution.scores[:-2].any()


def test_a_generated_answer_is_explained_as_a_whole(llama: Explainer) -> None:
    (attribution,) = llama.explain(
        PROMPT, "grad_x_input", Continuation(max_new_tokens=3, joint=True)
    )
    rows = llama.explain(PROMPT, "grad_x_input", Continuation(max_new_tokens=3))
    assert attribution.row.continuation_ids == tuple(row.prediction.index for row in rows)


def test_an_answer_to_an_emptied_prompt_is_predicted_from_a_padding_token(llama: Explainer) -> None:
    # The prompt is one unit and no special token precedes it, so an ablation leaves the answer alone.
    method = ("context_cite", {"units": "sentence", "num_samples": 8})
    (attribution,) = llama.explain("the cat sat", method, JOINT_CONTINUATION)
    perturber = Perturber(attribution.row, ReplacementIds.from_model(llama.runner, llama.tokenizer))
    emptied = perturber.delete_tokens([0, 1, 2])
    assert emptied.ids.tolist() == [llama.tokenizer.pad_token_id, *attribution.row.ids[3:]]
    assert np.isfinite(attribution.scores).all()
    assert len(set(attribution.scores[:3])) == 1
