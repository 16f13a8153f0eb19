"""The report of a data set: an index with filters, the words of each class, and every text on demand.

The browser draws the texts from JSON in the page. A page is self-contained and loads nothing; what is
too much for one page continues on the next. The keys of the JSON are those that ``report.js`` reads.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import log
from pathlib import Path
from typing import Any, NamedTuple

from tokenlight.data.attribution import Attribution
from tokenlight.data.true_label import find_true_label
from tokenlight.data.trust import GOOD_GRADES, GRADES
from tokenlight.files.write import write_text
from tokenlight.plots import descriptions
from tokenlight.plots.characters import make_visible, to_single_line
from tokenlight.plots.continuations import align_continuations
from tokenlight.plots.html import _get_environment, _render_style, render_page, seal_page
from tokenlight.plots.scene import TOKEN_VIEW, WORD_VIEW, MethodScene, TextScene, build_scenes
from tokenlight.plots.views import MarkedLine

MAX_TEXTS_PER_PAGE = 1000
MAX_BYTES_PER_PAGE = 2_000_000
NUM_LISTED_WORDS = 15
# Escapes that keep JSON from ending the script element it stands in.
_SCRIPT_ESCAPES = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}
_TEMPLATES = Path(__file__).with_name("templates")
_SCRIPT_NAMES = ("report_words.js", "report_swarm.js", "report_parquet.js", "report.js")


class _ClassWords(NamedTuple):
    """Words of the texts of one class: the sum of each word's shares, and its number of texts."""

    shares: defaultdict[str, float]
    counts: Counter[str]


