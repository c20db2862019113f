"""The provenance statement and the bill of materials, against the specifications' own schemas."""

from __future__ import annotations

import importlib.metadata
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from sm70_kernels.build import manifest, settings
from sm70_kernels.release import inside, provenance, sbom, tools

ROOT = Path(__file__).resolve().parents[2]
MANIFEST = settings.PACKAGE / settings.LIBRARY_FOLDER / settings.MANIFEST_NAME
EPOCH = 1_700_000_000


@pytest.fixture(scope="module")
def statement() -> dict[str, Any]:
    """The statement about this checkout's build, with an archive beside it."""
    return provenance.statement(json.loads(MANIFEST.read_text()), MANIFEST, [ROOT / "LICENSE"])


@pytest.fixture(scope="module")
def records() -> dict[str, Any]:
    """What the wheel says about itself, as the build hook writes it."""
    return {name: json.loads(text) for name, text in inside.records(MANIFEST).items()}


def test_statement_and_predicate_are_of_the_specification(statement: dict[str, Any]) -> None:
    json_format = pytest.importorskip("google.protobuf.json_format")
    from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
    from in_toto_attestation.v1 import statement_pb2
    from in_toto_attestation.v1.resource_descriptor import ResourceDescriptor
    from in_toto_attestation.v1.statement import Statement

    parsed = json_format.ParseDict(statement, statement_pb2.Statement())  # a field of another name is an error
    Statement.copy_from_pb(parsed).validate()
    predicate = json_format.ParseDict(statement["predicate"], provenance_pb2.Provenance())
    assert predicate.build_definition.build_type and predicate.run_details.builder.id
    assert predicate.build_definition.HasField("external_parameters")
    for descriptor in (*predicate.build_definition.resolved_dependencies, *predicate.run_details.byproducts):
        ResourceDescriptor.copy_from_pb(descriptor).validate()
        assert descriptor.digest
    for identifier in (statement["predicateType"], predicate.build_definition.build_type):
        assert re.match(r"(https|urn):", identifier)
    assert not predicate.run_details.HasField("metadata"), "a time would make every build another"


def test_subjects_are_the_built_files(statement: dict[str, Any]) -> None:
    subjects = {subject["name"]: subject["digest"]["sha256"] for subject in statement["subject"]}
    assert len(subjects) == len(statement["subject"]) == len(settings.operators()) + 3
    assert subjects.pop("LICENSE") == manifest.sha256(ROOT / "LICENSE")
    for name, digest in subjects.items():
        assert manifest.sha256(ROOT / name) == digest


def test_the_wheel_holds_the_same_statement_without_the_archives(
    statement: dict[str, Any], records: dict[str, Any]
) -> None:
    within = records[inside.STATEMENT]
    assert within["subject"] == [each for each in statement["subject"] if each["name"] != "LICENSE"]
    assert within["predicate"]["buildDefinition"] == statement["predicate"]["buildDefinition"]
    assert within["predicate"]["runDetails"]["builder"] == {"id": inside.BUILDER}
    assert inside.BUILDER != provenance.BUILDER


def test_the_wheel_holds_the_bill_where_pep_770_says(records: dict[str, Any], bill: dict[str, Any]) -> None:
    assert re.fullmatch(r"sm70_kernels-[\d.]+\.dist-info/sboms/[\w-]+\.cdx\.json", inside.BILL)
    assert records[inside.BILL]["components"] == bill["components"]
    again = sbom.normalized(bill, inside.epoch())
    assert records[inside.BILL] == again


def test_dependencies_are_the_commit_the_lock_and_the_installed_wheels(statement: dict[str, Any]) -> None:
    commit = json.loads(MANIFEST.read_text())["commit"]
    dependencies = {each["name"]: each for each in statement["predicate"]["buildDefinition"]["resolvedDependencies"]}
    assert commit is None or dependencies["source"]["digest"] == {"gitCommit": commit}
    assert dependencies["uv.lock"]["digest"] == {"sha256": manifest.sha256(ROOT / "uv.lock")}
    wheels = [name for name in dependencies if name.endswith(".whl")]
    assert {"hatchling", "uv"} < {name.split("-")[0] for name in wheels}
    locked = (ROOT / "uv.lock").read_text()
    for name in wheels:
        assert f'{dependencies[name]["uri"]}", hash = "sha256:{dependencies[name]["digest"]["sha256"]}"' in locked
    for distribution in manifest.BUILD_DISTRIBUTIONS:
        (name,) = [each for each in wheels if each.startswith(f"{distribution.replace('-', '_')}-")]
        installed = importlib.metadata.distribution(distribution).read_text("WHEEL") or ""
        tags, build = (re.findall(rf"^{key}: (\S+)$", installed, re.MULTILINE) for key in ("Tag", "Build"))
        assert any(set(tag.split("-")[:2]) <= set(re.split(r"[-.]", name)) for tag in tags), (name, tags)
        assert not build or f"-{build[0]}-" in name, (name, build)


