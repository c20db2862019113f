"""Arithmetic of single and half precision: roundings, flushing, saturation; signs, magnitudes and halves of operands."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.corpus.lines import Lines, Values
from tests.random_programs import exact
from tests.random_programs.values import bits_of

Take = Callable[[Values], np.ndarray]

#: Ways to write a single-precision operand, and its value.
SINGLES: dict[str, Take] = {"{x}": lambda v: v.x, "{y}": lambda v: v.y, "{z}": lambda v: v.z, "{f}": lambda v: v.f}
IMMEDIATE = "0fBFA00000"  # -1.25
SINGLES[IMMEDIATE] = lambda v: np.full_like(v.x, -1.25)

#: What stands before an operand: PTX instructions, and what they do.
SIGNS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "": lambda x: x, "neg": np.negative, "abs": np.abs, "abs neg": lambda x: -np.abs(x),
}  # fmt: skip


def signed_operand(text: str, sign: str, scratch: str, kind: str = "f32") -> tuple[str, str]:
    """PTX that prepares an operand, and the operand: ptxas makes one of them."""
    prepare = ""
    for word in sign.split():
        prepare += f"{word}.{kind} {{{scratch}}}, {text}; "
        text = f"{{{scratch}}}"
    return prepare, text


#: Modifiers of PTX, and how the result follows from the rounding of exact values.
MODES = {
    ".rn": ("rn", False, False), ".rz": ("rz", False, False), ".rm": ("rm", False, False), ".rp": ("rp", False, False),
    ".rn.ftz": ("rn", True, False), ".rz.ftz": ("rz", True, False), ".rn.sat": ("rn", False, True),
    ".rn.ftz.sat": ("rn", True, True),
}  # fmt: skip


def moded(function: Callable[..., np.ndarray], mode: str) -> Callable[..., np.ndarray]:
    """The operation under a mode, as bits."""
    rounding, ftz, saturates = MODES[mode]

    def compute(*operands: np.ndarray) -> np.ndarray:
        if ftz:
            operands = tuple(map(exact.flush, operands))
        result = function(*operands, rounding=rounding)
        result = exact.flush(result) if ftz else result
        return bits_of(exact.saturate(result) if saturates else result)

    return compute


def singles() -> Lines:
    """FADD, FMUL, FFMA."""
    lines = Lines("single_arithmetic")
    for mode in MODES:
        for name, function in (("add", exact.add), ("mul", exact.multiply)):
            for second in ("{y}", "{f}", IMMEDIATE):
                for sign_a, change_a in SIGNS.items():
                    for sign_b, change_b in SIGNS.items():
                        first_text, first = signed_operand("{x}", sign_a, "t0")
                        second_text, other = signed_operand(second, sign_b, "t1")
                        lines.add(
                            f"{first_text}{second_text}{name}{mode}.f32 {{d}}, {first}, {other};",
                            lambda v, f=moded(function, mode), t=SINGLES[second], g=change_a, h=change_b: f(
                                g(v.x), h(t(v))
                            ),
                        )
        for second, third in (("{y}", "{z}"), ("{f}", "{z}"), (IMMEDIATE, "{z}"), ("{y}", "{f}"), ("{y}", IMMEDIATE)):
            for product in ("", "neg"):
                for addend in ("", "neg"):
                    first_text, first = signed_operand("{x}", product, "t0")
                    third_text, last = signed_operand(third, addend, "t1")
                    lines.add(
                        f"{first_text}{third_text}fma{mode}.f32 {{d}}, {first}, {second}, {last};",
                        lambda v, f=moded(exact.fused, mode), s=SINGLES[second], t=SINGLES[third], g=SIGNS[product], h=SIGNS[
                            addend
                        ]: f(g(v.x), s(v), h(t(v))),
                    )
    return lines


def extremes() -> Lines:
    """FMNMX."""
    lines = Lines("single_extremes")
    for name, function in (("min", exact.minimum), ("max", exact.maximum)):
        for ftz in ("", ".ftz"):
            clean = exact.flush if ftz else lambda x: x
            for second in ("{y}", "{f}", IMMEDIATE):
                for sign_a, change_a in SIGNS.items():
                    for sign_b, change_b in SIGNS.items():
                        first_text, first = signed_operand("{x}", sign_a, "t0")
                        second_text, other = signed_operand(second, sign_b, "t1")
                        lines.add(
                            f"{first_text}{second_text}{name}{ftz}.f32 {{d}}, {first}, {other};",
                            lambda v, f=function, t=SINGLES[second], g=change_a, h=change_b, c=clean: bits_of(
                                f(c(g(v.x)), c(h(t(v))))
                            ),
                        )
    return lines


#: Ways to take a pair of halves, by what is prepared of it.
PARTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "": lambda x: x, "low": lambda x: np.repeat(x[:, :1], 2, 1), "high": lambda x: np.repeat(x[:, 1:], 2, 1),
}  # fmt: skip
PAIRS: dict[str, Take] = {"{h}": lambda v: v.h, "{i}": lambda v: v.i, "{j}": lambda v: v.j, "{g}": lambda v: v.g}
PAIR_IMMEDIATE = "0x3e00bc00"  # -1 below, 1.5 above
PAIRS[PAIR_IMMEDIATE] = lambda v: np.tile(np.array([-1.0, 1.5], np.float16), (len(v.h), 1))


def part_of(text: str, part: str, scratch: str) -> tuple[str, str]:
    """PTX that takes one half twice, and the operand. PTX has no immediate pairs; ptxas makes them."""
    if text == PAIR_IMMEDIATE:
        return f"mov.b32 {{{scratch}}}, {text}; ", f"{{{scratch}}}"
    if not part:
        return "", text
    place = "h0" if part == "low" else "h1"
    prepare = f"{{{{ .reg .b16 h0, h1; mov.b32 {{{{h0, h1}}}}, {text}; mov.b32 {{{scratch}}}, {{{{{place}, {place}}}}}; }}}} "
    return prepare, f"{{{scratch}}}"


def halves() -> Lines:
    """HADD2, HMUL2, HFMA2."""
    lines = Lines("half_arithmetic")
    for sat in ("", ".sat"):
        finish = exact.saturate if sat else lambda x: x
        for name, function in (("add", exact.add), ("mul", exact.multiply)):
            for second in ("{i}", "{g}", PAIR_IMMEDIATE):
                for part_a, take_a in PARTS.items():
                    for part_b, take_b in PARTS.items():
                        if part_b and second == PAIR_IMMEDIATE:
                            continue
                        for sign in ("", "neg"):
                            a_text, a = part_of("{h}", part_a, "t0")
                            b_text, b = part_of(second, part_b, "t1")
                            sign_text, a = signed_operand(a, sign, "t2", "f16x2")
                            lines.add(
                                f"{a_text}{b_text}{sign_text}{name}.rn{sat}.f16x2 {{d}}, {a}, {b};",
                                lambda v, f=function, t=PAIRS[second], p=take_a, q=take_b, s=SIGNS[sign], e=finish: bits_of(
                                    e(f(s(p(v.h)), q(t(v))))
                                ),
                            )
        for second, third in (
            ("{i}", "{j}"), ("{g}", "{j}"), (PAIR_IMMEDIATE, "{j}"), ("{i}", "{g}"), ("{i}", PAIR_IMMEDIATE),
        ):  # fmt: skip
            for part_b, take_b in PARTS.items():
                for part_c, take_c in PARTS.items():
                    if (part_b and second == PAIR_IMMEDIATE) or (part_c and third == PAIR_IMMEDIATE):
                        continue
                    for sign in ("", "neg"):
                        b_text, b = part_of(second, part_b, "t0")
                        c_text, c = part_of(third, part_c, "t1")
                        sign_text, b = signed_operand(b, sign, "t2", "f16x2")
                        lines.add(
                            f"{b_text}{c_text}{sign_text}fma.rn{sat}.f16x2 {{d}}, {{h}}, {b}, {c};",
                            lambda v, s=PAIRS[second], t=PAIRS[third], p=take_b, q=take_c, g=SIGNS[sign], e=finish: bits_of(
                                e(exact.fused(v.h, g(p(s(v))), q(t(v))))
                            ),
                        )
    return lines


def all_lines() -> list[Lines]:
    """Every list."""
    return [singles(), extremes(), halves()]
