"""Every opcode form of the shipped cubins is executed by a conformance test."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.corpus import coverage
from tests.corpus.forms import form

REPORT = Path(__file__).resolve().parents[2] / "build" / "opcode_forms.md"


def test_every_shipped_form_is_executed():
    forms, tests = coverage.shipped(), coverage.tests_by_form()
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(coverage.report(forms, tests, {}))
    uncovered = {
        name: sorted({occurrence.kernel for occurrence in found})[0]
        for name, found in forms.items()
        if not tests.get(name)
    }
    assert not uncovered, (
        "no conformance test executes these forms (see CONTRIBUTING.md, a form in the corpus):\n"
        + "\n".join(f"{name}    as in {kernel}" for name, kernel in sorted(uncovered.items()))
    )


def test_a_missing_form_is_reported():
    somewhere = Counter({coverage.Occurrence("decode", "a_kernel"): 3})
    forms = {"FADD R, R, R": somewhere, "TEX R": somewhere, "FMUL R, R, I": somewhere}
    text = coverage.report(forms, {"FADD R, R, R": {"test_a"}}, {"TEX R": {"test_b", "test_c"}})
    assert "1 executed by conformance tests" in text
    assert "- `TEX R`: only by 2 operator tests, as test_b" in text
    assert "- `FMUL R, R, I`: by none" in text
    assert "| `FADD R, R, R` | decode | 3 | test_a |" in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("@!P0 FADD.FTZ R1, -|R2.reuse|, c[0x0][0x160]", "FADD.FTZ R, -|R|, c0"),
        ("HFMA2 R0, R1.H0_H0, -c[0x0] [0x16c].H1_H1, 1, 1", "HFMA2 R, R.H0_H0, -c0.H1_H1, I, I"),
        ("LDG.E.128.SYS R4, [R2+-0x10]", "LDG.E.128.SYS R, [R]"),
        ("LDS.U R4, [R2.X4+0x10]", "LDS.U R, [R.X4]"),
        ("STS [0x40], RZ", "STS [I], R"),
        ('@P1 BRA !P2, `(.L_x_3) (*"BRANCH_TARGETS .L_x_3"*)', "BRA !P, L"),
        ("FMNMX R1, R2, +INF , !PT", "FMNMX R, R, I, !PT"),
        ("S2R R0, SR_TID.X", "S2R R, SR_TID.X"),
        ("BSSY B0, `(.L_x_1)", "BSSY B, L"),
        ("LDC R2, c[0x0][R3+0x10]", "LDC R, c0[R]"),
        ("I2F.U8 R2, R3.B1", "I2F.U8 R, R.B1"),
        ("EXIT", "EXIT"),
    ],
)
def test_forms(text, expected):
    assert form(text) == expected
