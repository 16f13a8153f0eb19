"""Sentence embeddings: which tokens of two texts made their cosine."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from transformers import BertModel

import tokenlight as tl
from tests.helpers.expect import expect_error
from tests.helpers.tiny import randomize_weights, tiny_config, tiny_tokenizer
from tokenlight.errors import BadInput, BadTarget, UnsupportedModel

COVERED_MODULES = ("explaining/similarity",)
PAIR = ("the film was charming", "a movie is very fun and great")


def make_embedder(pooling="mean"):
    model = randomize_weights(BertModel(tiny_config(), add_pooling_layer=False), torch.float64)
    return tl.Explainer(model, tiny_tokenizer(), pooling=pooling)


@pytest.fixture(scope="module")
def explainer():
    return make_embedder()


def compute_vector(explainer, text, pooling="mean", first=None):
    """The twin: tokens through the model, pooled by hand, normalized; ``first``: given h^0."""
    if first is None:
        first = embed_text(explainer, text)
    hidden = explainer.model.encoder(first).last_hidden_state[0]
    pooled = {"mean": hidden.mean(0), "cls": hidden[0], "last": hidden[-1]}[pooling]
    return pooled / pooled.norm()


def embed_text(explainer, text):
    return explainer.model.embeddings(torch.tensor([explainer.tokenizer(text)["input_ids"]]))


class TestCosine:
    @pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
    def test_similarity_is_the_cosine_of_the_two_vectors(self, pooling):
        explainer = make_embedder(pooling)
        with torch.no_grad():
            expected = float(
                compute_vector(explainer, PAIR[0], pooling)
                @ compute_vector(explainer, PAIR[1], pooling)
            )
        attribution = explainer.explain(PAIR)
        assert attribution.logits[0] == pytest.approx(expected, abs=1e-12)
        assert attribution.target.name == "cosine similarity"

    def test_gradient_times_input_is_taken_of_the_whole_cosine(self, explainer):
        """One backward through both texts at once gives what the two halves give."""
        first = [embed_text(explainer, text).detach().requires_grad_() for text in PAIR]
        vectors = [
            compute_vector(explainer, text, first=h) for text, h in zip(PAIR, first, strict=True)
        ]
        slopes = torch.autograd.grad(vectors[0] @ vectors[1], first)
        expected = torch.cat([(g * h).sum(-1)[0] for g, h in zip(slopes, first, strict=True)])
        attribution = explainer.explain(PAIR, "grad_x_input")
        np.testing.assert_allclose(attribution.scores, expected.detach().numpy(), atol=1e-12)

    def test_segments_are_the_two_texts_and_the_pair_can_be_swapped(self, explainer):
        for method in ("attcat", "gae", "transatt", "occlusion"):
            attribution = explainer.explain(PAIR, method)
            other = explainer.explain(PAIR[::-1], method)
            border = attribution.extras["similarity"]["num_first_tokens"]
            swapped = np.concatenate([attribution.scores[border:], attribution.scores[:border]])
            np.testing.assert_allclose(other.scores, swapped, atol=1e-9)
            assert attribution.row.texts == PAIR
            second = (
                t
                for t, s in zip(attribution.tokens, attribution.row.segments, strict=True)
                if s == 1
            )
            assert next(second) == "a"
            words = [w for w in attribution.row.word_ids if w is not None]
            assert words == sorted(words)
            assert sum(part.share for part in attribution.segment_shares()) == pytest.approx(1)

    def test_equal_texts_have_cosine_one_and_equal_scores(self, explainer):
        attribution = explainer.explain((PAIR[0], PAIR[0]), "occlusion")
        assert attribution.logits[0] == pytest.approx(1, abs=1e-9)
        border = attribution.extras["similarity"]["num_first_tokens"]
        np.testing.assert_allclose(
            attribution.scores[:border], attribution.scores[border:], atol=1e-9
        )

    def test_occlusion_is_what_replacing_a_token_does_to_the_cosine(self, explainer):
        attribution = explainer.explain(PAIR, ("occlusion", {"baseline": "mask", "window": 1}))
        encoded = explainer.tokenizer(PAIR[0])["input_ids"]
        with torch.no_grad():
            other = compute_vector(explainer, PAIR[1])
            for position in range(1, len(encoded) - 1):
                changed = [*encoded]
                changed[position] = explainer.tokenizer.mask_token_id
                hidden = explainer.model(torch.tensor([changed])).last_hidden_state[0].mean(0)
                cosine = float(hidden / hidden.norm() @ other)
                assert attribution.scores[position] == pytest.approx(
                    float(attribution.logits[0]) - cosine, abs=1e-9
                )


class TestWrongUse:
    @pytest.mark.parametrize("inputs", ["alone", ["alone"]])
    def test_similarity_needs_two_texts(self, explainer, inputs):
        with expect_error(UnsupportedModel, "similarity-needs-pair"):
            explainer.explain(inputs)

    def test_two_texts_that_fit_need_no_windows_and_longer_ones_have_none(self, explainer):
        each = "the film was charming " * 8  # 34 of 48 tokens; the model never reads both at once
        attribution = explainer.explain((each, each), long="stride")
        np.testing.assert_array_equal(attribution.scores, explainer.explain((each, each)).scores)
        with expect_error(BadInput, "stride-needs-label-or-answer"):
            explainer.explain((each, each * 2), long="stride")

    def test_a_label_is_refused(self, explainer):
        with expect_error(BadTarget, "target-of-similarity"):
            explainer.explain(PAIR, target="positive")

    def test_an_unknown_pooling_is_refused(self):
        with pytest.raises(BadInput, match="pooling='median'"):
            make_embedder("median")


class TestPoolingFile:
    @pytest.mark.parametrize(
        ("config", "expected"),
        [
            ({"pooling_mode_mean_tokens": True}, "mean"),
            ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
            ({"pooling_mode_lasttoken": True, "include_prompt": True}, "last"),
            ({"embedding_dimension": 8, "pooling_mode": "mean", "include_prompt": True}, "mean"),
            ({"pooling_mode": "lasttoken"}, "last"),
            ({"pooling_mode": ["cls"]}, "cls"),
            ({"pooling_mode_max_tokens": True}, "max"),
            ({"pooling_mode_weightedmean_tokens": True}, "weightedmean"),
            ({"pooling_mode_mean_sqrt_len_tokens": True}, "mean_sqrt_len"),
        ],
    )
    def test_the_pooling_config_of_the_folder_is_used(self, tmp_path, config, expected):
        from tokenlight.models.wrappers import read_embedding_config

        (tmp_path / "1_Pooling").mkdir()
        (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(config))
        assert read_embedding_config(str(tmp_path)) == (expected, "cosine", None)

    def test_another_pooling_is_refused_by_name(self, tmp_path):
        from tokenlight.models.wrappers import read_embedding_config

        (tmp_path / "1_Pooling").mkdir()
        two_modes = {"pooling_mode_max_tokens": True, "pooling_mode_cls_token": True}
        (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(two_modes))
        with pytest.raises(UnsupportedModel, match="by cls and max, but"):
            read_embedding_config(str(tmp_path))

    def test_a_model_without_head_loads_and_compares(self, tmp_path):
        explainer = make_embedder()
        explainer.model.save_pretrained(tmp_path)
        explainer.tokenizer.save_pretrained(tmp_path)
        loaded = tl.Explainer.from_pretrained(tmp_path, dtype="float64")
        np.testing.assert_allclose(
            loaded.explain(PAIR).scores, explainer.explain(PAIR).scores, atol=1e-9
        )

    @pytest.mark.parametrize(("pooling", "expected"), [("cls_token", "cls"), (None, "mean")])
    def test_the_file_of_a_hub_model_is_read_too(self, tmp_path, pooling, expected):
        path = tmp_path / "models--some--one"
        snapshot = path / "snapshots" / ("0" * 40)
        explainer = make_embedder()
        explainer.model.save_pretrained(snapshot)
        explainer.tokenizer.save_pretrained(snapshot)
        (path / "refs").mkdir()
        (path / "refs" / "main").write_text("0" * 40)
        if pooling:
            (snapshot / "1_Pooling").mkdir()
            file = snapshot / "1_Pooling" / "config.json"
            file.write_text(json.dumps({f"pooling_mode_{pooling}": True}))
        loaded = tl.Explainer.from_pretrained("some/one", cache_dir=tmp_path, local_files_only=True)
        assert loaded.runner.pooling == expected


class Folder:
    """A folder as sentence-transformers writes it, and its arithmetic written out again."""

    def __init__(self, folder, pooling, modules=("Transformer", "Pooling"), **settings):
        explainer = make_embedder()
        explainer.model.save_pretrained(folder)
        explainer.tokenizer.save_pretrained(folder)
        self.explainer = explainer
        self.pooling = pooling
        self.modules = modules
        paths = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
        listed = [
            {
                "idx": i,
                "name": str(i),
                "path": paths.get(module, "2_Other"),
                "type": f"a.models.{module}",
            }
            for i, module in enumerate(modules)
        ]
        (folder / "1_Pooling").mkdir()
        for file, content in {
            "modules.json": listed,
            "1_Pooling/config.json": {f"pooling_mode_{pooling}": True},
            "config_sentence_transformers.json": {"similarity_fn_name": settings.get("likeness")},
            "sentence_bert_config.json": {"max_seq_length": settings.get("longest", 40)},
        }.items():
            (folder / file).write_text(json.dumps(content))
        self.folder = folder

    def vector(self, first, num_tokens):
        """``first``: h^0, ``token hidden``; ``num_tokens``: how many tokens are no padding."""
        hidden = self.explainer.model.encoder(first[None]).last_hidden_state[0, :num_tokens]
        steps = torch.arange(1, num_tokens + 1, dtype=hidden.dtype)[:, None]
        pooled = {
            "cls_token": hidden[0],
            "lasttoken": hidden[-1],
            "mean_tokens": hidden.sum(0) / num_tokens,
            "max_tokens": hidden.max(0).values,
            "mean_sqrt_len_tokens": hidden.sum(0) / num_tokens**0.5,
            "weightedmean_tokens": (hidden * steps).sum(0) / steps.sum(),
        }[self.pooling]
        return pooled / pooled.norm() if "Normalize" in self.modules else pooled

    def score(self, likeness, first):
        this, other = (self.vector(h, len(h)) for h in first)
        if likeness == "dot":
            return this @ other
        return torch.nn.functional.cosine_similarity(this, other, dim=0)


class TestFolders:
    @pytest.mark.parametrize(
        ("pooling", "modules", "likeness", "expected"),
        [
            ("mean_tokens", ("Transformer", "Pooling", "Normalize"), "cosine", "cosine"),
            ("cls_token", ("Transformer", "Pooling"), "dot", "dot"),
            ("lasttoken", ("Transformer", "Pooling", "Normalize"), "dot", "cosine"),
            ("max_tokens", ("Transformer", "Pooling"), None, "cosine"),
            ("weightedmean_tokens", ("Transformer", "Pooling"), "cosine", "cosine"),
            ("mean_sqrt_len_tokens", ("Transformer", "Pooling"), "dot", "dot"),
        ],
    )
    def test_score_and_gradient_equal_sentence_transformers(
        self, tmp_path, pooling, modules, likeness, expected
    ):
        folder = Folder(tmp_path, pooling, modules, likeness=likeness)
        first = [embed_text(folder.explainer, text)[0].detach().requires_grad_() for text in PAIR]
        value = folder.score(likeness or "cosine", first)
        slopes = torch.autograd.grad(value, first)
        products = [(g * h).sum(-1) for g, h in zip(slopes, first, strict=True)]
        loaded = tl.Explainer.from_pretrained(tmp_path, dtype="float64")
        attribution = loaded.explain(PAIR, "grad_x_input")
        assert loaded.runner.similarity == expected
        assert attribution.logits[0] == pytest.approx(float(value.detach()), rel=1e-12)
        assert (
            attribution.target.name
            == {"cosine": "cosine similarity", "dot": "dot product"}[expected]
        )
        np.testing.assert_allclose(
            attribution.scores, torch.cat(products).detach().numpy(), rtol=0, atol=1e-11
        )

    def test_a_text_longer_than_the_configured_maximum_is_refused(self, tmp_path):
        Folder(tmp_path, "mean_tokens", longest=6)
        loaded = tl.Explainer.from_pretrained(tmp_path)
        with pytest.raises(BadInput, match="at most 6"):
            loaded.explain(PAIR)

    def test_modules_that_change_the_vector_and_other_similarities_are_refused_by_name(
        self, tmp_path
    ):
        for number, (modules, likeness, message) in enumerate(
            [
                (("Transformer", "Pooling", "Dense"), None, "a Dense module"),
                (("Transformer", "Pooling"), "manhattan", "by manhattan"),
            ]
        ):
            path = tmp_path / str(number)
            path.mkdir()
            Folder(path, "mean_tokens", modules, likeness=likeness)
            with pytest.raises(UnsupportedModel, match=message):
                tl.Explainer.from_pretrained(path)


def test_a_randomized_copy_pools_as_its_model_does(monkeypatch):
    from tokenlight.evaluation import case_preparation
    from tokenlight.metrics.randomisation import ParameterRandomization

    poolings = set()
    monkeypatch.setattr(
        case_preparation,
        "_explain_again",
        lambda copy, *_: poolings.add(copy.runner.pooling) or [],
    )
    case_preparation.complete_cases(make_embedder("cls"), [], ParameterRandomization(), None)
    assert poolings == {"cls"}
