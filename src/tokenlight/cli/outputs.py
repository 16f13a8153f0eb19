"""Where ``tokenlight explain`` shows and writes what it found: the terminal, JSON, files."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.text import Text

from tokenlight.cli.console import tell, writing
from tokenlight.data.attribution import Attribution
from tokenlight.data.postprocess import merge_words
from tokenlight.data.units import Unit
from tokenlight.errors import BadInput, MissingExtra, TokenlightError, short
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
    the page of many texts; ``kept``: what other files will hold of them."""

    files: Mapping[str, Path | None]
    words: bool | None = None
    layers: bool = False
    reference: str | None = None
    verbose: bool = False
    by: Unit | None = None
    report: Report | None = None
    kept: list[Attribution] = field(default_factory=list)
    told: set[str] = field(default_factory=set)  # notes that need no second telling
    shown: int = 0  # texts
    left_out: int = 0
    why: str = ""
    note: str = ""  # of all texts

    @property
    def as_json(self) -> bool:
        """Whether standard output is JSON and nothing else."""
        return str(self.files[".json"]) == "-"

    @property
    def written(self) -> dict[str, Path]:
        """The files to write, by their ending."""
        return {e: p for e, p in self.files.items() if p is not None and str(p) != "-"}

    def check(self) -> None:
        """Before any model is loaded: the ending of a file says what is in it."""
        for ending, place in self.files.items():
            standard_output = ending == ".json" and str(place) == "-"
            if place is not None and not standard_output and place.suffix.lower() != ending:
                raise BadInput(
                    f"--{ending[1:]} {place}: the name of this file must end in {ending}, "
                    f"for example {place.name.partition('.')[0] or 'explanation'}{ending}."
                )
        if self.files[".parquet"] is not None:
            MissingExtra.check(["pyarrow"], "bench", "--parquet")

    def show(self, found: Sequence[Attribution]) -> None:
        """The picture, on the terminal."""
        show(found, words=self.words, layers=self.layers, reference=self.reference)
        unit: Any = self.by
        for one in found if unit is not None else ():
            # A line for each unit, the largest sum first, with its interval where that was measured.
            sys.stdout.write(f"\n{one.label}, by {unit}\n")
            for part in sorted(one.by(unit), key=lambda part: -part.total):
                interval = "" if part.low is None else f"[{part.low:+.3g}, {part.high:+.3g}]"
                share, name = 100 * part.share, short(" ".join(part.name.split()), 60)
                sys.stdout.write(f"  {part.total:+9.3g}  {interval:18}  {share:3.0f} %  {name}\n")
        for one in found if self.verbose else ():
            # Relevance at each layer over relevance at the output; one, where nothing is lost.
            shares: Any = one.extras.get("conservation")
            if shares is not None:
                layers = " ".join(f"{share:.4f}" for share in shares)
                sys.stdout.write(f"conservation of {one.label}, h0 to the last: {layers}\n")

    def _filed(self, found: Sequence[Attribution]) -> Sequence[Attribution]:
        """As files hold them: one score a word where that was asked for."""
        return [merge_words(one) for one in found] if self.words else found

    def json(self, found: Sequence[Attribution]) -> list[str]:
        """Each as JSON on one line, in characters that standard output has."""
        unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
        return [json_text(one.to_dict(), ensure_ascii=not unicode) for one in self._filed(found)]

    def take(self, where: str, found: list[Attribution] | TokenlightError) -> None:
        """Show one text of many, or say why it has no explanation."""
        if isinstance(found, TokenlightError):
            self.left_out += 1
            tell(
                f"{where} is left out: {'likewise.' if str(found) == self.why else found}", "yellow"
            )
            self.why = str(found)
            return
        note = (self.note,) if self.note else ()
        found = [replace(one, notes=(*one.notes, *note)) for one in found]
        self._show_one_of_many(found, where)
        self.shown += 1
        if self.report is not None and ".html" in self.written:
            self.report.add(found)
        self.kept += found if {*self.written} - {".html"} else []

    def _show_one_of_many(self, found: Sequence[Attribution], where: str) -> None:
        if self.as_json:
            # At once, so that Ctrl-C leaves whole texts behind.
            sys.stdout.write((",\n" if self.shown else "[\n") + ",\n".join(self.json(found)))
            return
        head = Text("\n" * bool(self.shown) + in_line(where), style="bold")
        if (truth := true_label(found[0])) is not None:
            wrong = truth != found[0].prediction.label
            said = f"  true label {in_line(truth)}{', predicted wrong' * wrong}"
            head.append(said, "not bold red" if wrong else "not bold dim")
        console_on(sys.stdout).print(head)
        self.show([replace(one, notes=untold(one.notes, self.told)) for one in found])

    def end(self) -> None:
        """After many texts: close the list, where it is JSON, and write the files."""
        if self.as_json:
            sys.stdout.write("\n]\n" if self.shown else "[]\n")
        sys.stdout.flush()
        if self.shown:
            self.write(self.kept)

    def only(self, found: Sequence[Attribution]) -> None:
        """Show and write the explanations of one text; JSON as files have it, of one or a list."""
        if self.as_json:
            listed = ", ".join(self.json(found))
            sys.stdout.write(f"{listed if len(found) == 1 else f'[{listed}]'}\n")
        else:
            self.show(found)
        self.write(found)

    def write(self, found: Sequence[Attribution]) -> None:
        """Every file that was asked for."""
        for ending, place in self.written.items():
            new, written = not place.parent.exists(), [place]
            with writing(place):
                if ending == ".html" and self.report is not None:
                    written = self.report.write(place)
                elif ending == ".html":
                    write_text(place, page(found, reference=self.reference, words=self.words))
                else:
                    save(self._filed(found), place)
            for one in written:
                sys.stderr.write(f"wrote {one}{' (in a new folder)' if new else ''}\n")
