"""The command ``sm70-kernels``: what is installed here, whether it works, and what was recorded.

Nothing here imports torch, so the command starts quickly and works where torch or a library is missing.
"""

from __future__ import annotations

from pathlib import Path

import click

from sm70_kernels import __version__
from sm70_kernels.cli import lab, watch

FINE, PROBLEMS = 0, 1

_EXIT_CODES = """
Exit codes: 0 everything is fine or usable; 1 a problem was found, each is named with its remedy; 2 the command line is
wrong.
"""

_CHECK_RESULTS_EXIT_CODES = """
Exit codes: 0 intact; 1 something was changed, is missing, or is there and not listed, each is named; 2 the command line
is wrong.
"""
_ESTIMATE_EXIT_CODES = """
Exit codes: 0 estimated; 2 there is no such row, board or parameter, or the command line is wrong.
"""
_AUDIT_EXIT_CODES = """
Exit codes: 0 within the budgets; 1 a budget is exceeded or missing, each finding is named with what to do; 2 the
command line is wrong.
"""
_COMPARE_EXIT_CODES = """
Exit codes: 0 compared, whatever the verdicts; 2 the runs can't be compared, or the command line is wrong.
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

    try:
        listing = body.collect(results)
    except body.UsageError as error:
        raise click.UsageError(str(error), context) from error
    body.show(listing, as_json=as_json)
    context.exit(PROBLEMS if listing.problems else FINE)


@main.command("check-results", epilog=_CHECK_RESULTS_EXIT_CODES)
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option("--artifact", type=click.Path(path_type=Path), help="folder with wheels, provenance and SHA256SUMS")
@click.option("--json", "as_json", is_flag=True, help="print one JSON document")
@click.pass_context
def check_results_command(
    context: click.Context, paths: tuple[Path, ...], artifact: Path | None, as_json: bool
) -> None:
    """Re-hash results, libraries or artifacts: name each file that is not as sealed.

    PATHS are run folders, folders of run folders, libraries (.so) or installations; without any, the results and the
    installed libraries. The exit code speaks of integrity; whether a run speaks of what is built now is a column:
    current (same library), same kernel (same machine code, or PTX where that ran, line tables apart), older.
    """
    from sm70_kernels.cli import check_results as body

    try:
        checked = body.check(paths, artifact)
    except body.UsageError as error:
        raise click.UsageError(str(error), context) from error
    body.show(checked, as_json=as_json)
    context.exit(FINE if checked.intact else PROBLEMS)


@main.command("verify", hidden=True, context_settings={"ignore_unknown_options": True}, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def verify_alias(context: click.Context, arguments: tuple[str, ...]) -> None:
    """The name of check-results in version 0.1, kept for one release."""
    click.echo("sm70-kernels verify is now sm70-kernels check-results; the old name goes with version 0.3", err=True)
    check_results_command.main(list(arguments), prog_name="check-results", parent=context.parent)


@main.command("compare", epilog=_COMPARE_EXIT_CODES)
@click.argument("first", metavar="A", type=click.Path(path_type=Path))
@click.argument("second", metavar="B", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="print one JSON document")
@click.pass_context
def compare_command(context: click.Context, first: Path, second: Path, as_json: bool) -> None:
    """Compare the benchmark rows of two run folders: how B stands to A.

    SAME means that the 95 % intervals of the medians overlap; anything else is FASTER or SLOWER, in percent of A.
    """
    from sm70_kernels.cli import compare_runs as body

    try:
        comparison = body.compare(first, second)
    except body.RefusedError as error:
        raise click.UsageError(str(error), context) from error
    body.show(comparison, as_json=as_json)


@main.command("estimate", epilog=_ESTIMATE_EXIT_CODES)
@click.argument("target")
@click.option("--board", default="v100-sxm2", show_default=True, help="row of the machine table")
@click.option("--clock", "clocks", multiple=True, type=float, help="SM clock in MHz; may be repeated")
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", help="what if: a parameter of the machine table"
)
@click.option("--picture", type=click.Path(path_type=Path), help="folder for the SMs' timelines (SVG)")
@click.option("--json", "as_json", is_flag=True, help="print one JSON document")
@click.pass_context
def estimate_command(
    context: click.Context,
    target: str,
    board: str,
    clocks: tuple[float, ...],
    settings: tuple[str, ...],
    picture: Path | None,
    as_json: bool,
) -> None:
    """Estimate what rows of a benchmark module would take on a V100: cycles, rates, stalls, SASS lines.

    TARGET is MODULE.py or MODULE.py:PATTERN, of a module with a function estimates(): benchmarks/bench_kv_cache.py has
    one. Needs no GPU; the result is an estimate, its error is in docs/cycle-model.md.
    """
    from sm70_kernels.cli import estimate as body

    try:
        body.run(target, board=board, clocks_mhz=clocks, settings=settings, as_json=as_json, picture=picture)
    except body.UsageError as error:
        raise click.UsageError(str(error), context) from error


@main.command("report", epilog=_CHECK_RESULTS_EXIT_CODES)
@click.argument("results", type=click.Path(path_type=Path))
@click.option("--output", type=click.Path(path_type=Path), default=Path("report.html"), show_default=True)
@click.pass_context
def report_command(context: click.Context, results: Path, output: Path) -> None:
    """Write one self-contained HTML page about a run folder, or about a folder of them."""
    from sm70_kernels.cli import html_report as body
    from sm70_kernels.cli.check_results import UsageError

    try:
        text, intact = body.page(results)
    except UsageError as error:
        raise click.UsageError(str(error), context) from error
    except body.MissingError as error:
        raise click.ClickException(str(error)) from error
    try:
        output.write_text(text)
    except OSError as error:
        sentence = f"--output: got {output}, want a file that can be written ({error.strerror}). Name another one"
        raise click.UsageError(sentence, context) from error
    click.echo(f"written: {output}{'' if intact else ', with findings: not everything is intact'}")
    context.exit(FINE if intact else PROBLEMS)


@main.command("audit", epilog=_AUDIT_EXIT_CODES)
@click.argument("operators", nargs=-1)
@click.option("--write", is_flag=True, help="write the budgets of these operators from what is built")
@click.option("--because", metavar="REASON", help="why a limit is raised; kept in the budget")
@click.option(
    "--launches", type=click.Path(path_type=Path), help="take launches from this output of 'statistics --json'"
)
@click.option("--json", "as_json", is_flag=True, help="print one JSON document")
@click.pass_context
def audit_command(
    context: click.Context,
    operators: tuple[str, ...],
    write: bool,
    because: str | None,
    launches: Path | None,
    as_json: bool,
) -> None:
    """Audit machine code: resources, occupancy, pipes, loops and their bounds, against csrc/ops/*/budget.json.

    OPERATORS are all by default. Nothing runs; the bounds are what a V100 can't beat, no times. docs/audit.md says how
    to read them, and how to raise a budget.
    """
    from sm70_kernels.build.settings import ROOT
    from sm70_kernels.cli import audit as body
    from sm70_kernels.evidence.runs.schema import EvidenceError
    from sm70_kernels.lab.audit import budget
    from sm70_kernels.lab.audit import operators as audits

    if write and not operators:
        raise click.UsageError("--write needs the operators to write budgets of", context)
    if (because or launches) and not write:
        raise click.UsageError("--because and --launches are about --write", context)
    try:
        known = audits.known()
        if strangers := [name for name in operators if name not in known]:
            raise click.UsageError(f"operator: got {strangers[0]!r}, want one of {', '.join(known)}", context)
        if write:
            watched = audits.watched_launches(launches) if launches else None
            for name in operators:
                body.wrote(audits.write_budget(name, because, watched), ROOT)
            return
        report = body.Report(operators=[audits.audit(name) for name in operators or known])
    except (EvidenceError, budget.BudgetError) as error:
        raise click.ClickException(str(error)) from error
    body.show(report, as_json=as_json)
    context.exit(FINE if report.within else PROBLEMS)


main.add_command(watch.statistics_command)
main.add_command(watch.hotspots_command)
main.add_command(watch.trace_command)
main.add_command(lab.lab_group)