def test_without_a_commit_none_is_claimed() -> None:
    unknown = {**json.loads(MANIFEST.read_text()), "commit": None, "dirty": None}
    definition = provenance.statement(unknown, MANIFEST, [])["predicate"]["buildDefinition"]
    assert not [each for each in definition["resolvedDependencies"] if "gitCommit" in each["digest"]]


def test_a_lock_without_a_fitting_wheel_is_refused(tmp_path: Path) -> None:
    lock = tmp_path / "uv.lock"
    url = "https://files.pythonhosted.org/packages/torch-2.10.0-cp27-cp27m-win32.whl"
    lock.write_text(
        f'[[package]]\nname = "torch"\nversion = "2.10.0"\nwheels = [{{url = "{url}", hash = "sha256:0"}}]\n'
    )
    with pytest.raises(settings.BuildError, match="got no wheel of torch for this Python"):
        provenance.locked_files(lock)


@pytest.fixture(scope="module")
def bill() -> dict[str, Any]:
    return sbom.document(tools.find_uv(), EPOCH)


@pytest.mark.slow
def test_bill_of_materials_is_valid_cyclonedx(bill: dict[str, Any]) -> None:
    pytest.importorskip("cyclonedx")
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    # The validator takes a quarter of a second for an address: one component of each shape, one address each.
    shapes: dict[str, dict[str, Any]] = {}
    for component in bill["components"]:
        references = component["externalReferences"]
        assert len({tuple(sorted(reference)) for reference in references}) == 1
        shape = str([sorted(component), [each["name"] for each in component.get("properties", [])]])
        shapes.setdefault(shape, {**component, "externalReferences": references[:1]})
    assert bill["specVersion"] == "1.5" and len(shapes) < 6
    kept = {bill["metadata"]["component"]["bom-ref"], *(each["bom-ref"] for each in shapes.values())}
    dependencies = [
        {**each, "dependsOn": [name for name in each.get("dependsOn", []) if name in kept]}
        for each in bill["dependencies"]
        if each["ref"] in kept
    ]
    short = {**bill, "components": list(shapes.values()), "dependencies": dependencies}
    validator = JsonStrictValidator(SchemaVersion.V1_5)
    assert validator.validate_str(json.dumps(short)) is None
    assert validator.validate_str(json.dumps({**short, "components": [{"name": "no type"}]})) is not None


def test_bill_of_materials_lists_the_locked_dependencies_with_hashes(bill: dict[str, Any]) -> None:
    locked = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    packages = {(each["name"], each["version"]): each for each in locked}
    named = {component["name"] for component in bill["components"]}
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {re.split(r"[><=]", each)[0] for each in required} | {"triton", "nvidia-cuda-nvrtc-cu12"} <= named
    assert not named & {"pytest", "ruff", "nox", "sm70-kernels"}
    for component in bill["components"]:
        package = packages[component["name"], component["version"]]
        hashes = {each["content"] for ref in component["externalReferences"] for each in ref["hashes"]}
        wheels = {each["hash"].removeprefix("sha256:") for each in package["wheels"]}
        assert wheels and wheels <= hashes, component["name"]


def test_bill_of_materials_does_not_depend_on_the_run(bill: dict[str, Any]) -> None:
    assert bill["metadata"]["timestamp"] == "2023-11-14T22:13:20Z"
    again = {**bill, "serialNumber": "urn:uuid:1", "metadata": {**bill["metadata"], "timestamp": "now"}}
    assert sbom.normalized(again, EPOCH) == bill
    assert sbom.normalized(again, EPOCH + 1)["serialNumber"] != bill["serialNumber"]
    with pytest.raises(settings.BuildError, match=r"got no file hash for \['bare'\]"):
        sbom.normalized({**bill, "components": [*bill["components"], {"name": "bare"}]}, EPOCH)
