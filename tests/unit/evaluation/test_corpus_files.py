"""Document frequencies that are counted from a file of texts."""

from __future__ import annotations

import json

import pytest
import torch

from tests.helpers.tiny import tiny_bert
from tokenlight import Explainer
from tokenlight.evaluation.corpus import DocumentFrequencies

TEXTS = ["the film is not very good", "we love this movie", "a dull plot", "never ever hate it"]


@pytest.fixture
def explainer(tokenizer):
    return Explainer(tiny_bert(dtype=torch.float32), tokenizer, name="tiny")


def write(folder, name, text):
    path = folder / name
    path.write_bytes(text.encode())
    return path


def test_document_frequencies_come_from_a_file(explainer, tmp_path):
    corpus = write(tmp_path, "wiki.txt", "the film\nthe cat\nthe dog\n")
    attributions = explainer.explain(TEXTS, method=["attcat"])
    evaluation = explainer.evaluate(attributions, ("token_overlap", {"corpus": str(corpus)}))
    the = explainer.tokenizer.convert_tokens_to_ids("the")
    assert evaluation.document_frequencies["token_overlap"].num_documents == 3
    assert evaluation.document_frequencies["token_overlap"].counts[the] == 3


def test_document_frequencies_that_were_counted_before_are_the_same(explainer, tmp_path):
    corpus = write(tmp_path, "wiki.txt", "the film\nthe cat\nthe dog\n")
    frequencies = DocumentFrequencies.from_texts(
        corpus.read_text().splitlines(), explainer.tokenizer
    )
    counted = frequencies.save(tmp_path / "idf.json")
    attributions = explainer.explain(TEXTS, method=["attcat"])
    evaluations = [
        explainer.evaluate(attributions, ("token_overlap", {"corpus": str(file)}))
        for file in (corpus, counted)
    ]
    first, second = (evaluation.document_frequencies["token_overlap"] for evaluation in evaluations)
    assert (first.num_documents, dict(first.counts)) == (second.num_documents, dict(second.counts))


def test_a_json_file_of_rows_is_a_corpus_of_texts(explainer, tmp_path):
    corpus = write(tmp_path, "rows.json", json.dumps([{"text": "the film"}, {"text": "the cat"}]))
    attributions = explainer.explain(TEXTS, method=["attcat"])
    evaluation = explainer.evaluate(attributions, ("token_overlap", {"corpus": str(corpus)}))
    assert evaluation.document_frequencies["token_overlap"].num_documents == 2
