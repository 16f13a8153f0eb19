"""The lock has a hash for all that the tests use, and the bill of materials names it."""

from __future__ import annotations

import json
import re
import tomllib

from tests.tools.supply_chain import EXTRAS, LOCK, ROOT, audited, lock, locked, plain, sbom


def test_every_package_of_the_lock_has_a_version_and_a_hash():
    lines = [line for line in LOCK.read_text().splitlines() if not line.startswith("#")]
    assert len(lines) == 2 * len(locked()) > 100
    assert "://" not in LOCK.read_text()


def test_all_that_the_tests_need_is_locked():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    requirements = [*project["project"]["dependencies"], *project["dependency-groups"]["test"]]
    for extra in EXTRAS:
        requirements += project["project"]["optional-dependencies"][extra]
    names = {plain(re.match(r"[\w.-]+", requirement)[0]) for requirement in requirements}
    assert names <= set(locked())


def test_the_lock_holds_the_versions_of_the_constraints():
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M))
    versions = {plain(name): version for name, version in pins.items() if plain(name) in locked()}
    assert len(versions) > 30
    assert {name: locked()[name][0].partition("+")[0] for name in versions} == versions


def test_a_report_of_pip_becomes_a_lock_without_its_addresses():
    archive = {"url": "https://x.example/a.whl", "archive_info": {"hashes": {"sha256": "ab" * 32}}}
    direct_url = {"url": "file:///x", "dir_info": {}}
    report = {
        "environment": {"python_version": "3.11", "platform_system": "L", "platform_machine": "x"},
        "install": [
            {"metadata": {"name": "My_Package", "version": "1.0"}, "download_info": archive},
            {"metadata": {"name": "tokenlight", "version": "0"}, "download_info": direct_url},
        ],
    }
    lock_content = lock(report)
    assert lock_content.endswith(f"my-package==1.0 \\\n    --hash=sha256:{'ab' * 32}\n")
    assert "example" not in lock_content


def test_the_bill_of_materials_names_every_package_and_every_model_file():
    bill = sbom()
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    parts = {part["name"]: part for part in bill["components"]}
    assert set(locked()) <= set(parts)
    assert "models/encoder.safetensors" in parts
    assert all(len(part["hashes"][0]["content"]) == 64 for part in parts.values())
    assert len({part["bom-ref"] for part in parts.values() if "purl" in part}) == len(locked())


def test_an_audit_reports_an_unreachable_service_and_names_vulnerabilities(tmp_path):
    report = tmp_path / "audit.json"
    assert "nothing was checked" in audited(report)[0]
    skipped = {"name": "a", "skip_reason": "not found"}
    report.write_text(json.dumps({"dependencies": [skipped]}))
    assert "nothing was checked" in audited(report)[0]
    weak = {"name": "b", "version": "1", "vulns": [{"id": "X-1"}]}
    report.write_text(json.dumps({"dependencies": [skipped, weak]}))
    message, vulnerabilities = audited(report)
    assert "1 of 107 packages checked, 1 weaknesses" in message.replace(str(len(locked())), "107")
    assert vulnerabilities == ["b 1: X-1"]
