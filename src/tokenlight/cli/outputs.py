"""Where ``tokenlight explain`` shows and writes explanations: the terminal, JSON, files."""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.text import Text

from tokenlight.cli.console import write_errors_reported
from tokenlight.cli.pipes import is_output_pipe_closed
from tokenlight.data.attribution import Attribution
from tokenlight.data.postprocess import merge_words
from tokenlight.data.true_label import find_true_label
from tokenlight.data.units import Unit
from tokenlight.errors import BadInput, MissingExtra, truncate_text
from tokenlight.files.saved import save
from tokenlight.files.write import dump_json, write_text
from tokenlight.plots.characters import to_single_line
from tokenlight.plots.dataset_report import DataSetReport
from tokenlight.plots.descriptions import format_percent, round_to_percents
from tokenlight.plots.error_words import MIN_ERRORS, ErrorWords
from tokenlight.plots.html import render_page
from tokenlight.plots.scene import select_new_notes
from tokenlight.plots.terminal import make_console, show

MAX_UNIT_NAME = 60  # characters of a unit's name in the list of ``--by``
# Texts of a file that the terminal shows if a file holds them all: more would hide what the summary says.
MAX_TEXTS_SHOWN = 10
MAX_ERROR_KINDS = 5  # pairs of true and predicted label in the summary
MAX_ERROR_WORDS = 6  # words of each pair


