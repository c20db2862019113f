"""``sm70-kernels lab``: compile CUDA source, or take a cubin, and run its kernels on the emulated V100.

What the commands need is imported when they run.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

_EXIT_CODES = """
Exit codes: 0 it ran and nothing was found; 1 it does not compile, a checker found something, or a fault stopped the
launch; 2 the command line is wrong, and nothing ran.
"""

_compiling = (
    click.option("-I", "--include", multiple=True, type=click.Path(path_type=Path), help="folder for #include"),
    click.option("-D", "--define", "defines", multiple=True, metavar="NAME[=VALUE]", help="macro"),
    click.option("--option", "options", multiple=True, help="more for NVRTC: --option=--use_fast_math"),
)


def _with(options: tuple[Callable[[Any], Any], ...]) -> Callable[[Any], Any]:
    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@click.group("lab", epilog=_EXIT_CODES)
def lab_group() -> None:
    """Run any CUDA kernel on the emulated V100: check it, count it, estimate it. docs/lab.md is its page."""


@lab_group.command("kernels", epilog=_EXIT_CODES)
@click.argument("file", type=click.Path(path_type=Path))
@_with(_compiling)
@click.option("--json", "as_json", is_flag=True, help="print one JSON document")
@click.pass_context
def kernels_command(context: click.Context, /, file: Path, as_json: bool, **compiling: Any) -> None:
    """List the kernels of FILE: signatures, resources, and the sizes of their parameters.

    FILE is CUDA source (.cu), PTX (.ptx), or an sm_70 cubin.
    """
    from sm70_kernels.cli import lab_run as body

    _guarded(context, lambda: body.show_kernels(body.open_module(file, **compiling), as_json=as_json))


@lab_group.command("run", epilog=_EXIT_CODES)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--kernel", default="", help="name or C++ signature, or the start of it; not needed if FILE has one kernel"
)
@click.option("--grid", required=True, help="blocks: 4, or 4,2,1")
@click.option("--block", required=True, help="threads of a block: 256, or 32,8")
@click.option(
    "--arg", "args", multiple=True, metavar="[NAME=]SPEC",
    help="one per parameter, in order: f32:2.0, 'f32[1024]:random', x.npy, null",
)  # fmt: skip
@click.option("--output", "outputs", multiple=True, metavar="NAME", help="array that may be written  [default: all]")
@click.option("--shared", default=0, show_default=True, help="bytes of dynamic shared memory")
@click.option("--checkers", default="all", show_default=True, help="all, none, or names with commas: docs/checkers.md")
@click.option("--statistics", "wants_statistics", is_flag=True, help="print counts by pipe, opcode, kind of memory")
@click.option("--hot-spots", type=click.IntRange(min=1), metavar="N", help="print the N lines that issue most")
@click.option("--estimate", "wants_estimate", is_flag=True, help="print what it would take on a V100")
@click.option("--board", default="v100-sxm2", show_default=True, help="row of the machine table, for the estimate")
@click.option("--accel-sim", type=click.Path(path_type=Path), metavar="FOLDER", help="write an Accel-Sim SASS trace")
@click.option("--save", multiple=True, metavar="NAME=FILE.npy", help="write an array as the kernel left it")
@click.option("--data-seed", type=click.IntRange(min=0), default=0, show_default=True, help="of random fillings")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="shuffles blocks and warps; 0 keeps their order",
)
@click.option("--threads", type=click.IntRange(min=1), help="worker threads  [default: one per processor]")
@_with(_compiling)
@click.option("--json", "as_json", is_flag=True, help="print one JSON document")
@click.pass_context
def run_command(
    context: click.Context,
    /,
    file: Path,
    include: tuple[Path, ...],
    defines: tuple[str, ...],
    options: tuple[str, ...],
    **wanted: Any,
) -> None:
    """Launch a kernel of FILE and report what it did. Checkers are on unless "--checkers none".

    FILE is CUDA source (.cu), PTX (.ptx), or an sm_70 cubin. An argument is a scalar TYPE:VALUE, an array
    TYPE[SHAPE]:FILLING, a .npy file, or null. Types: f16 f32 f64 i8 i16 i32 i64 u8 u16 u32 u64. Fillings: zeros, ones,
    arange, random, nan, undefined, or a number. "undefined" tells the checkers that nothing has written the array yet.
    """
    from sm70_kernels.cli import lab_run as body

    def run() -> bool:
        module = body.open_module(file, include=include, defines=defines, options=options)
        return body.run(module, body.Wanted(**wanted))

    context.exit(0 if _guarded(context, run) else 1)


def _guarded(context: click.Context, run: Callable[[], Any]) -> Any:
    """What ``run`` returns; refusals and faults become click's errors."""
    from sm70_kernels.lab.errors import CompileError, EmulatorError, LabError
    from sm70_kernels.lab.instruments import InstrumentError

    try:
        return run()
    except (CompileError, EmulatorError) as error:
        raise click.ClickException(str(error)) from error
    except (LabError, InstrumentError) as error:
        raise click.UsageError(str(error), context) from error
