"""The commands that run something on the emulated V100 and look at it: ``statistics``, ``hotspots``, ``trace``.

What they need is imported when they run: torch comes with it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import click

_EXIT_CODES = """
Exit codes: 0 it ran; 1 the emulated launch failed, or nothing was launched; 2 the command line is wrong.
"""


def _options(command: Callable[..., None]) -> Callable[..., None]:
    """Options of the commands that run something on the emulated V100."""
    for option in reversed(
        (
            click.option("--operator", help="run a row of this operator's benchmark (in a checkout)"),
            click.option("--row", help="name of the row; without it the rows are listed"),
            click.option(
                "--blocks", type=click.IntRange(min=1), help="run at most this many blocks of each grid, spread over it"
            ),
            click.option("--threads", type=click.IntRange(min=1), help="worker threads  [default: one per processor]"),
            click.argument("script", required=False, type=click.Path(path_type=Path)),
            click.argument("arguments", nargs=-1, type=click.UNPROCESSED),
        )
    ):
        command = option(command)
    return command


def _to_run(
    context: click.Context, operator: str | None, row: str | None, script: Path | None, arguments: tuple[str, ...]
) -> Callable[[], None]:
    """What the command line asks to run; lists the rows and leaves if it names none."""
    from sm70_kernels.lab.inspect import running

    if (script is None) == (operator is None):
        raise click.UsageError("name a script, or an operator with --operator", context)
    try:
        if script is not None:
            return running.script(script, arguments)
        assert operator is not None
        if row is None:
            click.echo("\n".join(running.rows(operator)))
            context.exit(0)
        return running.row(operator, row)
    except running.RunError as error:
        raise click.UsageError(str(error), context) from error


def _statistics(context: click.Context, blocks: int | None, threads: int | None, **what: Any) -> Any:
    from sm70_kernels.cli import statistics as body

    run = _to_run(context, **what)
    try:
        return body.collect(run, max_blocks=blocks, threads=threads)
    except RuntimeError as error:  # of the emulator; a script's own exceptions keep their traceback
        raise click.ClickException(str(error)) from error


_PASS_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False}


@click.command("statistics", epilog=_EXIT_CODES, context_settings=_PASS_ON)
@_options
@click.option("--json", "as_json", is_flag=True, help="print one JSON document, with every instruction")
@click.pass_context
def statistics_command(context: click.Context, /, as_json: bool, **what: Any) -> None:
    """Count what kernels execute on the emulated V100: opcodes, pipes, sectors, bank conflicts, divergence.

    SCRIPT is a Python file that calls operators with CPU tensors; ARGUMENTS are its own. docs/statistics.md says how to
    read the tables.
    """
    from sm70_kernels.cli import statistics as body

    body.show_statistics(_statistics(context, **what), as_json=as_json)


@click.command("hotspots", epilog=_EXIT_CODES, context_settings=_PASS_ON)
@_options
@click.option("--top", type=click.IntRange(min=1), default=40, show_default=True, help="lines, and instructions")
@click.option("--json", "as_json", is_flag=True, help="print one JSON document, with every instruction")
@click.pass_context
def hotspots_command(context: click.Context, /, top: int, as_json: bool, **what: Any) -> None:
    """List the source lines and SASS instructions that warps issue most on the emulated V100.

    SCRIPT is a Python file that calls operators with CPU tensors; ARGUMENTS are its own.
    """
    from sm70_kernels.cli import statistics as body

    body.show_hotspots(_statistics(context, **what), top=top, as_json=as_json)


@click.command("trace", epilog=_EXIT_CODES, context_settings=_PASS_ON)
@_options
@click.option("--output", type=click.Path(path_type=Path), required=True, help="a new folder for the traces")
@click.option("--registers", type=click.Choice(["all", "first"]), default="all", show_default=True, help="of operands")
@click.option("--addresses", type=click.Choice(["compressed", "list"]), default="compressed", show_default=True)
@click.option("--lineinfo", is_flag=True, help="put the source line before each instruction")
@click.pass_context
def trace_command(
    context: click.Context,
    /,
    output: Path,
    blocks: int | None,
    threads: int | None,
    registers: Literal["all", "first"],
    addresses: Literal["compressed", "list"],
    lineinfo: bool,
    **what: Any,
) -> None:
    """Write what kernels execute on the emulated V100 as Accel-Sim's SASS traces.

    SCRIPT is a Python file that calls operators with CPU tensors; ARGUMENTS are its own. "--registers first" is what an
    unmodified Accel-Sim reads: docs/statistics.md.
    """
    from sm70_kernels.lab import inspect

    run = _to_run(context, **what)
    try:
        with inspect.trace(
            output,
            registers=registers,
            addresses=addresses,
            lineinfo=lineinfo,
            max_blocks=blocks,
            threads=threads,
        ) as watched:
            run()
    except RuntimeError as error:
        raise click.ClickException(str(error)) from error
    if not watched.files:
        raise click.ClickException("nothing ran on the emulated V100: operators must be called with CPU tensors")
    for name in watched.files:
        click.echo(output / name)
