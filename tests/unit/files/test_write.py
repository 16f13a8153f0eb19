"""Files are whole or not there, and nothing that is no file is written over."""

import csv
import io
import json
import os
import stat

import numpy as np
import pytest

from tests.helpers.expect import expect_error
from tests.helpers.handmade_attributions import make_attribution, make_row, make_sample, split_words
from tokenlight.errors import BadInput, DamagedFile, NotFinite
from tokenlight.files.saved import save
from tokenlight.files.write import dump_csv, dump_json, write_text


def list_names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_write_errors_become_tokenlight_errors_and_others_pass():
    message = "a.csv is damaged: "
    way_out = "; make it again."
    with (
        pytest.raises(DamagedFile) as caught,
        DamagedFile.reraise_as(message, OSError, suffix=way_out),
    ):
        raise FileNotFoundError("gone")
    assert str(caught.value) == "a.csv is damaged: gone; make it again."
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    for passing in (
        BadInput("a refusal, though it is a ValueError too."),
        KeyError("another kind"),
    ):
        with (
            pytest.raises(type(passing)) as remaining,
            DamagedFile.reraise_as("a: ", OSError, ValueError),
        ):
            raise passing
        assert remaining.value is passing


def test_a_link_is_followed_and_stays(tmp_path):
    (tmp_path / "real").mkdir()
    path = tmp_path / "real" / "a.txt"
    link = tmp_path / "link.txt"
    path.write_text("before")
    link.symlink_to(path)
    write_text(link, "now")
    assert link.is_symlink()
    assert path.read_text() == "now"
    later = tmp_path / "later.txt"
    later.symlink_to(tmp_path / "real" / "new.txt")
    write_text(later, "new")
    assert (later.is_symlink(), (tmp_path / "real" / "new.txt").read_text()) == (True, "new")
    assert list_names(tmp_path / "real") == ["a.txt", "new.txt"]


def test_a_path_that_is_not_a_file_is_refused_and_unchanged(tmp_path):
    pipe = tmp_path / "pipe"
    circle = tmp_path / "circle"
    folder = tmp_path / "folder"
    os.mkfifo(pipe)
    circle.symlink_to(circle)
    folder.mkdir()
    through = tmp_path / "through"
    through.symlink_to(pipe)
    for path in (pipe, circle, folder, through):
        with expect_error(BadInput, "output-not-a-file", mentions=str(path)):
            write_text(path, "text")
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    assert list_names(tmp_path) == ["circle", "folder", "pipe", "through"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_writing_to_a_device_does_not_replace_it(tmp_path):
    link = tmp_path / "a.json"
    link.symlink_to("/dev/full")
    with expect_error(BadInput, "output-not-a-file", mentions="a device"):
        save([make_sample()], link)
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)


def test_texts_that_look_like_formulas_are_quoted_in_csv_and_numbers_are_not():
    risky = ["=1+1", "+1+1", "-x", "@SUM(A1)", "\tx", "=", "-"]
    plain = ["-0.5", "+3", "-1e-7", "a=1", "", "'quoted", -0.5, 3, None]
    rows = list(csv.reader(io.StringIO(dump_csv(["cell"], [{"cell": c} for c in risky + plain]))))
    cells = [row[0] if row else "" for row in rows[1:]]
    assert cells == [f"'{c}" for c in risky] + ["" if c is None else str(c) for c in plain]


def test_a_saved_table_starts_no_formula(tmp_path):
    text = "=HYPERLINK is dull"
    created = make_attribution(make_row([text], [split_words(text)]), [0, -0.5, 0.25, 1, 2, 0])
    rows = list(csv.DictReader(save([created], tmp_path / "a.csv").read_text("utf-8").splitlines()))
    assert [row["token"] for row in rows][1] == "'="
    assert [float(row["score"]) for row in rows] == created.scores.tolist()


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), np.nan])
def test_no_nan_is_written_as_json(wrong, tmp_path):
    with expect_error(NotFinite, "json-not-finite"):
        dump_json({"a": [wrong]})
    with expect_error(NotFinite, "json-not-finite"):
        save([make_sample(options={"residual": wrong})], tmp_path / "a.json")
    assert list_names(tmp_path) == []
    assert json.loads(dump_json({"a": "é"})) == {"a": "é"}
