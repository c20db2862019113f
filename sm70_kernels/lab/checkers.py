"""The emulator's checkers: uninitialised data, taint, races, barrier divergence, stack misuse.

    with Checks() as checks, sm70_kernels.lab.emulator.enabled(instruments=checks.instruments):
        checks.undefined(out)  # nothing has written it yet
        checks.tainted(cache[:, live:])  # its bytes must not matter
        ...

Without options the first finding stops the launch with a RuntimeError; ``docs/checkers.md`` says how to read it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sm70_kernels.lab.instruments import Instruments

if TYPE_CHECKING:
    from torch import Tensor

#: What can be asked for; bounds, alignment and write permission are checked always.
CHECKERS = ("uninitialised", "taint", "shared_race", "barrier", "global_race", "stack")


@dataclass(frozen=True)
class Finding:
    """What a checker found."""

    checker: str
    """One of CHECKERS; or ``bounds``, ``alignment``, ``permission``, ``deadlock``, ``error``: what else can stop it."""
    kernel: str
    what: str
    count: int
    """How often the same instruction was found again."""
    offset: int | None = None
    sass: str = ""
    source: str = ""
    block: tuple[int, int, int] | None = None
    warp: int | None = None
    lane: int | None = None
    space: str = ""
    address: int | None = None
    bytes: int | None = None
    buffer: str = ""
    buffer_offset: int | None = None

    def __str__(self) -> str:
        """A sentence with the place: ``kernel+0xoffset: SASS: what [block, warp, lane, source]``."""
        if self.offset is None:  # what stopped the launch says all of it
            return self.what
        thread = [f"block ({','.join(map(str, self.block))})"] if self.block else []
        thread += [
            f"{name} {number}" for name, number in (("warp", self.warp), ("lane", self.lane)) if number is not None
        ]
        thread += [self.source] if self.source else []
        again = f", {self.count} times" if self.count > 1 else ""
        place = f" [{', '.join(thread)}]" if thread else ""
        return f"{self.kernel}+{self.offset:#x}: {self.sass}: {self.what}{again}{place}"


def check_instruments(checkers: Sequence[str], findings: int) -> Instruments:
    """The instrument ``check`` alone. Raises InstrumentError: no such checker."""
    return Instruments(check={"checkers": ",".join(checkers), "findings": findings})


def read_findings(instruments: Instruments) -> tuple[Finding, ...]:
    """What was found so far, the one that stopped a launch included."""
    return tuple(
        Finding(**{**finding, "block": tuple(finding["block"]) if "block" in finding else None})
        for finding in instruments.report("check")["findings"]
    )


def _runs(tensor: Tensor) -> Iterator[tuple[int, int]]:
    """Address and size of each contiguous run of a CPU tensor's bytes, whatever its strides."""
    dimensions = sorted(
        ((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1), reverse=True
    )
    run = tensor.element_size()
    while dimensions and dimensions[-1][0] * tensor.element_size() == run:
        run *= dimensions.pop()[1]
    offsets = [0]
    for stride, size in dimensions:
        step = stride * tensor.element_size()
        offsets = [offset + i * step for offset in offsets for i in range(size)]
    for offset in offsets:
        yield tensor.data_ptr() + offset, run


class Checks:
    """The instrument ``check`` and the tensors that it was told about, which it keeps alive until it is closed."""

    def __init__(self, checkers: Sequence[str] = CHECKERS, *, findings: int = 0) -> None:
        """Watch with these checkers.

        Args:
            checkers: some of CHECKERS.
            findings: how many to collect before a launch is stopped; with 0 the first stops it.

        Raises:
            InstrumentError: no such checker.
        """
        self.instruments = check_instruments(checkers, findings)
        # An address that torch gave to another tensor would carry the marks of the first.
        self._kept: list[Tensor] = []

    def _mark(self, tensor: Tensor, what: str) -> None:
        if tensor.device.type != "cpu":
            raise ValueError(
                f"checks: argument 'tensor': got a tensor on {tensor.device}, want one on the CPU. "
                "Only what the emulator runs on is checked"
            )
        if tensor.numel() == 0:
            return
        self._kept.append(tensor.detach())
        for address, size in _runs(tensor):
            self.instruments.mark("check", address, size, what)

    def undefined(self, *tensors: Tensor) -> None:
        """Nothing has written these elements: a kernel that uses them before it writes them is reported."""
        for tensor in tensors:
            self._mark(tensor, "undefined")

    def tainted(self, *tensors: Tensor) -> None:
        """These elements must not matter: a kernel may load them, but no result and no branch may depend on them."""
        for tensor in tensors:
            self._mark(tensor, "tainted")

    def clean(self, *tensors: Tensor) -> None:
        """Take marks back: the host has written these elements."""
        for tensor in tensors:
            self._mark(tensor, "clean")

    def scratch(self, *tensors: Tensor) -> None:
        """These may hold anything: storing undefined or tainted bytes there is a copy, and is not reported."""
        for tensor in tensors:
            self._mark(tensor, "scratch")

    def report(self) -> dict[str, Any]:
        """What the instrument says, decoded from its JSON."""
        report: dict[str, Any] = self.instruments.report("check")
        return report

    @property
    def findings(self) -> list[Finding]:
        """What was found so far, the one that stopped a launch included."""
        return list(read_findings(self.instruments))

    def close(self) -> None:
        """Free the shadow. Launches must be over."""
        self.instruments.close()
        self._kept.clear()

    def __enter__(self) -> Checks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
