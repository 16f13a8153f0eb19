"""What stands in a suite: data sets, models, methods, metrics, claims, figures. Frozen values that check
themselves; :mod:`tokenlight.bench.suite` reads them from YAML, docs/suites.md says what each key means."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, dataclass_transform

from pydantic import BeforeValidator, ConfigDict, Field, StrictInt, field_validator, model_validator
from pydantic.dataclasses import dataclass

from tokenlight import registry
from tokenlight.errors import shown

LAYERS = "layers"  # in `each`: every layer of the model, the embedding first
# YAML reads 2024 as a number, which is a fine text; what it does not know is a mistake.
STRICT = ConfigDict(extra="forbid", coerce_numbers_to_str=True)

# One text is a list of one.
Texts = Annotated[tuple[str, ...], BeforeValidator(lambda it: [it] if isinstance(it, str) else it)]


def _number(given: Any) -> Any:
    """A published number, or a mapping of them. YAML 1.1 reads -.641 as a text."""
    if isinstance(given, dict):
        return {key: _number(value) for key, value in given.items()}
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        raise ValueError(f"{shown(given)} is no number")
    return float(given)


Published = dict[str, dict[str, dict[str, Annotated[Any, BeforeValidator(_number)]]]]
Charts = Literal["bars", "curves", "bands", "relations", "head_maps"]
Whole = Annotated[StrictInt, Field(ge=0)]
Count = Annotated[StrictInt, Field(ge=1)]


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def entry(short: str = "", then: Callable[[dict[str, Any]], Any] = dict) -> Any:
    """A frozen value that checks itself: a bare text is ``{short: text}``, and ``then`` fills in what
    follows from the rest."""

    def filled(given: Any) -> Any:
        given = {short: given} if short and isinstance(given, str) else given
        if not isinstance(given, dict):
            return given
        return then({key: value for key, value in given.items() if value is not None})

    def made(cls: Any) -> Any:
        cls._filled = model_validator(mode="before")(filled)
        return dataclass(frozen=True, config=STRICT)(cls)

    return made


def _data_named(given: dict[str, Any]) -> dict[str, Any]:
    """sst2/dev is named sst2, reviews.jsonl reviews."""
    *folders, file = Path(str(given.get("local", ""))).parts or ("",)
    name = given.get("name") or (folders[-1] if folders else file.split(".")[0])
    usual = {"title": name, "local": name} | ({"name": name} if name else {})
    return usual | {key: value for key, value in given.items() if value or key != "local"}


def _model_named(given: dict[str, Any]) -> dict[str, Any]:
    hub = str(given.get("hub", ""))
    twin = given.get("twin", hub if hub.startswith("tokenlight/") else "")
    name = given.get("name") or Path(hub).name or Path(str(twin)).name
    return given | {"twin": "" if twin == "none" else twin} | ({"name": name} if name else {})


def _with_options(given: dict[str, Any]) -> dict[str, Any]:
    """Name and options, from ``name:option=value,...`` and the keys ``options`` and ``preset``."""
    said = str(given.pop("name", "") or "")
    if not said:
        return {"label": "", **given}
    name, options = registry.parse(said)
    more, preset = given.pop("options", {}), given.pop("preset", None)
    if isinstance(more, dict):
        more = options | more | ({"preset": str(preset)} if preset else {})
    return {"label": said} | given | {"name": name, "options": more}


@entry("local", _data_named)
class DataSet:
    """Examples: where they are on the hub and on this machine, and which of them are taken."""

    name: str
    title: str = ""
    hub: str = ""
    hub_split: str = "validation"
    local: str = ""
    otherwise: str = ""
    text: str = ""
    label: str = ""
    task: Literal["", "classification", "pair", "qa"] = ""
    size: Count | None = None
    sample: Literal["first", "random"] = "first"
    classes: Texts = ()
    note: str = ""


@entry("hub", _model_named)
class Model:
    """A checkpoint for one or more data sets (``data``; empty: all), and its embedded twin."""

    name: str
    hub: str = ""
    data: Texts = ()
    twin: str = ""
    lm: str = ""
    heads: str = ""
    labels: Texts = ()
    note: str = ""


@entry("name", _with_options)
class MethodEntry:
    """A method with options; ``each`` makes several of one, those of a ``group`` are draws of one row."""

    name: str
    label: str
    options: dict[str, Any] = field(default_factory=dict)
    each: dict[str, Any] = field(default_factory=dict)
    twin: dict[str, Any] = field(default_factory=dict)
    data: Texts = ()
    group: str = ""

    @field_validator("each")
    @classmethod
    def _lists(cls, each: dict[str, Any]) -> dict[str, Any]:
        for option, values in each.items():
            if values != LAYERS and not (isinstance(values, list) and values):
                raise ValueError(f"{option} is {shown(values)}, but must be a list, or {LAYERS!r}")
        return each

    def expanded(self, layers: int | None = None) -> Iterator["MethodEntry"]:
        """One entry for every combination of ``each``; ``layers`` in it needs their number."""
        all_layers = range((layers or 0) + 1)
        lists = [all_layers if values == LAYERS else values for values in self.each.values()]
        for combination in itertools.product(*lists):
            chosen = dict(zip(self.each, combination, strict=True))
            label, group = self.label, self.group
            if chosen and "{" not in label:
                label += "".join(f" {name}={{{name}}}" for name in chosen)
            for name, value in chosen.items():
                label, group = (one.replace(f"{{{name}}}", str(value)) for one in (label, group))
            yield replace(self, label=label, group=group, options=self.options | chosen, each={})


@entry("name", _with_options)
class MetricEntry:
    """A metric with options, under the name it has in the tables (``label``)."""

    name: str
    label: str
    options: dict[str, Any] = field(default_factory=dict)
    data: Texts = ()

    @property
    def metric(self) -> Any:
        return registry.build("metrics", self.name, self.options)


@entry()
class Protocol:
    """Keywords of explain(): how a text is read and what of it is explained."""

    target: str = "predicted"
    explain_mask: Literal["none", "cls_sep", "sep"] = "none"
    token_types: Literal["tokenizer", "zeros"] = "tokenizer"
    long: Literal["error", "truncate", "stride"] = "truncate"


@entry()
class Heads:
    """How heads files are made for the models that bring none: parsed text under ``--data``."""

    conllu: str
    limit: Count | None = None
    align: Literal["offsets", "official"] = "offsets"
    margin: float = 0.1
    share: float = 0.8


@entry("claim")
class Claim:
    """A claim of the paper that the report checks: ``better`` beats every one of ``than``, or more."""

    claim: str = ""
    metric: str = ""
    better: str = ""
    than: Texts = ()
    data: Texts = ()
    by: float = 0.0
    until: float = 0.0
    control: str = ""
    highest: str = ""
    lowest: str = ""
    cannot: str = ""


@entry(then=lambda given: {"title": given.get("kind", "bars")} | given)
class FigureWish:
    """A figure of the report; empty lists mean all."""

    kind: Literal[Charts, "heat_map", "differences", "texts", "clouds"] = "bars"
    title: str = ""
    metrics: Texts = ()
    data: Texts = ()
    methods: Texts = ()
    reference: str = ""
    group: str = "{x}"
    start: str = ""
    end: str = ""
    x: str = ""

    def takes(self, method: str) -> bool:
        """Whether a row belongs to the figure; ``layer *`` stands for all layers."""
        return not self.methods or any(fnmatchcase(method, one) for one in self.methods)


@entry()
class ReportWish:
    """How the report looks; the runner does not read it."""

    figures: tuple[FigureWish, ...] = ()
    readings: dict[str, str] = field(default_factory=dict)
    accuracy: dict[str, float] = field(default_factory=dict)
    maximum: dict[str, float] = field(default_factory=dict)
    printed: dict[str, float] = field(default_factory=dict)
