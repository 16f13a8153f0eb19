"""A suite file: which methods are measured by which metrics on which models and data sets.

Readable YAML. What a suite leaves out has a default, so that one of a user's own
fits in ten lines; all that is wrong with it is told at once, with the nearest name.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, field, fields
from functools import cached_property, reduce
from operator import getitem
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from tokenlight.bench import entries
from tokenlight.errors import (
    BadInput,
    DamagedFile,
    MissingExtra,
    TokenlightError,
    UnknownName,
    shown,
)
from tokenlight.files.documents import text_of, yaml_of

LARGEST = 1 << 20  # bytes of a suite
DEEPEST = 200  # layers that `each: layers` is filled in for where labels are looked up
LIBRARIES = ("yaml", "pyarrow", "scipy")  # of the extra `bench`, without which nothing runs
SHIPPED = Path(__file__).parent / "suites"
SILENT = ("published", "expect", "notes", "report", "folder", "title", "paper", "kind")


class SuiteRefused(TokenlightError):
    """A suite that cannot be run; the message lists every problem."""

    def __init__(self, name: str, problems: list[str]) -> None:
        self.problems = tuple(dict.fromkeys(problems))
        count = len(self.problems)
        said = f"the suite {name} has {count} problem{'s' * (count != 1)}; nothing was run:"
        super().__init__("\n  - ".join((said, *self.problems)))


@dataclass(frozen=True, config=entries.STRICT)
class Suite:
    """All that a run depends on, models and data files aside."""

    name: str
    title: str = ""
    paper: str = ""
    kind: Literal["table", "figure"] = "table"
    data: tuple[entries.DataSet, ...] = ()
    models: tuple[entries.Model, ...] = ()
    methods: tuple[entries.MethodEntry, ...] = ()
    metrics: tuple[entries.MetricEntry, ...] = ()
    protocol: entries.Protocol = field(default_factory=entries.Protocol)
    heads: Annotated[entries.Heads | None, BeforeValidator(lambda given: given or None)] = None
    batch_tokens: entries.Count = 2048
    seed: entries.Whole = 0
    slice: entries.Count = 64
    keep: entries.Whole = 0
    published: entries.Published = field(default_factory=dict)
    expect: tuple[entries.Claim, ...] = ()
    notes: entries.Texts = ()
    report: entries.ReportWish = field(default_factory=entries.ReportWish)
    folder: str = ""  # where the suite's file stands; files beside it are found by it

    @cached_property
    def rows(self) -> dict[str, entries.MethodEntry]:
        """Row of a table to its (first) entry: draws of a group share one."""
        found: dict[str, entries.MethodEntry] = {}
        for one in self._expanded:
            found.setdefault(one.group or one.label, one)
        return found

    @cached_property
    def row_of(self) -> dict[str, str]:
        """Method label to the row it stands in."""
        return {one.label: one.group or one.label for one in self._expanded}

    @cached_property
    def _expanded(self) -> list[entries.MethodEntry]:
        return [one for entry in self.methods for one in entry.expanded(DEEPEST)]

    def data_set(self, name: str) -> entries.DataSet:
        return next(one for one in self.data if one.name == name)

    def model(self, name: str, data: str) -> entries.Model:
        of = (one for one in self.models if one.name == name)
        return next(one for one in of if not one.data or data in one.data)

    def digest(self) -> str:
        """Hash of what changes a number: published numbers, notes and the report's wishes do not."""
        content = {key: value for key, value in asdict(self).items() if key not in SILENT}
        for entry in (*content["data"], *content["models"], *content["methods"]):
            entry.pop("note", None)
            entry.pop("group", None)
        plain = json.dumps(content, sort_keys=True, ensure_ascii=False, default=str)
        return hashlib.sha256(plain.encode()).hexdigest()


def shipped() -> list[str]:
    """Names of the suites that come with tokenlight."""
    return sorted(place.stem for place in SHIPPED.glob("*.yaml"))


def find(name: str | Path) -> Path:
    """The file of a shipped suite's name, or of a path."""
    place = Path(name)
    if place.suffix in (".yaml", ".yml") or place.is_file():
        if not place.is_file():
            raise DamagedFile(f"the suite {place} does not exist; check its name.")
        return place
    if str(name) not in shipped():
        raise UnknownName.among("suite (a name, or a path to a .yaml file)", str(name), shipped())
    return SHIPPED / f"{name}.yaml"


def load(name: str | Path) -> Suite:
    """A suite by shipped name or path; SuiteRefused lists every problem of the file."""
    suite, problems = read(find(name))
    if problems:
        raise SuiteRefused(suite.name, problems)
    return suite


def read(place: Path) -> tuple[Suite, list[str]]:
    """A suite with all that is wrong with its file: what could be read is there nevertheless."""
    yaml = MissingExtra.importing("yaml", "bench", "a suite")
    troubles = OSError, ValueError, yaml.YAMLError
    with DamagedFile.telling(f"{place} is no readable YAML: ", *troubles, end=""):
        content = yaml_of(text_of(place, LARGEST))
    if not isinstance(content, dict):
        raise BadInput(f"{place} holds no suite: it must be a mapping with data, models, methods.")
    return from_dict(content, name=place.stem, folder=str(place.parent.resolve()))


