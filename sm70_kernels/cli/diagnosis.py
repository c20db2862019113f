"""One finding of ``doctor``."""

from __future__ import annotations

from typing import Literal

from sm70_kernels.evidence.runs.schema import Record


class Check(Record, kw_only=True, frozen=True):
    """What was looked at, what was found, and what to do about it. A note leaves the installation usable."""

    name: str
    status: Literal["ok", "note", "problem"]
    found: str
    remedy: str | None = None


def ok(name: str, found: str) -> Check:
    """A finding as it should be."""
    return Check(name=name, status="ok", found=found)


def note(name: str, found: str, remedy: str | None) -> Check:
    """Worth knowing, no obstacle."""
    return Check(name=name, status="note", found=found, remedy=remedy)


def problem(name: str, found: str, remedy: str) -> Check:
    """An obstacle, with the way out."""
    return Check(name=name, status="problem", found=found, remedy=remedy)
