"""What stands against a suite, found before any work and told all at once."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenlight import registry
from tokenlight.bench.entries import MethodEntry, MetricEntry
from tokenlight.bench.examples import task_of
from tokenlight.bench.suite import Suite
from tokenlight.errors import TokenlightError, in_words
from tokenlight.evaluation.labels import read_labels
from tokenlight.evaluation.preflight import attempt, check_metrics
from tokenlight.explainer import Explainer
from tokenlight.files.tables import Example
from tokenlight.methods.mask_lrp import NEEDS_HEADS
from tokenlight.scale.worker import load


@dataclass(frozen=True)
class Fitness:
    """What a model cannot do: ``troubles`` by the method's label; ``refused`` where it can do
    nothing here. ``layers``: how many blocks it has."""

    troubles: Mapping[str, str] = field(default_factory=dict)
    refused: str = ""
    layers: int | None = None


def entry_problems(suite: Suite) -> Iterator[str]:
    """Names and options that no method or metric has."""
    for entry in (one for listed in suite.methods for one in listed.expanded(1)):
        if entry.name in registry.names("methods"):
            for options in (entry.options, entry.options | entry.twin):
                yield from _built("methods", entry, _without_files(options))
        else:
            yield from _built("methods", entry, {})
    for metric in suite.metrics:
        yield from _built("metrics", metric, metric.options)


def _built(
    kind: registry.Kind, entry: MethodEntry | MetricEntry, options: Mapping[str, Any]
) -> Iterator[str]:
    try:
        registry.build(kind, entry.name, options)
    except TokenlightError as wrong:
        said = "" if repr(entry.label) in str(wrong) else f"{kind[:-1]} {entry.label}: "
        yield said + str(wrong).removesuffix(".")


def _without_files(options: Mapping[str, Any]) -> dict[str, Any]:
    """Most masks want heads, which the run may make: checked on the model itself."""
    return {key: value for key, value in options.items() if key not in ("heads", "lm", "mask")}


class Doctor:
    """Tries methods on models, each on each once; holds one model at a time."""

    def __init__(self, suite: Suite, device: str) -> None:
        self.suite, self.device = suite, device
        self.place = ""
        self.explainer: Explainer | None = None
        self.found: dict[tuple[str, str], Exception | None] = {}

    def examine(
        self,
        place: str,
        entries: Sequence[tuple[MethodEntry, dict[str, Any]]],
        examples: Sequence[Example],
        metrics: Sequence[MetricEntry],
    ) -> Fitness:
        """Load a model and try each method on a short text, as ``tokenlight doctor`` does; see that
        its head fits the examples and every metric."""
        try:
            explainer = self._load(place)
        except TokenlightError as missing:
            return Fitness({}, str(missing))
        refused = "; ".join(_misfits(explainer, examples, metrics))
        troubles: dict[str, str] = {}
        layers = getattr(explainer.live.model.config.get_text_config(), "num_hidden_layers", None)
        said = self.suite.protocol
        how = {"explain_mask": said.explain_mask, "token_types": said.token_types}
        for entry, options in () if refused else entries:
            if any(_built("methods", entry, _without_files(options))):
                continue  # told by entry_problems
            tried = dict(options)
            if "heads" not in tried and tried.get("mask") in NEEDS_HEADS:
                tried["mask"] = "positional"  # its sibling: its own heads are made only later
            # Another seed draws other numbers, which is no other question.
            asked = sorted((pair for pair in options.items() if pair[0] != "seed"), key=str)
            key = (place, f"{entry.name} {asked}")
            if key not in self.found:
                self.found[key] = attempt(explainer, (entry.name, tried), **how)[0]
            if (trouble := self.found[key]) is not None:
                troubles[entry.label] = in_words(trouble).removesuffix(".")
        return Fitness(troubles, refused, layers if isinstance(layers, int) else None)

    def _load(self, place: str) -> Explainer:
        if self.explainer is None or self.place != place:
            self.explainer = None  # a model that was only tried makes room for the next
            self.place, self.explainer = place, load(place, self.device)
        return self.explainer


def _misfits(
    explainer: Explainer, examples: Sequence[Example], metrics: Sequence[MetricEntry]
) -> Iterator[str]:
    head = explainer.live.head
    span, task = head.kind == "span", task_of(examples[0])
    if span != (task == "qa"):
        kind = "answers questions" if span else "is a classifier"
        yield f"the model {kind}, but the data set is for {task}"
        return
    if not span:
        try:
            read_labels([example.label for example in examples], head)
        except TokenlightError as unknown:
            yield str(unknown)
    for entry in metrics:
        if any(_built("metrics", entry, entry.options)):
            continue  # told by entry_problems
        try:
            built = registry.build("metrics", entry.name, entry.options)
            check_metrics([built], head, examples)
        except TokenlightError as refused:
            yield f"{entry.label}: {refused}"
