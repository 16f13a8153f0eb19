"""A suite file: which methods are measured by which metrics on which models and data sets.

Readable YAML. What a suite leaves out has a default, so that one of a user's own
fits in ten lines; what it misspells is noted with the nearest name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenlight import registry
from tokenlight.bench.entries import (
    LAYERS,
    TASKS,
    Claim,
    DataSet,
    Heads,
    MethodEntry,
    MetricEntry,
    Model,
    Suite,
)
from tokenlight.bench.yaml_values import Keys, SuiteRefused, near
from tokenlight.errors import BadInput, DamagedFile, MissingExtra, UnknownName, shown
from tokenlight.files.documents import text_of, yaml_of

__all__ = ["Suite", "find", "from_dict", "load", "read", "shipped"]

LARGEST = 1 << 20  # bytes of a suite
LIBRARIES = ("yaml", "pyarrow", "scipy")  # of the extra `bench`, without which nothing runs
SHIPPED = Path(__file__).parent / "suites"


def shipped() -> list[str]:
    """Names of the suites that come with tokenlight."""
    return sorted(place.stem for place in SHIPPED.glob("*.yaml"))


def find(name: str | Path) -> Path:
    """The file of a shipped suite's name, or of a path."""
    place = Path(name)
    if place.suffix in (".yaml", ".yml") or place.is_file():
        if not place.is_file():
            raise DamagedFile(f"the suite {place} does not exist.")
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
    try:
        import yaml
    except ImportError as missing:
        raise MissingExtra.naming("yaml", "bench", "a suite") from missing
    try:
        content = yaml_of(text_of(place, LARGEST))
    except (OSError, ValueError, yaml.YAMLError) as broken:
        raise DamagedFile(f"{place} is no readable YAML: {broken}") from broken
    if not isinstance(content, dict):
        raise BadInput(f"{place} holds no suite: it must be a mapping with data, models, methods.")
    return from_dict(content, name=place.stem, folder=str(place.parent.resolve()))


def from_dict(content: Mapping[Any, Any], *, name: str, folder: str) -> tuple[Suite, list[str]]:
    """A suite from the mapping in its file, and every problem found."""
    problems: list[str] = []
    keys = Keys(content, "", problems)
    suite = Suite(
        name=keys.text("name", name),
        title=keys.text("title"),
        paper=keys.text("paper"),
        kind=keys.choice("kind", ("table", "figure"), "table"),
        data=tuple(_data(one, keys, i) for i, one in enumerate(keys.entries("data"), 1)),
        models=tuple(_model(one, keys, i) for i, one in enumerate(keys.entries("models"), 1)),
        methods=tuple(_method(one, keys, i) for i, one in enumerate(keys.entries("methods"), 1)),
        metrics=_metrics(keys),
        protocol=_protocol(keys),
        heads=_heads(keys),
        batch_tokens=keys.number("batch_tokens", 2048, least=1) or 2048,
        seed=keys.number("seed", 0) or 0,
        slice=keys.number("slice", 64, least=1) or 64,
        keep=keys.number("keep", 0) or 0,
        published=_as_numbers(keys.mapping("published")),
        expect=tuple(_claim(one, keys, i) for i, one in enumerate(keys.entries("expect"), 1)),
        notes=keys.texts("notes"),
        report=keys.mapping("report"),
        folder=folder,
    )
    keys.finish()
    for needed in ("data", "models", "methods", "metrics"):
        if not getattr(suite, needed):
            keys.complain(f"{needed} is missing or empty")
    _cross_check(suite, problems)
    return suite, problems


def _entry(given: Any, short: str, keys: Keys, place: str) -> Keys:
    """The keys of a list entry; a bare text stands for ``{short: text}``."""
    content = {short: given} if isinstance(given, str) else given
    if not isinstance(content, dict):
        keys.problems.append(f"{place}: {shown(given)} must be a text or a mapping")
        content = {}
    return Keys(content, place, keys.problems)