@dataclass(slots=True)
class OutputWriter:
    """Shows explanations in the terminal and writes them to files.

    Args:
        files: Extension, such as ``".html"``, → path. JSON to ``-`` is printed instead of the picture.
        words: Whether scores are per word (True) or per token (False). By default pictures show words, or
            tokens for generated text, and files hold tokens.
        layers: Whether the scores are also shown layer by layer.
        reference: Method that the others are compared with.
        group_unit: Unit of ``--by``; sums of scores are listed per unit.
        report: The HTML page of many texts; None for a single text.

    Attributes:
        attributions: Explanations that files other than the page will hold.
        shown_notes: Notes that were shown with an earlier text and are not repeated.
        num_explained: Number of texts explained.
        num_omitted: Number of texts that could not be explained.
        label_counts: Numbers of texts by true and predicted label, of those that have a true label.
        error_words: The words of those texts.
        prints_json: Whether standard output is JSON and nothing else.

    Raises:
        BadInput: The extension of a path does not fit its option.
        MissingExtra: The library for Parquet files is not installed.
    """

    files: Mapping[str, Path]
    words: bool | None = None
    layers: bool = False
    reference: str | None = None
    group_unit: Unit | None = None
    report: DataSetReport | None = None
    attributions: list[Attribution] = field(init=False, default_factory=list)
    shown_notes: set[str] = field(init=False, default_factory=set)
    num_explained: int = field(init=False, default=0)
    num_omitted: int = field(init=False, default=0)
    label_counts: Counter[tuple[str, str]] = field(init=False, default_factory=Counter)
    error_words: ErrorWords = field(init=False, default_factory=ErrorWords)
    prints_json: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        # Checked before a model is loaded, so that a typing error costs no time.
        files = dict(self.files)
        self.prints_json = str(files.get(".json")) == "-"
        if self.prints_json:
            del files[".json"]
        self.files = files
        for extension, path in files.items():
            if path.suffix.lower() != extension:
                raise BadInput(
                    f"--{extension[1:]} {path} is not valid. The name of the file must end in {extension}.",
                    code="output-flag-extension",
                )
        if ".parquet" in files:
            MissingExtra.check_installed(["pyarrow"], "bench", "--parquet")

    @property
    def has_no_reader(self) -> bool:
        """Whether standard output is closed, and no file is to be written."""
        return is_output_pipe_closed() and not self.files

    def write_single_text(self, attributions: Sequence[Attribution]) -> None:
        """Write the files, then show the text; it is shown even if a file cannot be written."""
        self._collect(attributions)
        try:
            self._write_files()
        finally:
            self._print(attributions)
            self._print_end()

    def write_streamed(self, attributions: Sequence[Attribution]) -> None:
        """Write the files of a text that was shown token by token."""
        self._collect(attributions)
        self._write_files()

    def add(self, attributions: Sequence[Attribution], location: str) -> None:
        """Show one of many texts immediately, so that complete texts are shown when Ctrl-C stops the command.

        Of texts that a file will hold, only the first are shown.

        Args:
            attributions: The explanations of one text.
            location: Where the text stands in its file.
        """
        if self.prints_json or not self.files or self.num_explained < MAX_TEXTS_SHOWN:
            self._print(attributions, location)
        true_label = find_true_label(attributions[0])
        if true_label is not None:
            self.label_counts[true_label, attributions[0].prediction.label] += 1
            self.error_words.add(attributions[0])
        self._collect(attributions)

    def finish(self) -> None:
        """Write the files of many texts, and end the JSON list on standard output."""
        try:
            self._write_files()
        finally:
            self._print_summary()
            self._print_end()

    def _print_summary(self) -> None:
        """Say how many texts only the files hold, how many predictions are right, and what drives errors."""
        if self.prints_json:
            return
        lines = []
        num_hidden = self.num_explained - MAX_TEXTS_SHOWN
        if self.files and num_hidden > 0:
            names = ", ".join(str(path) for path in self.files.values())
            lines.append(f"{num_hidden} more of the {self.num_explained} texts are in {names}")
        lines += describe_labels(self.label_counts, self.error_words)
        if lines:
            make_console(sys.stdout).print(Text("\n" + "\n".join(lines)))

    def _collect(self, attributions: Sequence[Attribution]) -> None:
        """Hold what the files will contain; the page of many texts holds its own entries."""
        self.num_explained += 1
        if self.report is not None and ".html" in self.files:
            self.report.add(attributions)
        other_files = set(self.files) - {".html"}
        if self.report is None or other_files:
            self.attributions += attributions

    def _print(self, attributions: Sequence[Attribution], location: str = "") -> None:
        is_first = self.report is None or self.num_explained == 0
        if self.prints_json:
            self._print_json(attributions, is_first=is_first)
            return
        if not location:
            self._print_picture(attributions)
            return
        title = _format_text_title(attributions[0], location)
        if not is_first:
            title = Text("\n") + title
        make_console(sys.stdout).print(title)
        # Most notes are about the model or the method, so they are the same for every text.
        without_repeated_notes = [
            replace(attribution, notes=select_new_notes(attribution.notes, self.shown_notes))
            for attribution in attributions
        ]
        self._print_picture(without_repeated_notes)

    def _print_json(self, attributions: Sequence[Attribution], *, is_first: bool) -> None:
        """Print one object for a single explanation, else the next entries of a list."""
        # JSON can escape what standard output cannot encode.
        encoding = (sys.stdout.encoding or "").lower().replace("-", "")
        entries = []
        for attribution in self._prepare_for_file(attributions):
            entries.append(dump_json(attribution.to_dict(), ensure_ascii=encoding != "utf8"))
        if not self._is_single(attributions):
            sys.stdout.write("[\n" if is_first else ",\n")
        sys.stdout.write(",\n".join(entries))

    def _print_end(self) -> None:
        if self.prints_json:
            if self.num_explained == 0:
                sys.stdout.write("[]\n")
            elif self._is_single(self.attributions):
                sys.stdout.write("\n")
            else:
                sys.stdout.write("\n]\n")
        sys.stdout.flush()

    def _write_files(self) -> None:
        if self.num_explained == 0:
            return
        for extension, path in self.files.items():
            is_new_folder = not path.parent.exists()  # mentioned, in case of a typing error
            with write_errors_reported(path):
                written_paths = self._write_file(extension, path)
            suffix = " (in a new folder)" if is_new_folder else ""
            for written_path in written_paths:
                sys.stderr.write(f"wrote {written_path}{suffix}\n")

    def _write_file(self, extension: str, path: Path) -> list[Path]:
        """Write one file; return all paths written, since a page of many texts may need several."""
        if extension != ".html":
            save(self._prepare_for_file(self.attributions), path)
            return [path]
        if self.report is not None:
            return self.report.write(path)
        page = render_page(self.attributions, reference=self.reference, words=self.words)
        write_text(path, page)
        return [path]

    def _is_single(self, attributions: Sequence[Attribution]) -> bool:
        return self.report is None and len(attributions) == 1

    def _prepare_for_file(self, attributions: Sequence[Attribution]) -> Sequence[Attribution]:
        """Return the explanations as files hold them: one score per word with ``--words``."""
        if not self.words:
            return attributions
        return [merge_words(attribution) for attribution in attributions]

    def _print_picture(self, attributions: Sequence[Attribution]) -> None:
        show(attributions, words=self.words, layers=self.layers, reference=self.reference)
        if self.group_unit is not None:
            for attribution in attributions:
                _print_sums(attribution, self.group_unit)


