"""``python -m sm70_kernels.evidence {build,test,memcheck,bench}``: run a session and record its result.

Exit codes: 0 passed, or not run for a reason that --require-gpu would not accept; 1 failed; 2 refused (nothing or
something stale is built, --require-validated); 130 interrupted.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

from sm70_kernels import _variables
from sm70_kernels.build.settings import ROOT
from sm70_kernels.evidence.binaries import built
from sm70_kernels.evidence.integrity import validated
from sm70_kernels.evidence.machine import environment, gpu, places
from sm70_kernels.evidence.memory_checks import canary, memcheck, sanitizer
from sm70_kernels.evidence.runs import schema
from sm70_kernels.evidence.runs.run import RunFolder, recorded
from sm70_kernels.evidence.sessions import benchmarks, observation, processes, selection
from sm70_kernels.evidence.sessions.observation import NEEDS

_PASS, _FAIL, _REFUSED, _INTERRUPTED = 0, 1, 2, 130
#: Time limits of one tool over all its tests and of its canary; a hang is a failure, not a wait.
_SWEEP_SECONDS, _CANARY_SECONDS = 1800.0, 300.0
_BUILD_COMMAND = (sys.executable, "-m", "sm70_kernels.build")


@dataclass(frozen=True)
class Options:
    """What the command line asks of a session."""

    results: Path
    require_gpu: bool = False
    require_validated: bool = False
    pytest_arguments: tuple[str, ...] = ()


def _pytest(folder: RunFolder, name: str, options: Options, arguments: list[str], junit: str) -> list[str]:
    """The command line of a pytest process that reports to the run folder."""
    command = [sys.executable, "-m", "pytest", "-p", "sm70_kernels.evidence.sessions.pytest_plugin"]
    command += [f"--evidence-folder={folder.path}", f"--evidence-name={name}", f"--junitxml={folder.path / junit}"]
    return command + (["--require-gpu"] if options.require_gpu else []) + arguments


def _take(folder: RunFolder, name: str) -> schema.Observation | None:
    """The observation of an ended pytest process, which leaves the folder; None when it left none."""
    path = observation.file(folder.path, name)
    if not path.is_file():
        return None
    seen = schema.read(path, schema.Observation)
    path.unlink()
    return seen


def _finish_pytest(
    folder: RunFolder,
    exit_code: int | None,
    seen: schema.Observation | None,
    options: Options,
    rows: benchmarks.Rows | None = None,
) -> None:
    """Verdict of a session that is one pytest process; ``rows`` are what a bench session measured."""
    if seen is None:
        folder.finish("fail", f"pytest ended with exit code {exit_code} and left no observation")
        return
    schema.write(folder.path / schema.ENVIRONMENT, seen.environment)
    schema.write(folder.path / schema.SKIPS, seen.skips)
    folder.update(libraries=seen.libraries, counts=seen.counts)
    summary = f"{seen.counts.passed} passed, {seen.counts.skipped} skipped"
    lacking = [skip for skip in seen.skips if skip.reason.startswith(NEEDS)]
    done = seen.counts.executed if rows is None else rows.gpu + rows.emulator + rows.estimated
    if seen.mismatches:
        folder.finish("fail", seen.mismatches[0])
    elif exit_code != 0:
        folder.finish("fail", f"pytest exit code {exit_code}: {seen.counts.failed} failed, {seen.counts.errors} errors")
    elif done > 0:
        folder.finish("pass", summary if rows is None else rows.reason(lacking))
    elif lacking and not options.require_gpu:
        folder.finish("not_run", lacking[0].reason)
    else:
        what = "no test was executed" if rows is None else "no row was measured"
        folder.finish("fail", f"{what} ({summary})")


def _build(folder: RunFolder, options: Options) -> None:
    """Build in place and keep the build manifest."""
    exit_code = processes.run([*_BUILD_COMMAND, *options.pytest_arguments], cwd=ROOT)
    schema.write(folder.path / schema.ENVIRONMENT, environment.collect(loaded=False))
    if exit_code != 0:
        folder.finish("fail", f"the build ended with exit code {exit_code}")
        return
    build = built.read(ROOT)
    shutil.copyfile(built.manifest_path(ROOT), folder.path / schema.BUILD_MANIFEST)
    folder.update(build_commit=build.commit, libraries=observation.libraries(ROOT))
    differing = built.differing_libraries(build, ROOT)
    if differing:
        folder.finish("fail", differing[0])
    else:
        folder.finish("pass", f"{len(build.operators)} operators built")


def _test(folder: RunFolder, options: Options) -> None:
    """All tests, or those that the command line names."""
    arguments = list(options.pytest_arguments)
    if not selection.paths(arguments, ROOT):
        arguments.append("tests")
    exit_code = processes.run(_pytest(folder, "test", options, arguments, schema.JUNIT), cwd=ROOT)
    _finish_pytest(folder, exit_code, _take(folder, "test"), options)


def _bench(folder: RunFolder, options: Options) -> None:
    """The benchmarks, each row labelled by whether a test run speaks for its DSO. Rows of the emulator need no GPU."""
    arguments = list(options.pytest_arguments)
    if not selection.paths(arguments, ROOT):
        arguments.append("benchmarks")
    results = folder.path / schema.BENCHMARK
    arguments.append(f"--benchmark-json={results}")
    exit_code = processes.run(_pytest(folder, "bench", options, arguments, schema.JUNIT), cwd=ROOT)
    rows = benchmarks.complete(results, folder.manifest.validation, folder.places)
    _finish_pytest(folder, exit_code, _take(folder, "bench"), options, rows)


def _operator_tests(folder: RunFolder, name: str, target: str, options: Options, marker: str = "") -> list[str]:
    """The command line of the operators' tests on one kind of device, or of those that are marked so."""
    arguments = [*options.pytest_arguments, f"--evidence-target={target}", "-p", "no:cacheprovider"]
    arguments += ["-m", marker] if marker else []
    if not selection.paths(arguments, ROOT):
        arguments.append("tests/ops")
    return _pytest(folder, name, options, arguments, f"junit-{name}.xml")


