"""What pyproject.toml promises of other libraries is what `make test-oldest` installs."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
REQUIRED = [
    Requirement(requirement)
    for listed in (PROJECT["dependencies"], *EXTRAS.values())
    for requirement in listed
    if not requirement.startswith("tokenlight[")
]


def test_every_lower_bound_is_a_line_of_the_oldest_versions():
    lines = (ROOT / "constraints-oldest.txt").read_text().splitlines()
    pinned = dict(
        re.fullmatch(r"([\w-]+)==(\S+)", line).groups() for line in lines if line[0] != "#"
    )
    bounds: dict[str, set[Version]] = {}
    for required in REQUIRED:
        (bound,) = required.specifier
        assert bound.operator == ">="
        bounds.setdefault(required.name, set()).add(Version(bound.version))
    assert {name: {Version(version)} for name, version in pinned.items()} == bounds


def test_version_bounds_known_to_fail_are_excluded():
    """typer below 0.19 breaks every command; captum 0.8 wants NumPy 1; pandas before 2.2.2, too."""
    for name, broken in (("typer", "0.18"), ("captum", "0.8"), ("pandas", "2.2.1")):
        for required in REQUIRED:
            if required.name == name:
                assert not required.specifier.contains(broken)


def test_no_extra_requires_a_third_party_copy_of_a_model():
    names = {required.name for required in REQUIRED}
    assert not [name for name in names if name.startswith("en-core-web")]
