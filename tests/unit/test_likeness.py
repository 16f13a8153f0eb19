"""Sentence embeddings: which tokens of two texts made their cosine."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from transformers import BertModel

import tokenlight as tl
from tests.tiny import randomised, tiny_config, tiny_tokenizer
from tokenlight.errors import BadInput, BadTarget, UnsupportedModel

PAIR = ("the film was charming", "a movie is very fun and great")


def embedder(pooling="mean"):
    model = randomised(BertModel(tiny_config(), add_pooling_layer=False), torch.float64)
    return tl.Explainer(model, tiny_tokenizer(), pooling=pooling)


@pytest.fixture(scope="module")
def explainer():
    return embedder()


def vector(explainer, text, pooling="mean", first=None):
    """The twin: tokens through the model, pooled by hand, normalised; ``first``: given h^0."""
    if first is None:
        first = embedded(explainer, text)
    hidden = explainer.model.encoder(first).last_hidden_state[0]
    pooled = {"mean": hidden.mean(0), "cls": hidden[0], "last": hidden[-1]}[pooling]
    return pooled / pooled.norm()


def embedded(explainer, text):
    return explainer.model.embeddings(torch.tensor([explainer.tokenizer(text)["input_ids"]]))


class TestCosine:
    @pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
    def test_it_is_the_cosine_of_the_two_vectors(self, pooling):
        explainer = embedder(pooling)
        with torch.no_grad():
            expected = float(
                vector(explainer, PAIR[0], pooling) @ vector(explainer, PAIR[1], pooling)
            )
        found = explainer.explain(PAIR)
        assert found.logits[0] == pytest.approx(expected, abs=1e-12)
        assert found.target.name == "cosine similarity"

    def test_gradient_times_input_is_that_of_the_whole_cosine(self, explainer):
        """One backward through both texts at once gives what the two halves give."""
        first = [embedded(explainer, text).detach().requires_grad_() for text in PAIR]
        vectors = [vector(explainer, text, first=h) for text, h in zip(PAIR, first, strict=True)]
        slopes = torch.autograd.grad(vectors[0] @ vectors[1], first)
        expected = torch.cat([(g * h).sum(-1)[0] for g, h in zip(slopes, first, strict=True)])
        found = explainer.explain(PAIR, "grad_x_input")
        np.testing.assert_allclose(found.scores, expected.detach().numpy(), atol=1e-12)

    def test_segments_are_the_two_texts_and_the_pair_can_be_swapped(self, explainer):
        for method in ("attcat", "gae", "transatt", "occlusion"):
            one = explainer.explain(PAIR, method)
            other = explainer.explain(PAIR[::-1], method)
            border = one.extras["likeness"]["border"]
            swapped = np.concatenate([one.scores[border:], one.scores[:border]])
            np.testing.assert_allclose(other.scores, swapped, atol=1e-9)
            assert one.row.texts == PAIR
            second = (t for t, s in zip(one.tokens, one.row.segments, strict=True) if s == 1)
            assert next(second) == "a"
            words = [w for w in one.row.words if w is not None]
            assert words == sorted(words)
            assert sum(part.share for part in one.segment_shares()) == pytest.approx(1)

    def test_equal_texts_have_cosine_one_and_equal_scores(self, explainer):
        found = explainer.explain((PAIR[0], PAIR[0]), "occlusion")
        assert found.logits[0] == pytest.approx(1, abs=1e-9)
        border = found.extras["likeness"]["border"]
        np.testing.assert_allclose(found.scores[:border], found.scores[border:], atol=1e-9)

    def test_occlusion_is_what_replacing_a_token_does_to_the_cosine(self, explainer):
        found = explainer.explain(PAIR, ("occlusion", {"baseline": "mask", "window": 1}))
        encoded = explainer.tokenizer(PAIR[0])["input_ids"]
        with torch.no_grad():
            other = vector(explainer, PAIR[1])
            for place in range(1, len(encoded) - 1):
                changed = [*encoded]
                changed[place] = explainer.tokenizer.mask_token_id
                hidden = explainer.model(torch.tensor([changed])).last_hidden_state[0].mean(0)
                cosine = float(hidden / hidden.norm() @ other)
                assert found.scores[place] == pytest.approx(
                    float(found.logits[0]) - cosine, abs=1e-9
                )


class TestWrongUse:
    @pytest.mark.parametrize("given", ["alone", ["alone"]])
    def test_one_text_alone_is_like_nothing(self, explainer, given):
        with pytest.raises(UnsupportedModel, match="it compares two texts"):
            explainer.explain(given)

    def test_two_texts_that_fit_need_no_windows_and_longer_ones_have_none(self, explainer):
        each = "the film was charming " * 8  # 34 of 48 tokens; the model never reads both at once
        found = explainer.explain((each, each), long="stride")
        np.testing.assert_array_equal(found.scores, explainer.explain((each, each)).scores)
        with pytest.raises(BadInput, match="a cosine has one window"):
            explainer.explain((each, each * 2), long="stride")

    def test_a_label_is_refused(self, explainer):
        with pytest.raises(BadTarget, match="cosine"):
            explainer.explain(PAIR, target="positive")

    def test_an_unknown_pooling_is_refused(self):
        with pytest.raises(BadInput, match="pooling='median'"):
            embedder("median")


class TestPoolingFile:
    @pytest.mark.parametrize(
        ("says", "expected"),
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
    def test_the_file_beside_the_model_says_how(self, tmp_path, says, expected):
        from tokenlight.models.carriers import vectors

        (tmp_path / "1_Pooling").mkdir()
        (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(says))
        assert vectors(str(tmp_path)) == (expected, "cosine", None)

    def test_another_pooling_is_refused_by_name(self, tmp_path):
        from tokenlight.models.carriers import vectors

        (tmp_path / "1_Pooling").mkdir()
        both = {"pooling_mode_max_tokens": True, "pooling_mode_cls_token": True}
        (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(both))
        with pytest.raises(UnsupportedModel, match="by cls and max;"):
            vectors(str(tmp_path))

    def test_a_model_without_head_loads_and_compares(self, tmp_path):
        explainer = embedder()
        explainer.model.save_pretrained(tmp_path)
        explainer.tokenizer.save_pretrained(tmp_path)
        loaded = tl.Explainer.from_pretrained(tmp_path, dtype="float64")
        np.testing.assert_allclose(
            loaded.explain(PAIR).scores, explainer.explain(PAIR).scores, atol=1e-9
        )

    @pytest.mark.parametrize(("says", "expected"), [("cls_token", "cls"), (None, "mean")])
    def test_the_file_of_a_hub_model_is_read_too(self, tmp_path, says, expected):
        place = tmp_path / "models--some--one"
        snapshot = place / "snapshots" / ("0" * 40)
        explainer = embedder()
        explainer.model.save_pretrained(snapshot)
        explainer.tokenizer.save_pretrained(snapshot)
        (place / "refs").mkdir()
        (place / "refs" / "main").write_text("0" * 40)
        if says:
            (snapshot / "1_Pooling").mkdir()
            file = snapshot / "1_Pooling" / "config.json"
            file.write_text(json.dumps({f"pooling_mode_{says}": True}))
        loaded = tl.Explainer.from_pretrained("some/one", cache_dir=tmp_path, local_files_only=True)
        assert loaded.live.pooling == expected


class Folder:
    """A folder as sentence-transformers writes it, and its arithmetic written out again."""

    def __init__(self, place, pooling, modules=("Transformer", "Pooling"), **settings):
        explainer = embedder()
        explainer.model.save_pretrained(place)
        explainer.tokenizer.save_pretrained(place)
        self.explainer, self.pooling, self.modules = explainer, pooling, modules
        paths = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
        listed = [
            {"idx": i, "name": str(i), "path": paths.get(one, "2_Other"), "type": f"a.models.{one}"}
            for i, one in enumerate(modules)
        ]
        (place / "1_Pooling").mkdir()
        for file, says in {
            "modules.json": listed,
            "1_Pooling/config.json": {f"pooling_mode_{pooling}": True},
            "config_sentence_transformers.json": {"similarity_fn_name": settings.get("likeness")},
            "sentence_bert_config.json": {"max_seq_length": settings.get("longest", 40)},
        }.items():
            (place / file).write_text(json.dumps(says))
        self.place = place

    def vector(self, first, seen):
        """``first``: h^0, ``token hidden``; ``seen``: how many tokens are no padding."""
        hidden = self.explainer.model.encoder(first[None]).last_hidden_state[0, :seen]
        steps = torch.arange(1, seen + 1, dtype=hidden.dtype)[:, None]
        pooled = {
            "cls_token": hidden[0],
            "lasttoken": hidden[-1],
            "mean_tokens": hidden.sum(0) / seen,
            "max_tokens": hidden.max(0).values,
            "mean_sqrt_len_tokens": hidden.sum(0) / seen**0.5,
            "weightedmean_tokens": (hidden * steps).sum(0) / steps.sum(),
        }[self.pooling]
        return pooled / pooled.norm() if "Normalize" in self.modules else pooled

    def score(self, likeness, first):
        one, other = (self.vector(h, len(h)) for h in first)
        if likeness == "dot":
            return one @ other
        return torch.nn.functional.cosine_similarity(one, other, dim=0)


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
    def test_score_and_gradient_are_those_of_sentence_transformers(
        self, tmp_path, pooling, modules, likeness, expected
    ):
        folder = Folder(tmp_path, pooling, modules, likeness=likeness)
        first = [embedded(folder.explainer, text)[0].detach().requires_grad_() for text in PAIR]
        value = folder.score(likeness or "cosine", first)
        slopes = torch.autograd.grad(value, first)
        products = [(g * h).sum(-1) for g, h in zip(slopes, first, strict=True)]
        loaded = tl.Explainer.from_pretrained(tmp_path, dtype="float64")
        found = loaded.explain(PAIR, "grad_x_input")
        assert loaded.live.similarity == expected
        assert found.logits[0] == pytest.approx(float(value.detach()), rel=1e-12)
        assert found.target.name == {"cosine": "cosine similarity", "dot": "dot product"}[expected]
        np.testing.assert_allclose(
            found.scores, torch.cat(products).detach().numpy(), rtol=0, atol=1e-11
        )

    def test_a_text_longer_than_the_folder_says_is_refused(self, tmp_path):
        Folder(tmp_path, "mean_tokens", longest=6)
        loaded = tl.Explainer.from_pretrained(tmp_path)
        with pytest.raises(BadInput, match="at most 6"):
            loaded.explain(PAIR)

    def test_modules_that_change_the_vector_and_other_likenesses_are_refused_by_name(
        self, tmp_path
    ):
        for number, (modules, likeness, said) in enumerate(
            [
                (("Transformer", "Pooling", "Dense"), None, "a Dense module"),
                (("Transformer", "Pooling"), "manhattan", "by manhattan"),
            ]
        ):
            place = tmp_path / str(number)
            place.mkdir()
            Folder(place, "mean_tokens", modules, likeness=likeness)
            with pytest.raises(UnsupportedModel, match=said):
                tl.Explainer.from_pretrained(place)


def test_a_randomised_copy_pools_as_its_model_does(monkeypatch):
    from tokenlight.evaluation import extra_explanations as further
    from tokenlight.metrics.randomisation import ParameterRandomisation

    seen = set()
    monkeypatch.setattr(
        further, "_explained_again", lambda copy, *_: seen.add(copy.live.pooling) or []
    )
    further.completed(embedder("cls"), [], ParameterRandomisation(), None)
    assert seen == {"cls"}
