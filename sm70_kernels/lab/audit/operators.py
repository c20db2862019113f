"""The operators of a checkout, as they lie built in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from sm70_kernels.build import graph
from sm70_kernels.build.settings import ROOT, operators
from sm70_kernels.evidence.binaries import built
from sm70_kernels.evidence.runs.schema import EvidenceError, Record
from sm70_kernels.lab.audit import budget as budgets
from sm70_kernels.lab.audit.facts import KernelFacts, Launch, kernel_facts


class Audit(Record, kw_only=True, frozen=True):
    """An operator's facts, and what is beyond its budget."""

    operator: str
    kernels: dict[str, KernelFacts]
    findings: list[budgets.Finding]
    remedy: str | None
    """What to do about the findings."""


def budget_path(operator: str, root: Path = ROOT) -> Path:
    """Where an operator's budget lies."""
    return root / "csrc" / "ops" / operator / budgets.NAME


def known(root: Path = ROOT) -> list[str]:
    """Operators of the checkout. Raises EvidenceError outside one, and where they are not built as they are."""
    if not (root / "csrc" / "ops").is_dir():
        raise EvidenceError(
            "the audit needs a checkout with its build: an installed wheel has neither sources nor budgets"
        )
    built.require_current(root)
    return operators(root / "csrc")


def _module(operator: str, root: Path) -> Any:
    from sm70_kernels import _emulator

    folder = root / graph.operator_folder(operator)
    try:
        return _emulator.Module((folder / "kernel.cubin").read_bytes(), (folder / "kernel.sass").read_text())
    except OSError as error:
        raise EvidenceError(f"{error.filename} is missing. {built.REMEDY}") from error


def declared(budget: budgets.Budget | None) -> dict[str, list[Launch]]:
    """Kernel -> launches that a budget declares."""
    return {name: kernel.launches for name, kernel in budget.kernels.items()} if budget else {}


def watched_launches(path: Path) -> dict[str, list[Launch]]:
    """Kernel -> launches that were watched: from what ``sm70-kernels statistics --json`` printed.

    Raises:
        BudgetError: the file holds something else.
    """
    try:
        kernels = msgspec.json.decode(path.read_bytes(), type=_Watched).kernels
    except (OSError, msgspec.MsgspecError) as error:
        raise budgets.BudgetError(
            f"{path} is not what 'sm70-kernels statistics --json' prints ({error}). Print it into a file"
        ) from error
    return {
        name: [Launch(block=threads, dynamic_shared_bytes=shared) for threads, shared, _ in kernel.shapes]
        for name, kernel in kernels.items()
    }


class _WatchedKernel(msgspec.Struct):
    shapes: list[tuple[int, int, int]]


class _Watched(msgspec.Struct):
    kernels: dict[str, _WatchedKernel]


def operator_facts(
    operator: str, launches: Mapping[str, Sequence[Launch]], root: Path = ROOT
) -> dict[str, KernelFacts]:
    """Facts of every kernel of an operator, for these launches of them."""
    module = _module(operator, root)
    resources = built.read(root).operators[operator].kernels
    facts = {}
    for kernel in sorted(module.kernels()):
        used = resources.get(kernel, {})
        spilled = used.get("spill_store_bytes", 0) + used.get("spill_load_bytes", 0)
        facts[kernel] = kernel_facts(module, kernel, launches.get(kernel, ()), spill_bytes=spilled)
    return facts


def audit(operator: str, root: Path = ROOT) -> Audit:
    """Read an operator's machine code and hold it against its budget. Raises BudgetError, EvidenceError."""
    budget = budgets.read(budget_path(operator, root))
    facts = operator_facts(operator, declared(budget), root)
    if budget is None:
        missing = budgets.Finding(
            kernel=operator, what="budget", found="none", limit="a file in csrc/ops, for every operator"
        )
        remedy = (
            f"Write it: {budgets.write_command(operator, because=False)}, with --launches, or with the launches of "
            "op.cpp put into it by hand and written again; and commit it"
        )
        return Audit(operator=operator, kernels=facts, findings=[missing], remedy=remedy)
    findings = budgets.check(facts, budget)
    remedy = (
        f"Win it back; or, if it is worth it, raise the budget on purpose: {budgets.write_command(operator)}, and "
        f"commit csrc/ops/{operator}/{budgets.NAME}"
    )
    return Audit(operator=operator, kernels=facts, findings=findings, remedy=remedy if findings else None)


def write_budget(
    operator: str, because: str | None, watched: Mapping[str, list[Launch]] | None = None, root: Path = ROOT
) -> Path:
    """Write an operator's budget from what is built, for other launches where ``watched`` has them.

    Raises:
        BudgetError: it gets worse, and there is no reason.
    """
    path = budget_path(operator, root)
    old = budgets.read(path)
    facts = operator_facts(operator, declared(old), root)
    now = operator_facts(operator, {**declared(old), **watched}, root) if watched else facts
    budgets.write(path, budgets.renew(facts, old, because, now))
    return path
