"""Tables: drawn by rich on a terminal, aligned columns without colour or wrapping when piped."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from sm70_kernels.evidence.runs import schema

_COLOURS = {
    "ok": "green",
    "pass": "green",
    "current": "green",
    "intact": "green",
    "same kernel": "green",
    "older": "yellow",
    "tampered": "bold red",
    "note": "yellow",
    "not_run": "yellow",
    "superseded": "yellow",
    "problem": "bold red",
    "fail": "bold red",
    "missing": "bold red",
    "differs": "bold red",
}


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; words that name a state are coloured on a terminal."""
    if sys.stdout.isatty():
        _draw(title, columns, rows)
        return
    widths = [max(len(row[index]) for row in [columns, *rows]) for index in range(len(columns))]
    click.echo(title)
    for row in [columns, *rows]:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    click.echo()


def _draw(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    # rich takes 50 ms to import, which a piped run saves.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(title=title, title_justify="left")
    for column in columns:
        drawn.add_column(column, overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(cell, style=_COLOURS.get(cell, "")) for cell in row))
    Console().print(drawn)


def json(record: object) -> None:
    """Print a record as JSON."""
    click.echo(schema.encode(record).decode(), nl=False)
