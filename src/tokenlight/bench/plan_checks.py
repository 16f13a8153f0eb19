"""Find mistakes of a suite and of the options of a run before a model is loaded."""

from collections.abc import Iterator, Mapping
from typing import Any

from tokenlight import registry
from tokenlight.bench.plan import RunRequest
from tokenlight.bench.suite import Suite
from tokenlight.bench.suite_entries import MethodEntry, MetricEntry
from tokenlight.errors import TokenlightError

# Options that are checked on the model: the run may compute the heads first, and most masks need heads.
MODEL_OPTIONS = ("heads", "lm", "mask")


def find_entry_problems(suite: Suite) -> Iterator[str]:
    """Yield names and options that no method or metric has."""
    for entry in suite.methods:
        for variant in entry.expand(1):
            yield from _find_method_problems(variant)
    for metric in suite.metrics:
        yield from find_option_problems("metrics", metric, metric.options)


def _find_method_problems(entry: MethodEntry) -> Iterator[str]:
    """Check the options for the checkpoint, and those for the embedded model that stands in for it."""
    if entry.name not in registry.list_names("methods"):
        yield from find_option_problems("methods", entry, {})
        return
    yield from find_option_problems("methods", entry, entry.options)
    yield from find_option_problems("methods", entry, entry.options | entry.stand_in)


def find_option_problems(
    kind: registry.ComponentKind, entry: MethodEntry | MetricEntry, options: Mapping[str, Any]
) -> Iterator[str]:
    """Yield why a method or metric cannot be built with ``options``, if it cannot.

    Args:
        kind: ``"methods"`` or ``"metrics"``.
        entry: The entry of the suite, for its name and label.
        options: Its options; those that need a model are checked later.
    """
    if kind == "methods":
        options = {key: value for key, value in options.items() if key not in MODEL_OPTIONS}
    try:
        registry.build(kind, entry.name, options)
    except TokenlightError as error:
        message = str(error)
        if repr(entry.label) not in message:
            message = f"{kind.removesuffix('s')} {entry.label}: {message}"
        yield message


def find_data_without_model(suite: Suite) -> Iterator[str]:
    """Yield data sets that no model of the suite is for."""
    for data_set in suite.data:
        has_model = any(not model.data or data_set.name in model.data for model in suite.models)
        if not has_model:
            yield f"Data set {data_set.name}: no model of the suite is for it."


def find_unmatched_names(suite: Suite, request: RunRequest) -> Iterator[str]:
    """Yield names in ``--model``, ``--lm`` and ``--heads`` that are not in the suite."""
    data_names = [data_set.name for data_set in suite.data]
    model_names = [model.name for model in suite.models]
    known_names = {"", *data_names, *model_names}
    for model_name in model_names:
        known_names.update(f"{model_name}/{data_name}" for data_name in data_names)
    paths_by_option = {
        "--model": request.models,
        "--lm": request.language_models,
        "--heads": request.heads,
    }
    choices = ", ".join(dict.fromkeys((*data_names, *model_names)))
    for option, paths in paths_by_option.items():
        for name in paths:
            if name not in known_names:
                yield (
                    f"{option} {name}=…: the suite has no such data set or model. Choose one of {choices}."
                )
