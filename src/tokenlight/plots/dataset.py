"""A data set's report: an index to filter, the words of each class, each text opening on demand.

A text is kept as the few values its picture needs, and drawn by the browser in the page's own colours.
Pages stand for themselves and load nothing; what is too much for one goes on in the next.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import log
from pathlib import Path

from tokenlight.data.attribution import Attribution
from tokenlight.files.write import write_text
from tokenlight.plots.entries import compact, entry
from tokenlight.plots.html import _environment, _style, page, sealed
from tokenlight.plots.roles import laid_over
from tokenlight.plots.scene import TOKENS, WORDS, Scenery, TextScene

MOST_TEXTS, MOST_BYTES = 1000, 2_000_000  # of one page
TOP_WORDS = 15


@dataclass(slots=True)
class Report:
    """Texts are added one by one; ``write`` makes the pages. ``words``: one score a word."""

    title: str
    words: bool = True
    reference: str | None = None
    about: dict[str, str] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    # By method and class: each word with its sum of shares and in how many texts it stands.
    weights: dict[tuple[str, str], dict[str, tuple[float, int]]] = field(default_factory=dict)
    models: dict[str, None] = field(default_factory=dict)
    told: Counter[str] = field(default_factory=Counter)

    def add(self, found: Iterable[Attribution]) -> None:
        """The explanations of one text, or of several in a row."""
        scenery = Scenery((WORDS if self.words else TOKENS,), self.reference)
        for text in scenery.of(found):
            made = entry(text, len(self.texts) + 1)
            self._gather(text)
            self.told["right"] += made.get("label") == made["predicted"]
            self.told["labelled"] += "label" in made
            self.texts.append(compact(made))

    def _gather(self, text: TextScene) -> None:
        """What each word weighs for the predicted class: its share of all scores in the text."""
        for method in text.methods:
            a = method.attribution
            self.models[a.model] = None
            said = a.prediction
            if said.ids or not said.probabilities or a.target.index != said.index:
                continue  # no class, or not the predicted one
            own: dict[str, float] = {}
            for word, score in a.words():
                own[word.casefold()] = own.get(word.casefold(), 0.0) + score
            total = sum(map(abs, own.values())) or 1.0
            into = self.weights.setdefault((method.label, said.label), {})
            for word in filter(re.compile(r"\w").search, own):
                sum_, count = into.get(word, (0.0, 0))
                into[word] = sum_ + own[word] / total, count + 1

    def top_words(self) -> Iterator[tuple[str, str, list[tuple[str, float, int]]]]:
        """By method and class: the words v with the largest ln(N / df(v)) · Σ shares, that number, and
        the number of the class's texts that hold it (as :mod:`tokenlight.evaluation.corpus`)."""
        for (method, label), words in self.weights.items():
            alike = [own for (name, _), own in self.weights.items() if name == method]
            weighed = []
            for word, (share, count) in words.items():
                everywhere = sum(own.get(word, (0.0, 0))[1] for own in alike)
                weighed.append((word, share * log(len(self.texts) / everywhere), count))
            best = sorted(weighed, key=lambda one: -one[1])[:TOP_WORDS]
            yield method, label, [one for one in best if one[1] > 0]

    def pages(self, name: str) -> Iterator[tuple[str, str]]:
        """The name and content of each page; ``name``: of the first."""
        parts = list(_parts(self.texts))
        stem, ending = Path(name).stem, Path(name).suffix
        names = [name if i == 0 else f"{stem}-{i + 1}{ending}" for i in range(len(parts))]
        about = {"texts": f"{len(self.texts):,}", "model": ", ".join(filter(None, self.models))}
        if self.told["labelled"]:
            share = self.told["right"] / self.told["labelled"]
            about["predicted right"] = (
                f"{self.told['right']:,} of {self.told['labelled']:,} ({100 * share:.1f} %)"
            )
        script = Path(__file__).with_name("templates").joinpath("report.js").read_text("utf-8")
        style = _style() + _environment().get_template("report.css.j2").render()
        template, first = _environment().get_template("report.html.j2"), 0
        classes = list(self.top_words())
        for place, part in enumerate(parts):
            yield (
                names[place],
                template.render(
                    title=self.title,
                    about={**about, **self.about},
                    classes=classes,
                    names=names,
                    place=place,
                    first=first + 1,
                    last=first + len(part),
                    texts=",".join(part),
                    **sealed(style, script),
                ),
            )
            first += len(part)

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
    several = (
        len({(row.texts, row.fingerprint) for row in rows if row.at is None and not row.asked}) > 1
    )
    if not several or any(a.row.image is not None for a in attributions):
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
