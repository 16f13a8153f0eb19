"""Reports of runs whose parts were written by hand, so that every number is known beforehand."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from tests.tiny import tiny_bert, tiny_tokenizer
from tests.unit.hand_made import sample
from tests.unit.reading_html import Reader
from tokenlight import Explainer
from tokenlight.bench.entries import MetricEntry
from tokenlight.bench.plan import Cell, Plan
from tokenlight.bench.report import figures
from tokenlight.bench.report.comparison import SuiteReport
from tokenlight.bench.report.figures import Artist, FigureWish
from tokenlight.bench.report.words import _measured
from tokenlight.bench.report.write import markdown, report, tex
from tokenlight.bench.store import RunFolder
from tokenlight.bench.suite import from_dict, read
from tokenlight.bench.tables import merged
from tokenlight.cli.app import app
from tokenlight.data.postprocess import difference
from tokenlight.errors import DamagedFile, UnknownName
from tokenlight.evaluation.corpus import class_weights
from tokenlight.plots import charts
from tokenlight.plots.charts import Line, frontier, unbeaten
from tokenlight.plots.charts import lines as lines_figure
from tokenlight.plots.figures import difference_map

EVIL = "<script>alert(1)</script> & 50%_{x}"
TEXTS = 6
# AOPC of each method: mean 0.5, 0.4, 0.1 (and two draws of Random: 0.2, 0.3).
MEANS = {"Best": 0.5, "Second": 0.4, "Worst": 0.1, "Random #0": 0.2, "Random #1": 0.3}


def content(**more):
    suite = {
        "name": "hand",
        "title": f"By hand {EVIL}",
        "data": [{"name": "d1", "title": f"First {EVIL}", "note": "ours"}, {"name": "d2"}],
        "models": [{"name": "M", "hub": "someone/m", "twin": "tokenlight/sentiment"}],
        "methods": [
            {"name": "attcat", "label": "Best"},
            {"name": "cat", "label": "Second"},
            {"name": "grads", "label": "Worst"},
            {
                "name": "random",
                "label": "Random #{seed}",
                "group": "Random",
                "each": {"seed": [0, 1]},
            },
        ],
        "metrics": [{"name": "aopc", "label": "AOPC"}],
        "slice": 3,
        "published": {
            "d1": {
                "Best": {"AOPC": 0.45},
                "Second": {"AOPC": 0.35},
                "Worst": {"AOPC": 0.05},
                "Random": {"AOPC": {"mean": 0.2, "sd": 0.01}},
            },
            "d2": {"Best": {"AOPC": 0.6}},
        },
        "expect": [
            {"claim": "clear", "metric": "AOPC", "better": "Best", "than": ["Worst"]},
            {"claim": "wrong", "metric": "AOPC", "better": "Worst", "than": ["Second"]},
            {"claim": "near", "metric": "AOPC", "better": "Best", "than": ["Second"]},
        ],
        "notes": ["a note with <b>marks</b>"],
    }
    return suite | more


def cells(suite, not_run=("d2",)):
    found = []
    for data in ("d1", "d2"):
        for entry in suite.methods:
            for one in entry.expanded():
                reason = "no local model" if data in not_run else ""
                found.append(
                    Cell(
                        number=len(found), model="M", data=data, method=one.label, name=one.name,
                        options=one.options, examples=TEXTS, reason=reason,
                        checkpoint="" if reason else "tokenlight/sentiment",
                    )
                )  # fmt: skip
    return tuple(found)


def row(example, mean, *, detail=None):
    # Texts differ by a little, so that intervals have a width.
    value = mean + (example - (TEXTS - 1) / 2) * 0.02
    return {
        "example": example, "text": example, "tokens": 5, "target": "positive", "predicted": "positive",
        "label": "positive" if example % 3 else "negative",
        "error": None, "attribution": None, "skipped": {}, "agrees": {}, "cut": 0,
        "measured": {"AOPC": measured(value, detail)},
    }  # fmt: skip


def measured(value, detail=None):
    return {"value": value, "curve": [value] * 11, "parts": {}, "detail": detail or {}}


def made(folder, *, seconds=1.0, leave=(), more=None, instead=None):
    """A run in ``folder``, its parts written but those that begin as ``leave`` says; ``instead``:
    what rows of some examples, or of one (method, example), say in place of a number."""
    instead = instead or {}
    given = content(**(more or {}))
    suite, problems = from_dict(given, name="hand", folder=str(folder))
    assert problems == []
    plan = Plan(
        cells=cells(suite), metrics=suite.metrics, sources={}, limit=TEXTS,
        settings={"versions": {"tokenlight": "0", "torch": "0"}},
    )  # fmt: skip
    file = folder.parent / f"{folder.name}.yaml"
    file.write_text(yaml.safe_dump(given), encoding="utf-8")
    run = RunFolder.begin(folder, file, suite, plan)
    for part in run.parts:
        cell = run.cells[part.cell]
        if (cell.method, part.first) in leave:
            continue
        rows = [
            row(e, MEANS[cell.method]) | instead.get(e, {}) | instead.get((cell.method, e), {})
            for e in range(part.first, part.first + part.count)
        ]
        run.write(
            part,
            rows,
            {"seconds": seconds, "explain_seconds": seconds, "measure_seconds": 0.0,
             "explain_forwards": part.count * (1 + len(cell.method)), "failed": 0,
             "explain_backwards": part.count, "measure_forwards": 0, "forward_tokens": 1,
             "device": "cpu"},
        )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return made(tmp_path_factory.mktemp("bench") / "run")


def lines(folder, **how):
    return list(csv.DictReader(io.StringIO(report(folder, "csv", **how))))


class TestNumbers:
    def test_ours_stands_beside_the_published_number_with_its_difference(self, whole):
        best = next(
            line for line in lines(whole) if (line["data"], line["method"]) == ("d1", "Best")
        )
        assert float(best["mean"]) == pytest.approx(0.5)
        assert float(best["low"]) < 0.5 < float(best["high"])
        assert float(best["published"]) == 0.45
        assert float(best["difference"]) == pytest.approx(0.05)
        assert best["count"] == str(TEXTS)

    def test_draws_of_one_group_are_one_row_with_their_spread(self, whole):
        (drawn,) = [
            line for line in lines(whole) if line["data"] == "d1" and "Random" in line["method"]
        ]
        assert drawn["method"] == "Random"
        assert float(drawn["mean"]) == pytest.approx(0.25)
        assert float(drawn["sd"]) == pytest.approx(0.05 * 2**0.5)
        assert (drawn["draws"], drawn["low"], drawn["published_sd"]) == ("2", "", "0.01")

    def test_what_was_not_run_keeps_its_published_number_and_says_why(self, whole):
        absent = [line for line in lines(whole) if line["data"] == "d2"]
        assert {line["status"] for line in absent} == {"not run: no local model"}
        assert next(line for line in absent if line["method"] == "Best")["published"] == "0.6"
        assert "d2: not run: no local model" in report(whole, "md")

    def test_the_order_is_compared_with_the_published_one(self, whole):
        ranking = next(
            line
            for line in report(whole, "md").splitlines()
            if line.startswith("| First") and line.endswith("| Best | 1 |")
        )
        assert "| 4 | +1.00 | +1.00 |" in ranking

    def test_the_accuracy_of_the_model_stands_beside_the_papers(self, tmp_path):
        folder = made(tmp_path / "run", more={"report": {"accuracy": {"d1": 92.43}}})
        line = next(x for x in report(folder, "md").splitlines() if "in place of someone/m" in x)
        assert line.endswith("| 66.7 % (paper 92.43 %) |")

    def test_a_reversed_order_has_correlation_minus_one(self, tmp_path):
        turned = {"Best": 0.1, "Second": 0.2, "Worst": 0.4, "Random": 0.3}
        published = {"d1": {name: {"AOPC": number} for name, number in turned.items()}}
        text = report(made(tmp_path / "run", more={"published": published}), "md")
        assert "| 4 | -1.00 | -1.00 | Worst | 4 |" in text


class TestClaims:
    def test_each_claim_is_judged_on_the_numbers(self, whole):
        found = {
            line.split("|")[1].strip(): line.split("|")[2].strip()
            for line in report(whole, "md").splitlines()
            if line.startswith(("| clear", "| wrong", "| near"))
        }
        assert found == {"clear": "holds", "wrong": "does not hold", "near": "holds"}

    def test_a_small_lead_on_every_text_holds(self, tmp_path, monkeypatch):
        # The two means lie within each other's intervals; text by text there is no doubt.
        monkeypatch.setitem(MEANS, "Second", 0.49)
        text = report(made(tmp_path / "run"), "md")
        assert "| near | holds | First" in text
        assert "holds (Best 0.500, Second 0.490, difference +0.010 … +0.010)" in text

    @pytest.mark.parametrize(
        ("said", "here"),
        [
            ({"better": "Best", "than": ["Second"], "by": 20}, "| holds |"),
            ({"better": "Best", "than": ["Second"], "by": 30}, "| does not hold |"),
            ({"better": "Worst", "than": ["Second"], "by": 1}, "| does not hold |"),
            ({"better": "Best", "than": ["Second"], "until": 0.5}, "| holds |"),
            ({"better": "Worst", "than": ["Second"], "until": 0.5}, "Second is ahead at 10 %"),
            ({"better": "Best", "than": ["Worst"], "control": "Second"}, "| holds |"),
            ({"better": "Best", "than": ["Worst"], "control": "Best"}, "| cannot be tested here |"),
            ({"cannot": "no model has it"}, "| cannot be tested here | cannot be tested here (no model"),
        ],
    )  # fmt: skip
    def test_a_claim_may_ask_for_a_lead_for_a_curve_for_a_control_or_for_nothing(
        self, tmp_path, said, here
    ):
        claim = {"claim": "c", **({} if "cannot" in said else {"metric": "AOPC"}), **said}
        text = report(made(tmp_path / "run", more={"expect": [claim]}), "md")
        (line,) = [one for one in text.splitlines() if one.startswith("| c |")]
        assert here in line

    @pytest.mark.parametrize(
        ("lowest", "here"), [("film", "holds"), ("good", "does not hold"), ("plot", "not run")]
    )
    def test_a_claim_of_two_tokens_is_read_off_the_kept_text(self, tmp_path, lowest, here):
        found = Explainer(tiny_bert(), tiny_tokenizer()).explain("good film", "attcat")
        places = {token: place for place, token in enumerate(found.tokens)}
        scores = np.zeros(len(found))
        scores[places["good"]], scores[places["film"]] = 0.5, -1.0
        kept = {"attribution": json.dumps(replace(found, scores=scores, layers=None).to_dict())}
        claim = {"claim": "c", "better": "Best", "highest": "good", "lowest": lowest}
        folder = made(
            tmp_path / "run", more={"expect": [claim], "keep": 1}, instead={("Best", 0): kept}
        )
        (line,) = [one for one in report(folder, "md").splitlines() if one.startswith("| c |")]
        assert f"| {here} |" in line
        if lowest == "plot":
            return
        assert "good +0.50" in line
        assert "lowest film -1.00" in line

    def test_a_lead_that_texts_disagree_about_holds_weakly(self, tmp_path, monkeypatch):
        monkeypatch.setitem(MEANS, "Second", 0.49)
        turned = {
            ("Second", e): row(e, 0.49 + (0.2 if e % 2 else -0.2)) for e in range(TEXTS // 2 * 2)
        }
        text = report(made(tmp_path / "run", instead=turned), "md")
        assert "| near | holds weakly | First" in text
        assert "holds, but within chance (Best 0.500, Second 0.490, difference -" in text

    def test_draws_are_compared_by_their_mean_on_each_text(self, tmp_path):
        claim = {"claim": "drawn", "metric": "AOPC", "better": "Best", "than": ["Random"]}
        text = report(made(tmp_path / "run", more={"expect": [claim]}), "md")
        assert "holds (Best 0.500, Random 0.250, difference +0.250 … +0.250)" in text

    def test_equal_means_are_a_tie(self, tmp_path, monkeypatch):
        monkeypatch.setitem(MEANS, "Second", 0.5)
        text = report(made(tmp_path / "run"), "md")
        assert "| near | a tie | First" in text
        assert "| 4 | +0.91 | +0.95 | Best | 1 |" in text

    def test_few_texts_are_called_few(self, whole):
        assert "So few texts show that everything runs" in report(whole, "md")


class TestWithoutPaper:
    """A suite of one's own: nothing speaks of a paper, of published numbers, or of itself twice."""

    @pytest.fixture(scope="class")
    @classmethod
    def own(cls, tmp_path_factory):
        methods = ["attcat", "cat:preset=paper", "grads"]
        metrics = [{"name": "aopc", "label": "AOPC"}]
        more = {"published": {}, "methods": methods, "metrics": metrics, "notes": []}
        more["expect"] = [{"claim": "led", "metric": "AOPC", "better": "attcat", "than": ["grads"]}]
        with pytest.MonkeyPatch.context() as patch:
            for name, mean in zip(methods, (0.5, 0.4, 0.1), strict=True):
                patch.setitem(MEANS, name, mean)
            yield made(tmp_path_factory.mktemp("own") / "run", more=more)

    def test_no_format_speaks_of_a_paper(self, own):
        page = " ".join(Reader(open_page(own)).texts.values())
        for text in (report(own, "md"), report(own, "latex"), page):
            assert "led" in text
            for word in ("paper's", "of the paper", "ublished", "No order", "& paper"):
                assert word not in text, word

    def test_only_what_differs_is_explained(self, own, whole):
        assert "## Rows" not in report(own, "md")
        assert "Rows" not in Reader(open_page(own)).texts["h2"]
        assert "Measured: AOPC is aopc." in report(own, "md")
        assert "| Best | attcat |" in report(whole, "md")

    def test_figures_promise_no_diamonds(self, own):
        titles = [v["alt"] for tag, v in Reader(open_page(own)).tags if tag == "img"]
        assert "AOPC ↑" in titles

    def test_without_claims_nothing_holds(self, tmp_path):
        text = report(made(tmp_path / "run", more={"published": {}, "expect": []}), "md")
        assert "What holds" not in text

    def test_a_metric_by_its_own_name_is_named_once(self):
        one = MetricEntry("aopc", "aopc", {"preset": "attcat"})
        assert _measured(one) == "aopc (preset=attcat)"
        assert _measured(replace(one, options={})) == "aopc"
        assert _measured(replace(one, label="aopc:preset=attcat")) == "aopc:preset=attcat"

    def test_an_unnamed_suite_keeps_the_name_of_its_file(self, tmp_path):
        given = content()
        del given["name"]
        file = tmp_path / "mine.yaml"
        file.write_text(yaml.safe_dump(given), encoding="utf-8")
        suite, _ = read(file)
        plan = Plan(
            cells=cells(suite), metrics=suite.metrics, sources={}, limit=TEXTS,
            settings={"versions": {}},
        )  # fmt: skip
        run = RunFolder.begin(tmp_path / "run", file, suite, plan)
        assert "suite `mine`" in markdown(SuiteReport(run, merged(run)), [])


