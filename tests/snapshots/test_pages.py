"""What HTML pages hold, tag by tag.

Each snapshot is a file that a browser opens. Style sheets and scripts are left out: they are separate files.
``pytest tests/snapshots --snapshot-update`` accepts an intended change.
"""

from __future__ import annotations

import re

import pytest
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from tests.snapshots import attributions
from tokenlight.plots.comparison_page import ChangedTextScene, render_comparison
from tokenlight.plots.dataset_report import DataSetReport
from tokenlight.plots.html import render_page


class HtmlSnapshotExtension(SingleFileSnapshotExtension):
    """Store each page in an ``.html`` file."""

    _write_mode = WriteMode.TEXT
    file_extension = "html"


@pytest.fixture
def html_snapshot(snapshot):
    return snapshot.use_extension(HtmlSnapshotExtension)


def strip_style_and_script(page: str) -> str:
    """Remove style sheet and script, and their digests, from a page."""
    page = re.sub(r"(<style>).*?(</style>)", r"\1\2", page, flags=re.DOTALL)
    page = re.sub(r"(<script>).*?(</script>)", r"\1\2", page, flags=re.DOTALL)
    return re.sub(r"sha256-[A-Za-z0-9+/=]+", "sha256-…", page)


def test_a_page_shows_two_methods_with_their_grades(html_snapshot):
    page = render_page(attributions.reviews_by_two_methods(), reference="attcat")
    assert strip_style_and_script(page) == html_snapshot


def test_a_page_shows_a_continuation_token_by_token(html_snapshot):
    assert strip_style_and_script(render_page(attributions.continuation())) == html_snapshot


def test_a_page_compares_two_models(html_snapshot):
    first, second = attributions.reviews_by_two_methods()
    changed_text = ChangedTextScene("row 1 of reviews.csv", "-1.00", first, second)
    numbers = [("flipped predictions", "0.25", "0.10 to 0.40")]
    page = render_comparison("model A and model B", numbers, [changed_text])
    assert strip_style_and_script(page) == html_snapshot


def test_a_report_lists_the_texts_of_a_data_set(html_snapshot):
    report = DataSetReport("reviews.csv")
    extras = {"location": "row 1 of reviews.csv", "label": "negative", "columns": {"id": "a7"}}
    report.add([attributions.review(extras=extras | {"trust": attributions.TRUST})])
    ((_, page),) = report.render_pages("report.html")
    assert strip_style_and_script(page) == html_snapshot
