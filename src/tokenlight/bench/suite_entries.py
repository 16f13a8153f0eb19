"""The entries of a suite: data sets, models, methods, metrics, claims, figures.

Each entry is a frozen pydantic dataclass that validates itself. :mod:`tokenlight.bench.suite` reads entries
from YAML; docs/suites.md explains every key.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, dataclass_transform

from pydantic import BeforeValidator, ConfigDict, Field, StrictInt, field_validator, model_validator
from pydantic.dataclasses import dataclass

from tokenlight import registry
from tokenlight.errors import short_repr

ALL_LAYERS = "layers"  # in `each`: every layer of the model, the embedding first
# YAML reads 2024 as a number, which is a valid text; an unknown key is a mistake.
STRICT_CONFIG = ConfigDict(extra="forbid", coerce_numbers_to_str=True)


def _wrap_string(value: Any) -> Any:
    """Turn a single text into a list with one entry."""
    return [value] if isinstance(value, str) else value


def _parse_number(raw_value: Any) -> Any:
    """Parse a published number, or a mapping of them. YAML 1.1 reads -.641 as a text."""
    if isinstance(raw_value, dict):
        return {key: _parse_number(value) for key, value in raw_value.items()}
    if isinstance(raw_value, bool) or not isinstance(raw_value, str | int | float):
        raise ValueError(f"{short_repr(raw_value)} is not a number.")
    return float(raw_value)


StringTuple = Annotated[tuple[str, ...], BeforeValidator(_wrap_string)]
# Data set (or model/data set) → method → metric → number, or numbers such as mean and sd.
PublishedScores = dict[str, dict[str, dict[str, Annotated[Any, BeforeValidator(_parse_number)]]]]
ChartKind = Literal["bars", "curves", "bands", "relations", "head_maps"]
NonNegativeInt = Annotated[StrictInt, Field(ge=0)]
PositiveInt = Annotated[StrictInt, Field(ge=1)]


def rename_old_keys(fields: Mapping[str, Any], old_keys: Mapping[str, str]) -> dict[str, Any]:
    """Return a mapping of YAML under the present names of its keys.

    Args:
        fields: The mapping; a key under its present name takes precedence over one under its old name.
        old_keys: The old name of a key to its present one.
    """
    renamed = {}
    for key, value in fields.items():
        new_key = old_keys.get(key, key)
        if new_key == key or new_key not in fields:
            renamed[new_key] = value
    return renamed


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def suite_entry(
    shorthand_key: str = "",
    fill_defaults: Callable[[dict[str, Any]], Any] = dict,
    old_keys: Mapping[str, str] | None = None,
) -> Any:
    """Decorate a class: make it a frozen pydantic dataclass that can be read from YAML.

    Args:
        shorthand_key: The key that a bare text stands for: ``a.jsonl`` means ``{local: a.jsonl}``.
        fill_defaults: Fills in keys that follow from the others. It gets the keys that are not null.
        old_keys: Names of keys in suites of earlier versions to the names of the fields.
    """

    def prepare_fields(raw_entry: Any) -> Any:
        if shorthand_key and isinstance(raw_entry, str):
            raw_entry = {shorthand_key: raw_entry}
        # Anything but a mapping is reported by pydantic.
        if not isinstance(raw_entry, dict):
            return raw_entry
        fields = {key: value for key, value in raw_entry.items() if value is not None}
        return fill_defaults(rename_old_keys(fields, old_keys or {}))

    def decorate(cls: Any) -> Any:
        cls._prepare_fields = model_validator(mode="before")(prepare_fields)
        return dataclass(frozen=True, config=STRICT_CONFIG)(cls)

    return decorate


def _fill_data_defaults(fields: dict[str, Any]) -> dict[str, Any]:
    """Name a data set after its file: ``sst2/dev`` is named sst2, ``reviews.jsonl`` is named reviews."""
    *folders, file_name = Path(str(fields.get("local", ""))).parts or ("",)
    default_name = folders[-1] if folders else file_name.split(".")[0]
    name = fields.get("name") or default_name
    defaults = {"title": name, "local": name}
    if name:
        defaults["name"] = name
    # An empty `local` means the same as none.
    if not fields.get("local"):
        fields = {key: value for key, value in fields.items() if key != "local"}
    return defaults | fields


def _fill_model_defaults(fields: dict[str, Any]) -> dict[str, Any]:
    """Name a model after its checkpoint; an embedded model is its own stand-in."""
    hub = str(fields.get("hub", ""))
    default_stand_in = hub if hub.startswith("tokenlight/") else ""
    stand_in = fields.get("stand_in", default_stand_in)
    name = fields.get("name") or Path(hub).name or Path(str(stand_in)).name
    if stand_in == "none":
        stand_in = ""
    filled = fields | {"stand_in": stand_in}
    if name:
        filled["name"] = name
    return filled


def _parse_name_and_options(fields: dict[str, Any]) -> dict[str, Any]:
    """Parse ``name:option=value,...``, and merge its options with the keys ``options`` and ``preset``."""
    spec = str(fields.pop("name", "") or "")
    if not spec:
        return {"label": "", **fields}
    name, options = registry.parse_spec(spec)
    more_options = fields.pop("options", {})
    preset = fields.pop("preset", None)
    if isinstance(more_options, dict):
        options |= more_options
        if preset:
            options["preset"] = str(preset)
    else:
        options = more_options  # of the wrong type, which pydantic reports
    return {"label": spec} | fields | {"name": name, "options": options}


@suite_entry("local", _fill_data_defaults, old_keys={"otherwise": "fallback"})
class DataSetEntry:
    """A data set: where it is on the hub and on this machine, and which of its examples are used.

    ``fallback`` is a small sample beside the suite, used where no data folder is given.
    """

    name: str
    title: str = ""
    hub: str = ""
    hub_split: str = "validation"
    local: str = ""
    fallback: str = ""
    text: str = ""
    label: str = ""
    task: Literal["", "classification", "pair", "qa", "next_token"] = ""
    size: PositiveInt | None = None
    sample: Literal["first", "random"] = "first"
    classes: StringTuple = ()
    note: str = ""


@suite_entry("hub", _fill_model_defaults, old_keys={"twin": "stand_in"})
class ModelEntry:
    """A checkpoint for some data sets (``data``; empty means all).

    ``stand_in`` is the embedded model that is run in its place offline.
    """

    name: str
    hub: str = ""
    data: StringTuple = ()
    stand_in: str = ""
    lm: str = ""
    heads: str = ""
    labels: StringTuple = ()
    note: str = ""


@suite_entry("name", _parse_name_and_options, old_keys={"twin": "stand_in"})
class MethodEntry:
    """A method with options.

    ``each`` maps an option to a list of values and makes one method of each combination. Methods with the
    same ``group`` are repetitions that share one row of the tables. ``stand_in`` holds options to use instead
    with the embedded model that stands in for a checkpoint.
    """

    name: str
    label: str
    options: dict[str, Any] = field(default_factory=dict)
    each: dict[str, Any] = field(default_factory=dict)
    stand_in: dict[str, Any] = field(default_factory=dict)
    data: StringTuple = ()
    group: str = ""

    @field_validator("each")
    @classmethod
    def _check_lists(cls, each: dict[str, Any]) -> dict[str, Any]:
        for option, values in each.items():
            is_nonempty_list = isinstance(values, list) and bool(values)
            if values != ALL_LAYERS and not is_nonempty_list:
                raise ValueError(
                    f"{option}={short_repr(values)} is not valid. Give a list, or {ALL_LAYERS!r}."
                )
        return each

    def expand(self, num_layers: int | None = None) -> Iterator["MethodEntry"]:
        """Yield one entry for every combination of ``each``.

        Args:
            num_layers: Number of layers of the model, which ``layers`` in ``each`` stands for.
        """
        all_layers = range((num_layers or 0) + 1)
        value_lists = [
            all_layers if values == ALL_LAYERS else values for values in self.each.values()
        ]
        for combination in itertools.product(*value_lists):
            values_by_option = dict(zip(self.each, combination, strict=True))
            label = self.label
            group = self.group
            if values_by_option and "{" not in label:
                # A label without placeholders gets one for each option, so that labels stay distinct.
                label += "".join(f" {option}={{{option}}}" for option in values_by_option)
            for option, value in values_by_option.items():
                placeholder = f"{{{option}}}"
                label = label.replace(placeholder, str(value))
                group = group.replace(placeholder, str(value))
            options = self.options | values_by_option
            yield replace(self, label=label, group=group, options=options, each={})


@suite_entry("name", _parse_name_and_options)
class MetricEntry:
    """A metric with options; ``label`` is its name in the tables."""

    name: str
    label: str
    options: dict[str, Any] = field(default_factory=dict)
    data: StringTuple = ()

    @property
    def metric(self) -> Any:
        """The metric, built from its options."""
        return registry.build("metrics", self.name, self.options)


@suite_entry()
class ExplainProtocol:
    """Keywords of ``Explainer.explain`` that hold for all methods."""

    target: str = "predicted"
    explain_mask: Literal["none", "cls_sep", "sep"] = "none"
    token_types: Literal["tokenizer", "zeros"] = "tokenizer"
    long: Literal["error", "truncate", "stride"] = "truncate"


@suite_entry()
class HeadsEntry:
    """How to compute heads files for models without one, from parsed text (``conllu``) under ``--data``."""

    conllu: str
    limit: PositiveInt | None = None
    align: Literal["offsets", "official"] = "offsets"
    margin: float = 0.1
    share: float = 0.8


# Claims of suites of earlier versions read as sentences: "better: A, than: B, by: 5".
OLD_CLAIM_KEYS = {
    "better": "method",
    "than": "baselines",
    "by": "min_percent",
    "until": "max_point",
    "highest": "highest_token",
    "lowest": "lowest_token",
    "cannot": "untestable_because",
}


@suite_entry("claim", old_keys=OLD_CLAIM_KEYS)
class Claim:
    """A claim of the paper that the report checks.

    The method ``method`` must be better than every one of the ``baselines`` in ``metric``: by at least
    ``min_percent``, or at every point of the curve up to ``max_point``. With ``control``, another method, the
    claim is tested only where the two differ. ``highest_token`` and ``lowest_token`` name tokens of the
    stored text. ``untestable_because`` says why no run can test the claim.
    """

    claim: str = ""
    metric: str = ""
    method: str = ""
    baselines: StringTuple = ()
    data: StringTuple = ()
    min_percent: float = 0.0
    max_point: float = 0.0
    control: str = ""
    highest_token: str = ""
    lowest_token: str = ""
    untestable_because: str = ""


@suite_entry(fill_defaults=lambda fields: {"title": fields.get("kind", "bars")} | fields)
class FigureSpec:
    """A figure of the report; an empty list of metrics, data sets or methods means all."""

    kind: Literal[ChartKind, "heat_map", "differences", "texts", "clouds"] = "bars"
    title: str = ""
    metrics: StringTuple = ()
    data: StringTuple = ()
    methods: StringTuple = ()
    reference: str = ""
    group: str = "{x}"
    start: str = ""
    end: str = ""
    x: str = ""

    def includes(self, method: str) -> bool:
        """Return whether a row belongs to the figure; ``layer *`` matches all layers."""
        if not self.methods:
            return True
        return any(fnmatchcase(method, pattern) for pattern in self.methods)


@suite_entry()
class ReportSpec:
    """How the report looks; it does not affect the run."""

    figures: tuple[FigureSpec, ...] = ()
    readings: dict[str, str] = field(default_factory=dict)
    accuracy: dict[str, float] = field(default_factory=dict)
    maximum: dict[str, float] = field(default_factory=dict)
    printed: dict[str, float] = field(default_factory=dict)
