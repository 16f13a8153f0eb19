"""The plan of a run, as plain values.

A plan has cells (model × data set × method), which are cut into parts of a few examples. It is made once,
checked before any work, and written into the folder of the run, where every worker reads it. This module also
chooses the examples of a data set, which every worker must choose alike.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tokenlight.bench.completions import CompletedPrompts, has_completions
from tokenlight.bench.suite import SUITE_BATCH_TOKENS, Suite
from tokenlight.bench.suite_entries import DataSetEntry, MetricEntry
from tokenlight.data.tokens import Question
from tokenlight.errors import BadInput
from tokenlight.files.tables import EXTENSIONS, Example, read_examples
from tokenlight.metrics.base import Metric

MAX_SLUG_LENGTH = 80


@dataclass(frozen=True)
class RunRequest:
    """Options of a run that are not in the suite.

    Args:
        models: Checkpoints that replace those of the suite. Keys are the name of a model, of a data set, or
            ``model/data set``; the empty key stands for all, and the most specific key wins.
        language_models: Language models of decoded methods, with the same keys.
        heads: Heads files for mask_lrp, with the same keys.
        data: Folder with one subfolder per data set.
        limit: Maximum number of examples per data set.
        offline: Whether to use embedded models and local files only.
        device: Device of each worker.
        batch_tokens: Tokens per batch; by default as in the suite.
        part_size: Examples per part; by default as in the suite.
    """

    models: Mapping[str, str] = field(default_factory=dict)
    language_models: Mapping[str, str] = field(default_factory=dict)
    heads: Mapping[str, str] = field(default_factory=dict)
    data: Path | None = None
    limit: int | None = None
    offline: bool = False
    device: str = "cpu"
    batch_tokens: int | None = None
    part_size: int | None = None

    @staticmethod
    def lookup(mapping: Mapping[str, str], model: str, data: str) -> str:
        """Return the entry for a model on a data set, empty if there is none.

        Args:
            mapping: Values of an option such as ``--model``. The key ``MODEL/DATA`` comes first, then the
                data set, the model, and the empty key, which stands for all.
            model: The name of the model in the suite.
            data: The name of the data set in the suite.
        """
        # From the most specific key to the one that stands for all.
        for key in (f"{model}/{data}", data, model, ""):
            if key in mapping:
                return mapping[key]
        return ""


@dataclass(frozen=True)
class Cell:
    """One method on one model and data set: a cell of the table of each metric.

    Args:
        number: Index of the cell in the plan.
        model: Name of the model in the suite.
        data: Name of the data set in the suite.
        method_label: Label of the method in the suite; tables call it ``method``.
        method_name: Name of the method in the registry.
        options: Options of the method.
        checkpoint: Folder or hub id that is loaded.
        examples: Number of examples.
        labels: Labels of the model, in the order of those of the data set; empty if they are the same.
        computes_heads_file: Whether the run computes the heads file of the method first.
        reason: Why the cell is not run; empty if it is.
    """

    number: int
    model: str
    data: str
    method_label: str
    method_name: str
    options: dict[str, Any] = field(default_factory=dict)
    checkpoint: str = ""
    examples: int = 0
    labels: tuple[str, ...] = ()
    computes_heads_file: bool = False
    reason: str = ""

    @property
    def is_run(self) -> bool:
        return not self.reason

    @property
    def identifiers(self) -> dict[str, str]:
        """Columns that identify the cell in tables."""
        return {"model": self.model, "data": self.data, "method": self.method_label}

    @property
    def model_data_slug(self) -> str:
        """Model and data set as the name of a folder."""
        return f"{make_slug(self.model)}@{make_slug(self.data)}"

    @property
    def relative_folder(self) -> Path:
        """Folder of its parts, below ``parts`` of the run."""
        return Path(self.model_data_slug) / make_slug(self.method_label)


@dataclass(frozen=True, order=True)
class Part:
    """Examples ``first`` to ``first + count`` of the cell with the number ``cell``."""

    cell: int
    first: int
    count: int


@dataclass(frozen=True)
class Plan:
    """All cells of a run, and everything that its numbers depend on.

    Args:
        cells: Cells that are run, and cells that are not, with their reason.
        metrics: Metrics, with the paths of their files filled in.
        sources: Data set → file or hub name.
        settings: Settings that affect the results; a run can be resumed only with the same ones.
        limit: Maximum number of examples per data set.
        device: Device of each worker.
        batch_tokens: Tokens per batch.
        conllu: File of parsed text from which heads files are computed; empty if there is none.
        part_size: Examples per part; 0 means as in the suite.
        completed: ``model/data set`` → the prompts that are measured, for data with expected completions.
    """

    cells: tuple[Cell, ...]
    metrics: tuple[MetricEntry, ...]
    sources: dict[str, str]
    settings: dict[str, Any]
    limit: int | None = None
    device: str = "cpu"
    batch_tokens: int = SUITE_BATCH_TOKENS
    conllu: str = ""
    part_size: int = 0
    completed: dict[str, CompletedPrompts] = field(default_factory=dict)

    def iter_parts(self, suite: Suite) -> Iterator[Part]:
        """Yield the parts model by model, so that a worker loads each model once."""
        part_size = self.part_size or suite.part_size
        for cell in self.cells:
            if not cell.is_run:
                continue
            for first in range(0, cell.examples, part_size):
                count = min(part_size, cell.examples - first)
                yield Part(cell.number, first, count)

    def get_completed(self, model: str, data: str) -> CompletedPrompts | None:
        """Return which prompts of a data set a model completes; None if no completions are expected."""
        return self.completed.get(f"{model}/{data}")

    def get_metrics(self, data: str) -> dict[str, Metric]:
        """Return the metrics of a data set by label."""
        entries = [entry for entry in self.metrics if not entry.data or data in entry.data]
        return {entry.label: entry.metric for entry in entries}


def make_slug(name: str) -> str:
    """Make a file name of ``name``: replace characters that a file system may refuse.

    A changed name gets a hash, so that different names stay different.

    Example:
        >>> from tokenlight.bench.plan import make_slug
        >>> make_slug("attcat")
        'attcat'
    """
    # A leading dot would hide the file, and a trailing one is dropped by Windows.
    slug = re.sub(r"[^A-Za-z0-9._=-]+", "-", name).strip("-.") or "unnamed"
    if slug == name and len(slug) <= MAX_SLUG_LENGTH:
        return slug
    digest = hashlib.blake2b(name.encode(), digest_size=3).hexdigest()
    return f"{slug[:60]}-{digest}"


def find_data_file(relative_path: str, folders: Sequence[Path]) -> Path | None:
    """Find a file such as ``sst2/dev``, with or without its extension, in the first folder that has it."""
    for folder in folders:
        for extension in ("", *EXTENSIONS):
            for compression in ("", ".gz"):
                path = folder / f"{relative_path}{extension}{compression}"
                if path.is_file():
                    return path
    return None


def resolve_data_source(
    data: DataSetEntry, suite: Suite, folder: Path | None, *, offline: bool
) -> str:
    """Find the source of a data set.

    Args:
        data: The entry of the suite.
        suite: The suite; files are looked for in its folder first.
        folder: The folder given with ``--data``.
        offline: Whether the hub may not be asked.

    Returns:
        Path of a file, or a name on the hub.

    Raises:
        BadInput: There is no such file, and the hub may not be asked.
    """
    # Local files come first, next to the suite and then under --data.
    folders = [Path(suite.folder)]
    if folder is not None:
        folders.append(folder)
    path = find_data_file(data.local, folders)
    # A suite may come with a small sample, which is used only without a data folder.
    if path is None and folder is None and data.fallback:
        path = find_data_file(data.fallback, folders)
    if path is not None:
        return str(path.resolve())
    # If a data folder is given, the data are expected there and not downloaded.
    may_use_hub = bool(data.hub) and folder is None
    if may_use_hub and not offline:
        return data.hub
    searched = ", nor in ".join(map(str, folders))
    if may_use_hub:
        raise BadInput(
            f"Data set {data.name}: {data.local} is not in {searched}, and --offline does not use the hub. "
            "Give the data folder with --data DIR.",
            code="data-set-offline",
        )
    raise BadInput(
        f"Data set {data.name}: {data.local} is not in {searched}. Give the data folder with --data DIR.",
        code="data-set-not-found",
    )


def read_chosen_examples(
    data: DataSetEntry, source: str, *, seed: int, limit: int | None
) -> list[Example]:
    """Read the examples of a data set that a run uses, in their order in the file.

    Args:
        data: The entry of the suite.
        source: File or hub name.
        seed: Seed of a random sample; the same on every worker.
        limit: Maximum number of examples.

    Raises:
        BadInput: No example fits the entry, or the examples are for another task.
    """
    examples = read_examples(
        source,
        text_column=data.text or None,
        label_column=data.label or None,
        split=data.hub_split,
    )
    if data.classes:
        examples = _select_classes(examples, data)
    if data.task and detect_task(examples[0]) != data.task:
        raise BadInput(
            f"Data set {data.name}: the suite says that it is for {data.task}, but its examples are for "
            f"{detect_task(examples[0])}. Change task in the suite.",
            code="data-set-task",
        )
    size_limits = [size for size in (data.size, limit) if size is not None]
    num_examples = min([len(examples), *size_limits])
    if num_examples == len(examples) or data.sample == "first":
        return examples[:num_examples]
    return _draw_sample(examples, num_examples, seed)


def _select_classes(examples: Sequence[Example], data: DataSetEntry) -> list[Example]:
    selected = [example for example in examples if str(example.label) in data.classes]
    if not selected:
        raise BadInput(
            f"Data set {data.name}: no example has one of the labels {', '.join(data.classes)}. Change "
            "classes in the suite.",
            code="data-set-without-classes",
        )
    return selected


def _draw_sample(examples: Sequence[Example], size: int, seed: int) -> list[Example]:
    """Draw examples without replacement; keep their order."""
    indices = np.random.default_rng(seed).choice(len(examples), size, replace=False)
    return [examples[i] for i in sorted(map(int, indices))]


def map_labels(
    examples: Sequence[Example], labels: Sequence[str], data: DataSetEntry
) -> list[Example]:
    """Replace the labels of a data set by those of a model.

    Args:
        examples: Examples with the labels 0, 1, … of the data set.
        labels: For each label of the data set the label of the model, or its number; empty if they are the
            same.
        data: The entry of the suite, for messages.

    Raises:
        BadInput: An example has a label that ``labels`` does not name.
    """
    if not labels:
        return list(examples)
    model_labels: dict[Any, str | int] = {}
    # A number in the suite means the index of the model's label, not its name.
    for index, label in enumerate(labels):
        model_labels[index] = int(label) if label.isdigit() else label
    mapped = []
    for example in examples:
        if example.label is not None and example.label not in model_labels:
            raise BadInput(
                f"Data set {data.name}: an example has the label {example.label!r}, but the suite names "
                f"{len(labels)} labels of the model. Name one for each label of the data set.",
                code="data-set-label-unmapped",
            )
        mapped.append(replace(example, label=model_labels.get(example.label)))
    return mapped


def detect_task(example: Example) -> str:
    """Return the task of an example: classification, pair, qa or next_token."""
    if isinstance(example.text, Question):
        return "qa"
    if has_completions(example):
        return "next_token"
    return "classification" if isinstance(example.text, str) else "pair"
