"""How what is known about bytes moves with the data: whatever changes when marked bytes change must be reported, and
where rules are exact, nothing else."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sm70_kernels.lab.checkers import Checks

EMULATOR = Path(__file__).resolve().parents[2] / "csrc" / "emulator"
TRIALS, VARIANTS = 60, 6
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True)
class Case:
    """A kernel of one thread that computes many functions of few inputs; sizes in bytes."""

    program: str
    kernel: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    takes_count: bool = True


CASES = (
    Case("arithmetic", "integer", (4, 4, 4), (23 * 4,)),
    Case("arithmetic", "wide", (8, 8), (12 * 8,)),
    Case("arithmetic", "float_basic", (4, 4, 4), (15 * 4,)),
    Case("arithmetic", "float_directed", (4, 4, 4), (15 * 4,)),
    Case("arithmetic", "special", (4,), (12 * 4,)),
    Case("arithmetic", "half_pairs", (4, 4, 4), (7 * 4, 4)),
    Case("arithmetic", "doubles", (8, 8, 8), (8 * 8,)),
    Case("conversion", "floats", (4,), (5 * 4, 2 * 8, 4 * 2, 8)),
    Case("conversion", "integers", (4, 8), (8 * 4, 2 * 8)),
    Case("conversion", "halves", (2,), (4,)),
    Case("conversion", "narrowing", (8,), (4, 4, 8)),
    Case("conversion", "e4m3", (4,), (8,)),
    Case("intrinsics", "library", (33 * 4,), (352 * 4,), takes_count=False),
    Case("intrinsics", "half_functions", (33 * 4,), (320 * 4,), takes_count=False),
)


def buffers(sizes: tuple[int, ...]) -> list[Bytes]:
    """Aligned, with room for what a count that was guessed too low would still write."""
    return [np.zeros((size + 127) // 16 * 16, np.uint8) for size in sizes]


class Runner:
    """Launches of a case."""

    def __init__(self, compiled: Any, case: Case) -> None:
        self.program, self.case = compiled(case.program), case

    def outputs(self, inputs: list[Bytes], **options: Any) -> Bytes:
        """All output bytes of a launch."""
        case = self.case
        results = buffers(case.outputs)
        written = tuple(range(len(inputs), len(inputs) + len(results)))
        count = [np.int32(1)] if case.takes_count else []
        self.program.kernel(case.kernel).launch(
            1, 1, [*inputs, *results, *count], outputs=written, threads=1, **options
        )
        return np.concatenate(results)

    def flagged(self, inputs: list[Bytes], marked: list[Bytes], kind: str) -> tuple[Bytes, bool]:
        """Output bytes that are reported when these input bytes are marked, and whether a decision was."""
        places = np.cumsum([0, *(len(buffer) for buffer in buffers(self.case.outputs))])
        with Checks(("uninitialised", "taint"), findings=10_000) as checks:
            for data, mask in zip(inputs, marked, strict=True):
                tensor = torch.from_numpy(data)
                for at in np.flatnonzero(mask):
                    getattr(checks, kind)(tensor[at : at + 1])
            size = len(self.outputs(inputs, instruments=checks.instruments))
            findings = checks.findings
        reported = np.zeros(size, np.uint8)
        for finding in findings:
            if finding.buffer:
                first = places[int(finding.buffer.removeprefix("argument ")) - len(inputs)] + finding.buffer_offset
                reported[first : first + finding.bytes] = 1
        return reported, any(not finding.buffer for finding in findings)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kernel)
def test_what_depends_on_a_marked_byte_is_reported(compiled, case):
    rng, runner = np.random.default_rng(11), Runner(compiled, case)
    changed_somewhere = 0
    for trial in range(TRIALS):
        inputs = buffers(case.inputs)
        for data, size in zip(inputs, case.inputs, strict=True):
            data[:size] = rng.integers(0, 256, size)
            if trial % 3 == 0:  # small numbers: counts, shifts, and what floats are like near one
                data[:size].view(np.uint8)[:] = np.resize([rng.integers(0, 64), 0, 128, 63], size)
        marked = [np.zeros(len(data), np.uint8) for data in inputs]
        for mask, size in zip(marked, case.inputs, strict=True):
            mask[:size] = rng.random(size) < rng.choice([0.0, 0.3, 1.0])
        normal = runner.outputs(inputs)
        differing = np.zeros(len(normal), bool)
        for _ in range(VARIANTS):
            varied = [
                np.where(mask, rng.integers(0, 256, len(data)), data).astype(np.uint8)
                for data, mask in zip(inputs, marked, strict=True)
            ]
            differing |= runner.outputs(varied) != normal
        reported, decided = runner.flagged(inputs, marked, ("undefined", "tainted")[trial % 2])
        if not decided:  # a branch on marked bytes is reported itself, and all that follows may depend on it
            assert not (differing & (reported == 0)).any(), (trial, np.flatnonzero(differing & (reported == 0)))
        assert any(mask.any() for mask in marked) or not reported.any()
        changed_somewhere += int(differing.any())
    assert changed_somewhere > TRIALS // 3


LAYOUTS = [f"{kind}_{a}_{b}" for kind in ("single", "half") for a in ("row", "col") for b in ("row", "col")]


@pytest.mark.parametrize("kernel", LAYOUTS)
def test_a_matrix_product_is_tainted_element_by_element(compiled, kernel):
    rng, words = np.random.default_rng(5), 8 if kernel.startswith("single") else 4
    for trial in range(12):
        fragments = [rng.uniform(0.5, 2.0, (32, 4)).astype(np.float16) for _ in range(2)]
        addend = rng.uniform(0.5, 2.0, (32, 16 if words == 8 else 8)).astype(np.float16)
        addend = addend.view(np.float16).astype(np.float32)[:, :8].copy() if words == 8 else addend
        marks = [
            (int(rng.integers(0, 2)), int(rng.integers(0, 32)), int(rng.integers(0, 4))) for _ in range(1 + trial % 3)
        ]

        def product(a: Any, b: Any, addend: Any = addend, **options: Any) -> Any:
            c = addend.copy()
            compiled("tensor").kernel(kernel).launch(1, 32, [a, b, c], outputs=(2,), **options)
            return c.view(np.uint32).reshape(32, words)

        normal = product(*fragments)
        differing = np.zeros((32, words), bool)
        for scale in (0.25, 3.0):
            varied = [fragment.copy() for fragment in fragments]
            for which, lane, element in marks:
                varied[which][lane, element] *= np.float16(scale)
            differing |= product(*varied) != normal
        with Checks(("taint",), findings=100) as checks:
            for which, lane, element in marks:
                checks.tainted(torch.from_numpy(fragments[which])[lane, element])
            product(*fragments, instruments=checks.instruments)
            # One finding for each word of a lane's result, as each has a store of its own; it counts lanes.
            assert {finding.bytes for finding in checks.findings} <= {4}
            counts = {finding.buffer_offset // 4 % words: finding.count for finding in checks.findings}
        lanes = differing.sum(0).tolist()
        assert counts == {word: count for word, count in enumerate(lanes) if count}


def test_exact_rules_report_no_more_than_changes(compiled):
    """Permutes, shifts by known amounts, logic and selection: of a word whose upper half is marked."""
    rng = np.random.default_rng(2)
    runner = Runner(compiled, Case("faults", "exact", (4, 4), (12 * 4,), takes_count=False))
    for trial in range(40):
        inputs = buffers((4, 4))
        for data in inputs:
            data[:4] = rng.integers(0, 256, 4)
        marked = [np.zeros(len(data), np.uint8) for data in inputs]
        marked[0][2:4] = 1
        reported, decided = runner.flagged(inputs, marked, ("undefined", "tainted")[trial % 2])
        assert not decided
        # exact() says which of its results depend on the upper half of its first input.
        assert reported[:48].reshape(12, 4).any(1).tolist() == [i % 2 == 1 for i in range(12)]


def test_every_opcode_has_a_flow():
    entry = re.compile(r'\{"([A-Z0-9]+)", (?:bind_|[a-z])')
    sources = [*EMULATOR.glob("families/*.inl"), *EMULATOR.glob("*.cpp")]
    opcodes = {name for path in sources for name in re.findall(r'\{"([A-Z0-9]+)", bind_', path.read_text())}
    flows = entry.findall((EMULATOR.parent / "instruments" / "check" / "flow.cpp").read_text())
    assert len(opcodes) > 70 and sorted(flows) == sorted(opcodes)
