"""What stands in a suite: data sets, models, methods, metrics, claims. Frozen values that check
themselves; :mod:`tokenlight.bench.suite` reads them from YAML."""

import itertools
from collections.abc import Iterator
from dataclasses import field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, StrictInt, field_validator, model_validator
from pydantic.dataclasses import dataclass

from tokenlight import registry
from tokenlight.errors import BadInput, shown

LAYERS = "layers"  # in `each`: every layer of the model, the embedding first
# YAML reads 2024 as a number, which is a fine text; what it does not know is a mistake.
STRICT = ConfigDict(extra="forbid", coerce_numbers_to_str=True)


def _listed(given: Any) -> Any:
    """A list of texts; one text is a list of one."""
    if isinstance(given, str):
        return [given]
    return [str(one) for one in given] if isinstance(given, list | tuple) else given


def _text_keys(given: Any) -> Any:
    return {str(key): value for key, value in given.items()} if isinstance(given, dict) else given


Texts = Annotated[tuple[str, ...], BeforeValidator(_listed)]
Mapped = Annotated[dict[str, Any], BeforeValidator(_text_keys)]
Whole = Annotated[StrictInt, Field(ge=0)]
Count = Annotated[StrictInt, Field(ge=1)]


def filled(given: Any, short: str = "") -> Any:
    """A mapping without what is left empty; a bare text stands for ``{short: text}``."""
    if short and isinstance(given, str):
        return {short: given}
    if not isinstance(given, dict):
        return given
    return {str(key): value for key, value in given.items() if value is not None}


@dataclass(frozen=True, config=STRICT)
class DataSet:
    """Examples: where they are on the hub and on this machine, and which of them are taken.

    ``local``: FOLDER/SPLIT under ``--data`` (``sst2/dev`` finds sst2/dev.jsonl.gz), or a file beside
    the suite. ``otherwise``: a file beside the suite that is read where no ``--data`` is given.
    ``text``: column, two joined by ``+`` for a pair. ``size``: how many are taken,
    the first ones or (``sample: random``) drawn with the suite's seed; ``classes``: only examples
    with these labels.
    """

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

    @model_validator(mode="before")
    @classmethod
    def _named(cls, given: Any) -> Any:
        """sst2/dev is named sst2, reviews.jsonl reviews."""
        given = filled(given, "local")
        if not isinstance(given, dict):
            return given
        *folders, file = Path(str(given.get("local", ""))).parts or ("",)
        name = given.get("name") or (folders[-1] if folders else file.split(".")[0])
        usual = {"title": name, "local": name} | ({"name": name} if name else {})
        return usual | {key: value for key, value in given.items() if value or key != "local"}


@dataclass(frozen=True, config=STRICT)
class Model:
    """A checkpoint for one or more data sets (``data``; empty: all).

    ``twin``: the embedded model that stands in for it offline. ``lm``: the language model the
    decoded methods read. ``heads``: a heads file for mask_lrp. ``labels``: for each label of the
    data set the model's own, where their order differs.
    """

    name: str
    hub: str = ""
    data: Texts = ()
    twin: str = ""
    lm: str = ""
    heads: str = ""
    labels: Texts = ()
    note: str = ""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, given: Any) -> Any:
        given = filled(given, "hub")
        if not isinstance(given, dict):
            return given
        hub = str(given.get("hub", ""))
        twin = given.get("twin", hub if hub.startswith("tokenlight/") else "")
        name = given.get("name") or Path(hub).name or Path(str(twin)).name
        named = {"name": name} if name else {}
        return given | {"twin": "" if twin == "none" else twin} | named


