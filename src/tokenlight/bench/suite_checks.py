"""Describe what is wrong with a suite file: invalid values, unknown keys, names that refer to nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from tokenlight.bench import suite_entries
from tokenlight.errors import UnknownName, short_repr

if TYPE_CHECKING:
    from tokenlight.bench.suite import Suite

# Key of a suite → class of the entries below it.
ENTRY_CLASSES: dict[str, type] = {
    "data": suite_entries.DataSetEntry,
    "models": suite_entries.ModelEntry,
    "methods": suite_entries.MethodEntry,
    "metrics": suite_entries.MetricEntry,
    "claims": suite_entries.Claim,
    "protocol": suite_entries.ExplainProtocol,
    "heads": suite_entries.HeadsEntry,
    "report": suite_entries.ReportSpec,
    "figures": suite_entries.FigureSpec,
}


def describe_validation_error(error: Any, suite_class: type) -> str:
    """Describe an error of pydantic: where it is, what was given, and what is expected.

    Args:
        error: One entry of ``ValidationError.errors()``.
        suite_class: Class of the whole suite, for keys at the top.
    """
    location = list(error["loc"])  # keys and list indices, from the top
    match error["type"]:
        case "unexpected_keyword_argument":
            key = str(location.pop())
            # The keys that would be valid are those of the entry that holds the unknown one.
            parent_keys = [step for step in location if isinstance(step, str)]
            entry_class = suite_class
            if parent_keys:
                entry_class = ENTRY_CLASSES.get(parent_keys[-1], suite_class)
            message = describe_unknown_key(key, entry_class)
        case "missing":
            message = "This key is missing."
        case "value_error":
            message = str(error["ctx"]["error"])
        case _:
            expected = error["msg"].replace("Input should", "It should")
            message = f"{short_repr(error['input'])} is not valid. {expected}."
    prefix = _format_location(location)
    if not prefix:
        return message
    return f"{prefix}: {message}"


def _format_location(location: Sequence[str | int]) -> str:
    """Format a path such as ``("methods", 0, "name")`` as ``methods, entry 1, name``."""
    steps = []
    for step in location:
        if isinstance(step, int):
            steps.append(f"entry {step + 1}")  # people count from 1
        else:
            steps.append(step)
    return ", ".join(steps)


def describe_unknown_key(key: str, entry_class: Any) -> str:
    """Describe a key that ``entry_class`` does not have, with similar keys."""
    known_keys = {known.name for known in fields(entry_class)} - {"folder"}
    if "options" in known_keys:
        known_keys.add("preset")  # a shorthand for an option
    return str(UnknownName.from_choices("key", key, known_keys))


def remove_invalid_values(content: Any, errors: Sequence[Any]) -> None:
    """Delete every value that an error names from the nested lists and mappings of ``content``."""
    locations = {_find_existing_prefix(content, error["loc"]) for error in errors}
    # Inner values and later entries come first, so that the other locations stay valid.
    for location in sorted(locations, key=lambda steps: (len(steps), steps), reverse=True):
        *parents, last_step = location
        container = content
        for step in parents:
            container = container[step]
        del container[last_step]


def _find_existing_prefix(content: Any, location: tuple[Any, ...]) -> tuple[Any, ...]:
    """Cut a location before a key that is missing, and before a value that has no keys."""
    for depth, step in enumerate(location):
        is_missing_key = isinstance(content, dict) and step not in content
        if is_missing_key or not isinstance(content, dict | list):
            return location[:depth]
        content = content[step]
    return location


def find_reference_problems(suite: Suite) -> Iterator[str]:
    """Yield names that refer to no entry of the suite, and names that occur twice."""
    yield from _find_duplicates(suite)
    if suite.protocol.target == "all":
        yield (
            "protocol, target: 'all' is not valid. It explains several classes per text, but a row has "
            "one. Name one class."
        )
    yield from _find_unknown_data_sets(suite)
    yield from _find_unknown_published_names(suite)


def _find_duplicates(suite: Suite) -> Iterator[str]:
    names_by_kind = {
        "data set": [data_set.name for data_set in suite.data],
        "metric": [metric.label for metric in suite.metrics],
        "method": [entry.label for entry in _expand_methods(suite)],
    }
    for kind, names in names_by_kind.items():
        duplicates = {name for name in names if names.count(name) > 1}
        for name in sorted(duplicates):
            yield f"The {kind} {name!r} is given twice. Give each entry its own label."


def _find_unknown_data_sets(suite: Suite) -> Iterator[str]:
    """Yield data sets that an entry is limited to and that the suite does not have."""
    known_names = [data_set.name for data_set in suite.data]
    entries: list[Any] = [*suite.models, *suite.methods, *suite.metrics]
    for entry in entries:
        yield from _find_unknown_names(entry.name, "data set", entry.data, known_names)
    for claim in suite.claims:
        yield from _find_unknown_names(claim.claim, "data set", claim.data, known_names)


def _find_unknown_published_names(suite: Suite) -> Iterator[str]:
    """Yield data sets, methods and metrics of the published numbers that the suite does not have."""
    data_names = [data_set.name for data_set in suite.data]
    cell_names = list(data_names)
    for model in suite.models:
        cell_names += [f"{model.name}/{data_name}" for data_name in data_names]
    yield from _find_unknown_names("published", "data set", suite.published, cell_names)
    row_names = _list_row_names(suite)
    metric_names = _strip_parts(metric.label for metric in suite.metrics)
    for cell_name, scores_by_method in suite.published.items():
        prefix = f"published, {cell_name}"
        yield from _find_unknown_names(prefix, "method", scores_by_method, row_names)
        for method, scores in scores_by_method.items():
            published_metrics = _strip_parts(scores)
            yield from _find_unknown_names(
                f"{prefix}, {method}", "metric", published_metrics, metric_names
            )


def _list_row_names(suite: Suite) -> list[str]:
    """List the labels and groups that published scores may be given for."""
    row_names = []
    for entry in _expand_methods(suite):
        row_names += [entry.label, entry.group]
    if any(suite_entries.ALL_LAYERS in entry.each.values() for entry in suite.methods):
        # The number of layers is known only when the model is loaded, so any label is accepted.
        for scores_by_method in suite.published.values():
            row_names += scores_by_method
    return row_names


def _expand_methods(suite: Suite) -> list[suite_entries.MethodEntry]:
    expanded: list[suite_entries.MethodEntry] = []
    for entry in suite.methods:
        expanded += entry.expand()
    return expanded


def _strip_parts(metrics: Iterable[str]) -> list[str]:
    """Return the names of metrics without a part: ``rationale.f1`` is a number of ``rationale``."""
    return [metric.split(".")[0] for metric in metrics]


def _find_unknown_names(
    prefix: str, kind: str, names: Iterable[str], known_names: Iterable[str]
) -> Iterator[str]:
    choices = dict.fromkeys(known_names)
    for name in names:
        if name not in choices:
            yield f"{prefix}: {UnknownName.from_choices(kind, name, choices)}"
