"""The table of benchmark rows that a person reads at the end of a session."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

_STYLES = {"reached": "green", "missed": "bold red", "undecided": "yellow", "not claimed": "bold yellow"}
#: Least width: numbers that a narrow terminal wraps can be read, numbers that were cut off can't.
MIN_WIDTH = 132


def roof_line(roofs: dict[str, dict[str, Any]]) -> str:
    """The session's roofs in one line."""
    parts = (f"{name} {roof['rate']:.1f} {roof['unit']}" for name, roof in roofs.items())
    return "Roofs measured in this run: " + ", ".join(parts)


def _warning(facts: dict[str, Any]) -> str:
    label = "" if facts["time_label"] == "V100" else ": not V100, times say nothing about it"
    return f"{facts['device']}, image {facts['image']}{label}"


def _table(rows: Sequence[dict[str, Any]], *, fancy: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD if fancy else box.ASCII2, title=_warning(rows[0]), title_justify="left")
    table.add_column("row", no_wrap=True)
    for name in ("ms", "GB/s", "of roof", "baseline / operator [95 %]", "target", "warm ms"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict")
    for facts in rows:
        baseline, roof = facts["baseline"], facts["roof"]
        low, high = facts[f"ratio_to_{baseline}_interval"]
        target = facts[f"target_ratio_to_{baseline}"]
        result = "; ".join([facts["verdict"], *facts["flags"]])
        table.add_row(
            facts["row"],
            f"{facts['median_ms']:.4f}",
            f"{facts['gbps']:.0f}",
            f"{facts[f'share_of_{roof}_roof']:.1%} {roof}",
            f"{baseline} {facts[f'ratio_to_{baseline}']:.3f} [{low:.3f}, {high:.3f}]",
            "-" if target is None else f"{target:.2f}",
            f"{facts['warm']['median_ms']:.4f}",
            Text(result, style=_STYLES.get(facts["verdict"], "")),
        )
    return table


def render(rows: Sequence[dict[str, Any]], *, width: int, fancy: bool) -> str:
    """Operator rows (``row_facts(...)["operator"]``) of one device as text.

    ``fancy`` is for a terminal of ``width`` columns: colour and lines; otherwise plain ASCII. At least 132 wide.
    """
    if not rows:
        return ""
    console = Console(
        file=io.StringIO(),
        width=max(width, MIN_WIDTH),
        force_terminal=fancy,
        no_color=not fancy,
        highlight=False,
        markup=False,
    )
    with console.capture() as captured:
        console.print(roof_line(rows[0]["roofs"]))
        console.print(_table(rows, fancy=fancy))
        counts = Counter(facts["verdict"] for facts in rows)
        console.print(f"{len(rows)} rows: " + ", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
        failed = sum(not _first_attempt_passed(facts) for facts in rows)
        console.print(
            f"A/A: {failed} of {len(rows)} first attempts exclude 1 (about 1 in 20 does by chance); "
            "a second one then decides"
        )
    return captured.get()


def _first_attempt_passed(facts: dict[str, Any]) -> bool:
    """Whether the first attempt of the row's A/A control contains 1."""
    low, high = facts["control"]["attempts"][0]["interval"]
    return bool(low <= 1.0 <= high)
