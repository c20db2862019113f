"""A kernel that can be launched and estimated."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sm70_kernels.lab import launch as launches
from sm70_kernels.lab import names
from sm70_kernels.lab.arguments import Argument, Array, Named, Parameter, pack
from sm70_kernels.lab.checkers import CHECKERS, Finding, check_instruments, read_findings
from sm70_kernels.lab.cycle_model.model import CLOCKS_MHZ, Estimate
from sm70_kernels.lab.errors import EmulatorError, LabError
from sm70_kernels.lab.instruments import Instruments
from sm70_kernels.lab.launch import Extent, Inputs, PreparedLaunch, Rounding
from sm70_kernels.lab.report import Report, estimate_launch

if TYPE_CHECKING:
    from sm70_kernels.lab.module import Module


def _check_checkers(checkers: Sequence[str], marks: Mapping[str, Collection[int | str]], instruments: object) -> None:
    if strangers := [name for name in checkers if name not in CHECKERS]:
        raise LabError(
            f"launch: argument 'checkers': got {strangers[0]!r}, want some of {', '.join(CHECKERS)}. "
            "Pass lab.ALL for all of them"
        )
    if checkers and instruments is not None:
        raise LabError(
            "launch: arguments 'checkers' and 'instruments': got both, want one. Add 'check' to the instruments"
        )
    for name, places in marks.items():
        if places and not checkers:
            raise LabError(f"launch: argument {name!r}: got {places!r} without checkers. Pass checkers=lab.ALL")


@dataclass(frozen=True)
class Kernel:
    """A kernel of a module."""

    module: Module = field(repr=False)
    name: str
    """As the cubin has it."""
    facts: dict[str, Any] = field(repr=False)
    """Registers, shared and stack bytes, parameters: what the cubin says."""

    @property
    def signature(self) -> str:
        """The C++ signature."""
        return names.demangle(self.name)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Place and size of each parameter."""
        return tuple(Parameter(entry["offset"], entry["size"]) for entry in self.facts["parameters"])

    @property
    def registers(self) -> int:
        """Registers of a thread."""
        return int(self.facts["registers"])

    @property
    def static_shared_bytes(self) -> int:
        """Shared memory that the kernel declares with a size."""
        return int(self.facts["static_shared_bytes"])

    @property
    def unsupported(self) -> list[str]:
        """Instructions that the emulator does not implement, each with the reason."""
        return list(self.module.code.unsupported(self.name))

    def _prepare(
        self,
        grid: Extent,
        block: Extent,
        args: Named,
        *,
        outputs: Collection[int | str] | None,
        reachable: Sequence[Array],
        dynamic_shared_bytes: int,
        blocks: Sequence[int] | None = None,
        seed: int = 0,
        threads: int | None = None,
        tensor_rounding: Rounding = "truncate",
        instruction_limit: int | None = None,
    ) -> PreparedLaunch:
        launches.check_settings(
            tensor_rounding=tensor_rounding, seed=seed, threads=threads, instruction_limit=instruction_limit
        )
        grid_extent, block_extent = launches.grid_and_block(grid, block)
        launches.check_block(block_extent, int(self.facts["max_threads"]))
        launches.check_shared(self.static_shared_bytes, dynamic_shared_bytes)
        written = None if outputs is None else args.positions("outputs", outputs)
        packed = pack(self.signature, self.parameters, args, outputs=written, reachable=reachable)
        return PreparedLaunch(
            module=self.module,
            kernel=self.name,
            grid=grid_extent,
            block=block_extent,
            packed=packed,
            dynamic_shared_bytes=dynamic_shared_bytes,
            blocks=None if blocks is None else tuple(blocks),
            seed=seed,
            threads=threads or 0,
            tensor_rounding=tensor_rounding,
            instruction_limit=instruction_limit or 0,
        )

    def launch(
        self,
        grid: Extent,
        block: Extent,
        args: Sequence[Argument] | Mapping[str, Argument] = (),
        *,
        outputs: Collection[int | str] | None = None,
        reachable: Sequence[Array] = (),
        dynamic_shared_bytes: int = 0,
        checkers: Sequence[str] = (),
        undefined: Collection[int | str] = (),
        tainted: Collection[int | str] = (),
        max_findings: int = 100,
        instruments: Instruments | None = None,
        blocks: Sequence[int] | None = None,
        seed: int = 0,
        threads: int | None = None,
        tensor_rounding: Rounding = "truncate",
        instruction_limit: int | None = None,
        keep_inputs: bool = True,
    ) -> Report:
        """Run the kernel on arrays in host memory; they hold its results afterwards.

        Every access must lie in one of the arrays. The first that does not, and anything else that is always checked,
        stops the launch: with checkers it is a finding of the report, without it is an EmulatorError.

        Args:
            grid: blocks, one to three numbers.
            block: threads of a block, one to three numbers.
            args: one per parameter, in order; a dict gives them names for reports. Contiguous numpy arrays and torch
                tensors on the CPU are passed as pointers; numpy scalars, bytes and ctypes structures by value; None as
                a null pointer.
            outputs: the arrays that the kernel may write, by position or name; all unless given.
            reachable: arrays that the kernel reaches through pointers in a structure or in another array.
            dynamic_shared_bytes: what ``extern __shared__`` gets.
            checkers: some of ``lab.ALL``: uninitialised, taint, shared_race, barrier, global_race, stack.
            undefined: arrays that nothing has written yet; the kernel must not use what is in them.
            tainted: arrays whose contents must not reach a result.
            max_findings: findings after which a launch is stopped.
            instruments: watch this launch, instead of checkers.
            blocks: run only these, by their linear index.
            seed: shuffles the order of blocks and warps, reproducibly; 0 keeps the natural order.
            threads: worker threads; one per processor unless given.
            tensor_rounding: ``truncate`` is Volta's tensor core, ``nearest`` shows what truncation does.
            instruction_limit: warp instructions after which a block is taken to hang.
            keep_inputs: copy what the launch may write, so that the report can run it again.

        Raises:
            LabError: an argument is not what the kernel or a V100 takes; nothing ran.
            EmulatorError: an instruction is not implemented, and nothing ran; or a fault stopped a launch that had no
                checkers.
        """
        named = Named.of(args)
        _check_checkers(checkers, {"undefined": undefined, "tainted": tainted}, instruments)
        prepared = self._prepare(
            grid,
            block,
            named,
            outputs=outputs,
            reachable=reachable,
            dynamic_shared_bytes=dynamic_shared_bytes,
            blocks=blocks,
            seed=seed,
            threads=threads,
            tensor_rounding=tensor_rounding,
            instruction_limit=instruction_limit,
        )
        marks = {
            what: named.positions(what, places) for what, places in (("undefined", undefined), ("tainted", tainted))
        }
        inputs = Inputs(prepared) if keep_inputs else None
        done: dict[str, Any] = {}
        findings: tuple[Finding, ...] = ()
        stopped = None
        with ExitStack() as stack:
            if checkers:
                instruments = stack.enter_context(check_instruments(checkers, max_findings))
                _mark(instruments, prepared, marks)
            try:
                done = prepared.run(instruments)
            except EmulatorError as error:
                stopped = str(error)
                if checkers and instruments is not None:
                    findings = read_findings(instruments)
                if not findings:
                    raise
            else:
                findings = read_findings(instruments) if checkers and instruments is not None else ()
        return Report(launch=prepared, inputs=inputs, findings=findings, stopped=stopped, **done)

    def estimate(
        self,
        grid: Extent,
        block: Extent,
        args: Sequence[Argument] | Mapping[str, Argument] = (),
        *,
        outputs: Collection[int | str] | None = None,
        reachable: Sequence[Array] = (),
        dynamic_shared_bytes: int = 0,
        board: str = "v100-sxm2",
        clocks_mhz: Sequence[float] = CLOCKS_MHZ,
        whole_blocks: int | None = None,
        threads: int | None = None,
        **changes: float,
    ) -> Estimate:
        """What a launch would take on a V100, by the cycle model, without running all of it first.

        Only some blocks run, and the arrays hold what those wrote. Arguments are those of ``launch`` and of
        :func:`sm70_kernels.lab.cycle_model.estimate`.

        Raises:
            LabError: an argument is not what the kernel or a V100 takes; nothing ran.
            EmulatorError: an instruction is not implemented, or a fault stopped the launch.
            sm70_kernels.lab.instruments.InstrumentError: no such board or parameter.
        """
        prepared = self._prepare(
            grid,
            block,
            Named.of(args),
            outputs=outputs,
            reachable=reachable,
            dynamic_shared_bytes=dynamic_shared_bytes,
            threads=threads,
        )
        return estimate_launch(prepared, board=board, clocks_mhz=clocks_mhz, whole_blocks=whole_blocks, changes=changes)


def _mark(instruments: Instruments, prepared: PreparedLaunch, marks: Mapping[str, Collection[int]]) -> None:
    for what, positions in marks.items():
        for buffer in prepared.packed.buffers:
            if buffer.position in positions:
                instruments.mark("check", buffer.address, buffer.size, what)