class TestRefused:
    def test_a_row_the_model_cannot_do_says_so_in_full_above_and_briefly_in_its_cell(
        self, tmp_path, monkeypatch
    ):
        why = "this model norms its embeddings, so that what is left would be rounding noise"
        plain = cells

        def refused(suite):
            return tuple(
                replace(c, reason=why) if (c.data, c.method) == ("d1", "Worst") else c
                for c in plain(suite)
            )

        monkeypatch.setitem(globals(), "cells", refused)
        text = report(made(tmp_path / "run"), "md")
        assert f"not run: {why}." in text
        assert "| Worst | not run (see above) | 0.050 | – |" in text


class TestUnfinished:
    def test_a_half_done_run_is_reported_and_says_what_is_missing(self, tmp_path):
        gone = {("Second", 0), ("Second", 3), ("Best", 3)}
        folder = made(tmp_path / "run", leave=gone)
        found = {line["method"]: line for line in lines(folder) if line["data"] == "d1"}
        assert found["Second"]["status"] == "not finished"
        assert found["Best"]["count"] == "3"
        assert "7 of 10 parts" in report(folder, "md")
        assert Reader(open_page(folder)).texts["h1"]

    def test_a_folder_without_a_run_is_refused(self, tmp_path):
        with pytest.raises(DamagedFile, match="holds no benchmark run"):
            report(tmp_path, "md")

    def test_an_unknown_format_is_refused_with_the_known_ones(self, whole):
        with pytest.raises(UnknownName, match="unknown report format 'pdf'.*csv, html, latex, md"):
            report(whole, "pdf")


