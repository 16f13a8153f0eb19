"""Records: the measurements of one explanation, and the failures of those that have none."""

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import nan
from typing import Any, Literal

from tokenlight.data.intervals import to_json_value
from tokenlight.metrics.base import Measurement

# Field to key in JSON, where they differ. Files of earlier versions have these keys.
_RECORD_KEYS = {
    "text_index": "text",
    "num_tokens": "tokens",
    "measurements": "measured",
    "skip_reasons": "skipped",
    "rank_correlations": "agrees",
    "num_truncated": "cut",
}
_FAILURE_KEYS = {"text_index": "text", "stage": "step"}


@dataclass(frozen=True, slots=True)
class Record:
    """The measurements of one explanation.

    Attributes:
        text_index: Index of the text.
        method: The method with its options.
        target: The explained target.
        predicted: The predicted label.
        label: The true label, if it is known.
        num_tokens: Number of tokens in the explanation.
        measurements: The result of each metric.
        skip_reasons: Why a metric has no result.
        rank_correlations: Rank correlation with the methods after it on the same text.
        num_truncated: Number of tokens that ``long="truncate"`` removed.
    """

    text_index: int
    method: str
    target: str
    predicted: str
    label: str | None
    num_tokens: int
    measurements: dict[str, Measurement]
    skip_reasons: dict[str, str] = field(default_factory=dict)
    rank_correlations: dict[str, float] = field(default_factory=dict)
    num_truncated: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values; :meth:`from_dict` is the inverse. NaN becomes None."""
        values = {}
        for name, value in dataclasses.asdict(self).items():
            values[_RECORD_KEYS.get(name, name)] = value
        return dict(to_json_value(values))

    @classmethod
    def json_keys(cls) -> list[str]:
        """Return the keys of :meth:`to_dict`."""
        names = [field.name for field in dataclasses.fields(cls)]
        return [_RECORD_KEYS.get(name, name) for name in names]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Record":
        """Rebuild from :meth:`to_dict`."""
        # JSON has no NaN and no tuples.
        measurements = {}
        for key, entry in values["measured"].items():
            value = nan if entry["value"] is None else entry["value"]
            fields = {**entry, "value": value, "curve": tuple(entry["curve"])}
            measurements[key] = Measurement(**fields)
        record_fields = _rename_keys(values, _RECORD_KEYS)
        return cls(**{**record_fields, "measurements": measurements})


@dataclass(frozen=True, slots=True)
class Failure:
    """A text, or one method on a text, that could not be explained or measured.

    Attributes:
        text_index: Index of the text.
        method: The method with its options.
        reason: Why, as one sentence.
        stage: The stage that failed: explaining or measuring.
    """

    text_index: int
    method: str
    reason: str
    stage: Literal["explained", "measured"] = "explained"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values; :meth:`from_dict` is the inverse."""
        fields = dataclasses.asdict(self)
        return {_FAILURE_KEYS.get(name, name): value for name, value in fields.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Failure":
        """Rebuild from :meth:`to_dict`."""
        return cls(**_rename_keys(values, _FAILURE_KEYS))


def _rename_keys(values: Mapping[str, Any], keys_by_field: Mapping[str, str]) -> dict[str, Any]:
    """Return JSON values by the names of their fields."""
    names = {key: name for name, key in keys_by_field.items()}
    return {names.get(key, key): value for key, value in values.items()}


def shorten_method_names(
    records: Iterable[Record], failures: Iterable[Failure] = ()
) -> tuple[tuple[Record, ...], tuple[Failure, ...]]:
    """Drop the options from method names that remain unique without them.

    Call this once for a whole run, failures included. If it were called for a part of it, a variant whose
    sibling failed there would take the bare name, and its numbers would be counted as the other's.
    """
    all_records = tuple(records)
    all_failures = tuple(failures)
    short_names: dict[str, str] = {}
    methods = [record.method for record in all_records]
    methods += [failure.method for failure in all_failures]
    for method in methods:
        # Options follow as "name(option=…)", steps as "name | step".
        short_names[method] = re.split(r"\(\w+=| \| ", method)[0]
    # A short name is taken only if one variant of the method exists.
    num_variants = Counter(short_names.values())
    names = {}
    for method, short_name in short_names.items():
        names[method] = short_name if num_variants[short_name] == 1 else method

    # Records also name the methods that they are correlated with.
    renamed_records = []
    for record in all_records:
        correlations = {names[name]: value for name, value in record.rank_correlations.items()}
        renamed_records.append(
            dataclasses.replace(record, method=names[record.method], rank_correlations=correlations)
        )
    renamed_failures = []
    for failure in all_failures:
        renamed_failures.append(dataclasses.replace(failure, method=names[failure.method]))
    return tuple(renamed_records), tuple(renamed_failures)
