"""Where ``tokenlight explain`` shows and writes what it found: the terminal, JSON, files."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.text import Text

from tokenlight.cli.console import writing
from tokenlight.data.attribution import Attribution
from tokenlight.data.postprocess import merge_words
from tokenlight.data.units import Unit
from tokenlight.errors import BadInput, MissingExtra, short
from tokenlight.files.saved import save
from tokenlight.files.write import json_text, write_text
from tokenlight.plots.characters import in_line
from tokenlight.plots.dataset import Report, true_label
from tokenlight.plots.html import page
from tokenlight.plots.scene import untold
from tokenlight.plots.terminal import console_on, show


@dataclass(slots=True)
class Output:
    """``files``: by their ending, ``.html`` to the place of the page; JSON to ``-`` is printed. ``words``:
    by default pictures show words (tokens of what a model writes), and files hold tokens. ``report``:
    the page of many texts; ``kept``: what other files will hold."""

    files: Mapping[str, Path]
    words: bool | None = None
    layers: bool = False
    reference: str | None = None
    by: Unit | None = None
    report: Report | None = None
    kept: list[Attribution] = field(default_factory=list)
    told: set[str] = field(default_factory=set)  # notes that need no second telling
    shown: int = 0  # texts
    left_out: int = 0
    as_json: bool = False  # whether standard output is JSON and nothing else

    def __post_init__(self) -> None:
        """Before any model is loaded: the ending of a file says what is in it."""
        self.as_json = str(self.files.get(".json")) == "-"
        self.files = {e: p for e, p in self.files.items() if e != ".json" or not self.as_json}
        for ending, place in self.files.items():
            if place.suffix.lower() != ending:
                raise BadInput(f"--{ending[1:]} {place}: the name of a file must end in {ending}.")
        if ".parquet" in self.files:
            MissingExtra.check(["pyarrow"], "bench", "--parquet")

    def take(self, found: Sequence[Attribution], where: str = "") -> None:
        """Show a text, one of many by its place; at once, so that Ctrl-C leaves whole texts behind."""
        if self.as_json:
            # In characters that standard output has.
            ascii = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
            texts = (json_text(a.to_dict(), ensure_ascii=ascii) for a in self._filed(found))
            before = "" if self._alone(found) else ",\n" if self.shown else "[\n"
            sys.stdout.write(before + ",\n".join(texts))
        elif where:
            head = Text("\n" * bool(self.shown) + in_line(where), style="bold")
            if (truth := true_label(found[0])) is not None:
                wrong = truth != found[0].prediction.label
                said = f"  true label {in_line(truth)}{', predicted wrong' * wrong}"
                head.append(said, "not bold red" if wrong else "not bold dim")
            console_on(sys.stdout).print(head)
            self._show([replace(one, notes=untold(one.notes, self.told)) for one in found])
        else:
            self._show(found)
        self.shown += 1
        if self.report is not None and ".html" in self.files:
            self.report.add(found)
        self.kept += found if self.report is None or {*self.files} - {".html"} else []

    def end(self) -> None:
        """Close the list, where standard output is JSON, and write every file that was asked for."""
        if self.as_json:
            closed = "\n" if self._alone(self.kept) else "\n]\n"
            sys.stdout.write(closed if self.shown else "[]\n")
        sys.stdout.flush()
        for ending, place in self.files.items() if self.shown else ():
            new, written = not place.parent.exists(), [place]
            with writing(place):
                if ending != ".html":
                    save(self._filed(self.kept), place)
                elif self.report is not None:
                    written = self.report.write(place)
                else:
                    write_text(place, page(self.kept, reference=self.reference, words=self.words))
            for one in written:
                sys.stderr.write(f"wrote {one}{' (in a new folder)' if new else ''}\n")

    def _alone(self, found: Sequence[Attribution]) -> bool:
        return self.report is None and len(found) == 1

    def _filed(self, found: Sequence[Attribution]) -> Sequence[Attribution]:
        """As files hold them: one score a word where that was asked for."""
        return [merge_words(one) for one in found] if self.words else found

    def _show(self, found: Sequence[Attribution]) -> None:
        show(found, words=self.words, layers=self.layers, reference=self.reference)
        unit: Any = self.by
        for one in found if unit is not None else ():
            # A line for each unit, the largest sum first, with its interval where that was measured.
            sys.stdout.write(f"\n{one.label}, by {unit}\n")
            for part in sorted(one.by(unit), key=lambda part: -part.total):
                interval = "" if part.low is None else f"[{part.low:+.3g}, {part.high:+.3g}]"
                share, name = 100 * part.share, short(" ".join(part.name.split()), 60)
                sys.stdout.write(f"  {part.total:+9.3g}  {interval:18}  {share:3.0f} %  {name}\n")