def _data(given: Any, parent: Keys, number: int) -> DataSet:
    keys = _entry(given, "local", parent, f"data, entry {number}")
    local = keys.text("local")
    # sst2/dev is named sst2, reviews.jsonl reviews.
    parts = Path(local).parts
    default = parts[-2] if len(parts) > 1 else (parts[0].split(".")[0] if parts else "")
    name = keys.text("name", default)
    found = DataSet(
        name=name,
        title=keys.text("title", name),
        hub=keys.text("hub"),
        hub_split=keys.text("hub_split", "validation"),
        local=local or name,
        otherwise=keys.text("otherwise"),
        text=keys.text("text"),
        label=keys.text("label"),
        task=keys.choice("task", ("", *TASKS), ""),
        size=keys.number("size", None, least=1),
        sample=keys.choice("sample", ("first", "random"), "first"),
        classes=keys.texts("classes"),
        note=keys.text("note"),
    )
    if not name:
        keys.complain("name is missing")
    keys.finish()
    return found


def _model(given: Any, parent: Keys, number: int) -> Model:
    keys = _entry(given, "hub", parent, f"models, entry {number}")
    hub = keys.text("hub")
    twin = keys.text("twin", hub if hub.startswith("tokenlight/") else "")
    found = Model(
        name=keys.text("name", Path(hub).name or Path(twin).name),
        hub=hub,
        data=keys.texts("data"),
        twin="" if twin == "none" else twin,
        lm=keys.text("lm"),
        heads=keys.text("heads"),
        labels=keys.texts("labels"),
        note=keys.text("note"),
    )
    if not found.name:
        keys.complain("name is missing")
    keys.finish()
    return found


def _method(given: Any, parent: Keys, number: int) -> MethodEntry:
    keys = _entry(given, "name", parent, f"methods, entry {number}")
    name, options = _named(keys)
    each = keys.mapping("each")
    for option, values in each.items():
        if values != LAYERS and not (isinstance(values, list) and values):
            keys.complain(f"each: {option} is {shown(values)}, but must be a list, or {LAYERS!r}")
            each[option] = [None]
    found = MethodEntry(
        name=name,
        label=keys.text("label", keys.text("name", name)),
        options=options,
        each=each,
        twin=keys.mapping("twin"),
        data=keys.texts("data"),
        group=keys.text("group"),
    )
    keys.finish()
    return found


def _metrics(parent: Keys) -> tuple[MetricEntry, ...]:
    found = []
    for number, given in enumerate(parent.entries("metrics"), 1):
        keys = _entry(given, "name", parent, f"metrics, entry {number}")
        name, options = _named(keys)
        label = keys.text("label", keys.text("name", name))
        found.append(MetricEntry(name, label, options, keys.texts("data")))
        keys.finish()
    return tuple(found)


def _named(keys: Keys) -> tuple[str, dict[str, Any]]:
    """Name and options, from ``name:option=value,...`` and the keys ``options`` and ``preset``."""
    given = keys.text("name")
    if not given:
        keys.complain("name is missing")
    try:
        name, options = registry.parse(given)
    except BadInput as broken:
        keys.complain(str(broken))
        name, options = given.partition(":")[0], {}
    preset = keys.text("preset")
    return name, options | keys.mapping("options") | ({"preset": preset} if preset else {})


def _protocol(parent: Keys) -> dict[str, Any]:
    """Keywords of explain(): how a text is read and what of it is explained."""
    keys = Keys(parent.mapping("protocol"), "protocol", parent.problems)
    found = {
        "target": keys.text("target", "predicted"),
        "explain_mask": keys.choice("explain_mask", ("none", "cls_sep", "sep"), "none"),
        "token_types": keys.choice("token_types", ("tokenizer", "zeros"), "tokenizer"),
        "long": keys.choice("long", ("error", "truncate", "stride"), "truncate"),
    }
    if found["target"] == "all":
        keys.complain(
            "target: all explains several classes of a text, but a row holds one; name one"
        )
    keys.finish()
    return found