def open_page(folder, **how):
    from pathlib import Path

    return Path(report(folder, "html", **how)).read_text(encoding="utf-8")


class TestPages:
    def test_every_word_is_escaped_and_nothing_comes_from_outside(self, whole):
        page = open_page(whole)
        read = Reader(page)
        assert "<script" not in page
        assert EVIL in read.texts["h1"]
        assert "<b>marks</b>" in read.texts["li"]
        assert not [v for tag, v in read.tags if "http" in v.get("src", "") + v.get("href", "")]
        assert not [v for _, v in read.tags if "style" in v or any(k.startswith("on") for k in v)]
        policy = next(v["content"] for t, v in read.tags if v.get("http-equiv"))
        assert "default-src 'none'" in policy

    def test_figures_are_inside_the_page(self, whole):
        pictures = [v for tag, v in Reader(open_page(whole)).tags if tag == "img"]
        titles = [v["alt"] for v in pictures]
        assert any(title.startswith("AOPC ↑: ours") for title in titles)
        assert "AOPC point by point" in titles
        assert "Cost against faithfulness" in titles
        assert all(v["src"].startswith("data:image/png;base64,iVBOR") for v in pictures)

    def test_equal_tables_give_equal_bytes_whatever_the_timings(self, whole, tmp_path):
        other = made(tmp_path / "run", seconds=77.0)
        for form in ("md", "latex", "csv"):
            assert report(whole, form, timings=False) == report(other, form, timings=False)
        assert open_page(whole, timings=False) == open_page(other, timings=False)
        assert report(whole, "md") != report(other, "md")

    def test_a_figure_that_cannot_be_drawn_says_why(self, tmp_path):
        figures = [{"kind": "heat_map", "title": "Heat"}, {"kind": "curves", "title": "Curves"}]
        page = open_page(made(tmp_path / "run", more={"report": {"figures": figures}}))
        assert "not drawn: nothing of it was run" in page
        assert 'alt="Curves"' in page

    def test_markdown_links_the_pictures_it_writes(self, whole, tmp_path):
        place = tmp_path / "out" / "hand.md"
        report(whole, "md", output=place, figures=tmp_path / "out" / "hand")
        linked = re.findall(r"!\[.*\]\((hand/figure_\d\d\.png)\)", place.read_text())
        assert len(linked) == 3
        assert all((place.parent / path).read_bytes()[:4] == b"\x89PNG" for path in linked)

    def test_markdown_cells_cannot_break_the_table(self, whole):
        for line in report(whole, "md").splitlines():
            if line.startswith("| First"):
                assert "<script" not in line.replace("\\<", "")