@dataclass(slots=True)
class DataSetReport:
    """A report to which texts are added one by one.

    Args:
        title: Title of the report.
        words: Show one score per word rather than per token.
        reference: A method; its difference from every other method is shown too.
        metadata: Facts about the run for the head of the page, by name.
        text_entries: The texts so far, each as JSON.
        word_weights: Weights of the words by method and class.
        models: The models so far, as keys in order.
        label_counts: Numbers of texts with a true label, and of those predicted right.
        grade_counts: Numbers of texts by the trust grade of their first explanation.

    Example:
        >>> report = DataSetReport("reviews")
        >>> report.label_counts["labeled"]
        0
    """

    title: str
    words: bool = True
    reference: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    text_entries: list[str] = field(default_factory=list)
    word_weights: dict[tuple[str, str], _ClassWords] = field(default_factory=dict)
    models: dict[str, None] = field(default_factory=dict)
    label_counts: Counter[str] = field(default_factory=Counter)
    grade_counts: Counter[str] = field(default_factory=Counter)

    def add(self, attributions: Iterable[Attribution]) -> None:
        """Add the explanations of one text, or of several texts."""
        view_kind = WORD_VIEW if self.words else TOKEN_VIEW
        for text_scene in build_scenes(attributions, (view_kind,), self.reference):
            entry = build_entry(text_scene, len(self.text_entries) + 1)
            self._add_word_weights(text_scene)
            self.label_counts["right"] += entry.get("label") == entry["predicted"]
            self.label_counts["labeled"] += "label" in entry
            if "grade" in entry:
                self.grade_counts[entry["grade"]] += 1
            entry_json = json.dumps(
                entry, ensure_ascii=False, separators=(",", ":"), allow_nan=False
            )
            self.text_entries.append(entry_json.translate(_SCRIPT_ESCAPES))

    def _add_word_weights(self, text_scene: TextScene) -> None:
        """Add the weight of each word for the predicted class: its share of all scores in the text."""
        for method in text_scene.methods:
            attribution = method.attribution
            self.models[attribution.model] = None
            prediction = attribution.prediction
            has_classes = bool(prediction.probabilities) and not prediction.ids
            if not has_classes or attribution.target.index != prediction.index:
                continue
            scores: defaultdict[str, float] = defaultdict(float)
            for word, score in attribution.words():
                scores[word.casefold()] += score
            total = sum(map(abs, scores.values())) or 1.0
            class_words = self.word_weights.setdefault(
                (method.label, prediction.label), _ClassWords(defaultdict(float), Counter())
            )
            for word, score in scores.items():
                if re.search(r"\w", word):
                    class_words.shares[word] += score / total
                    class_words.counts[word] += 1

    def compute_top_words(self) -> Iterator[tuple[str, str, list[tuple[str, float, int]]]]:
        """Yield method, class and the words v with the largest ln(N / df(v)) · Σ shares.

        N is the number of texts and df(v) the number of texts with the word v, as in
        :mod:`tokenlight.evaluation.corpus`. Each word comes with that weight and with the number of the
        class's texts that contain it.
        """
        num_texts = len(self.text_entries)
        document_counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for (method, _), class_words in self.word_weights.items():
            document_counts[method].update(class_words.counts)
        for (method, label), class_words in self.word_weights.items():
            weights = {}
            for word, share in class_words.shares.items():
                weights[word] = share * log(num_texts / document_counts[method][word])
            ranked = sorted(weights, key=lambda word: -weights[word])
            top_words = []
            for word in ranked[:NUM_LISTED_WORDS]:
                if weights[word] > 0:
                    top_words.append((word, weights[word], class_words.counts[word]))
            yield method, label, top_words

    def render_pages(self, name: str) -> Iterator[tuple[str, str]]:
        """Yield the file name and the content of each page; ``name`` is that of the first."""
        pages = list(_split_pages(self.text_entries))
        names = [name]
        for number in range(2, len(pages) + 1):
            names.append(f"{Path(name).stem}-{number}{Path(name).suffix}")
        template = _get_environment().get_template("report.html.j2")
        style = _render_style() + _get_environment().get_template("report.css.j2").render()
        scripts = [(_TEMPLATES / name).read_text("utf-8") for name in _SCRIPT_NAMES]
        sealed = seal_page(style, "".join(scripts))
        classes = list(self.compute_top_words())
        last = 0
        for index, entries in enumerate(pages):
            first = last + 1
            last += len(entries)
            content = template.render(
                title=self.title,
                about=self._list_facts(),
                names=names,
                classes=classes,
                file_index=index,
                first=first,
                last=last,
                texts=",".join(entries),
                grades=json.dumps({"grades": GRADES, "good": GOOD_GRADES}),
                **sealed,
            )
            yield names[index], content

    def _list_facts(self) -> dict[str, str]:
        """Return what the head of each page says about the data set."""
        listed = {
            "texts": f"{len(self.text_entries):,}",
            "model": ", ".join(
                descriptions.shorten_model_name(model) for model in self.models if model
            ),
        }
        num_right = self.label_counts["right"]
        num_labeled = self.label_counts["labeled"]
        if num_labeled:
            percent = 100 * (num_right / num_labeled)
            listed["accuracy"] = f"{num_right:,} of {num_labeled:,} ({percent:.1f} %)"
        if self.grade_counts:
            counts = [f"{count:,} {grade}" for grade, count in self.grade_counts.most_common()]
            listed["trust"] = ", ".join(counts)
        return listed | self.metadata

    def write(self, path: Path) -> list[Path]:
        """Write the first page to ``path`` and the others next to it; return the paths of all."""
        written_paths = []
        for name, content in self.render_pages(path.name):
            page_path = path.with_name(name)
            write_text(page_path, content)
            written_paths.append(page_path)
        return written_paths


def write_html(attributions: Sequence[Attribution], path: Path) -> None:
    """Write one text, or pictures, as one page that shows all; several texts as a report.

    Args:
        attributions: The explanations, text by text.
        path: The file of the page, or of the first page of a report.
    """
    texts = set()
    # Aligned first, since all tokens of a continuation belong to one text.
    for attribution in align_continuations(attributions):
        row = attribution.row
        if row.target_position is None and not row.target_positions:
            texts.add((row.texts, row.fingerprint))
    has_images = any(attribution.row.image is not None for attribution in attributions)
    if len(texts) < 2 or has_images:
        write_text(path, render_page(attributions))
        return
    report = DataSetReport(path.stem)
    report.add(attributions)
    report.write(path)