def _heads(parent: Keys) -> Heads | None:
    content = parent.mapping("heads")
    if not content:
        return None
    keys = Keys(content, "heads", parent.problems)
    found = Heads(
        conllu=keys.text("conllu"),
        limit=keys.number("limit", None, least=1),
        align=keys.choice("align", ("offsets", "official"), "offsets"),
        margin=_share(keys, "margin", 0.1),
        share=_share(keys, "share", 0.8),
    )
    if not found.conllu:
        keys.complain(
            "conllu is missing: a parsed text under --data, such as ud_ewt/train.conllu.gz"
        )
    keys.finish()
    return found


def _share(keys: Keys, key: str, default: float) -> float:
    given = keys.text(key, str(default))
    try:
        return float(given)
    except ValueError:
        keys.complain(f"{key} is {shown(given)}, but must be a number")
        return default


def _claim(given: Any, parent: Keys, number: int) -> Claim:
    keys = _entry(given, "claim", parent, f"expect, entry {number}")
    found = Claim(
        claim=keys.text("claim"),
        metric=keys.text("metric"),
        better=keys.text("better"),
        than=keys.texts("than"),
        data=keys.texts("data"),
    )
    keys.finish()
    return found


def _as_numbers(value: Any) -> Any:
    """YAML 1.1 reads -.641 as a text: what reads as a number is one."""
    if isinstance(value, dict):
        return {str(key): _as_numbers(inner) for key, inner in value.items()}
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _cross_check(suite: Suite, problems: list[str]) -> None:
    """Names that stand for another entry must be one of them; names must be distinct."""
    data = tuple(one.name for one in suite.data)
    metrics = tuple(one.label for one in suite.metrics)
    open_ended = any(LAYERS in one.each.values() for one in suite.methods)
    expanded = [entry for one in suite.methods for entry in one.expanded()]
    methods = tuple(entry.label for entry in expanded)
    rows = tuple(dict.fromkeys((*methods, *(entry.group for entry in expanded if entry.group))))
    for kind, names in (("data set", data), ("metric", metrics), ("method", methods)):
        for name in sorted({name for name in names if names.count(name) > 1}):
            problems.append(f"the {kind} {name!r} is there twice; give each a label of its own")
    named = [
        *((f"model {one.name}", one.data) for one in suite.models),
        *((f"method {one.label}", one.data) for one in suite.methods),
        *((f"metric {one.label}", one.data) for one in suite.metrics),
        *(("an expectation", one.data) for one in suite.expect),
    ]
    for said, listed in named:
        for name in listed:
            if name not in data:
                problems.append(f"{said}: unknown data set {name!r}{near(name, data)}")
    for cell, by_method in suite.published.items():
        problems += _published(cell, by_method, suite, () if open_ended else rows)


def _published(cell: str, by_method: Any, suite: Suite, methods: tuple[str, ...]) -> Iterator[str]:
    data = tuple(one.name for one in suite.data)
    models = tuple(one.name for one in suite.models)
    model, _, name = cell.rpartition("/")
    if name not in data or (model and model not in models):
        known = (*data, *(f"{m}/{d}" for m in dict.fromkeys(models) for d in data))
        yield f"published: unknown data set {cell!r}{near(cell, known)}"
    if not isinstance(by_method, dict):
        yield f"published, {cell}: must be a mapping of methods"
        return
    metrics = tuple(one.label for one in suite.metrics)
    for method, numbers in by_method.items():
        if methods and str(method) not in methods:
            yield f"published, {cell}: unknown method {str(method)!r}{near(str(method), methods)}"
        if not isinstance(numbers, dict):
            yield f"published, {cell}, {method}: must be a mapping of metrics"
            continue
        for metric, number in numbers.items():
            if str(metric).split(".")[0] not in {m.split(".")[0] for m in metrics}:
                hint = near(str(metric), metrics)
                yield f"published, {cell}, {method}: unknown metric {str(metric)!r}{hint}"
            if isinstance(number, bool) or not isinstance(number, int | float | dict):
                yield f"published, {cell}, {method}, {metric}: {shown(number)} is no number"