class TestFigures:
    def test_figure_5_has_the_product_of_the_layers(self, monkeypatch):
        kept = [(None, {"AttCAT": sample(layers=2)})]
        monkeypatch.setattr(Artist, "_kept", lambda *_: iter(kept))
        drawn = Artist(None).heat_map(FigureWish("heat_map", "Heat"))
        names = [label.get_text() for label in drawn.axes[0].get_yticklabels()]
        assert names == ["L0", "L1", "Rollout", "Sum"]

    def test_a_band_joins_the_draws_of_each_rate(self, tmp_path, monkeypatch):
        rates = {"c 0.5 #0": 0.3, "c 0.5 #1": 0.4, "c 1.0 #0": 0.2, "c 1.0 #1": 0.2}
        for label, mean in rates.items():
            monkeypatch.setitem(MEANS, label, mean)
        drawn = {}
        monkeypatch.setattr(figures.charts, "lines", lambda panels, _: drawn.update(panels))
        methods = [
            *content()["methods"],
            {"name": "mask_lrp", "label": "c {corruption} #{seed}", "group": "c {corruption}",
             "each": {"corruption": [0.5, 1.0], "seed": [0, 1]}},
        ]  # fmt: skip
        figure = {"kind": "bands", "title": "B", "group": "c {x}", "start": "Best", "end": "Worst"}
        more = {"methods": methods, "report": {"figures": [figure]}}
        report(made(tmp_path / "run", more=more), "html")
        ((band, best, worst),) = (panel.values() for panel in drawn.values())
        assert band.points == [0.5, 1.0]
        assert band.means == pytest.approx([0.35, 0.2])
        reach = [high - mean for high, mean in zip(band.highs, band.means, strict=True)]
        assert reach == pytest.approx([0.05 * 2**0.5, 0.0])
        assert (*best.means, *worst.means) == pytest.approx((0.5, 0.5, 0.1, 0.1))

    def test_a_kept_explanation_is_drawn_as_differences(self):
        a = Explainer(tiny_bert(), tiny_tokenizer()).explain(
            "good film", ["attcat", "cat", "grads"]
        )
        kept = dict(zip(("Best", "Second", "Worst"), a, strict=True))
        figure = difference_map(("Best", kept.pop("Best")), kept, title="$x$ <b>")
        axes = figure.axes[0]
        assert [t.get_text() for t in axes.get_yticklabels()] == [
            "Best", "Best − Second", "Best − Worst"
        ]  # fmt: skip
        assert [t.get_text() for t in axes.get_xticklabels()] == ["good", "film"]
        assert axes.images[0].get_array().shape == (3, 2)
        assert charts.png(figure)[:4] == b"\x89PNG"

    def test_kept_texts_are_coloured_by_each_row_or_by_its_difference_to_a_reference(
        self, monkeypatch
    ):
        texts = ["good film", "a dull plot"]
        explainer, shown = Explainer(tiny_bert(), tiny_tokenizer()), []
        kept = [
            (
                None,
                dict(zip(("Ours", "CAT"), explainer.explain(text, ["attcat", "cat"]), strict=True)),
            )
            for text in texts
        ]
        monkeypatch.setattr(Artist, "_kept", lambda *_: iter(kept))
        monkeypatch.setattr(
            "tokenlight.bench.report.figures.highlighted",
            lambda found: shown.extend(found) or "drawn",
        )
        wish = FigureWish("texts", "T")
        assert Artist(None).texts(wish) == "drawn"
        assert [one.method for one in shown] == ["Ours", "CAT"] * 2
        shown.clear()
        Artist(None).texts(FigureWish("texts", "T", reference="Ours"))
        assert [one.method for one in shown] == ["Ours", "Ours − CAT"] * 2
        ours, other = kept[0][1].values()
        np.testing.assert_array_equal(shown[1].scores, difference(ours, other).scores)

    def test_an_unknown_kind_of_figure_is_refused_with_the_suite(self):
        given = content(report={"figures": [{"kind": "pie"}, {"kin": "bars"}]})
        _, (kind, key) = from_dict(given, name="hand", folder=".")
        assert "report, figures, entry 1, kind: it is 'pie'; it should be 'bars', 'curves'" in kind
        assert "unknown key 'kin'. Did you mean 'kind'?" in key

    def test_the_same_figure_gives_the_same_bytes(self):
        panels = {"p": {"m": Line([0.0, 1.0], [0.1, 0.2], [0.0, 0.1], [0.2, 0.3])}}
        assert charts.png(lines_figure(panels)) == charts.png(lines_figure(panels))


