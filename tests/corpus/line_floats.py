"""Arithmetic of single and half precision: roundings, flushing, saturation; signs and halves of operands."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from tests.corpus.lines import A, F, G, H, I, J, K, Lines, Take, X, Y, Z, after, number
from tests.random_programs import exact
from tests.random_programs.values import bits_of

#: Ways to write a single-precision operand, and its value.
IMMEDIATE = "0fBFA00000"
SINGLES: dict[str, Take] = {"{x}": X, "{y}": Y, "{z}": Z, "{f}": F, IMMEDIATE: number(np.float32(-1.25))}

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


#: Modifiers of PTX: rounding, flushing, saturation.
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


#: Operands of a multiply-add after the first: at most one is no register.
SECOND_AND_THIRD = (("{y}", "{z}"), ("{f}", "{z}"), (IMMEDIATE, "{z}"), ("{y}", "{f}"), ("{y}", IMMEDIATE))


def singles() -> Lines:
    """FADD, FMUL, FFMA."""
    lines = Lines("single_arithmetic")
    for mode in MODES:
        for (name, function), second, sign_a, sign_b in itertools.product(
            (("add", exact.add), ("mul", exact.multiply)), ("{y}", "{f}", IMMEDIATE), SIGNS, SIGNS
        ):
            (before, a), (between, b) = signed_operand("{x}", sign_a, "t0"), signed_operand(second, sign_b, "t1")
            lines.add(
                f"{before}{between}{name}{mode}.f32 {{d}}, {a}, {b};",
                moded(function, mode), after(SIGNS[sign_a], X), after(SIGNS[sign_b], SINGLES[second]),
            )  # fmt: skip
        for (second, third), product, addend in itertools.product(SECOND_AND_THIRD, ("", "neg"), ("", "neg")):
            (before, a), (between, c) = signed_operand("{x}", product, "t0"), signed_operand(third, addend, "t1")
            lines.add(
                f"{before}{between}fma{mode}.f32 {{d}}, {a}, {second}, {c};",
                moded(exact.fused, mode),
                after(SIGNS[product], X), SINGLES[second], after(SIGNS[addend], SINGLES[third]),
            )  # fmt: skip
    return lines


def extremes() -> Lines:
    """FMNMX."""
    lines = Lines("single_extremes")
    for (name, function), ftz, second, sign_a, sign_b in itertools.product(
        (("min", exact.minimum), ("max", exact.maximum)), ("", ".ftz"), ("{y}", "{f}", IMMEDIATE), SIGNS, SIGNS
    ):
        (before, a), (between, b) = signed_operand("{x}", sign_a, "t0"), signed_operand(second, sign_b, "t1")
        x, y = after(SIGNS[sign_a], X), after(SIGNS[sign_b], SINGLES[second])
        if ftz:
            x, y = after(exact.flush, x), after(exact.flush, y)
        lines.add(f"{before}{between}{name}{ftz}.f32 {{d}}, {a}, {b};", _as_bits(function), x, y)
    return lines


def _as_bits(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda *operands: bits_of(function(*operands))


#: Ways to take a pair of halves.
PARTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "": lambda x: x, "low": lambda x: np.repeat(x[:, :1], 2, 1), "high": lambda x: np.repeat(x[:, 1:], 2, 1),
}  # fmt: skip
PAIR_IMMEDIATE = "0x3e00bc00"  # -1 below, 1.5 above


def _immediate_pair(v: object) -> np.ndarray:
    return np.array([[-1.0, 1.5]], np.float16)


PAIRS: dict[str, Take] = {"{h}": H, "{i}": I, "{j}": J, "{g}": G, PAIR_IMMEDIATE: _immediate_pair}


def part_of(text: str, part: str, scratch: str) -> tuple[str, str]:
    """PTX that takes one half twice, and the operand. PTX has no immediate pairs; ptxas makes them."""
    if text == PAIR_IMMEDIATE:
        return f"mov.b32 {{{scratch}}}, {text}; ", f"{{{scratch}}}"
    if not part:
        return "", text
    place = "h0" if part == "low" else "h1"
    # Braces of PTX are doubled, because the names of registers are put in later.
    take = f"mov.b32 {{{{h0, h1}}}}, {text}; mov.b32 {{{scratch}}}, {{{{{place}, {place}}}}};"
    return f"{{{{ .reg .b16 h0, h1; {take} }}}} ", f"{{{scratch}}}"


def _saturated(function: Callable[..., np.ndarray], sat: str) -> Callable[..., np.ndarray]:
    return _as_bits((lambda *operands: exact.saturate(function(*operands))) if sat else function)


def halves() -> Lines:
    """HADD2, HMUL2, HFMA2."""
    lines = Lines("half_arithmetic")
    operations = (("add", exact.add), ("mul", exact.multiply))
    for sat, (name, function), second, part_a, part_b, sign in itertools.product(
        ("", ".sat"), operations, ("{i}", "{g}", PAIR_IMMEDIATE), PARTS, PARTS, ("", "neg")
    ):
        if part_b and second == PAIR_IMMEDIATE:
            continue
        (first_text, a), (second_text, b) = part_of("{h}", part_a, "t0"), part_of(second, part_b, "t1")
        sign_text, a = signed_operand(a, sign, "t2", "f16x2")
        lines.add(
            f"{first_text}{second_text}{sign_text}{name}.rn{sat}.f16x2 {{d}}, {a}, {b};",
            _saturated(function, sat),
            after(SIGNS[sign], after(PARTS[part_a], H)), after(PARTS[part_b], PAIRS[second]),
        )  # fmt: skip
    others = (("{i}", "{j}"), ("{g}", "{j}"), (PAIR_IMMEDIATE, "{j}"), ("{i}", "{g}"), ("{i}", PAIR_IMMEDIATE))
    for sat, (second, third), part_b, part_c, sign in itertools.product(
        ("", ".sat"), others, PARTS, PARTS, ("", "neg")
    ):
        if (part_b and second == PAIR_IMMEDIATE) or (part_c and third == PAIR_IMMEDIATE):
            continue
        (second_text, b), (third_text, c) = part_of(second, part_b, "t0"), part_of(third, part_c, "t1")
        sign_text, b = signed_operand(b, sign, "t2", "f16x2")
        lines.add(
            f"{second_text}{third_text}{sign_text}fma.rn{sat}.f16x2 {{d}}, {{h}}, {b}, {c};",
            _saturated(exact.fused, sat),
            H, after(SIGNS[sign], after(PARTS[part_b], PAIRS[second])), after(PARTS[part_c], PAIRS[third]),
        )  # fmt: skip
    return lines


def conversions() -> Lines:
    """I2F of words and parameters, rounded all ways."""
    lines = Lines("conversions")
    for rounding, (kind, dtype), (operand, take) in itertools.product(
        ("rn", "rz", "rm", "rp"), (("u32", np.uint32), ("s32", np.int32)), (("{a}", A), ("{k}", K))
    ):
        lines.add(f"cvt.{rounding}.f32.{kind} {{d}}, {operand};", _converted(dtype, rounding), take)
    return lines


def _converted(dtype: type, rounding: str) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: bits_of(exact.narrow(x.view(dtype).astype(np.float64), np.float32, rounding))


def all_lines() -> list[Lines]:
    """Every list."""
    return [singles(), extremes(), halves(), conversions()]
