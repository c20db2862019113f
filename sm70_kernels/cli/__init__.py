"""The command ``sm70-kernels``: what is installed here, whether it works, and what was recorded.

Nothing here imports torch, so the command starts quickly and works where torch or a library is missing.
"""

from __future__ import annotations

from pathlib import Path

import click

from sm70_kernels import __version__

FINE, PROBLEMS = 0, 1

_EXIT_CODES = """
Exit codes: 0 everything is fine or usable; 1 a problem was found, each is named with its remedy; 2 the command line is
wrong.
"""


@click.group(epilog=_EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sm70-kernels")
def main() -> None:
    """Attention kernels for NVIDIA V100: inspect the installation and the recorded results."""


@main.command("doctor", epilog=_EXIT_CODES)
@click.option("--json", "as_json", is_flag=True, help="print one JSON document")
@click.pass_context
def doctor_command(context: click.Context, as_json: bool) -> None:
    """Check that operators can run here; name each problem with its remedy."""
    from sm70_kernels.cli import doctor as body

    report = body.examine()
    body.show(report, as_json=as_json)
    context.exit(FINE if report.usable else PROBLEMS)


@main.command("list", epilog=_EXIT_CODES)
@click.option("--results", type=click.Path(path_type=Path), help="folder of the run folders  [default: results]")
@click.option("--json", "as_json", is_flag=True, help="print one JSON document")
@click.pass_context
def list_command(context: click.Context, results: Path | None, as_json: bool) -> None:
    """List operators, kernels, hashes and recorded runs."""
    from sm70_kernels.cli import listing as body

    listing = body.collect(results)
    body.show(listing, as_json=as_json)
    context.exit(PROBLEMS if listing.problems else FINE)
