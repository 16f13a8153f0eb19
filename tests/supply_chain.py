"""What the tests stand on: a lock with a hash for every package, and a bill of materials.

``make lock`` and ``make sbom`` call this module; it needs nothing but Python.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
EXTRAS = ("cli", "plots", "bench", "baselines", "vision", "web")
HEADER = """\
# Every package the tests use, by version and hash: pip's choice for Python {python} on {system} {machine}.
# Made by: make lock. Use: pip install --require-hashes --no-deps --requirement requirements.lock
"""
PINNED = re.compile(r"^([a-z0-9-]+)==(\S+) \\\n    --hash=sha256:([0-9a-f]{64})$", re.MULTILINE)


def plain(name: str) -> str:
    """A package's name as indexes write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def lock(report: dict[str, Any]) -> str:
    """The lock file from what ``pip install --dry-run --report`` would install."""
    lines = []
    for one in report["install"]:
        if "dir_info" in one["download_info"]:
            continue  # tokenlight itself
        name, version = plain(one["metadata"]["name"]), one["metadata"]["version"]
        found = one["download_info"]["archive_info"]["hashes"]["sha256"]
        lines.append(f"{name}=={version} \\\n    --hash=sha256:{found}\n")
    here = report["environment"]
    head = HEADER.format(
        python=here["python_version"],
        system=here["platform_system"],
        machine=here["platform_machine"],
    )
    return head + "".join(sorted(lines))


def locked() -> dict[str, tuple[str, str]]:
    """Package to version and hash, as the lock has them."""
    return {name: (version, sha) for name, version, sha in PINNED.findall(LOCK.read_text("utf-8"))}


def sbom() -> dict[str, Any]:
    """The bill of materials as CycloneDX JSON: packages of the lock, and files of the models."""
    own = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    folder = ROOT / "src" / "tokenlight" / "models"
    files = json.loads((folder / "checksums.json").read_text("utf-8"))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                **_package(own["name"], own["version"]),
                "licenses": [{"expression": own["license"]}],
            }
        },
        "components": [
            *({**_package(n, v), "hashes": _hashes(sha)} for n, (v, sha) in locked().items()),
            *(
                {"type": "file", "name": f"models/{name}", "hashes": _hashes(entry["sha256"])}
                for name, entry in files.items()
            ),
        ],
    }


def _package(name: str, version: str) -> dict[str, Any]:
    url = f"pkg:pypi/{name}@{version}".replace("+", "%2B")
    made = {"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url}
    try:
        said = metadata.metadata(name).get("License-Expression")
    except metadata.PackageNotFoundError:
        said = None
    return made | ({"licenses": [{"expression": said}]} if said else {})


def _hashes(sha: str) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": sha}]


def audited(report: Path) -> tuple[str, list[str]]:
    """What pip-audit's report says in words, and every known weakness; it writes none where it could
    not ask at all, and an index that knows no weaknesses has it skip every package."""
    every = json.loads(report.read_text("utf-8"))["dependencies"] if report.exists() else []
    asked = [one for one in every if "skip_reason" not in one]
    weak = [f"{one['name']} {one['version']}: {v['id']}" for one in asked for v in one["vulns"]]
    if not asked:
        return "audit: no list of known weaknesses can be reached; nothing was checked", weak
    return f"audit: {len(asked)} of {len(locked())} packages checked, {len(weak)} weaknesses", weak


def main(what: str, given: str) -> None:
    """``lock REPORT``, ``sbom FILE`` or ``audited REPORT``."""
    if what == "lock":
        LOCK.write_text(lock(json.loads(Path(given).read_text("utf-8"))), "utf-8")
    elif what == "sbom":
        Path(given).write_text(json.dumps(sbom(), indent=1) + "\n", "utf-8")
    else:
        said, weak = audited(Path(given))
        sys.stdout.write("\n".join((said, *weak)) + "\n")
        sys.exit(bool(weak))


if __name__ == "__main__":
    main(*sys.argv[1:])
