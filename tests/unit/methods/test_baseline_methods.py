"""Further passes: what they cost, where they enter a model, and whose draws they use."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.families import build_model
from tests.helpers.tiny import tiny_bert, tiny_bert_lm, tiny_tokenizer
from tokenlight import Contrast, Explainer, Tokens, registry
from tokenlight.errors import BadInput, BadTarget
from tokenlight.methods.base import describe_cost

TOKENIZER = tiny_tokenizer()
EXPLAINER = Explainer(tiny_bert(), TOKENIZER)
LANGUAGE_MODEL = tiny_bert_lm()
TEXT = "the film is not very charming , but we love it !"
TEXTS = [TEXT, "a dull plot", "never ever hate this movie . it was fun and the acting is great"]
OPTIONS = {
    "context_cite": {"units": "word"},
    "decoded_gradcam": {"lm": LANGUAGE_MODEL},
    "decoded_simple": {"lm": LANGUAGE_MODEL},
}
METHODS = registry.list_names("methods")
SAMPLED = [name for name in METHODS if registry.load_class("methods", name).stochastic]
FURTHER = [
    "deeplift_shap", "gradient_shap", "integrated", "integrated_gradients", "lime", "occlusion",
    "shapley", "smooth", "subset_relevance",
]  # fmt: skip


class Counter:
    """Texts, not batches, that go forward and backward through a model."""

    def __init__(self, model):
        self.forwards = self.backwards = 0
        self.model = model

    def __enter__(self):
        self.handle = self.model.register_forward_hook(self.forward, with_kwargs=True)
        return self

    def __exit__(self, *_):
        self.handle.remove()

    def forward(self, _module, _arguments, keywords, outputs):
        self.forwards += len(keywords["input_ids"])
        if outputs.logits.requires_grad:
            outputs.logits.register_hook(self.backward)

    def backward(self, gradient):
        self.backwards += len(gradient)


@pytest.mark.parametrize("method", METHODS)
def test_the_passes_that_run_equal_the_declared_cost(method):
    spec = (method, OPTIONS.get(method, {}))
    EXPLAINER.explain(TEXT, spec)  # what is found out once a model is
    with Counter(EXPLAINER.model) as counted:
        attribution = EXPLAINER.explain(TEXT, spec)
    declared = registry.build("methods", *spec).count_passes(len(attribution))
    assert counted.backwards == declared.backwards
    if method in ("shapley", "context_cite"):  # special tokens do not join, and orders share sets
        assert 0.7 * declared.forwards < counted.forwards <= declared.forwards
    else:
        assert counted.forwards == declared.forwards


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("attcat", "1F + 1B"),
        ("random", "1F"),
        ("occlusion", "(n − 1)F"),
        ("shapley", "(25n − 23)F"),
    ],
)
def test_a_cost_is_formatted_as_passes(method, words):
    assert describe_cost(registry.build("methods", method)) == words


def test_automatic_steps_cost_only_the_texts_that_need_them():
    options = {"num_steps": "auto", "tolerance": 1e-9}
    attributions = EXPLAINER.explain(TEXTS, ("integrated_gradients", options))
    plain = EXPLAINER.explain(TEXTS, "integrated_gradients")
    steps = [attribution.extras["convergence"]["steps"] for attribution in attributions]
    assert set(steps) <= {25, 50, 100, 200, 400}
    assert max(steps) > 25
    for actual, expected in zip(attributions, plain, strict=True):
        convergence = actual.extras["convergence"]
        assert convergence["gap_percent"] <= expected.extras["convergence"]["gap_percent"]
        assert convergence["gap_percent"] <= 1e-9 or convergence["steps"] == 400
    alone = EXPLAINER.explain(TEXTS[2], ("integrated_gradients", options))
    np.testing.assert_allclose(alone.scores, attributions[2].scores, atol=1e-9)


@pytest.mark.parametrize("method", FURTHER)
@settings(max_examples=4)
@given(batch_tokens=st.sampled_from([1, 20, 60, 5000]))
def test_the_batch_size_changes_no_draw_and_no_score(method, batch_tokens):
    expected = EXPLAINER.explain(TEXTS, method, seed=3)
    attributions = EXPLAINER.explain(TEXTS, method, seed=3, batch_tokens=batch_tokens)
    for actual, reference in zip(attributions, expected, strict=True):
        scale = np.abs(reference.scores).max()
        np.testing.assert_allclose(actual.scores, reference.scores, rtol=0, atol=1e-9 * scale)


@pytest.mark.parametrize("method", SAMPLED)
def test_another_seed_draws_other_numbers_and_is_recorded(method):
    options = {"mask": "random", "heads": np.eye(3, 4)} if method == "mask_lrp" else {}
    first, second = (EXPLAINER.explain(TEXT, (method, options), seed=seed) for seed in (1, 2))
    assert np.abs(first.scores - second.scores).max() > 0
    assert first.options["seed"] == 1
    own_seed = EXPLAINER.explain(TEXT, (method, {**options, "seed": 2}), seed=1)
    np.testing.assert_array_equal(own_seed.scores, second.scores)


@pytest.mark.parametrize("method", ["integrated_gradients", "occlusion", "shapley"])
def test_each_named_baseline_is_a_different_token(method):
    scores = {
        name: EXPLAINER.explain(TEXT, (method, {"baseline": name})).scores
        for name in ("pad", "mask", "unk", "zero", 7)
    }
    by_id = EXPLAINER.explain(TEXT, (method, {"baseline": TOKENIZER.mask_token_id})).scores
    np.testing.assert_array_equal(scores["mask"], by_id)
    if method != "integrated_gradients":  # there, zero is the zero vector; here, the id 0: [PAD]
        np.testing.assert_array_equal(scores.pop("zero"), scores["pad"])
    distinct = {tuple(np.round(values, 9)) for values in scores.values()}
    assert len(distinct) == len(scores)


def test_a_baseline_without_its_token_is_refused():
    with pytest.raises(BadInput, match="baseline='mask' is not a token"):
        Explainer(tiny_bert()).explain(
            Tokens.from_ids([[2, 7, 9, 3]]), ("occlusion", {"baseline": "mask"})
        )
    with pytest.raises(BadInput, match="baseline=999 is not a token"):
        EXPLAINER.explain(TEXT, ("shapley", {"baseline": 999}))


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        (
            "integrated_gradients",
            {"num_steps": 0},
            "num_steps=0 of integrated_gradients is not valid. Give a number from 1",
        ),
        ("gradient_shap", {"num_samples": 0}, "num_samples=0"),
        ("smooth", {"num_samples": -1}, "num_samples=-1"),
        ("integrated", {"num_steps": 0}, "num_steps=0"),
        ("shapley", {"num_samples": 0}, "num_samples=0"),
        ("lime", {"num_samples": 0}, "num_samples=0"),
        (
            "lime",
            {"mask_probability": 1.0},
            "mask_probability=1.0 .* Give a number from 0.001 to 0.999",
        ),
        ("occlusion", {"window": 0}, "window=0"),
        ("occlusion", {"stride": 0}, "stride=0"),
        ("occlusion", {"window": 2, "stride": 3}, "stride=3 skips tokens .* from 1 to 2"),
        ("rollout", {"start_layer": -1}, r"start_layer=-1 leaves no block: .* \(0 to 2\)"),
        ("rollout", {"start_layer": 3}, "start_layer=3 leaves no block"),
    ],
)
def test_options_that_leave_no_token_are_refused(method, options, message):
    with pytest.raises(BadInput, match=message):
        EXPLAINER.explain(TEXT, (method, options))


def test_shapley_values_sum_to_what_the_target_gains():
    attribution = EXPLAINER.explain(TEXT, "shapley", target="positive")
    ids = TOKENIZER(TEXT, return_tensors="pt")
    empty = dict(ids)
    empty["input_ids"] = torch.where(ids["input_ids"] > 4, 0, ids["input_ids"])
    with torch.no_grad():
        gain = EXPLAINER.model(**ids).logits[0, 2] - EXPLAINER.model(**empty).logits[0, 2]
    np.testing.assert_allclose(attribution.scores.sum(), float(gain), atol=1e-9)
    assert attribution.extras["sampling"]["orders"] == 25
    assert attribution.scores[0] == attribution.scores[-1] == 0


def test_windows_that_do_not_fit_reach_over_the_end():
    attribution = EXPLAINER.explain("a dull plot", ("occlusion", {"window": 4, "stride": 3}))
    assert len(attribution) == 5
    wide = EXPLAINER.explain("a dull plot", ("occlusion", {"window": 99}))
    assert len(set(wide.scores)) == 1  # one window holds all


def test_lime_equals_a_ridge_regression_by_hand():
    attribution = EXPLAINER.explain(TEXT, ("lime", {"num_samples": 300, "alpha": 0.5}), seed=4)
    text_positions = np.flatnonzero(~np.array(attribution.row.special_tokens_mask))
    removed = np.zeros((300, len(attribution)), dtype=bool)
    removed[:, text_positions] = (
        attribution.row.make_generator(4).random((300, len(text_positions))) < 0.3
    )
    ids = np.where(removed, 0, np.array(attribution.row.ids))
    with torch.no_grad():
        logits = (
            EXPLAINER.model(torch.from_numpy(ids)).logits[:, attribution.prediction.index].numpy()
        )
    weights = (~removed).mean(axis=1)
    bits = (~removed).astype(float)
    centered = bits - np.average(bits, axis=0, weights=weights)
    values = logits - np.average(logits, weights=weights)
    gram = centered.T @ (weights[:, None] * centered) + 0.5 * np.eye(bits.shape[1])
    np.testing.assert_allclose(
        attribution.scores, np.linalg.solve(gram, centered.T @ (weights * values)), atol=1e-9
    )


def test_the_loss_of_a_contrast_is_a_choice_between_two():
    """Of two classes, the cross-entropy's gradient is that of the contrast, but for its size."""
    explainer_of_two = Explainer(
        tiny_bert(id2label={0: "no", 1: "yes"}, label2id={"no": 0, "yes": 1}), TOKENIZER
    )
    contrast = explainer_of_two.explain(TEXT, "simple", target=Contrast("yes", "no"))
    single = explainer_of_two.explain(TEXT, "simple", target="yes")
    np.testing.assert_allclose(contrast.scores, single.scores, atol=1e-9)


