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

from tests.helpers.expect import expect_error
from tests.helpers.handmade_attributions import make_sample
from tests.helpers.html_reader import PageReader
from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tokenlight import Explainer
from tokenlight.bench.plan import Cell, Plan
from tokenlight.bench.report import figures
from tokenlight.bench.report.comparison import SuiteReport
from tokenlight.bench.report.figures import FigureDrawer, FigureSpec
from tokenlight.bench.report.sentences import _describe_metric
from tokenlight.bench.report.writers import escape_latex, render_markdown, write_report
from tokenlight.bench.run_folder import RunFolder
from tokenlight.bench.suite import parse_suite, read_suite_file
from tokenlight.bench.suite_entries import MetricEntry
from tokenlight.bench.tables import merge_parts
from tokenlight.cli.app import app
from tokenlight.data.postprocess import difference
from tokenlight.errors import DamagedFile, UnknownName
from tokenlight.evaluation.corpus import compute_class_weights
from tokenlight.plots import charts
from tokenlight.plots.charts import Line, draw_frontier, find_pareto_front
from tokenlight.plots.charts import draw_lines as lines_figure
from tokenlight.plots.figures import draw_difference_map

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
        "part_size": 3,
        "published": {
            "d1": {
                "Best": {"AOPC": 0.45},
                "Second": {"AOPC": 0.35},
                "Worst": {"AOPC": 0.05},
                "Random": {"AOPC": {"mean": 0.2, "sd": 0.01}},
            },
            "d2": {"Best": {"AOPC": 0.6}},
        },
        "claims": [
            {"claim": "clear", "metric": "AOPC", "method": "Best", "baselines": ["Worst"]},
            {"claim": "wrong", "metric": "AOPC", "method": "Worst", "baselines": ["Second"]},
            {"claim": "near", "metric": "AOPC", "method": "Best", "baselines": ["Second"]},
        ],
        "notes": ["a note with <b>marks</b>"],
    }
    return suite | more


def make_cells(suite, not_run=("d2",)):
    cells = []
    for data in ("d1", "d2"):
        for entry in suite.methods:
            for variant in entry.expand():
                reason = "no local model" if data in not_run else ""
                cells.append(
                    Cell(
                        number=len(cells), model="M", data=data,
                        method_label=variant.label, method_name=variant.name,
                        options=variant.options, examples=TEXTS, reason=reason,
                        checkpoint="" if reason else "tokenlight/sentiment",
                    )
                )  # fmt: skip
    return tuple(cells)


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


def make_run(folder, *, seconds=1.0, leave=(), more=None, instead=None):
    """A run in ``folder``, its parts written but those that begin as ``leave`` says; ``instead``:
    what rows of some examples, or of one (method, example), say in place of a number."""
    instead = instead or {}
    suite_content = content(**(more or {}))
    suite, problems = parse_suite(suite_content, name="hand", folder=str(folder))
    assert problems == []
    plan = Plan(
        cells=make_cells(suite), metrics=suite.metrics, sources={}, limit=TEXTS,
        settings={"versions": {"tokenlight": "0", "torch": "0"}},
    )  # fmt: skip
    file = folder.parent / f"{folder.name}.yaml"
    file.write_text(yaml.safe_dump(suite_content), encoding="utf-8")
    run = RunFolder.create_or_resume(folder, file, suite, plan)
    for part in run.parts:
        cell = run.cells[part.cell]
        if (cell.method_label, part.first) in leave:
            continue
        rows = [
            row(e, MEANS[cell.method_label])
            | instead.get(e, {})
            | instead.get((cell.method_label, e), {})
            for e in range(part.first, part.first + part.count)
        ]
        run.write_part(
            part,
            rows,
            {"seconds": seconds, "explain_seconds": seconds, "measure_seconds": 0.0,
             "explain_forwards": part.count * (1 + len(cell.method_label)), "failed": 0,
             "explain_backwards": part.count, "measure_forwards": 0, "forward_tokens": 1,
             "device": "cpu"},
        )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def complete_run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("bench") / "run")


def read_csv_report(folder, **options):
    return list(csv.DictReader(io.StringIO(write_report(folder, "csv", **options))))


