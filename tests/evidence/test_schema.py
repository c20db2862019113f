"""Records are read strictly, written whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sm70_kernels.evidence.runs import schema

SKIP = schema.Skip(test="tests/a.py::test", reason="needs sm_70")


def test_records_survive_a_round_trip(tmp_path: Path) -> None:
    schema.write(tmp_path / "skips.json", [SKIP])
    assert schema.read(tmp_path / "skips.json", list[schema.Skip]) == [SKIP]
    assert [path.name for path in tmp_path.iterdir()] == ["skips.json"]


@pytest.mark.parametrize("change", [{"extra": 1}, {"reason": None}, {"reason": 3}])
def test_another_schema_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "skip.json"
    path.write_text(json.dumps({"test": "t", "reason": "r"} | change))
    with pytest.raises(schema.EvidenceError, match=r"skip\.json"):
        schema.read(path, schema.Skip)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(schema.EvidenceError, match=r"manifest\.json"):
        schema.read(tmp_path / schema.MANIFEST, schema.Manifest)