def test_a_regression_head_has_no_loss():
    explainer = Explainer(tiny_bert(id2label={0: "score"}, label2id={"score": 0}), TOKENIZER)
    with pytest.raises(BadTarget, match="regression head has none"):
        explainer.explain(TEXT, "simple")
    assert np.isfinite(explainer.explain(TEXT, "integrated_gradients").scores).all()


def test_many_labels_at_once_have_a_loss_each():
    explainer = Explainer(tiny_bert(problem_type="multi_label_classification"), TOKENIZER)
    attribution = explainer.explain(TEXT, "simple", target="positive")
    np.testing.assert_allclose(attribution.scores.sum(), 1.0)


@pytest.mark.parametrize("family", ["roberta", "distilbert", "gpt2", "llama", "opt", "albert"])
def test_every_family_runs_the_extra_passes(family):
    ids = torch.randint(5, 120, (2, 8), generator=torch.Generator().manual_seed(3))
    ids[:, 7] = 2
    for method in FURTHER:
        for attribution in Explainer(build_model(family)).explain(Tokens.from_ids(ids), method):
            assert np.isfinite(attribution.scores).all()
            assert np.abs(attribution.scores).max() > 0


def test_methods_of_one_call_share_a_tape_and_keep_their_scores():
    specs = [(name, OPTIONS.get(name, {})) for name in (*OPTIONS, "attcat", "simple", *FURTHER)]
    together = EXPLAINER.explain(TEXT, specs, target="positive")
    for spec, attribution in zip(specs, together, strict=True):
        alone = EXPLAINER.explain(TEXT, spec, target="positive")
        scale = np.abs(alone.scores).max()
        np.testing.assert_allclose(attribution.scores, alone.scores, rtol=0, atol=1e-9 * scale)
