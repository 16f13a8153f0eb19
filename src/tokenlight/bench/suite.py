"""A suite file: which methods are measured by which metrics on which models and data sets.

A suite is YAML. Keys that are left out have defaults, so that a suite fits into ten lines. Everything that is
wrong with a file is reported immediately, with similar names for names that do not exist.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from tokenlight.bench import suite_checks, suite_entries
from tokenlight.errors import (
    BadInput,
    DamagedFile,
    MissingExtra,
    MissingFile,
    TokenlightError,
    UnknownName,
)
from tokenlight.files.parsing import parse_yaml, read_text

MAX_SUITE_BYTES = 1 << 20
MAX_LAYERS = 200  # layers that `each: layers` is expanded to when labels are looked up
REQUIRED_LIBRARIES = ("yaml", "pyarrow", "scipy")  # of the extra `bench`
SUITE_BATCH_TOKENS = 2048  # on every device, since numbers of a suite are compared across devices
SUITES_FOLDER = Path(__file__).parent / "suites"
# Keys that change no number, so that they may be edited in a suite that was run.
UNHASHED_KEYS = ("published", "claims", "notes", "report", "folder", "title", "paper", "kind")
REQUIRED_KEYS = ("data", "models", "methods", "metrics")
LIST_KEYS = (*REQUIRED_KEYS, "claims")
# Keys of suites of earlier versions, and what they are called now.
OLD_SUITE_KEYS = {"slice": "part_size", "expect": "claims", "keep": "num_stored"}


class InvalidSuite(TokenlightError):
    """A suite that cannot be run; the message lists every problem.

    Args:
        name: Name of the suite.
        problems: One sentence per problem; duplicates are dropped.
    """

    code = "invalid-suite"

    def __init__(self, name: str, problems: Sequence[str]) -> None:
        self.problems = tuple(dict.fromkeys(problems))
        count = len(self.problems)
        plural = "" if count == 1 else "s"
        title = f"The suite {name} has {count} problem{plural}; nothing was run:"
        super().__init__("\n  - ".join((title, *self.problems)))


@dataclass(frozen=True, config=suite_entries.STRICT_CONFIG)
class Suite:
    """Everything that a run depends on, except the files of models and data sets.

    The fields are the keys of the YAML file; docs/suites.md has examples of each.

    Attributes:
        name: Name of the suite; by default that of its file.
        title: Title of the report.
        paper: Key of the paper that the suite reproduces.
        kind: Whether it reproduces a table or a figure.
        data: The data sets.
        models: The checkpoints.
        methods: The methods, which are the rows of the tables.
        metrics: The metrics, which are the columns of the tables.
        protocol: How texts are explained.
        heads: How heads files of mask_lrp are computed; None if none is.
        batch_tokens: The most tokens per batch.
        seed: Seed of every random draw.
        part_size: Examples per part, the unit that an interruption can lose.
        num_stored: Examples of each data set of which the whole explanation is stored.
        published: Published scores, by data set, method and metric.
        claims: Claims of the paper that the report checks.
        notes: Sentences at the end of the report.
        report: How the report looks.
        folder: Folder of the suite's file, where files that it names are looked for.
    """

    name: str
    title: str = ""
    paper: str = ""
    kind: Literal["table", "figure"] = "table"
    data: tuple[suite_entries.DataSetEntry, ...] = ()
    models: tuple[suite_entries.ModelEntry, ...] = ()
    methods: tuple[suite_entries.MethodEntry, ...] = ()
    metrics: tuple[suite_entries.MetricEntry, ...] = ()
    protocol: suite_entries.ExplainProtocol = field(default_factory=suite_entries.ExplainProtocol)
    heads: Annotated[
        suite_entries.HeadsEntry | None, BeforeValidator(lambda value: value or None)
    ] = None
    batch_tokens: suite_entries.PositiveInt = SUITE_BATCH_TOKENS
    seed: suite_entries.NonNegativeInt = 0
    part_size: suite_entries.PositiveInt = 64
    num_stored: suite_entries.NonNegativeInt = 0
    published: suite_entries.PublishedScores = field(default_factory=dict)
    claims: tuple[suite_entries.Claim, ...] = ()
    notes: suite_entries.StringTuple = ()
    report: suite_entries.ReportSpec = field(default_factory=suite_entries.ReportSpec)
    folder: str = ""

    @cached_property
    def row_entries(self) -> dict[str, suite_entries.MethodEntry]:
        """Row of a table → its entry; for a group, the first entry."""
        entries: dict[str, suite_entries.MethodEntry] = {}
        for entry in self._expanded_methods:
            entries.setdefault(entry.group or entry.label, entry)
        return entries

    @cached_property
    def row_by_method(self) -> dict[str, str]:
        """Method label → row of the tables."""
        return {entry.label: entry.group or entry.label for entry in self._expanded_methods}

    @cached_property
    def _expanded_methods(self) -> list[suite_entries.MethodEntry]:
        expanded: list[suite_entries.MethodEntry] = []
        for entry in self.methods:
            expanded += entry.expand(MAX_LAYERS)
        return expanded

    def get_data_set(self, name: str) -> suite_entries.DataSetEntry:
        return next(data_set for data_set in self.data if data_set.name == name)

    def get_model(self, name: str, data: str) -> suite_entries.ModelEntry:
        """Return the entry of a model for a data set; several entries may share a name."""
        models = [model for model in self.models if model.name == name]
        return next(model for model in models if not model.data or data in model.data)

    def get_methods(self, data: str) -> list[suite_entries.MethodEntry]:
        """Return the methods for a data set."""
        return [entry for entry in self.methods if not entry.data or data in entry.data]

    def compute_digest(self) -> str:
        """Hash everything that changes a number; published numbers, notes and the report do not."""
        content = {key: value for key, value in asdict(self).items() if key not in UNHASHED_KEYS}
        # Old names of keys, so that runs of earlier versions keep their digest.
        content["slice"] = content.pop("part_size")
        content["keep"] = content.pop("num_stored")
        for entry in (*content["data"], *content["models"], *content["methods"]):
            entry.pop("note", None)
            entry.pop("group", None)
            for old_key, key in (("twin", "stand_in"), ("otherwise", "fallback")):
                if key in entry:
                    entry[old_key] = entry.pop(key)
        serialized = json.dumps(content, sort_keys=True, ensure_ascii=False, default=str)
        return hashlib.sha256(serialized.encode()).hexdigest()


def list_shipped() -> list[str]:
    """Return the names of the suites that come with tokenlight."""
    return sorted(path.stem for path in SUITES_FOLDER.glob("*.yaml"))


def find_suite(name: str | Path) -> Path:
    """Return the file of a suite.

    Args:
        name: Name of a shipped suite, or a path.

    Raises:
        MissingFile: The path does not exist.
        UnknownName: There is no shipped suite of that name.
    """
    path = Path(name)
    if path.is_file():
        return path
    if path.suffix in (".yaml", ".yml"):
        raise MissingFile(f"The suite {path} does not exist. Check its name.", code="missing-suite")
    if str(name) not in list_shipped():
        raise UnknownName.from_choices(
            "suite (a name, or a path to a .yaml file)", str(name), list_shipped()
        )
    return SUITES_FOLDER / f"{name}.yaml"


def load_suite(name: str | Path) -> Suite:
    """Read a suite.

    Args:
        name: Name of a shipped suite, or a path.

    Raises:
        InvalidSuite: Something is wrong with the file; the message lists every problem.

    Example:
        >>> from tokenlight.bench.suite import load_suite
        >>> load_suite("quick").name
        'quick'
    """
    suite, problems = read_suite_file(find_suite(name))
    if problems:
        raise InvalidSuite(suite.name, problems)
    return suite


def read_suite_file(path: Path) -> tuple[Suite, list[str]]:
    """Read a suite file.

    Returns:
        The suite, without its invalid parts, and every problem found.

    Raises:
        DamagedFile: The file is not readable YAML.
        BadInput: The file does not hold a mapping.
    """
    yaml = MissingExtra.import_or_raise("yaml", "bench", "a suite")
    try:
        content = parse_yaml(read_text(path, MAX_SUITE_BYTES))
    except TokenlightError:
        raise
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise DamagedFile(
            f"{path} cannot be read as YAML: {error}", code="suite-not-yaml"
        ) from error
    if not isinstance(content, dict):
        raise BadInput(
            f"{path} is not a suite. Write a mapping with the keys data, models, methods and metrics.",
            code="suite-not-a-mapping",
        )
    return parse_suite(content, name=path.stem, folder=str(path.parent.resolve()))


def parse_suite(content: Mapping[Any, Any], *, name: str, folder: str) -> tuple[Suite, list[str]]:
    """Parse the mapping of a suite file.

    Args:
        content: The content of the file.
        name: Name of the suite where the file gives none.
        folder: Folder of the file.

    Returns:
        The suite, without its invalid parts, and every problem found.
    """
    fields = _prepare_fields(content)
    problems = [
        f"{key} is missing or empty. Give at least one entry."
        for key in REQUIRED_KEYS
        if not fields.get(key)
    ]
    if fields.pop("folder", None) is not None:  # set by the reader, not by the file
        problems.append(suite_checks.describe_unknown_key("folder", Suite))
    # Invalid values are removed until the rest is valid, so that all problems are found at once.
    while True:
        try:
            suite = TypeAdapter(Suite).validate_python({"name": name, "folder": folder} | fields)
        except ValidationError as error:
            errors = error.errors(include_url=False)
            for details in errors:
                problems.append(suite_checks.describe_validation_error(details, Suite))
            suite_checks.remove_invalid_values(fields, errors)
        else:
            problems += suite_checks.find_reference_problems(suite)
            return suite, problems


def _prepare_fields(content: Mapping[Any, Any]) -> dict[str, Any]:
    """Copy the mapping of a file; drop null values, and put single entries into lists."""
    fields = {}
    string_content = _copy_with_string_keys(content)
    for key, value in suite_entries.rename_old_keys(string_content, OLD_SUITE_KEYS).items():
        if value is None:
            continue
        needs_list = key in LIST_KEYS and not isinstance(value, list)
        fields[key] = [value] if needs_list else value
    return fields


def _copy_with_string_keys(value: Any) -> Any:
    """Copy nested values with strings as keys, since YAML reads 2024 and yes as other types."""
    if isinstance(value, Mapping):
        return {str(key): _copy_with_string_keys(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copy_with_string_keys(item) for item in value]
    return value
