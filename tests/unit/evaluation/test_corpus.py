"""How rare tokens are in a corpus, counted once and kept in a file."""

from __future__ import annotations

from math import log

import pytest

from tests.helpers.expect import expect_error
from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tokenlight import Explainer
from tokenlight.errors import BadInput, DamagedFile
from tokenlight.evaluation.corpus import DocumentFrequencies

TOKENIZER = tiny_tokenizer()
EXPLAINER = Explainer(tiny_bert(), TOKENIZER)
TEXTS = ["the film is good", "the plot is dull", "the dog sat on the mat", "a cat"]


def test_a_token_counts_once_per_text():
    frequencies = DocumentFrequencies.from_texts(TEXTS, TOKENIZER)
    assert frequencies.num_documents == 4
    assert frequencies.counts["the"] == 3
    assert frequencies.counts["is"] == 2
    assert "[CLS]" not in frequencies.counts
    assert frequencies.idf("the") == pytest.approx(log(4 / 3))
    assert frequencies.idf("never") == pytest.approx(log(4))
    assert frequencies.idf("the", "smooth") == pytest.approx(log(5 / 4) + 1)
    assert frequencies.idf("the", "none") == 1


def test_frequencies_survive_their_file(tmp_path):
    frequencies = DocumentFrequencies.from_texts(TEXTS, TOKENIZER)
    assert DocumentFrequencies.load(frequencies.save(tmp_path / "idf.json")) == frequencies
    with expect_error(BadInput, "empty-corpus"):
        DocumentFrequencies.from_texts([], TOKENIZER)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 9}', '{"format": 1, "counts": 3}'])
def test_a_file_of_something_else_is_refused(tmp_path, content):
    path = tmp_path / "idf.json"
    path.write_text(content)
    with pytest.raises(DamagedFile):
        DocumentFrequencies.load(path)


def test_the_command_counts_a_corpus(tmp_path, bert_folder):
    from tokenlight.cli.evaluate import idf

    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(TEXTS))
    out = tmp_path / "idf.json"
    idf(corpus=str(corpus), output=out, model=str(bert_folder), text=None, limit=3, split=None)
    assert DocumentFrequencies.load(out).num_documents == 3