class TestLatex:
    def test_special_characters_are_escaped(self):
        assert tex("50%_{x} & #1 $ ~ ^ \\") == (
            r"50\%\_\{x\} \& \#1 \$ \textasciitilde{} \textasciicircum{} \textbackslash{}"
        )

    def test_every_row_has_as_many_cells_as_the_table_has_columns(self, whole):
        text = report(whole, "latex")
        assert text.count(r"\begin{") == text.count(r"\end{") > 0
        for table in re.findall(r"\\begin\{tabular\}\{(\w+)\}(.*?)\\end\{tabular\}", text, re.S):
            columns, body = len(table[0]), table[1]
            for line in body.splitlines():
                if line.endswith(r"\\") and "multicolumn" not in line:
                    assert line.replace(r"\&", "").count("&") == columns - 1

    def test_no_bare_special_is_left_in_any_table(self, whole):
        body = "\n".join(
            line for line in report(whole, "latex").splitlines() if not line.startswith("%")
        )
        assert not re.search(r"(?<!\\)[%#]", body)


class TestPieces:
    def test_the_frontier_has_only_methods_that_none_beats(self):
        panel = {"a": (1, 0.2), "b": (2, 0.1), "c": (3, 0.5), "d": (3, 0.4)}
        assert unbeaten(panel) == ["a", "c"]
        assert unbeaten(panel, lower=True) == ["a", "b"]

    @pytest.mark.parametrize(("most", "shown"), [(280, {"50", "200"}), (280_000, set())])
    def test_the_frontier_names_costs_by_plain_numbers_where_there_is_room(self, most, shown):
        figure = frontier({"ms": {"a": (30, 0.2), "b": (most, 0.5)}}, "aopc")
        figure.canvas.draw()
        axis = figure.axes[0].xaxis
        between = {label.get_text() for label in axis.get_minorticklabels()} - {""}
        assert "100" in {label.get_text() for label in axis.get_majorticklabels()}
        assert shown <= between if shown else not between
        assert not any("10^" in label for label in between)

    def test_cloud_weights_are_summed_by_class_and_weighed_by_rarity(self):
        from math import log

        details = [
            {"class": 1, "weights": {"7": 2.0, "8": 1.0}, "pieces": {"7": "good", "8": "the"}},
            {"class": 0, "weights": {"8": 3.0}, "pieces": {"8": "the"}},
        ]
        rows = [
            {"measured": {"O": {"detail": one}}, "predicted": name}
            for one, name in zip(details, ("positive", "negative"), strict=True)
        ]
        assert class_weights(rows, "O", "log") == {
            "negative": {"the": 0.0},
            "positive": {"good": pytest.approx(2 * log(2)), "the": 0.0},
        }


