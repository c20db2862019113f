"""What a session adds to pytest-benchmark's JSON before it is sealed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sm70_kernels.evidence.machine.places import Places
from sm70_kernels.evidence.runs.schema import Skip, Validation

#: ``extra_info.label`` of rows that measure the emulator itself, and need no GPU.
EMULATOR_LABEL = "emulator speed (host CPU), not V100"
#: What ``extra_info.time_label`` of rows of the cycle model begins with.
ESTIMATED_LABEL = "estimated"


@dataclass(frozen=True)
class Rows:
    """How many rows a session measured or estimated."""

    gpu: int
    emulator: int
    estimated: int = 0
    """Rows of the cycle model, which need no GPU and measure nothing."""

    def reason(self, lacking: Sequence[Skip]) -> str:
        """The session's reason; ``lacking`` are the rows that were skipped for lack of a GPU."""
        parts = [
            f"{count} {name} {'row' if count == 1 else 'rows'}"
            for count, name in ((self.gpu, "GPU"), (self.estimated, "estimated"), (self.emulator, "emulator"))
            if count
        ]
        if lacking:
            count = len(lacking)
            parts.append(f"{count} {'row needs' if count == 1 else 'rows need'} a GPU: {lacking[0].reason}")
        return "; ".join(parts)


def row_label(row: Mapping[str, Any], validation: Mapping[str, Validation]) -> str:
    """A row is validated when its operator's DSO is; one that names no operator when every DSO is."""
    operator = row.get("extra_info", {}).get("operator")
    named = [validation[operator]] if operator in validation else list(validation.values())
    return "validated" if named and all(verdict.label == "validated" for verdict in named) else "unvalidated"


def complete(path: Path, validation: Mapping[str, Validation], places: Places) -> Rows:
    """Label every row and make paths relative. Returns what was measured; without rows the file is removed.

    pytest-benchmark opens the file when it starts and leaves it empty when nothing was measured.
    """
    text = path.read_text() if path.is_file() else ""
    rows = json.loads(text)["benchmarks"] if text.strip() else []
    if not rows:
        path.unlink(missing_ok=True)
        return Rows(0, 0)
    results = json.loads(places.text(text))
    for row in results["benchmarks"]:
        row.setdefault("extra_info", {})["validation"] = row_label(row, validation)
    path.write_text(json.dumps(results, indent=1) + "\n")
    emulator = sum(row.get("extra_info", {}).get("label") == EMULATOR_LABEL for row in rows)
    estimated = sum(str(row.get("extra_info", {}).get("time_label", "")).startswith(ESTIMATED_LABEL) for row in rows)
    return Rows(len(rows) - emulator - estimated, emulator, estimated)
