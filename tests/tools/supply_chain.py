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

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements.lock"
EXTRAS = ("cli", "plots", "bench", "baselines", "vision", "web", "gguf")
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
    for package in report["install"]:
        if "dir_info" in package["download_info"]:
            continue  # tokenlight itself
        name = plain(package["metadata"]["name"])
        version = package["metadata"]["version"]
        sha256 = package["download_info"]["archive_info"]["hashes"]["sha256"]
        lines.append(f"{name}=={version} \\\n    --hash=sha256:{sha256}\n")
    environment = report["environment"]
    head = HEADER.format(
        python=environment["python_version"],
        system=environment["platform_system"],
        machine=environment["platform_machine"],
    )
    return head + "".join(sorted(lines))


def locked() -> dict[str, tuple[str, str]]:
    """Package to version and hash, as the lock has them."""
    return {name: (version, sha) for name, version, sha in PINNED.findall(LOCK.read_text("utf-8"))}


def sbom() -> dict[str, Any]:
    """The bill of materials as CycloneDX JSON: packages of the lock, and files of the models."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    folder = ROOT / "src" / "tokenlight" / "models"
    files = json.loads((folder / "checksums.json").read_text("utf-8"))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                **_package(project["name"], project["version"]),
                "licenses": [{"expression": project["license"]}],
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
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": url,
        "name": name,
        "version": version,
        "purl": url,
    }
    try:
        license_expression = metadata.metadata(name).get("License-Expression")
    except metadata.PackageNotFoundError:
        license_expression = None
    if license_expression:
        component["licenses"] = [{"expression": license_expression}]
    return component


def _hashes(sha: str) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": sha}]


def audited(report: Path) -> tuple[str, list[str]]:
    """What pip-audit's report says in words, and every known weakness; it writes none where it could
    not ask at all, and an index that knows no weaknesses has it skip every package."""
    packages = json.loads(report.read_text("utf-8"))["dependencies"] if report.exists() else []
    checked = [package for package in packages if "skip_reason" not in package]
    weaknesses = [
        f"{package['name']} {package['version']}: {weakness['id']}"
        for package in checked
        for weakness in package["vulns"]
    ]
    if not checked:
        return "audit: no list of known weaknesses can be reached; nothing was checked", weaknesses
    return (
        f"audit: {len(checked)} of {len(locked())} packages checked, {len(weaknesses)} weaknesses",
        weaknesses,
    )


def main(command: str, path: str) -> None:
    """``lock REPORT``, ``sbom FILE`` or ``audited REPORT``."""
    if command == "lock":
        LOCK.write_text(lock(json.loads(Path(path).read_text("utf-8"))), "utf-8")
    elif command == "sbom":
        Path(path).write_text(json.dumps(sbom(), indent=1) + "\n", "utf-8")
    else:
        summary, weaknesses = audited(Path(path))
        sys.stdout.write("\n".join((summary, *weaknesses)) + "\n")
        sys.exit(bool(weaknesses))


if __name__ == "__main__":
    main(*sys.argv[1:])
