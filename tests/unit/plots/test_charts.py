"""Charts of many texts: tokens without their marks, and what a word cloud needs."""

from __future__ import annotations

import sys

import pytest

from tokenlight.errors import BadInput, MissingExtra
from tokenlight.plots import charts


def test_pieces_are_shown_without_their_marks():
    assert [charts.strip_token_prefix(t) for t in ("##ing", "Ġgood", "▁fine", "plain")] == [
        "ing", "good", "fine", "plain",
    ]  # fmt: skip


def test_a_cloud_needs_a_positive_weight():
    pytest.importorskip("wordcloud")
    with pytest.raises(BadInput, match="nothing to draw"):
        charts.draw_word_cloud({"film": -1.0})


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "wordcloud", None)
    with pytest.raises(MissingExtra, match=r"tokenlight\[plots\]"):
        charts.draw_word_cloud({"film": 1.0})
