"""What a session adds to pytest-benchmark's JSON before it is sealed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sm70_kernels.evidence.places import Places
from sm70_kernels.evidence.schema import Validation


def row_label(row: Mapping[str, Any], validation: Mapping[str, Validation]) -> str:
    """A row is validated when its operator's DSO is; one that names no operator when every DSO is."""
    operator = row.get("extra_info", {}).get("operator")
    named = [validation[operator]] if operator in validation else list(validation.values())
    return "validated" if named and all(verdict.label == "validated" for verdict in named) else "unvalidated"


def complete(path: Path, validation: Mapping[str, Validation], places: Places) -> int:
    """Label every row and make paths relative. Returns the number of rows; without rows the file is removed.

    pytest-benchmark opens the file when it starts and leaves it empty when nothing was measured.
    """
    text = path.read_text() if path.is_file() else ""
    rows = json.loads(text)["benchmarks"] if text.strip() else []
    if not rows:
        path.unlink(missing_ok=True)
        return 0
    results = json.loads(places.text(text))
    for row in results["benchmarks"]:
        row.setdefault("extra_info", {})["validation"] = row_label(row, validation)
    path.write_text(json.dumps(results, indent=1) + "\n")
    return len(rows)