def describe_labels(label_counts: Counter[tuple[str, str]], error_words: ErrorWords) -> list[str]:
    """Describe in lines how many predictions are right, the most frequent errors, and the words in them.

    Args:
        label_counts: Numbers of texts by true and predicted label.
        error_words: The words of these texts.

    Returns:
        No line without true labels.

    Example:
        >>> from collections import Counter
        >>> from tokenlight.cli.outputs import describe_labels
        >>> from tokenlight.plots.error_words import ErrorWords
        >>> describe_labels(Counter({("good", "good"): 4}), ErrorWords())
        ['accuracy 4 of 4 (100.0 %)']
    """
    num_labeled = label_counts.total()
    if num_labeled == 0:
        return []
    wrong: Counter[tuple[str, str]] = Counter()
    for labels, count in label_counts.items():
        if len(set(labels)) > 1:
            wrong[labels] = count
    num_right = num_labeled - wrong.total()
    share = format_percent(num_right / num_labeled)
    lines = [f"accuracy {num_right} of {num_labeled} ({share})"]
    if not wrong:
        return lines
    kinds = wrong.most_common(MAX_ERROR_KINDS)
    counts = [f"{count} {_format_error_kind(labels)}" for labels, count in kinds]
    if len(wrong) > MAX_ERROR_KINDS:
        counts.append("…")
    lines.append(f"wrong: {', '.join(counts)} (true → predicted)")
    lines += _describe_error_words(kinds, error_words)
    return lines


def _describe_error_words(
    kinds: Sequence[tuple[tuple[str, str], int]], error_words: ErrorWords
) -> list[str]:
    """Describe the words of each kind of error, and whether the errors are too few to tell."""
    lines = []
    num_few = 0
    for labels, count in kinds:
        words = error_words.rank(*labels)[:MAX_ERROR_WORDS]
        if words:
            listed = [f"{to_single_line(word)} ({in_errors})" for word, in_errors, _ in words]
            lines.append(f"  {_format_error_kind(labels)}: {', '.join(listed)}")
            num_few += count < MIN_ERRORS
    if lines:
        lines.insert(
            0, "words that weigh more there than in right predictions (in how many texts):"
        )
    if num_few:
        lines.append(
            f"with fewer than {MIN_ERRORS} errors of a kind, a word may stand out by chance"
        )
    num_unread = sum(error_words.num_unread[labels] for labels, _ in kinds)
    if num_unread:
        lines.append(
            f"{num_unread} of them are explained for another label than the predicted one, so their words do "
            "not say why it was predicted"
        )
    return lines


def _format_error_kind(labels: tuple[str, str]) -> str:
    true_label, predicted = labels
    return f"{to_single_line(true_label)} → {to_single_line(predicted)}"


def _format_text_title(attribution: Attribution, location: str) -> Text:
    """Format the location of a text, and its true label where the file has one."""
    title = Text(to_single_line(location), style="bold")
    true_label = find_true_label(attribution)
    if true_label is None:
        return title
    if true_label == attribution.prediction.label:
        title.append(f"  true label {to_single_line(true_label)}", "not bold dim")
    else:
        title.append(f"  true label {to_single_line(true_label)}, misclassified", "not bold red")
    return title


def _print_sums(attribution: Attribution, unit: Unit) -> None:
    """List the units of a text, the largest sum first, with the interval where one was measured."""
    sys.stdout.write(f"\n{attribution.title}, by {unit}\n")
    # Sums are signed; percentages are shares of the sum of magnitudes.
    groups = sorted(attribution.group_by(unit), key=lambda group: -group.total)
    percentages = round_to_percents([group.share for group in groups])
    for group, percentage in zip(groups, percentages, strict=True):
        interval = ""
        if group.low is not None:
            interval = f"[{group.low:+.3g}, {group.high:+.3g}]"
        name = truncate_text(" ".join(group.name.split()), MAX_UNIT_NAME)
        sys.stdout.write(f"  {group.total:+9.3g}  {interval:18}  {percentage:3d} %  {name}\n")
