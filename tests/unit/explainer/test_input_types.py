"""What is accepted besides texts and transformers models: tables in memory, what a tokenizer returned,
pipelines, the models of sentence-transformers, plain torch modules."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from transformers import pipeline

import tokenlight
from tests.helpers.expect import expect_error
from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tokenlight import Explainer
from tokenlight.errors import BadInput, UnsupportedModel
from tokenlight.files.saved import to_token_rows

TOKENIZER = tiny_tokenizer()
TEXTS = ["a good film", "a bad and dull film"]


@pytest.fixture(scope="module")
def explainer():
    return Explainer(tiny_bert(), TOKENIZER)


@pytest.fixture(scope="module")
def frame():
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame(
        {"id": [7, 8], "review": TEXTS, "sentiment": ["a", "b"], "token": [[1], None]}
    )


class Dataset:
    """What the datasets library's classes offer; without a length it is an IterableDataset."""

    column_names = ("idx", "sentence", "label")

    def __iter__(self):
        return iter([{"idx": i, "sentence": text, "label": i % 2} for i, text in enumerate(TEXTS)])


class SizedDataset(Dataset):
    def __len__(self):
        return len(TEXTS)


class TestTables:
    def test_a_data_frame_is_explained_by_its_text_column_and_keeps_the_others(
        self, explainer, frame
    ):
        attributions = explainer.explain(frame, "grads")
        assert [attribution.text for attribution in attributions] == TEXTS
        assert attributions[0].extras["label"] == "a"
        assert attributions[1].extras["columns"] == {"id": 8, "token": None}
        assert attributions[1].extras["location"] == "row 2 of the table"
        assert attributions[1].extras["row_number"] == 2
        np.testing.assert_array_equal(
            attributions[0].scores, explainer.explain(TEXTS, "grads")[0].scores
        )

    def test_columns_of_a_data_frame_are_saved_in_every_format(self, explainer, frame, tmp_path):
        attributions = explainer.explain(frame, "grads")
        rows = to_token_rows(attributions)
        assert {(row["id"], row["label"]) for row in rows} == {(7, "a"), (8, "b")}
        assert {row["input.token"] for row in rows} == {"[1]", None}  # which is a name of ours
        assert rows[0]["token"] == "[CLS]"
        back = tokenlight.load(tokenlight.save(attributions, tmp_path / "all.json"))
        assert back[0].extras == attributions[0].extras
        pandas = pytest.importorskip("pandas")
        tokenlight.save(attributions, tmp_path / "all.parquet")
        assert list(pandas.read_parquet(tmp_path / "all.parquet")["id"].unique()) == [7, 8]

    def test_a_named_column_is_taken_and_a_missing_one_refused(self, explainer, frame):
        renamed = frame.rename(columns={"review": "opinion"})
        assert [
            attribution.text
            for attribution in explainer.explain(renamed, "grads", text_column="opinion")
        ] == TEXTS
        with pytest.raises(BadInput, match="no column 'text' in .*, only id, opinion"):
            explainer.explain(renamed, "grads")
        with expect_error(BadInput, "column-without-table"):
            explainer.explain("a good film", "grads", text_column="x")

    def test_a_column_is_a_list_of_texts(self, explainer, frame):
        assert [
            attribution.text for attribution in explainer.explain(frame["review"], "grads")
        ] == TEXTS

    def test_a_dataset_gives_a_list_and_one_without_a_length_an_iterator(self, explainer):
        attributions = explainer.explain(SizedDataset(), "grads")
        assert [attribution.extras["columns"] for attribution in attributions] == [
            {"idx": 0},
            {"idx": 1},
        ]
        stream = explainer.explain(Dataset(), "grads")
        assert not isinstance(stream, list)
        assert [(attribution.text, attribution.extras["label"]) for attribution in stream] == list(
            zip(TEXTS, (0, 1), strict=True)
        )

    def test_a_table_of_arrow_is_read_row_by_row(self, explainer, frame):
        pyarrow = pytest.importorskip("pyarrow")
        attributions = explainer.explain(pyarrow.Table.from_pandas(frame), "grads")
        assert [attribution.text for attribution in attributions] == TEXTS

    def test_splits_are_refused_with_the_way_to_one(self, explainer):
        class DatasetDict(dict):
            column_names = {"train": ["text"]}  # noqa: RUF012 - as the library has it

        with expect_error(BadInput, "dataset-has-splits"):
            explainer.explain(DatasetDict(train=[]), "grads")

    @pytest.mark.parametrize("name", ["sentiment", "target", "category", "y"])
    def test_usual_names_of_labels_are_found(self, name, tmp_path):
        from tokenlight.files.tables import read_examples

        path = tmp_path / "data.csv"
        path.write_text(f"text,{name}\ngood,1\n")
        assert read_examples(path)[0].label == 1


