"""The public data sets are read as they are; these tests need the folder TOKENLIGHT_DATA names."""

from __future__ import annotations

import pytest

from tokenlight.data.tokens import Question
from tokenlight.files.tables import read_examples

pytestmark = pytest.mark.data


def test_sst2_and_ag_news_are_read_with_their_labels(data):
    sst2 = read_examples(data / "sst2" / "dev.jsonl.gz")
    assert len(sst2) == 872
    assert {example.label for example in sst2} == {0, 1}
    news = read_examples(data / "ag_news" / "test.jsonl.gz", limit=2000)
    assert len(news) == 2000
    assert {example.label for example in news} == {0, 1, 2, 3}


def test_the_spans_of_movie_rationales_cover_their_words(data):
    reviews = read_examples(data / "eraser_movies" / "val.jsonl.gz")
    assert len(reviews) == 200
    for example in reviews:
        assert isinstance(example.text, str)
        for start, end in example.spans or ():
            marked = example.text[start:end]
            assert marked == marked.strip()
            assert start == 0 or example.text[start - 1].isspace()


def test_the_spans_of_squad_answers_cover_their_words(data):
    for example in read_examples(data / "squad_v1" / "dev.jsonl.gz", limit=200):
        assert isinstance(example.text, Question)
        start, end = example.spans[0]
        assert 0 <= start < end <= len(example.text.context)
    empty = [e for e in read_examples(data / "squad_v2" / "dev.jsonl.gz", limit=200) if not e.spans]
    assert empty
    assert all(example.spans == () for example in empty)