class TestNumbers:
    def test_a_measured_score_is_shown_with_the_published_one_and_their_difference(
        self, complete_run
    ):
        best = next(
            line
            for line in read_csv_report(complete_run)
            if (line["data"], line["method"]) == ("d1", "Best")
        )
        assert float(best["mean"]) == pytest.approx(0.5)
        assert float(best["low"]) < 0.5 < float(best["high"])
        assert float(best["published"]) == 0.45
        assert float(best["difference"]) == pytest.approx(0.05)
        assert best["count"] == str(TEXTS)

    def test_draws_of_one_group_are_one_row_with_their_spread(self, complete_run):
        (random_row,) = [
            line
            for line in read_csv_report(complete_run)
            if line["data"] == "d1" and "Random" in line["method"]
        ]
        assert random_row["method"] == "Random"
        assert float(random_row["mean"]) == pytest.approx(0.25)
        assert float(random_row["sd"]) == pytest.approx(0.05 * 2**0.5)
        assert (random_row["draws"], random_row["low"], random_row["published_sd"]) == (
            "2",
            "",
            "0.01",
        )

    def test_a_score_that_was_not_measured_shows_the_published_one_and_the_reason(
        self, complete_run
    ):
        absent = [line for line in read_csv_report(complete_run) if line["data"] == "d2"]
        assert {line["status"] for line in absent} == {"not run: no local model"}
        assert next(line for line in absent if line["method"] == "Best")["published"] == "0.6"
        assert "d2: not run: no local model" in write_report(complete_run, "md")

    def test_the_order_is_compared_with_the_published_one(self, complete_run):
        ranking = next(
            line
            for line in write_report(complete_run, "md").splitlines()
            if line.startswith("| First") and line.endswith("| Best | 1 |")
        )
        assert "| 4 | +1.00 | +1.00 |" in ranking

    def test_the_accuracy_of_the_model_is_shown_next_to_the_papers(self, tmp_path):
        folder = make_run(tmp_path / "run", more={"report": {"accuracy": {"d1": 92.43}}})
        line = next(
            x for x in write_report(folder, "md").splitlines() if "in place of someone/m" in x
        )
        assert line.endswith("| 66.7 % (paper 92.43 %) |")

    def test_a_reversed_order_has_correlation_minus_one(self, tmp_path):
        turned = {"Best": 0.1, "Second": 0.2, "Worst": 0.4, "Random": 0.3}
        published = {"d1": {name: {"AOPC": number} for name, number in turned.items()}}
        text = write_report(make_run(tmp_path / "run", more={"published": published}), "md")
        assert "| 4 | -1.00 | -1.00 | Worst | 4 |" in text


