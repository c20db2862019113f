"""``sm70-kernels estimate``: rows of a benchmark module, or any call, through the cycle model."""

from __future__ import annotations

import fnmatch
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from sm70_kernels.cli import output

#: Name of the function that a module offers: row name -> maker, which makes tensors and returns the call.
OFFER = "estimates"

Maker = Callable[[], Callable[[], object]]


class UsageError(ValueError):
    """The target names nothing that can be estimated: the message says what there is."""


def _module(place: str) -> ModuleType:
    """A module by its file or its name."""
    try:
        if not place.endswith(".py"):
            return importlib.import_module(place)
        path = Path(place)
        sys.path.insert(0, str(Path.cwd()))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None or not path.is_file():
            raise UsageError(f"{place}: there is no such file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        return module
    except ImportError as error:
        raise UsageError(f"{place} can't be imported: {error}") from error


def rows(target: str) -> Mapping[str, Maker]:
    """The rows that ``MODULE:PATTERN`` names; without a pattern all that the module offers."""
    place, _, pattern = target.partition(":")
    offer = getattr(_module(place), OFFER, None)
    if offer is None:
        raise UsageError(f"{place} has no function {OFFER}() that gives row names and their makers")
    offered: Mapping[str, Maker] = offer()
    chosen = {name: maker for name, maker in offered.items() if fnmatch.fnmatchcase(name, pattern or "*")}
    if not chosen:
        raise UsageError(f"{place} has no row {pattern!r}; it has {', '.join(offered)}")
    return chosen


def changes(settings: Sequence[str]) -> dict[str, float]:
    """``NAME=VALUE`` words as numbers."""
    found = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        try:
            found[name] = float(value)
        except ValueError:
            equals = ""
        if not equals:
            raise UsageError(f"--set: got {setting!r}, want NAME=NUMBER")
    return found


def run(
    target: str,
    *,
    board: str,
    clocks_mhz: Sequence[float],
    settings: Sequence[str],
    as_json: bool,
    picture: Path | None,
) -> None:
    """Estimate and print. Raises UsageError."""
    from sm70_kernels.lab import cycle_model
    from sm70_kernels.lab.instruments import InstrumentError

    results: dict[str, Any] = {}
    options: dict[str, Any] = dict(changes(settings))
    for name, maker in rows(target).items():
        try:
            result = cycle_model.estimate(
                maker(), board=board, clocks_mhz=clocks_mhz or cycle_model.CLOCKS_MHZ, **options
            )
        except InstrumentError as error:
            raise UsageError(str(error)) from error
        results[name] = asdict(result)
        if not as_json:
            click.echo(f"== {name}")
            click.echo(cycle_model.report(result))
        if picture is not None:
            _draw(picture, name, result)
    if as_json:
        output.json(results)


def _draw(folder: Path, name: str, result: Any) -> None:
    from sm70_kernels.bench.estimates import timeline
    from sm70_kernels.lab.cycle_model.picture import timeline_svg

    folder.mkdir(parents=True, exist_ok=True)
    longest = max(result.kernels, key=lambda kernel: kernel.ms)
    try:
        text = timeline_svg(timeline(longest), name)
    except ImportError as error:
        raise UsageError(f"{error}. Install the dependency group 'report'") from error
    (folder / f"{name}.svg").write_text(text + "\n")