def _split_pages(entries: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the texts of each page; a report without texts has one empty page."""
    page: list[str] = []
    page_bytes = 0
    for entry in entries:
        entry_bytes = len(entry.encode())
        is_full = len(page) == MAX_TEXTS_PER_PAGE or page_bytes + entry_bytes > MAX_BYTES_PER_PAGE
        if page and is_full:
            yield page
            page = []
            page_bytes = 0
        page.append(entry)
        page_bytes += entry_bytes
    yield page


def build_entry(text_scene: TextScene, text_number: int) -> dict[str, Any]:
    """Return a text as ``report.js`` reads it, without empty values.

    Args:
        text_scene: The text with its explanations.
        text_number: Its number in the report, from 1.
    """
    attribution = text_scene.first
    source = str(attribution.extras.get("location", ""))
    true_label = find_true_label(attribution)
    explanations, lines = _build_explanations(text_scene)
    entry = {
        "number": attribution.extras.get("row_number", text_number),
        "location": source.removesuffix(f"row {text_number} of the table"),
        "label": None if true_label is None else to_single_line(true_label),
        "predicted": to_single_line(attribution.prediction.label),
        "probability": round(max(attribution.prediction.probabilities, default=0.0), 4),
        "probabilities_text": _format_probabilities(text_scene),
        "grade": descriptions.get_grade(attribution),
        "num_truncated": attribution.row.num_truncated,
        "columns": _list_columns(attribution),
        "explained": explanations,
        "lines": lines,
    }
    return {name: value for name, value in entry.items() if value not in (None, "", {}, [], 0)}


def _list_columns(attribution: Attribution) -> dict[str, str]:
    """Return the columns of the table that were kept with the text."""
    columns = {}
    for name, value in attribution.extras.get("columns", {}).items():
        if value is not None:
            columns[name] = to_single_line(str(value))
    return columns


def _build_explanations(text_scene: TextScene) -> tuple[list[dict[str, Any]], list[Any]]:
    """Return the explanations of a text, differences last, and the lines that they refer to."""
    # Explanations of one text mostly share its lines, so each distinct line is stored once.
    line_numbers: dict[str, int] = {}
    explanations = []
    for method in text_scene.methods:
        explanations.append(_build_explanation(method, line_numbers))
    for target in text_scene.targets:
        for method in target.differences:
            explanation = _build_explanation(method, line_numbers)
            explanations.append(explanation | {"kind": "difference"})
    return explanations, [json.loads(line) for line in line_numbers]


def _format_probabilities(text_scene: TextScene) -> str:
    """Return the likeliest labels with their probabilities, on one line."""
    target_names = [target.name for target in text_scene.targets]
    bars, num_omitted = descriptions.build_prediction_bars(text_scene.first, target_names)
    labels = " · ".join(f"{bar.name} {bar.percent}" for bar in bars)
    omitted = descriptions.describe_omitted_labels(text_scene.first, num_omitted)
    if labels and omitted:
        labels += f" · {omitted}"
    return to_single_line(labels)


def _build_explanation(method: MethodScene, line_numbers: dict[str, int]) -> dict[str, Any]:
    """Return an explanation: what is known about it, and its lines with their scores."""
    attribution = method.attribution
    view = method.views[0]
    remarks = list(descriptions.build_badges(attribution))
    if view.special_share:
        remarks.append(descriptions.describe_special_share(attribution, view.special_share))
    remarks += attribution.notes

    lines = []
    for line in view.lines:
        line_json = json.dumps(_build_line(line))
        line_number = line_numbers.setdefault(line_json, len(line_numbers))
        lines.append([line_number, _format_scores(line)])
    return {
        "name": to_single_line(method.label),
        "target": to_single_line(attribution.target.name),
        "scale": float(f"{view.scale:.4g}"),
        "remarks": [to_single_line(remark) for remark in remarks],
        "lines": lines,
    }


def _build_line(line: MarkedLine) -> dict[str, Any]:
    """Return the texts of a line's marks and their classes, by index."""
    classes = {i: mark.css_classes for i, mark in enumerate(line.marks) if mark.css_classes}
    entry: dict[str, Any] = {
        "texts": [make_visible(mark.text) for mark in line.marks],
        "classes": classes,
    }
    if line.share:
        entry["name"] = to_single_line(line.share.name)
    return entry


def _format_scores(line: MarkedLine) -> str:
    """Return the scores of a line, separated by commas; empty for text between tokens."""
    scores = []
    for mark in line.marks:
        score = ""
        if mark.score is not None:
            # ".25" for "0.25": a report holds very many of them.
            score = re.sub(r"^(-?)0\.", r"\1.", f"{mark.score:.3g}")
        scores.append(score)
    return ",".join(scores)
