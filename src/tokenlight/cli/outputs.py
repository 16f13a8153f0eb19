"""Where ``tokenlight explain`` shows and writes what it found: the terminal, JSON, files."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenlight.cli.console import writing
from tokenlight.data.attribution import Attribution
from tokenlight.data.postprocess import merge_words
from tokenlight.data.units import Unit
from tokenlight.errors import BadInput, MissingExtra, short
from tokenlight.files.saved import save
from tokenlight.files.write import json_text, write_text
from tokenlight.plots.dataset import Report
from tokenlight.plots.html import page
from tokenlight.plots.terminal import show


@dataclass(frozen=True, slots=True)
class Output:
    """``files``: by their ending, ``.html`` to the place of the page; JSON to ``-`` is printed. ``words``:
    by default pictures show words (tokens of what a model writes), and files hold tokens."""

    files: Mapping[str, Path | None]
    words: bool | None = None
    layers: bool = False
    reference: str | None = None
    verbose: bool = False
    by: Unit | None = None

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

    def print_json(self, found: Sequence[Attribution]) -> None:
        """As a file of one attribution is, or of several: tokenlight.load reads either."""
        listed = ", ".join(self.json(found))
        sys.stdout.write(f"{listed if len(found) == 1 else f'[{listed}]'}\n")

    def write(self, found: Sequence[Attribution], report: Report | None = None) -> None:
        """Every file that was asked for; ``report``: what the page of many texts shows."""
        for ending, place in self.written.items():
            new, written = not place.parent.exists(), [place]
            with writing(place):
                if ending == ".html" and report is not None:
                    written = report.write(place)
                elif ending == ".html":
                    write_text(place, page(found, reference=self.reference, words=self.words))
                else:
                    save(self._filed(found), place)
            for one in written:
                sys.stderr.write(f"wrote {one}{' (in a new folder)' if new else ''}\n")