class TestCommand:
    def test_the_command_prints_the_report(self, whole):
        done = CliRunner().invoke(app, ["bench", "report", str(whole), "--format", "csv"])
        assert done.exit_code == 0
        assert done.stdout == report(whole, "csv")

    def test_html_is_written_and_its_path_printed(self, whole, tmp_path):
        place = tmp_path / "page.html"
        done = CliRunner().invoke(
            app, ["bench", "report", str(whole), "-f", "html", "-o", str(place)]
        )
        assert done.stdout.strip() == str(place)
        assert place.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_texts_that_were_not_measured_are_told_with_the_reason(tmp_path):
    short = {"measured": {}, "skipped": {"AOPC": "the text has fewer than 20 tokens."}}
    made(tmp_path / "run", instead={1: short})
    page = report(tmp_path / "run", "md")
    assert (
        f"{TEXTS - 1} of {TEXTS} planned (of the others: the text has fewer than 20 tokens)" in page
    )
    made(tmp_path / "none", instead=dict.fromkeys(range(TEXTS), short))
    said = report(tmp_path / "none", "md")
    assert "no text could be measured: the text has fewer than 20 tokens" in said


def test_of_a_long_error_the_first_sentence_is_told(tmp_path):
    long = {"error": "CUDA out of memory. Tried to allocate 20 MiB. Process 17 has 1 GiB in use."}
    made(tmp_path / "run", instead={2: long})
    said = report(tmp_path / "run", "md")
    assert "left out; the first: CUDA out of memory." in said
    assert "Process" not in said


def test_a_report_says_that_the_order_depends_on_how_tokens_are_removed(tmp_path):
    metrics = [
        {"name": "aopc", "label": "AOPC"},
        {"name": "aopc", "label": "masked", "options": {"perturb": "mask"}},
    ]
    turned = {"Best": 0.1, "Second": 0.2, "Worst": 0.5, "Random #0": 0.3, "Random #1": 0.3}
    instead = {
        (method, e): {
            "measured": {
                "AOPC": row(e, MEANS[method])["measured"]["AOPC"],
                "masked": row(e, mean)["measured"]["AOPC"],
            }
        }
        for method, mean in turned.items()
        for e in range(TEXTS)
    }
    folder = made(tmp_path / "run", more={"metrics": metrics}, instead=instead)
    text = " ".join(report(folder).split())
    assert "The order of the 4 methods by aopc depends on how tokens are removed" in text
    assert "first is “Best” (deleted), “Worst” (replaced by" in text