def from_dict(content: Mapping[Any, Any], *, name: str, folder: str) -> tuple[Suite, list[str]]:
    """A suite from the mapping in its file, without what is refused, and every problem found."""
    given = {key: value for key, value in _copied(content).items() if value is not None}
    for key in LISTS:  # one entry may stand without the list
        if key in given and not isinstance(given[key], list):
            given[key] = [given[key]]
    problems = [f"{key} is missing or empty" for key in LISTS[:4] if not given.get(key)]
    if given.pop("folder", None) is not None:
        problems.append(_unknown("folder"))
    while True:
        try:
            usual = {"name": name, "folder": folder}
            suite = TypeAdapter(Suite).validate_python(usual | given)
            return suite, [*problems, *_cross_check(suite)]
        except ValidationError as refused:
            errors = refused.errors(include_url=False)
        problems += map(_told, errors)
        places = {_reached(given, error["loc"]) for error in errors}
        # Inner values and last entries first.
        for *way, last in sorted(places, key=lambda place: (len(place), place), reverse=True):
            del reduce(getitem, way, given)[last]


def _copied(value: Any) -> Any:
    """A copy whose every key is a text: YAML reads 2024 and yes as something else."""
    if isinstance(value, Mapping):
        return {str(key): _copied(inner) for key, inner in value.items()}
    return [_copied(one) for one in value] if isinstance(value, list) else value


LISTS = ("data", "models", "methods", "metrics", "expect")
ENTRIES: dict[str, type] = {
    "data": entries.DataSet,
    "models": entries.Model,
    "methods": entries.MethodEntry,
    "metrics": entries.MetricEntry,
    "expect": entries.Claim,
    "protocol": entries.Protocol,
    "heads": entries.Heads,
    "report": entries.ReportWish,
    "figures": entries.FigureWish,
}


def _told(error: Any) -> str:
    """A problem in words: where it stands, what was given, what it must be."""
    where = [f"entry {one + 1}" if isinstance(one, int) else one for one in error["loc"]]
    match error["type"]:
        case "unexpected_keyword_argument":
            names = [one for one in error["loc"][:-1] if isinstance(one, str)]
            said = _unknown(str(where.pop()), names[-1] if names else "")
        case "missing":
            said = "it is missing"
        case "value_error":
            said = str(error["ctx"]["error"])
        case _:
            should = error["msg"].replace("Input should", "it should")
            said = f"it is {shown(error['input'])}; {should}"
    return ": ".join(filter(None, (", ".join(where), said)))


def _unknown(key: str, kind: str = "") -> str:
    entry = ENTRIES.get(kind, Suite)
    known = {one.name for one in fields(entry)} - {"folder"}
    more = {"preset"} if "options" in known else set()
    return str(UnknownName.among("key", key, known | more))


def _reached(content: Any, place: tuple[Any, ...]) -> tuple[Any, ...]:
    """As much of a place as there is: not a key that is missing, nor what is inside of no mapping."""
    for depth, step in enumerate(place):
        missing = isinstance(content, dict) and step not in content
        if missing or not isinstance(content, dict | list):
            return place[:depth]
        content = content[step]
    return place


def _cross_check(suite: Suite) -> Iterator[str]:
    """Names that stand for another entry must be one of them; names must be distinct."""
    data = [one.name for one in suite.data]
    metrics = [one.label for one in suite.metrics]
    expanded = [entry for one in suite.methods for entry in one.expanded()]
    methods = [entry.label for entry in expanded]
    for kind, names in (("data set", data), ("metric", metrics), ("method", methods)):
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield f"the {kind} {name!r} is there twice; give each a label of its own"

    if suite.protocol.target == "all":
        yield "protocol: target: all explains several classes of a text, but a row holds one; name one"

    def unknown(where: str, kind: str, given: Iterable[str], known: Iterable[str]) -> Iterator[str]:
        names = dict.fromkeys(known)
        wrong = (name for name in given if name not in names)
        yield from (f"{where}: {UnknownName.among(kind, name, names)}" for name in wrong)

    listed: tuple[Any, ...] = (*suite.models, *suite.methods, *suite.metrics, *suite.expect)
    for one in listed:
        where = one.claim if isinstance(one, entries.Claim) else one.name
        yield from unknown(where, "data set", one.data, data)
    cells = [*data, *(f"{model.name}/{one}" for model in suite.models for one in data)]
    yield from unknown("published", "data set", suite.published, cells)
    rows = [*methods, *(entry.group for entry in expanded)]
    if any(entries.LAYERS in one.each.values() for one in suite.methods):
        rows += [method for by_method in suite.published.values() for method in by_method]
    bare = [one.split(".")[0] for one in metrics]
    for cell, by_method in suite.published.items():
        yield from unknown(f"published, {cell}", "method", by_method, rows)
        for method, numbers in by_method.items():
            measured = [one.split(".")[0] for one in numbers]
            yield from unknown(f"published, {cell}, {method}", "metric", measured, bare)