def _with_options(given: Any) -> Any:
    """Name and options, from ``name:option=value,...`` and the keys ``options`` and ``preset``."""
    given = filled(given, "name")
    if not isinstance(given, dict):
        return given
    if not given.get("name"):
        return {"label": ""} | {key: value for key, value in given.items() if key != "name"}
    said = str(given["name"])
    try:
        name, options = registry.parse(said)
    except BadInput as broken:
        raise ValueError(str(broken)) from broken
    more, preset = given.pop("options", {}), given.pop("preset", None)
    if isinstance(more, dict):
        more = options | _text_keys(more) | ({"preset": str(preset)} if preset else {})
    return {"label": said} | given | {"name": name, "options": more}


@dataclass(frozen=True, config=STRICT)
class MethodEntry:
    """A method with options, under the name it has in the tables (``label``).

    ``twin``: options that take their place with an embedded stand-in. ``each``: option to values;
    one entry for every combination, ``{option}`` in the label and in ``group`` filled in. ``group``:
    the row of a table that the entries share, one draw each.
    """

    name: str
    label: str
    options: Mapped = field(default_factory=dict)
    each: Mapped = field(default_factory=dict)
    twin: Mapped = field(default_factory=dict)
    data: Texts = ()
    group: str = ""

    _read = model_validator(mode="before")(_with_options)

    @field_validator("each")
    @classmethod
    def _lists(cls, each: dict[str, Any]) -> dict[str, Any]:
        for option, values in each.items():
            if values != LAYERS and not (isinstance(values, list) and values):
                raise ValueError(
                    f"each: {option} is {shown(values)}, but must be a list, or {LAYERS!r}"
                )
        return each

    def expanded(self, layers: int | None = None) -> Iterator["MethodEntry"]:
        """One entry for every combination of ``each``; ``layers`` in it needs their number."""
        lists = [
            list(range((layers or 0) + 1)) if values == LAYERS else values
            for values in self.each.values()
        ]
        for combination in itertools.product(*lists):
            chosen = dict(zip(self.each, combination, strict=True))
            label = self.label
            if chosen and "{" not in label:
                label += "".join(f" {name}={{{name}}}" for name in chosen)
            group = self.group
            for name, value in chosen.items():
                label = label.replace("{" + name + "}", str(value))
                group = group.replace("{" + name + "}", str(value))
            options = self.options | chosen
            yield replace(self, label=label, group=group, options=options, each={})


@dataclass(frozen=True, config=STRICT)
class MetricEntry:
    """A metric with options, under the name it has in the tables (``label``)."""

    name: str
    label: str
    options: Mapped = field(default_factory=dict)
    data: Texts = ()

    _read = model_validator(mode="before")(_with_options)


@dataclass(frozen=True, config=STRICT)
class Protocol:
    """Keywords of explain(): how a text is read and what of it is explained."""

    target: str = "predicted"
    explain_mask: Literal["none", "cls_sep", "sep"] = "none"
    token_types: Literal["tokenizer", "zeros"] = "tokenizer"
    long: Literal["error", "truncate", "stride"] = "truncate"

    _filled = model_validator(mode="before")(filled)

    @field_validator("target")
    @classmethod
    def _one(cls, target: str) -> str:
        if target == "all":
            raise ValueError(
                "target: all explains several classes of a text, but a row holds one; name one"
            )
        return target


@dataclass(frozen=True, config=STRICT)
class Heads:
    """How heads files are made for the models that bring none: parsed text under ``--data``."""

    conllu: str
    limit: Count | None = None
    align: Literal["offsets", "official"] = "offsets"
    margin: float = 0.1
    share: float = 0.8

    _filled = model_validator(mode="before")(filled)


@dataclass(frozen=True, config=STRICT)
class Claim:
    """A claim of the paper that the report checks: ``better`` beats every one of ``than``.

    ``by``: by so many per cent. ``until``: at every point of the curve up to this one. ``control``: a row
    that must differ from ``better``, or nothing can be said. ``highest`` and ``lowest``: tokens of the kept
    text that have the highest and the lowest score. ``cannot``: why it cannot be tested here at all.
    """

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

    @model_validator(mode="before")
    @classmethod
    def _read(cls, given: Any) -> Any:
        return filled(given, "claim")
