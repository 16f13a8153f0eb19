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

    Attributes:
        name: Its name in tables and in other entries; by default from ``local``.
        title: Its name in the report.
        hub: A name for the ``datasets`` library, used if no file is found and no data folder is given.
        hub_split: The split of that data set.
        local: A file next to the suite, or ``FOLDER/SPLIT`` under ``--data``; endings may be left out.
        fallback: A small sample beside the suite, used where no data folder is given.
        text: The column of the text, two joined by ``+`` for a pair; by default found by its name.
        label: The column of the label; by default found by its name.
        task: What the examples are for; empty if it is inferred. Other examples are refused.
        size: Number of examples to use; None for all.
        sample: Whether the first examples are used, or a random sample drawn with the seed of the suite.
        classes: Labels of the examples to use; empty for all.
        note: A note on the data for the report.
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
    """A checkpoint for some data sets.

    Attributes:
        name: Its name in tables and in ``--model NAME=PATH``.
        hub: A hub id, a folder, or the name of an embedded model.
        data: The data sets that it is run on; empty for all.
        stand_in: The embedded model that is run in its place offline.
        lm: The language model of methods that decode hidden states.
        heads: The heads file of mask_lrp.
        labels: The model's label for each label of the data set, if their order differs.
        note: A note on the model for the report.
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

    Attributes:
        name: Its registered name.
        label: Its name in the tables.
        options: Its options.
        each: An option to a list of values, or ``layers``; each combination makes one method.
        stand_in: Options to use instead with the embedded model that stands in for a checkpoint.
        data: The data sets that it is run on; empty for all.
        group: Methods of a group are repetitions that share one row of the tables.
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
    """A metric with options.

    Attributes:
        name: Its registered name.
        label: Its name in the tables.
        options: Its options.
        data: The data sets that it measures; empty for all.
    """

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
    """Keywords of ``Explainer.explain`` that hold for all methods.

    Attributes:
        target: What is explained; ``label`` stands for the true label of each text.
        explain_mask: Special tokens to mask in the pass that is explained.
        token_types: Whether the tokenizer's token types are replaced by zeros.
        long: What to do with a text that is longer than the model reads.
    """

    target: str = "predicted"
    explain_mask: Literal["none", "cls_sep", "sep"] = "none"
    token_types: Literal["tokenizer", "zeros"] = "tokenizer"
    long: Literal["error", "truncate", "stride"] = "truncate"


@suite_entry()
class HeadsEntry:
    """How to compute heads files for models without one.

    Attributes:
        conllu: The file of parsed text, below the folder of the data.
        limit: Number of sentences to read; None for all.
        align: How words are matched with tokens; ``official`` also counts special tokens and offset 0.
        margin: How far a syntactic head must be above the best share that a fixed position reaches.
        share: Share of tokens that must attend to one relative position for a head to be positional.
    """

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
    """A claim of the paper that the report checks: ``method`` is better than all ``baselines``.

    Attributes:
        claim: The claim as a sentence.
        metric: The label of the metric that decides.
        method: The label of the method that is claimed to be better.
        baselines: The labels of the methods that it must be better than.
        data: The data sets on which it must be better; empty for all.
        min_percent: By how many percent it must be better.
        max_point: The last point of the curve up to which it must be better at every point; 0 compares means.
        control: Another method; the claim is tested only where the two differ.
        highest_token: The token of the stored text that must have the highest score.
        lowest_token: The token of the stored text that must have the lowest score.
        untestable_because: Why no run can test the claim.
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
    """A figure of the report.

    Attributes:
        kind: The kind of chart.
        title: Its title; by default the kind.
        metrics: The metrics to draw; empty for all.
        data: The data sets to draw; empty for all.
        methods: The rows to draw, where ``layer *`` matches all layers; empty for all.
        reference: The row that differences are taken from.
        group: The rows of bands; ``{x}`` in a name is its position on the axis.
        start: The row that a band starts from.
        end: The row that a band ends at.
        x: The title of the axis.
    """

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
    """How the report looks; it does not affect the run.

    Attributes:
        figures: The figures; without any, each metric gets a bar chart and its curve.
        readings: A metric to the metric whose published numbers it is compared with.
        accuracy: A data set to the accuracy that the paper reports.
        maximum: A data set to the value at which bars have a dashed line.
        printed: Other published numbers, by what they are.
    """

    figures: tuple[FigureSpec, ...] = ()
    readings: dict[str, str] = field(default_factory=dict)
    accuracy: dict[str, float] = field(default_factory=dict)
    maximum: dict[str, float] = field(default_factory=dict)
    printed: dict[str, float] = field(default_factory=dict)
