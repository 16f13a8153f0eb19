"""The words of errors: what weighs more in them than in right predictions of the same class."""

import pytest

from tests.helpers.handmade_attributions import make_word_attribution
from tokenlight.plots.error_words import ErrorWord, ErrorWords


def collect(*texts):
    words = ErrorWords()
    for text, scores, label in texts:
        words.add(make_word_attribution(text, scores, label=label))
    return words


def test_words_rank_by_their_mean_share_above_that_in_right_predictions():
    # The predicted class is "positive". Shares: slow 0.5, plot 0.5; plot 1.0 where it is right.
    words = collect(
        ("slow plot", [0.3, 0.3], "negative"),
        ("plot", [0.2], "positive"),
    )
    assert words.rank("negative", "positive") == [ErrorWord("slow", 1, 0)]


def test_a_word_that_speaks_against_the_prediction_is_left_out():
    words = collect(("dull fine", [-0.5, 0.1], "negative"))
    assert words.rank("negative", "positive") == [ErrorWord("fine", 1, 0)]


@pytest.mark.parametrize(("text", "expected"), [("don ' t", "don't"), ("it ' s", "'s")])
def test_apostrophes_are_joined_as_on_the_page(text, expected):
    words = collect((text, [0.1, 0.1, 0.3], "negative"))
    assert expected in [word.word for word in words.rank("negative", "positive")]


def test_full_stops_are_no_words():
    words = collect(("good .", [0.1, 0.9], "negative"))
    assert [word.word for word in words.rank("negative", "positive")] == ["good"]


def test_a_text_without_a_true_label_is_not_counted():
    words = ErrorWords()
    words.add(make_word_attribution("good film"))
    assert words.sums == {}