def test_the_output_of_a_tokenizer_is_explained_as_its_ids(explainer):
    batch = TOKENIZER(TEXTS, padding=True, return_tensors="pt")
    attributions = explainer.explain(batch, "grads")
    for attribution, text in zip(attributions, TEXTS, strict=True):
        np.testing.assert_allclose(
            attribution.scores, explainer.explain(text, "grads").scores, rtol=0, atol=1e-12
        )


@pytest.mark.parametrize("kind", [None, "pt", "np"])
def test_the_output_of_a_tokenizer_for_one_text_is_one_text(explainer, kind):
    batch = TOKENIZER(TEXTS[0], return_tensors=kind)
    expected = explainer.explain(TEXTS[0], "grads").scores
    np.testing.assert_array_equal(explainer.explain(batch, "grads").scores, expected)
    flat = {name: values if kind is None else values[0] for name, values in batch.items()}
    np.testing.assert_array_equal(explainer.explain(flat, "grads").scores, expected)


def test_batch_size_bounds_the_texts_of_a_pass_and_changes_no_score(explainer):
    sizes = []
    hook = explainer.model.register_forward_pre_hook(
        lambda _, __, inputs: sizes.append(len(inputs["input_ids"])), with_kwargs=True
    )
    try:
        attributions = explainer.explain(TEXTS * 3, "grads", batch_size=2)
    finally:
        hook.remove()
    assert max(sizes) == 2
    for attribution, same in zip(attributions, explainer.explain(TEXTS * 3, "grads"), strict=True):
        scale = np.abs(same.scores).max()
        np.testing.assert_allclose(attribution.scores, same.scores, rtol=0, atol=1e-9 * scale)
    with expect_error(BadInput, "not-an-integer"):
        explainer.explain("a good film", "grads", batch_size=0)


class TestCarriers:
    def test_a_pipeline_is_explained_by_its_model(self, explainer):
        held = pipeline("text-classification", model=tiny_bert(), tokenizer=TOKENIZER, device="cpu")
        from_pipeline = Explainer(held)
        assert from_pipeline.model is held.model
        expected = explainer.explain("a good film", "grads").scores
        np.testing.assert_array_equal(
            from_pipeline.explain("a good film", "grads").scores, expected
        )

    def test_a_cross_encoder_is_explained_by_its_model(self, explainer):
        class CrossEncoder(nn.Sequential):
            def __init__(self):
                super().__init__()
                self.model = tiny_bert()
                self.tokenizer = TOKENIZER

        pair = ("a good film", "a bad film")
        expected = explainer.explain(pair, "grads").scores
        attribution = Explainer(CrossEncoder()).explain(pair, "grads").scores
        np.testing.assert_array_equal(attribution, expected)

    @pytest.mark.parametrize("mode", ["mean", "cls"])
    def test_a_sentence_transformer_is_compared_with_its_own_pooling(self, mode):
        held = build_sentence_transformer(mode)
        attribution = Explainer(held).explain(("a good film", "a bad film"), "grads")
        same = Explainer(held[0].auto_model, TOKENIZER, pooling=mode).explain(
            ("a good film", "a bad film"), "grads"
        )
        assert attribution.prediction.label == same.prediction.label
        np.testing.assert_array_equal(attribution.scores, same.scores)

    def test_a_module_after_the_pooling_that_changes_the_vectors_is_refused(self):
        held = build_sentence_transformer("mean")
        held.append(nn.Linear(2, 2))
        with pytest.raises(UnsupportedModel, match="has a Linear module after its pooling"):
            Explainer(held)


def build_sentence_transformer(mode: str):
    """What sentence-transformers' class offers, of real modules."""

    class Transformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.auto_model = tiny_bert().bert

    class Pooling(nn.Module):
        def get_config_dict(self):
            return {"embedding_dimension": 4, f"pooling_mode_{mode}_token": True}

    class Normalize(nn.Module):
        pass

    class SentenceTransformer(nn.Sequential):
        tokenizer = TOKENIZER

    return SentenceTransformer(Transformer(), Pooling(), Normalize())


