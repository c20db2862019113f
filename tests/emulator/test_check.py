"""The checkers: each reports its planted fault, and is silent about the same program without it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sm70_kernels import lab
from sm70_kernels.lab import EmulatorError
from sm70_kernels.lab.checkers import CHECKERS, Checks
from sm70_kernels.lab.instruments import InstrumentError

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "checkers.md"

SEEDS = (0, 1, 2, 3)
INPUT = np.arange(256, dtype=np.int32)


def output() -> np.ndarray[Any, Any]:
    return np.zeros(512, np.int32)


@dataclass(frozen=True)
class Pair:
    """Kernels `<name>_bad` and `<name>_good` of faults.cu, and what is reported of the first."""

    name: str
    checker: str
    what: str
    arguments: tuple[Any, ...] = ()
    grid: int = 1
    block: int = 32


PAIRS = (
    Pair("race", "shared_race", "no barrier between this .* and the access by warp", block=128),
    Pair("reuse", "shared_race", "no barrier between this .* and the access by warp", (INPUT,), block=64),
    Pair("warp_race", "shared_race", r"no __syncwarp\(\) between this read and the access by lane 1 at \+0x\w+ STS"),
    Pair("same_store", "shared_race", r"no __syncwarp\(\) between this write and the access by lane 15 at"),
    Pair("halves", "shared_race", "no barrier between this write and the access by warp", block=64),
    Pair("named", "shared_race", "no barrier between this .* and the access by warp", (INPUT,), block=128),
    Pair("barrier", "barrier", "lanes 0xffff of the warp arrive without lanes 0xffff0000", block=64),
    Pair("undefined", "uninitialised", "are stored, global address"),
    Pair("shuffle", "uninitialised", "are stored, global address"),
    Pair("stack", "stack", "access below the stack pointer, 0x", (INPUT,)),
    Pair("blocks", "global_race", "of the grid wrote the same 4 bytes", grid=2),
    Pair("blocks_bytes", "global_race", "of the grid wrote the same 1 bytes", grid=2),
)


def launch(compiled: Any, kernel: str, pair: Pair, seed: int, **options: Any) -> list[Any]:
    """Findings of a launch that goes on to its end."""
    d = output()
    arguments = [*pair.arguments, d]
    with Checks(findings=100, **options) as checks:
        compiled("faults").kernel(kernel).launch(
            pair.grid, pair.block, arguments, outputs=(len(arguments) - 1,), seed=seed, instruments=checks.instruments
        )
        return checks.findings


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_a_planted_fault_is_found_and_its_absence_is_silent(compiled, pair):
    for seed in SEEDS:
        found = [f for f in launch(compiled, f"{pair.name}_bad", pair, seed) if f.checker == pair.checker]
        assert found, f"seed {seed}: not found"
        assert all(re.search(pair.what, finding.what) for finding in found)
        for finding in found:
            assert finding.kernel == f"{pair.name}_bad"
            assert finding.offset % 16 == 0 and finding.sass and 0 <= finding.lane < 32
            assert len(finding.block) == 3 and finding.warp * 32 < pair.block
    for seed in SEEDS:
        assert launch(compiled, f"{pair.name}_good", pair, seed) == []


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_a_checker_that_is_off_is_silent(compiled, pair):
    others = [name for name in CHECKERS if name != pair.checker]
    found = launch(compiled, f"{pair.name}_bad", pair, 0, checkers=others)
    assert pair.checker not in {finding.checker for finding in found}
    only = launch(compiled, f"{pair.name}_bad", pair, 0, checkers=[pair.checker])
    assert {finding.checker for finding in only} == {pair.checker}


def run(
    compiled: Any, kernel: str, mark: Callable[[Checks], None], *arguments: Any, outputs: tuple[int, ...] = (1,)
) -> None:
    """A launch that stops at the first finding, with marks made before."""
    with Checks() as checks:
        mark(checks)
        compiled("faults").kernel(kernel).launch(1, 32, arguments, outputs=outputs, instruments=checks.instruments)
        assert checks.findings == []


def test_a_tail_that_is_selected_away_is_silent_and_times_zero_is_not(compiled):
    x, d = np.ones(32, np.float32), np.zeros(32, np.float32)
    run(compiled, "tail_good", lambda _: None, x, d, np.int32(20))
    with pytest.raises(EmulatorError, match=r"uninitialised: .* are stored, .*'argument 1' at its offset 80 .*lane 20"):
        run(compiled, "tail_bad", lambda _: None, x, d, np.int32(20))


@pytest.mark.parametrize("kind", ["undefined", "tainted"])
def test_bytes_are_told_apart(compiled, kind):
    a, d = torch.zeros(32, dtype=torch.int32), np.zeros(32, np.int32)
    upper = a.view(torch.uint8).view(32, 4)[:, 1:]  # a strided view: three bytes of each word

    def mark(checks: Checks) -> None:
        getattr(checks, kind)(upper)

    run(compiled, "bytes_good", mark, a.numpy(), d)
    words = {
        "undefined": "uninitialised: bytes that nothing has written",
        "tainted": "taint: bytes that must not matter",
    }
    with pytest.raises(EmulatorError, match=words[kind]):
        run(compiled, "bytes_bad", mark, a.numpy(), d)


def test_a_store_cleans_and_the_mark_can_be_taken_back(compiled):
    a, d = torch.arange(32, dtype=torch.int32), np.zeros(32, np.int32)
    with Checks() as checks:
        watching = checks.instruments
        checks.undefined(a)
        for kernel in ("bytes_good", "bytes_bad"):  # both read all of it
            with pytest.raises(EmulatorError):
                compiled("faults").kernel(kernel).launch(1, 32, [a.numpy(), d], outputs=(1,), instruments=watching)
        # It writes half of it.
        compiled("faults").kernel("barrier_good").launch(1, 16, [a.numpy()], outputs=(0,), instruments=watching)
        with pytest.raises(EmulatorError, match="lane 16"):
            compiled("faults").kernel("bytes_bad").launch(1, 32, [a.numpy(), d], outputs=(1,), instruments=watching)
        checks.clean(a)
        compiled("faults").kernel("bytes_bad").launch(1, 32, [a.numpy(), d], outputs=(1,), instruments=watching)


def test_an_undefined_address(compiled):
    with pytest.raises(EmulatorError, match="uninitialised: bytes that nothing has written are used as an address"):
        run(compiled, "address_bad", lambda _: None, np.zeros(2, np.int32), np.zeros(32, np.int32))


def test_a_stack_word_that_was_never_written(compiled):
    with pytest.raises(EmulatorError, match="uninitialised: bytes that nothing has written are stored"):
        run(compiled, "local_bad", lambda _: None, INPUT, output())


def test_taint_reaches_the_elements_of_its_row_only(compiled):
    a = torch.ones(32, 4, dtype=torch.float16)  # lane 0 holds row 0 of the first quad-pair
    b, d = np.ones((32, 4), np.float16), np.zeros(256, np.float32)
    run(compiled, "product_good", lambda checks: checks.tainted(a[0]), a.numpy(), b, d, outputs=(2,))
    assert d.reshape(32, 8)[1:].min() == 0 and d.max() == 4  # the elements of row 0 are left out
    with pytest.raises(EmulatorError, match=r"taint: bytes that must not matter are stored, global .*at its offset 0 "):
        run(compiled, "product_bad", lambda checks: checks.tainted(a[0]), a.numpy(), b, d, outputs=(2,))
    with pytest.raises(EmulatorError, match=r"HMMA.*: uninitialised: .* enter a matrix product as the first factor"):
        run(compiled, "product_good", lambda checks: checks.undefined(a[0]), a.numpy(), b, d, outputs=(2,))


def test_scratch_may_hold_anything(compiled):
    a, scratch, d = (torch.zeros(32, dtype=torch.int32) for _ in range(3))
    with Checks() as checks:
        checks.undefined(a)
        checks.scratch(scratch)
        options: dict[str, Any] = {"outputs": (1,), "instruments": checks.instruments}
        compiled("faults").kernel("bytes_good").launch(1, 32, [a.numpy(), scratch.numpy()], **options)
        checks.undefined(scratch)
        compiled("faults").kernel("copy").launch(1, 32, [a.numpy(), scratch.numpy()], **options)
        with pytest.raises(EmulatorError, match=r"uninitialised: .* are stored"):
            compiled("faults").kernel("copy").launch(1, 32, [scratch.numpy(), d.numpy()], **options)


def test_findings_are_collected_up_to_a_limit(compiled):
    d = output()
    only = ("global_race", "shared_race")
    with Checks(only, findings=10) as checks:
        options: dict[str, Any] = {"outputs": (0,), "instruments": checks.instruments}
        compiled("faults").kernel("blocks_bad").launch(4, 32, [d], threads=1, **options)
        (found,) = checks.findings
        assert found.count == 3  # blocks 1 to 3, all at one instruction
        assert (found.space, found.bytes, found.buffer, found.buffer_offset) == ("global", 4, "argument 0", 0)
        compiled("faults").kernel("race_bad").launch(1, 128, [d], **options)
        assert {(f.checker, f.kernel) for f in checks.findings} == {
            ("global_race", "blocks_bad"),
            ("shared_race", "race_bad"),
        }
        assert checks.report()["launches"] == 2 and checks.report()["checkers"] == ["shared_race", "global_race"]
    with Checks(only, findings=2) as checks:
        options = {"outputs": (0,), "instruments": checks.instruments}
        compiled("faults").kernel("blocks_bad").launch(2, 32, [d], **options)
        with pytest.raises(EmulatorError, match="shared_race"):  # the second stops the launch
            compiled("faults").kernel("race_bad").launch(1, 128, [d], **options)
        assert [finding.checker for finding in checks.findings] == list(only)


@pytest.mark.parametrize(
    ("kernel", "arguments", "checker"),
    [("stray_store", (np.zeros(4, np.int32), np.int32(9)), "bounds"), ("lonely_barrier", (), "deadlock")],
)
def test_what_stops_a_launch_is_in_the_report_too(compiled, kernel, arguments, checker):
    with Checks() as checks:
        with pytest.raises(EmulatorError) as stopped:
            compiled("memory").kernel(kernel).launch(
                1, 64, arguments, outputs=range(len(arguments[:1])), instruments=checks.instruments
            )
        (finding,) = checks.findings
        assert (finding.checker, finding.kernel, finding.what) == (checker, kernel, str(stopped.value))


def test_what_checks_refuse():
    with pytest.raises(InstrumentError, match=r"checker 'luck', want some of uninitialised, taint, .*stack"):
        Checks(("taint", "luck"))
    with pytest.raises(InstrumentError, match="findings '-1', want a whole number"):
        Checks(findings=-1)
    with (
        Checks() as checks,
        pytest.raises(InstrumentError, match="got 'holy', want undefined, tainted, clean or scratch"),
    ):
        checks.instruments.mark("check", 4096, 16, "holy")
    with Checks() as checks, pytest.raises(ValueError, match="got a tensor on meta, want one on the CPU"):
        checks.tainted(torch.empty(3, device="meta"))


def test_marks_follow_any_strides():
    from sm70_kernels.lab.checkers import _runs

    base = torch.zeros(4, 6, 8, dtype=torch.float16)
    for view in (
        base,
        base[1:, ::2],
        base.permute(2, 0, 1)[::3],
        base[..., 3:5].transpose(0, 1),
        base[:, 0],
        base[0, 0, 0],
    ):
        covered = {byte for address, size in _runs(view) for byte in range(address, address + size)}
        base.zero_()
        view.fill_(1)
        elements = base.flatten().nonzero().flatten().tolist()
        assert covered == {base.data_ptr() + 2 * e + i for e in elements for i in range(2)}


def test_the_document_s_example(tmp_path):
    (source,) = re.findall(r"```cuda\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    (printed,) = re.findall(r"```text\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    again = "        sum += tile[63 - threadIdx.x];\n"
    assert again in source
    x, sums = np.arange(256, dtype=np.int32), np.zeros(64, np.int32)
    for name, text in (("bad", source), ("good", source.replace(again, again + "        __syncthreads();\n"))):
        program = lab.compile_source(text)
        with Checks() as checks:
            options: dict[str, Any] = {"outputs": (1,), "instruments": checks.instruments}
            if name == "good":
                program.kernel("reversed_sums").launch(1, 64, [x, sums, np.int32(4)], **options)
                assert np.array_equal(sums, x.reshape(4, 64).sum(0)[::-1])
                continue
            with pytest.raises(EmulatorError) as report:
                program.kernel("reversed_sums").launch(1, 64, [x, sums, np.int32(4)], **options)
            said = re.sub(r"[^ (]*/kernel\.cu", "kernel.cu", str(report.value))  # NVRTC's name, in a folder of its own
            assert said == " ".join(printed.split())