def _logs(folder: RunFolder, name: str) -> tuple[Path, Path]:
    """Where a memory checker logs the tests and its canary."""
    return folder.path / f"memcheck-{name}.log", folder.path / f"memcheck-{name}-canary.log"


def _scrubbed(folder: RunFolder, log: Path) -> str:
    """A log's text, without absolute paths in the file and here; a tool that never started leaves it empty."""
    log.touch()
    places.scrub_file(log, folder.places)
    log.write_text(log.read_text().replace(f"{folder.path}/", ""))  # results may lie outside the checkout
    return log.read_text()


def _judged(
    name: str, reason: str | None, seen: schema.Observation | None, logs: tuple[Path, Path], caught: str
) -> tuple[schema.Sweep, schema.Observation | None]:
    """A sweep as it goes into the manifest; ``reason`` is what is wrong with it, ``caught`` what shows that it sees."""
    if reason is None and seen is not None and seen.mismatches:
        reason = seen.mismatches[0]
    executed = seen.counts.executed if seen else 0
    sweep = schema.Sweep(
        tool=name,
        passed=reason is None,
        reason=reason or f"{executed} tests clean, {caught}",
        executed=executed,
        log=logs[0].name,
        canary_log=logs[1].name,
    )
    print(f"{name}: {'pass' if sweep.passed else 'FAIL'}: {sweep.reason}", flush=True)
    return sweep, seen


def _sweep(
    tool: memcheck.Tool, checker: sanitizer.Sanitizer, folder: RunFolder, options: Options
) -> tuple[schema.Sweep, schema.Observation | None]:
    """The GPU's marked tests under one tool of compute-sanitizer, and its canary."""
    logs = _logs(folder, tool.name)
    command = _operator_tests(folder, tool.name, selection.GPU, options, "memcheck")  # slow: not all of them
    exit_code = checker.run(tool, logs[0], command, ROOT, _SWEEP_SECONDS)
    seen = _take(folder, tool.name)
    canary_command = [sys.executable, "-m", canary.__name__, tool.fault]
    canary_code = checker.run(tool, logs[1], canary_command, ROOT, _CANARY_SECONDS)
    text, canary_text = (_scrubbed(folder, log) for log in logs)
    executed = seen.counts.executed if seen else 0
    reason = memcheck.judge_sweep(tool, exit_code, text, executed)
    return _judged(
        tool.name, reason or memcheck.judge_canary(tool, canary_code, canary_text), seen, logs, "canary caught"
    )


def _emulated_sweep(folder: RunFolder, options: Options) -> tuple[schema.Sweep, schema.Observation | None]:
    """All of the emulated V100's tests, which its checkers watch, and its canaries."""
    logs = _logs(folder, memcheck.EMULATOR)
    command = _operator_tests(folder, memcheck.EMULATOR, selection.EMULATOR, options)
    exit_code = processes.run(command, cwd=ROOT, timeout_seconds=_SWEEP_SECONDS, log=logs[0])
    seen = _take(folder, memcheck.EMULATOR)
    canary_command = [sys.executable, "-m", canary.__name__, canary.EMULATED]
    canary_code = processes.run(canary_command, cwd=ROOT, timeout_seconds=_CANARY_SECONDS, log=logs[1])
    _, canary_text = (_scrubbed(folder, log) for log in logs)
    executed, launches = (seen.counts.executed, observation.emulated(seen.libraries)) if seen else (0, 0)
    reason = memcheck.judge_emulated_sweep(exit_code, executed, launches)
    reason = reason or memcheck.judge_emulated_canary(canary_code, canary_text)
    caught = f"{launches} launches checked, {len(memcheck.EMULATED_FAULTS)} canaries caught"
    return _judged(memcheck.EMULATOR, reason, seen, logs, caught)