class TestClaims:
    def test_each_claim_is_judged_on_the_numbers(self, complete_run):
        verdicts = {
            line.split("|")[1].strip(): line.split("|")[2].strip()
            for line in write_report(complete_run, "md").splitlines()
            if line.startswith(("| clear", "| wrong", "| near"))
        }
        assert verdicts == {"clear": "holds", "wrong": "does not hold", "near": "holds"}

    def test_a_small_lead_on_every_text_holds(self, tmp_path, monkeypatch):
        # The two means lie within each other's intervals; text by text there is no doubt.
        monkeypatch.setitem(MEANS, "Second", 0.49)
        text = write_report(make_run(tmp_path / "run"), "md")
        assert "| near | holds | First" in text
        assert "holds (Best 0.500, Second 0.490, difference +0.010 … +0.010)" in text

    @pytest.mark.parametrize(
        ("claim_fields", "expected"),
        [
            ({"method": "Best", "baselines": ["Second"], "min_percent": 20}, "| holds |"),
            ({"method": "Best", "baselines": ["Second"], "min_percent": 30}, "| does not hold |"),
            ({"method": "Worst", "baselines": ["Second"], "min_percent": 1}, "| does not hold |"),
            ({"method": "Best", "baselines": ["Second"], "max_point": 0.5}, "| holds |"),
            ({"method": "Worst", "baselines": ["Second"], "max_point": 0.5}, "Second is ahead at 10 %"),
            ({"method": "Best", "baselines": ["Worst"], "control": "Second"}, "| holds |"),
            ({"method": "Best", "baselines": ["Worst"], "control": "Best"}, "| cannot be tested here |"),
            (
                {"untestable_because": "no model has it"},
                "| cannot be tested here | cannot be tested here (no model",
            ),
        ],
    )  # fmt: skip
    def test_a_claim_may_require_a_lead_a_curve_a_control_or_none(
        self, tmp_path, claim_fields, expected
    ):
        claim = {
            "claim": "c",
            **({} if "untestable_because" in claim_fields else {"metric": "AOPC"}),
            **claim_fields,
        }
        text = write_report(make_run(tmp_path / "run", more={"claims": [claim]}), "md")
        (line,) = [candidate for candidate in text.splitlines() if candidate.startswith("| c |")]
        assert expected in line

    @pytest.mark.parametrize(
        ("lowest", "expected"), [("film", "holds"), ("good", "does not hold"), ("plot", "not run")]
    )
    def test_a_claim_of_two_tokens_is_read_off_the_kept_text(self, tmp_path, lowest, expected):
        attribution = Explainer(tiny_bert(), tiny_tokenizer()).explain("good film", "attcat")
        positions = {token: position for position, token in enumerate(attribution.tokens)}
        scores = np.zeros(len(attribution))
        scores[positions["good"]] = 0.5
        scores[positions["film"]] = -1.0
        stored = {
            "attribution": json.dumps(replace(attribution, scores=scores, layers=None).to_dict())
        }
        claim = {"claim": "c", "method": "Best", "highest_token": "good", "lowest_token": lowest}
        folder = make_run(
            tmp_path / "run",
            more={"claims": [claim], "num_stored": 1},
            instead={("Best", 0): stored},
        )
        (line,) = [
            candidate
            for candidate in write_report(folder, "md").splitlines()
            if candidate.startswith("| c |")
        ]
        assert f"| {expected} |" in line
        if lowest == "plot":
            return
        assert "good +0.50" in line
        assert "lowest film -1.00" in line

    def test_a_lead_that_texts_disagree_about_holds_weakly(self, tmp_path, monkeypatch):
        monkeypatch.setitem(MEANS, "Second", 0.49)
        turned = {
            ("Second", e): row(e, 0.49 + (0.2 if e % 2 else -0.2)) for e in range(TEXTS // 2 * 2)
        }
        text = write_report(make_run(tmp_path / "run", instead=turned), "md")
        assert "| near | holds weakly | First" in text
        assert (
            "holds, but the difference may be due to chance (Best 0.500, Second 0.490, difference -"
            in text
        )

    def test_draws_are_compared_by_their_mean_on_each_text(self, tmp_path):
        claim = {"claim": "drawn", "metric": "AOPC", "method": "Best", "baselines": ["Random"]}
        text = write_report(make_run(tmp_path / "run", more={"claims": [claim]}), "md")
        assert "holds (Best 0.500, Random 0.250, difference +0.250 … +0.250)" in text

    def test_equal_means_are_a_tie(self, tmp_path, monkeypatch):
        monkeypatch.setitem(MEANS, "Second", 0.5)
        text = write_report(make_run(tmp_path / "run"), "md")
        assert "| near | a tie | First" in text
        assert "| 4 | +0.91 | +0.95 | Best | 1 |" in text

    def test_a_warning_states_that_few_texts_were_measured(self, complete_run):
        assert "So few texts show that everything runs" in write_report(complete_run, "md")


class TestWithoutPaper:
    """A suite of one's own: nothing speaks of a paper, of published numbers, or of itself twice."""

    @pytest.fixture(scope="class")
    @classmethod
    def run_without_paper(cls, tmp_path_factory):
        methods = ["attcat", "cat:preset=paper", "grads"]
        metrics = [{"name": "aopc", "label": "AOPC"}]
        more = {"published": {}, "methods": methods, "metrics": metrics, "notes": []}
        more["claims"] = [
            {"claim": "led", "metric": "AOPC", "method": "attcat", "baselines": ["grads"]}
        ]
        with pytest.MonkeyPatch.context() as patch:
            for name, mean in zip(methods, (0.5, 0.4, 0.1), strict=True):
                patch.setitem(MEANS, name, mean)
            yield make_run(tmp_path_factory.mktemp("own") / "run", more=more)

    def test_no_format_mentions_a_paper_if_the_suite_has_none(self, run_without_paper):
        page = " ".join(PageReader(open_page(run_without_paper)).texts.values())
        for text in (
            write_report(run_without_paper, "md"),
            write_report(run_without_paper, "latex"),
            page,
        ):
            assert "led" in text
            for word in ("paper's", "of the paper", "ublished", "No order", "& paper"):
                assert word not in text, word

    def test_only_what_differs_is_explained(self, run_without_paper, complete_run):
        assert "## Rows" not in write_report(run_without_paper, "md")
        assert "Rows" not in PageReader(open_page(run_without_paper)).texts["h2"]
        assert "Measured: AOPC is aopc." in write_report(run_without_paper, "md")
        assert "| Best | attcat |" in write_report(complete_run, "md")

    def test_figures_without_published_scores_have_no_diamond_in_the_legend(
        self, run_without_paper
    ):
        titles = [
            v["alt"] for tag, v in PageReader(open_page(run_without_paper)).tags if tag == "img"
        ]
        assert "AOPC ↑" in titles

    def test_without_claims_there_is_no_verdict(self, tmp_path):
        text = write_report(make_run(tmp_path / "run", more={"published": {}, "claims": []}), "md")
        assert "What holds" not in text

    def test_a_metric_by_its_own_name_is_named_once(self):
        entry = MetricEntry("aopc", "aopc", {"preset": "attcat"})
        assert _describe_metric(entry) == "aopc (preset=attcat)"
        assert _describe_metric(replace(entry, options={})) == "aopc"
        assert _describe_metric(replace(entry, label="aopc:preset=attcat")) == "aopc:preset=attcat"

    def test_an_unnamed_suite_keeps_the_name_of_its_file(self, tmp_path):
        suite_content = content()
        del suite_content["name"]
        file = tmp_path / "mine.yaml"
        file.write_text(yaml.safe_dump(suite_content), encoding="utf-8")
        suite, _ = read_suite_file(file)
        plan = Plan(
            cells=make_cells(suite), metrics=suite.metrics, sources={}, limit=TEXTS,
            settings={"versions": {}},
        )  # fmt: skip
        run = RunFolder.create_or_resume(tmp_path / "run", file, suite, plan)
        assert "suite `mine`" in render_markdown(SuiteReport(run, merge_parts(run)), [])


class TestRefused:
    def test_an_unsupported_method_has_its_full_reason_above_the_table_and_a_short_one_in_its_cell(
        self, tmp_path, monkeypatch
    ):
        why = "this model norms its embeddings, so that what is left would be rounding noise"
        plain = make_cells

        def refused(suite):
            return tuple(
                replace(c, reason=why) if (c.data, c.method_label) == ("d1", "Worst") else c
                for c in plain(suite)
            )

        monkeypatch.setitem(globals(), "make_cells", refused)
        text = write_report(make_run(tmp_path / "run"), "md")
        assert f"not run: {why}." in text
        assert "| Worst | not run (see above) | 0.050 | – |" in text


class TestUnfinished:
    def test_a_half_done_run_is_reported_and_states_what_is_missing(self, tmp_path):
        missing = {("Second", 0), ("Second", 3), ("Best", 3)}
        folder = make_run(tmp_path / "run", leave=missing)
        rows = {line["method"]: line for line in read_csv_report(folder) if line["data"] == "d1"}
        assert rows["Second"]["status"] == "not finished"
        assert rows["Best"]["count"] == "3"
        assert "7 of 10 parts" in write_report(folder, "md")
        assert PageReader(open_page(folder)).texts["h1"]

    def test_a_folder_without_a_run_is_refused(self, tmp_path):
        with expect_error(DamagedFile, "run-not-found"):
            write_report(tmp_path, "md")

    def test_an_unknown_format_is_refused_with_the_known_ones(self, complete_run):
        with expect_error(UnknownName, "unknown-name", mentions="csv, html, latex, md"):
            write_report(complete_run, "pdf")


def open_page(folder, **options):
    from pathlib import Path

    return Path(write_report(folder, "html", **options)).read_text(encoding="utf-8")


class TestPages:
    def test_every_word_is_escaped_and_nothing_comes_from_outside(self, complete_run):
        page = open_page(complete_run)
        read = PageReader(page)
        assert "<script" not in page
        assert EVIL in read.texts["h1"]
        assert "<b>marks</b>" in read.texts["li"]
        assert not [v for tag, v in read.tags if "http" in v.get("src", "") + v.get("href", "")]
        assert not [v for _, v in read.tags if "style" in v or any(k.startswith("on") for k in v)]
        policy = next(v["content"] for t, v in read.tags if v.get("http-equiv"))
        assert "default-src 'none'" in policy

    def test_figures_are_inside_the_page(self, complete_run):
        pictures = [v for tag, v in PageReader(open_page(complete_run)).tags if tag == "img"]
        titles = [v["alt"] for v in pictures]
        assert any(title.startswith("AOPC ↑: ours") for title in titles)
        assert "AOPC point by point" in titles
        assert "Cost against faithfulness" in titles
        assert all(v["src"].startswith("data:image/png;base64,iVBOR") for v in pictures)

    def test_equal_tables_give_equal_bytes_whatever_the_timings(self, complete_run, tmp_path):
        other = make_run(tmp_path / "run", seconds=77.0)
        for form in ("md", "latex", "csv"):
            assert write_report(complete_run, form, include_timings=False) == write_report(
                other, form, include_timings=False
            )
        assert open_page(complete_run, include_timings=False) == open_page(
            other, include_timings=False
        )
        assert write_report(complete_run, "md") != write_report(other, "md")

    def test_a_figure_that_cannot_be_drawn_gives_the_reason(self, tmp_path):
        figures = [{"kind": "heat_map", "title": "Heat"}, {"kind": "curves", "title": "Curves"}]
        page = open_page(make_run(tmp_path / "run", more={"report": {"figures": figures}}))
        assert "not drawn: no part of it was run" in page
        assert 'alt="Curves"' in page

    def test_markdown_links_the_pictures_it_writes(self, complete_run, tmp_path):
        report_path = tmp_path / "out" / "hand.md"
        write_report(complete_run, "md", output=report_path, figures=tmp_path / "out" / "hand")
        linked = re.findall(r"!\[.*\]\((hand/figure_\d\d\.png)\)", report_path.read_text())
        assert len(linked) == 3
        assert all((report_path.parent / path).read_bytes()[:4] == b"\x89PNG" for path in linked)

    def test_markdown_cells_cannot_break_the_table(self, complete_run):
        for line in write_report(complete_run, "md").splitlines():
            if line.startswith("| First"):
                assert "<script" not in line.replace("\\<", "")


class TestFigures:
    def test_figure_5_has_the_product_of_the_layers(self, monkeypatch):
        stored = [(None, {"AttCAT": make_sample(layers=2)})]
        monkeypatch.setattr(FigureDrawer, "_read_kept_attributions", lambda *_: iter(stored))
        figure = FigureDrawer(None).heat_map(FigureSpec("heat_map", "Heat"))
        names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
        assert names == ["L0", "L1", "Rollout", "Sum"]

    def test_a_band_joins_the_draws_of_each_rate(self, tmp_path, monkeypatch):
        rates = {"c 0.5 #0": 0.3, "c 0.5 #1": 0.4, "c 1.0 #0": 0.2, "c 1.0 #1": 0.2}
        for label, mean in rates.items():
            monkeypatch.setitem(MEANS, label, mean)
        drawn_panels = {}
        monkeypatch.setattr(
            figures.charts, "draw_lines", lambda panels, _: drawn_panels.update(panels)
        )
        methods = [
            *content()["methods"],
            {"name": "mask_lrp", "label": "c {corruption} #{seed}", "group": "c {corruption}",
             "each": {"corruption": [0.5, 1.0], "seed": [0, 1]}},
        ]  # fmt: skip
        figure = {"kind": "bands", "title": "B", "group": "c {x}", "start": "Best", "end": "Worst"}
        more = {"methods": methods, "report": {"figures": [figure]}}
        write_report(make_run(tmp_path / "run", more=more), "html")
        ((band, best, worst),) = (panel.values() for panel in drawn_panels.values())
        assert band.points == [0.5, 1.0]
        assert band.means == pytest.approx([0.35, 0.2])
        reach = [high - mean for high, mean in zip(band.highs, band.means, strict=True)]
        assert reach == pytest.approx([0.05 * 2**0.5, 0.0])
        assert (*best.means, *worst.means) == pytest.approx((0.5, 0.5, 0.1, 0.1))

    def test_a_kept_explanation_is_drawn_as_differences(self):
        attributions = Explainer(tiny_bert(), tiny_tokenizer()).explain(
            "good film", ["attcat", "cat", "grads"]
        )
        stored = dict(zip(("Best", "Second", "Worst"), attributions, strict=True))
        figure = draw_difference_map(("Best", stored.pop("Best")), stored, title="$x$ <b>")
        axes = figure.axes[0]
        assert [t.get_text() for t in axes.get_yticklabels()] == [
            "Best", "Best − Second", "Best − Worst"
        ]  # fmt: skip
        assert [t.get_text() for t in axes.get_xticklabels()] == ["good", "film"]
        assert axes.images[0].get_array().shape == (3, 2)
        assert charts.render_png(figure)[:4] == b"\x89PNG"

    def test_kept_texts_are_coloured_by_each_row_or_by_its_difference_to_a_reference(
        self, monkeypatch
    ):
        texts = ["good film", "a dull plot"]
        explainer = Explainer(tiny_bert(), tiny_tokenizer())
        drawn_attributions = []
        stored = [
            (
                None,
                dict(zip(("Ours", "CAT"), explainer.explain(text, ["attcat", "cat"]), strict=True)),
            )
            for text in texts
        ]
        monkeypatch.setattr(FigureDrawer, "_read_kept_attributions", lambda *_: iter(stored))
        monkeypatch.setattr(
            "tokenlight.bench.report.figures.draw_highlighted_text",
            lambda attributions: drawn_attributions.extend(attributions) or "drawn",
        )
        wish = FigureSpec("texts", "T")
        assert FigureDrawer(None).texts(wish) == "drawn"
        assert [attribution.method for attribution in drawn_attributions] == ["Ours", "CAT"] * 2
        drawn_attributions.clear()
        FigureDrawer(None).texts(FigureSpec("texts", "T", reference="Ours"))
        assert [attribution.method for attribution in drawn_attributions] == [
            "Ours",
            "Ours − CAT",
        ] * 2
        actual, other = stored[0][1].values()
        np.testing.assert_array_equal(
            drawn_attributions[1].scores, difference(actual, other).scores
        )

    def test_an_unknown_kind_of_figure_is_refused_with_the_suite(self):
        suite_content = content(report={"figures": [{"kind": "pie"}, {"kin": "bars"}]})
        _, (kind, key) = parse_suite(suite_content, name="hand", folder=".")
        assert (
            "report, figures, entry 1, kind: 'pie' is not valid. It should be 'bars', 'curves'"
            in kind
        )
        assert "key 'kin'. Did you mean 'kind'?" in key

    def test_the_same_figure_gives_the_same_bytes(self):
        panels = {"p": {"m": Line([0.0, 1.0], [0.1, 0.2], [0.0, 0.1], [0.2, 0.3])}}
        assert charts.render_png(lines_figure(panels)) == charts.render_png(lines_figure(panels))


class TestLatex:
    def test_special_characters_are_escaped(self):
        assert escape_latex("50%_{x} & #1 $ ~ ^ \\") == (
            r"50\%\_\{x\} \& \#1 \$ \textasciitilde{} \textasciicircum{} \textbackslash{}"
        )

    def test_every_row_has_as_many_cells_as_the_table_has_columns(self, complete_run):
        text = write_report(complete_run, "latex")
        assert text.count(r"\begin{") == text.count(r"\end{") > 0
        for table in re.findall(r"\\begin\{tabular\}\{(\w+)\}(.*?)\\end\{tabular\}", text, re.S):
            columns = len(table[0])
            body = table[1]
            for line in body.splitlines():
                if line.endswith(r"\\") and "multicolumn" not in line:
                    assert line.replace(r"\&", "").count("&") == columns - 1

    def test_no_bare_special_is_left_in_any_table(self, complete_run):
        body = "\n".join(
            line
            for line in write_report(complete_run, "latex").splitlines()
            if not line.startswith("%")
        )
        assert not re.search(r"(?<!\\)[%#]", body)


class TestPieces:
    def test_the_frontier_has_only_methods_that_none_beats(self):
        panel = {"a": (1, 0.2), "b": (2, 0.1), "c": (3, 0.5), "d": (3, 0.4)}
        assert find_pareto_front(panel) == ["a", "c"]
        assert find_pareto_front(panel, lower_is_better=True) == ["a", "b"]

    @pytest.mark.parametrize(("highest_cost", "expected"), [(280, {"50", "200"}), (280_000, set())])
    def test_the_frontier_names_costs_by_plain_numbers_where_there_is_room(
        self, highest_cost, expected
    ):
        figure = draw_frontier({"ms": {"a": (30, 0.2), "b": (highest_cost, 0.5)}}, "aopc")
        figure.canvas.draw()
        axis = figure.axes[0].xaxis
        between = {label.get_text() for label in axis.get_minorticklabels()} - {""}
        assert "100" in {label.get_text() for label in axis.get_majorticklabels()}
        assert expected <= between if expected else not between
        assert not any("10^" in label for label in between)

    def test_cloud_weights_are_summed_by_class_and_weighed_by_rarity(self):
        from math import log

        details = [
            {"class": 1, "weights": {"7": 2.0, "8": 1.0}, "pieces": {"7": "good", "8": "the"}},
            {"class": 0, "weights": {"8": 3.0}, "pieces": {"8": "the"}},
        ]
        rows = [
            {"measured": {"O": {"detail": detail}}, "predicted": name}
            for detail, name in zip(details, ("positive", "negative"), strict=True)
        ]
        assert compute_class_weights(rows, "O", "log") == {
            "negative": {"the": 0.0},
            "positive": {"good": pytest.approx(2 * log(2)), "the": 0.0},
        }


class TestCommand:
    def test_the_command_prints_the_report(self, complete_run):
        result = CliRunner().invoke(app, ["bench", "report", str(complete_run), "--format", "csv"])
        assert result.exit_code == 0
        assert result.stdout == write_report(complete_run, "csv")

    def test_html_is_written_and_its_path_printed(self, complete_run, tmp_path):
        path = tmp_path / "page.html"
        result = CliRunner().invoke(
            app, ["bench", "report", str(complete_run), "-f", "html", "-o", str(path)]
        )
        assert result.stdout.strip() == str(path)
        assert path.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_texts_that_were_not_measured_are_reported_with_the_reason(tmp_path):
    short = {"measured": {}, "skipped": {"AOPC": "the text has fewer than 20 tokens."}}
    make_run(tmp_path / "run", instead={1: short})
    page = write_report(tmp_path / "run", "md")
    assert (
        f"{TEXTS - 1} of {TEXTS} planned (of the others: the text has fewer than 20 tokens)" in page
    )
    make_run(tmp_path / "none", instead=dict.fromkeys(range(TEXTS), short))
    report = write_report(tmp_path / "none", "md")
    assert "no text could be measured: the text has fewer than 20 tokens" in report


def test_the_first_sentence_of_a_long_error_is_reported(tmp_path):
    long = {"error": "CUDA out of memory. Tried to allocate 20 MiB. Process 17 has 1 GiB in use."}
    make_run(tmp_path / "run", instead={2: long})
    report = write_report(tmp_path / "run", "md")
    assert "left out; the first: CUDA out of memory." in report
    assert "Process" not in report


def test_a_report_warns_if_the_order_depends_on_how_tokens_are_removed(tmp_path):
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
    folder = make_run(tmp_path / "run", more={"metrics": metrics}, instead=instead)
    text = " ".join(write_report(folder).split())
    assert "The order of the 4 methods by aopc depends on how tokens are removed" in text
    assert "first is “Best” (deleted), “Worst” (replaced by" in text