class Recurrent(nn.Module):
    """A classifier that knows nothing of transformers, of masks or of padding."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(len(TOKENIZER), 8, dtype=torch.float64)
        self.states = nn.GRU(8, 6, batch_first=True, dtype=torch.float64)
        self.out = nn.Linear(6, 3, dtype=torch.float64)

    def forward(self, ids):
        return self.out(self.states(self.words(ids))[0].mean(dim=1))


class Encoder(nn.Module):
    """One of torch's own layers, which takes a mask and gives a mapping."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(len(TOKENIZER), 8, padding_idx=0, dtype=torch.float64)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dtype=torch.float64)
        self.out = nn.Linear(8, 3, dtype=torch.float64)

    def forward(self, input_ids, attention_mask):
        hidden = self.layer(self.words(input_ids), src_key_padding_mask=attention_mask == 0)
        return {"logits": self.out(hidden[:, 0])}


@pytest.mark.parametrize("kind", [Recurrent, Encoder])
class TestPlainModules:
    def test_gradient_and_black_box_methods_explain_a_plain_module_in_any_batch(self, kind):
        module = kind()
        explainer = Explainer(module, TOKENIZER, labels=["bad", "mixed", "good"])
        assert explainer.labels == ("bad", "mixed", "good")
        for method in ("grad_x_input", "integrated_gradients", "occlusion", "lime"):
            together = explainer.explain(TEXTS, method)
            for text, attribution in zip(TEXTS, together, strict=True):
                alone = explainer.explain(text, method)
                scale = np.abs(alone.scores).max()
                np.testing.assert_allclose(
                    attribution.scores, alone.scores, rtol=0, atol=1e-9 * scale
                )
        ids = torch.tensor([TOKENIZER(TEXTS[0])["input_ids"]])
        mask = {"attention_mask": torch.ones_like(ids)} if kind is Encoder else {}
        outputs = module.eval()(ids, **mask)
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs
        expected = logits[0].detach().numpy()
        np.testing.assert_allclose(
            explainer.explain(TEXTS[0], "occlusion").logits, expected, rtol=0, atol=1e-12
        )

    def test_grad_times_input_is_the_gradient_of_the_module_itself(self, kind):
        module = kind().eval()
        attribution = Explainer(module, TOKENIZER).explain(TEXTS[0], "grad_x_input")
        ids = torch.tensor([TOKENIZER(TEXTS[0])["input_ids"]])
        held = []
        hook = module.words.register_forward_hook(
            lambda _, __, out: held.append(out.detach().requires_grad_()) or held[0]
        )
        mask = {"attention_mask": torch.ones_like(ids)} if kind is Encoder else {}
        outputs = module(ids, **mask)
        hook.remove()
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs
        (slope,) = torch.autograd.grad(logits[0, attribution.target.index], held[0])
        expected = (slope * held[0]).sum(-1)[0].detach().numpy()
        scale = np.abs(expected).max()
        np.testing.assert_allclose(attribution.scores, expected, rtol=0, atol=1e-12 * scale)

    def test_the_default_is_one_that_needs_only_a_gradient(self, kind):
        attribution = Explainer(kind(), TOKENIZER).explain("a good film")
        assert attribution.method == "integrated_gradients"
        assert "does not support this model" in attribution.notes[0]

    def test_a_method_that_reads_attention_is_refused(self, kind):
        with pytest.raises(UnsupportedModel, match="does not return its hidden states"):
            Explainer(kind(), TOKENIZER).explain("a good film", "attcat")

    def test_a_plain_module_is_left_unchanged(self, kind):
        module = kind().train()
        Explainer(module, TOKENIZER).explain(TEXTS, "grad_x_input")
        assert module.training
        assert all(p.requires_grad and p.grad is None for p in module.parameters())
        assert not any(part._forward_hooks for part in module.modules())


def test_labels_must_be_as_many_as_logits_and_belong_to_a_plain_module():
    with pytest.raises(UnsupportedModel, match="gives 3 logits, but 2 labels were named"):
        Explainer(Recurrent(), TOKENIZER, labels=["a", "b"])
    with pytest.raises(BadInput, match="a transformers model has them in its config"):
        Explainer(tiny_bert(), TOKENIZER, labels=["a", "b"])


def test_a_module_that_needs_more_than_ids_is_refused():
    class Two(Recurrent):
        def forward(self, ids, more):
            return super().forward(ids) + more

    with pytest.raises(UnsupportedModel, match="Two cannot be called with token ids alone"):
        Explainer(Two(), TOKENIZER)