def _memcheck(folder: RunFolder, options: Options) -> None:
    """The four tools of compute-sanitizer, one process each; without a usable GPU the emulator's checkers."""
    lacking = gpu.unusable(gpu.survey())
    if lacking and options.require_gpu:
        _refuse(folder, lacking)
        return
    if lacking:
        folder.update(sanitizer=memcheck.EMULATOR_CHECKS)
        pairs = [_emulated_sweep(folder, options)]
        summary = f"{pairs[0][0].reason} ({memcheck.EMULATOR_CHECKS}); {memcheck.EMULATOR_LIMITS}; "
        summary += f"compute-sanitizer did not run: {lacking}"
    else:
        try:
            checker = sanitizer.find()
        except schema.EvidenceError as error:
            _refuse(folder, str(error))
            return
        folder.update(sanitizer=checker.source)
        pairs = [_sweep(tool, checker, folder, options) for tool in memcheck.TOOLS]
        summary = f"{len(pairs)} tools clean, each caught its canary"
    seen = [observed for _, observed in pairs if observed is not None]
    sweeps = [sweep for sweep, _ in pairs]
    folder.update(sweeps=sweeps, libraries=observation.merge([observed.libraries for observed in seen]))
    if seen:
        schema.write(folder.path / schema.ENVIRONMENT, seen[0].environment)
        schema.write(folder.path / schema.SKIPS, sorted({skip for part in seen for skip in part.skips}, key=str))
    failed = [sweep for sweep in sweeps if not sweep.passed]
    if failed:
        folder.finish("fail", "; ".join(f"{sweep.tool}: {sweep.reason}" for sweep in failed))
    else:
        folder.finish("pass", summary)


def _refuse(folder: RunFolder, reason: str) -> None:
    """Fail before anything ran."""
    schema.write(folder.path / schema.ENVIRONMENT, environment.collect(loaded=False))
    folder.update(libraries=observation.libraries(ROOT))
    folder.finish("fail", reason)


_BODIES: dict[schema.SessionName, Callable[[RunFolder, Options], None]] = {
    "build": _build,
    "test": _test,
    "memcheck": _memcheck,
    "bench": _bench,
}


def run(session: schema.SessionName, options: Options, command: list[str]) -> int:
    """Run a session and return its exit code. Raises EvidenceError when it is refused before it starts."""
    _variables.check()
    validation: dict[str, schema.Validation] = {}
    if session != "build":
        build = built.require_current(ROOT)
        if session in ("memcheck", "bench"):
            current = {operator: entry.sha256 for operator, entry in build.operators.items()}
            validation = validated.judge(options.results, current)
    for operator, verdict in validation.items():
        if options.require_validated and verdict.label != "validated":
            raise schema.EvidenceError(
                f"operator {operator!r} is unvalidated: {verdict.reason}. Run 'scripts/nox -s test' here first"
            )
    try:
        with recorded(session, command, options.results, ROOT) as folder:
            if session != "build":
                folder.update(
                    validation=validation, narrowed=selection.narrows(options.pytest_arguments, ROOT, session)
                )
            _BODIES[session](folder, options)
    except KeyboardInterrupt:
        print(f"{session}: interrupted", file=sys.stderr)
        return _INTERRUPTED
    status, reason = folder.manifest.status, folder.manifest.reason
    shown = folder.path.relative_to(ROOT) if folder.path.is_relative_to(ROOT) else folder.path
    print(f"\n{session}: {status}: {reason}\n{session}: recorded in {shown}", flush=True)
    return _FAIL if status == "fail" else _PASS


@click.command(context_settings={"ignore_unknown_options": True}, help=__doc__)
@click.argument("session", type=click.Choice(sorted(_BODIES)))
@click.option("--results", type=click.Path(path_type=Path), default=ROOT / "results", help="folder of the run folders")
@click.option("--require-gpu", is_flag=True, help="what is not run for lack of a GPU is a failure")
@click.option("--require-validated", is_flag=True, help="refuse DSOs that no passing test run has validated")
@click.argument("pytest_arguments", nargs=-1, type=click.UNPROCESSED)
def main(
    session: schema.SessionName,
    results: Path,
    require_gpu: bool,
    require_validated: bool,
    pytest_arguments: tuple[str, ...],
) -> None:
    """Command line of the sessions; other arguments go to pytest (to the build in the build session)."""
    options = Options(results.resolve(), require_gpu, require_validated, pytest_arguments)
    command = [sys.executable, "-m", "sm70_kernels.evidence", *sys.argv[1:]]
    try:
        sys.exit(run(session, options, command))
    except (schema.EvidenceError, _variables.VariableError) as error:
        print(f"{session}: {error}", file=sys.stderr)
        sys.exit(_REFUSED)
