"""A data set's report: an index to filter, the words of each class, each text opening on demand, drawn by
the browser. Pages stand for themselves and load nothing; what is too much for one goes on in the next."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import log
from pathlib import Path
from typing import Any

from tokenlight.data.attribution import Attribution
from tokenlight.files.write import write_text
from tokenlight.plots import facts
from tokenlight.plots.characters import in_line, visible
from tokenlight.plots.html import _environment, _style, page, sealed
from tokenlight.plots.passages import laid_over
from tokenlight.plots.scene import TOKENS, WORDS, MethodScene, TextScene, scenes

MOST_TEXTS, MOST_BYTES = 1000, 2_000_000  # of one page
TOP_WORDS = 15
_UNSAFE = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


@dataclass(slots=True)
class Report:
    """Texts are added one by one; ``write`` makes the pages. ``words``: one score a word."""

    title: str
    words: bool = True
    reference: str | None = None
    about: dict[str, str] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    # By method and class: the sum of each word's shares, and in how many texts it stands.
    weights: defaultdict[tuple[str, str], tuple[defaultdict[str, float], Counter[str]]] = field(
        default_factory=lambda: defaultdict(lambda: (defaultdict(float), Counter()))
    )
    models: dict[str, None] = field(default_factory=dict)
    told: Counter[str] = field(default_factory=Counter)

    def add(self, found: Iterable[Attribution]) -> None:
        """The explanations of one text, or of several in a row."""
        for text in scenes(found, (WORDS if self.words else TOKENS,), self.reference):
            made = entry(text, len(self.texts) + 1)
            self._gather(text)
            self.told["right"] += made.get("label") == made["predicted"]
            self.told["labelled"] += "label" in made
            # JSON that may stand in a script element: nothing in it can end the element.
            plain = json.dumps(made, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
            self.texts.append(plain.translate(_UNSAFE))

    def _gather(self, text: TextScene) -> None:
        """What each word weighs for the predicted class: its share of all scores in the text."""
        for method in text.methods:
            a = method.attribution
            self.models[a.model] = None
            said = a.prediction
            if said.ids or not said.probabilities or a.target.index != said.index:
                continue  # no class, or not the predicted one
            own = defaultdict[str, float](float)
            for word, score in a.words():
                own[word.casefold()] += score
            total = sum(map(abs, own.values())) or 1.0
            shares, counts = self.weights[method.label, said.label]
            for word in filter(re.compile(r"\w").search, own):
                shares[word] += own[word] / total
                counts[word] += 1

    def top_words(self) -> Iterator[tuple[str, str, list[tuple[str, float, int]]]]:
        """By method and class: the words v with the largest ln(N / df(v)) · Σ shares, that number, and
        the number of the class's texts that hold it (as :mod:`tokenlight.evaluation.corpus`)."""
        for (method, label), (shares, counts) in self.weights.items():
            alike = [own for (name, _), (_, own) in self.weights.items() if name == method]
            everywhere, texts = sum(alike, Counter[str]()), len(self.texts)
            weighed = {word: own * log(texts / everywhere[word]) for word, own in shares.items()}
            best = sorted(weighed, key=lambda word: -weighed[word])[:TOP_WORDS]
            yield method, label, [(w, weighed[w], counts[w]) for w in best if weighed[w] > 0]

    def pages(self, name: str) -> Iterator[tuple[str, str]]:
        """The name and content of each page; ``name``: of the first."""
        parts = list(_parts(self.texts))
        stem, ending = Path(name).stem, Path(name).suffix
        names = [name if i == 0 else f"{stem}-{i + 1}{ending}" for i in range(len(parts))]
        about = {"texts": f"{len(self.texts):,}", "model": ", ".join(filter(None, self.models))}
        right, labelled = self.told["right"], self.told["labelled"]
        if labelled:
            share = f"{right:,} of {labelled:,} ({100 * (right / labelled):.1f} %)"
            about["predicted right"] = share
        script = Path(__file__).with_name("templates").joinpath("report.js").read_text("utf-8")
        style = _style() + _environment().get_template("report.css.j2").render()
        template, last = _environment().get_template("report.html.j2"), 0
        same: dict[str, Any] = {"title": self.title, "about": about | self.about, "names": names}
        same |= {"classes": list(self.top_words()), **sealed(style, script)}
        for place, part in enumerate(parts):
            first, last = last + 1, last + len(part)
            texts = ",".join(part)
            content = template.render(place=place, first=first, last=last, texts=texts, **same)
            yield names[place], content

    def write(self, place: Path) -> list[Path]:
        """Write the pages beside ``place``, the first under its name; those written are handed back."""
        written = []
        for name, content in self.pages(place.name):
            written.append(place.with_name(name))
            write_text(written[-1], content)
        return written


def write(attributions: Sequence[Attribution], place: Path) -> None:
    """One text or pictures as one page that shows all; several texts as a report."""
    rows = [a.row for a in laid_over(attributions)]  # the tokens of a continuation are one text's
    texts = {(row.texts, row.fingerprint) for row in rows if row.at is None and not row.asked}
    if len(texts) < 2 or any(a.row.image is not None for a in attributions):
        write_text(place, page(attributions))
        return
    report = Report(place.stem)
    report.add(attributions)
    report.write(place)


def _parts(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """The texts of each page."""
    part: list[str] = []
    size = 0
    for text in texts:
        own = len(text.encode())
        if part and (len(part) == MOST_TEXTS or size + own > MOST_BYTES):
            yield part
            part, size = [], 0
        part.append(text)
        size += own
    yield part


def true_label(attribution: Attribution) -> str | None:
    """The text's true label as the model names it; as it was given where the model has no such."""
    given: Any = attribution.extras.get("label")
    labels = () if attribution.prediction.ids else attribution.prediction.labels
    if isinstance(given, int) and 0 <= given < len(labels) and str(given) not in labels:
        return labels[given]
    alike = [label for label in labels if label.casefold() == str(given).casefold()]
    return None if given is None else alike[0] if len(alike) == 1 else str(given)


def entry(text: TextScene, number: int) -> dict[str, Any]:
    """A text as the browser reads it; what is empty is left out."""
    first = text.first
    where, columns = str(first.extras.get("place", "")), first.extras.get("columns", {})
    lines: dict[str, int] = {}  # explanations of one text mostly share its lines
    shown = [(method, "") for method in text.methods]
    shown += [(m, "difference") for target in text.targets for m in target.differences]
    bars, more = facts.prediction_bars(first, [target.name for target in text.targets])
    said = [f"{name} {chance}" for name, chance, *_ in bars]
    made = {
        "number": int(found[0]) if (found := re.findall(r"^\w+ (\d+) of", where)) else number,
        "place": where.removesuffix(f"row {number} of the table"),
        "label": None if (truth := true_label(first)) is None else in_line(truth),
        "predicted": in_line(first.prediction.label),
        "chance": round(max(first.prediction.probabilities, default=0.0), 4),
        "chances": in_line(" · ".join(said) + (f" · and {more} less probable" if more else "")),
        "grade": facts.grade(first),
        "cut": first.row.cut,
        "columns": {k: in_line(str(v)) for k, v in columns.items() if v is not None},
        "explained": [_explained(method, kind, lines) for method, kind in shown],
    }
    made["lines"] = [json.loads(one) for one in lines]
    return {name: value for name, value in made.items() if value not in (None, "", {}, [], 0)}


def _explained(method: MethodScene, kind: str, lines: dict[str, int]) -> dict[str, Any]:
    """One explanation: what is known of it, and its lines with their scores, none between tokens."""
    view, a = method.views[0], method.attribution
    special = [facts.special_line(a, view.special)] if view.special else []
    found: dict[str, Any] = {
        "name": in_line(method.label),
        "target": in_line(a.target.name),
        "scale": float(f"{view.scale:.4g}"),
        "told": [in_line(one) for one in (*facts.badges(a), *special, *a.notes)],
        "lines": [],
        **({"kind": kind} if kind else {}),
    }
    for part in view.lines:
        shape: dict[str, Any] = {"texts": [visible(mark.text) for mark in part.marks]}
        shape["looks"] = {i: mark.looks for i, mark in enumerate(part.marks) if mark.looks}
        if part.share:
            shape["name"] = in_line(part.share.name)
        scores = ["" if m.score is None else f"{m.score:.3g}" for m in part.marks]
        short = ",".join(re.sub(r"^(-?)0\.", r"\1.", score) for score in scores)
        found["lines"].append([lines.setdefault(json.dumps(shape), len(lines)), short])
    return found
