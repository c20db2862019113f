"""Operations of single precision and of pairs of halves, and conversions, each with one rounding."""

from __future__ import annotations

import functools

import numpy as np

from tests.random_programs import exact
from tests.random_programs.operations import Table
from tests.random_programs.values import BOOL, F32, H2, U32, U64, bits_of, pair_from_bits, select

#: CUDA's suffixes of intrinsics for the roundings of PTX.
SUFFIXES = {"rn": "rn", "rm": "rd", "rp": "ru", "rz": "rz"}


def singles(t: Table) -> None:
    two, three = (F32, F32), (F32, F32, F32)
    for rounding, suffix in SUFFIXES.items():
        group = "single" if rounding == "rn" else "directed"
        for name, operands, function in (
            ("add", two, exact.add),
            ("mul", two, exact.multiply),
            ("maf", three, exact.fused),
        ):
            arguments = ", ".join(f"{{{i}}}" for i in range(len(operands)))
            text = f"__f{name}_{suffix}({arguments})"
            t.add(group, F32, operands, text, functools.partial(function, rounding=rounding))
    t.add("single", F32, two, "__fsub_rn({0}, {1})", lambda a, b: exact.add(a, -b))
    t.add("single", F32, three, "__fmaf_rn(-{0}, {1}, {2})", lambda a, b, c: exact.fused(-a, b, c))
    t.add("single", F32, three, "__fmaf_rn({0}, {1}, -{2})", lambda a, b, c: exact.fused(a, b, -c))
    t.add("single", F32, two, "__fadd_rn(fabsf({0}), -fabsf({1}))", lambda a, b: exact.add(np.abs(a), -np.abs(b)))
    t.add("single", F32, two, "__fmul_rn(-{0}, fabsf({1}))", lambda a, b: exact.multiply(-a, np.abs(b)))
    t.add("single", F32, F32, "-{0}", lambda a: -a, name="negate")
    t.add("single", F32, F32, "fabsf({0})", np.abs)
    t.add("single", F32, two, "fminf({0}, {1})", exact.minimum)
    t.add("single", F32, two, "fmaxf({0}, {1})", exact.maximum)
    t.add("single", F32, two, "fmaxf(-{0}, fabsf({1}))", lambda a, b: exact.maximum(-a, np.abs(b)))
    t.add("single", F32, F32, "__saturatef({0})", exact.saturate)
    t.add("single", F32, (BOOL, F32, F32), "({0} ? {1} : {2})", select, name="select single")
    # Nothing converts these one or zero to integers: ptxas 12.8 gets a negated one wrong, which would saturate.
    quarter = np.float32(0.25)
    t.add("single", F32, two, "__fadd_rn(set_less({0}, {1}), 0.25f)", lambda a, b: (a < b).astype(np.float32) + quarter)
    t.add("single", U32, two, "set_equal_mask({0}, {1})", lambda a, b: np.uint32(0) - (a == b).astype(np.uint32))
    for text, rounding in (("rintf", "rn"), ("floorf", "rm"), ("ceilf", "rp"), ("truncf", "rz")):
        t.add("convert", F32, F32, text + "({0})", functools.partial(exact.to_whole, rounding=rounding))
    t.add("divide", F32, two, "__fdiv_rn({0}, {1})", lambda a, b: a / b)
    t.add("divide", F32, F32, "__frcp_rn({0})", lambda a: np.float32(1) / a)
    t.add("divide", F32, F32, "__fsqrt_rn(fabsf({0}))", lambda a: np.sqrt(np.abs(a)))

    flush, saturate = exact.flush, exact.saturate
    add, multiply, fused = exact.add, exact.multiply, exact.fused
    t.add("flushed", F32, two, "add_ftz({0}, {1})", lambda a, b: flush(add(flush(a), flush(b))))
    t.add("flushed", F32, two, "add_rz_ftz({0}, {1})", lambda a, b: flush(add(flush(a), flush(b), "rz")))
    t.add("flushed", F32, two, "add_sat({0}, {1})", lambda a, b: saturate(add(a, b)))
    t.add("flushed", F32, two, "multiply_ftz({0}, {1})", lambda a, b: flush(multiply(flush(a), flush(b))))
    t.add("flushed", F32, two, "multiply_rz_ftz({0}, {1})", lambda a, b: flush(multiply(flush(a), flush(b), "rz")))
    t.add("flushed", F32, two, "multiply_sat({0}, {1})", lambda a, b: saturate(multiply(a, b)))
    t.add("flushed", F32, three, "fused_ftz({0}, {1}, {2})", lambda a, b, c: flush(fused(flush(a), flush(b), flush(c))))
    t.add(
        "flushed", F32, three, "fused_rz_ftz({0}, {1}, {2})",
        lambda a, b, c: flush(fused(flush(a), flush(b), flush(c), "rz")),
    )  # fmt: skip
    t.add("flushed", F32, three, "fused_sat({0}, {1}, {2})", lambda a, b, c: saturate(fused(a, b, c)))
    t.add(
        "flushed", F32, three, "fused_ftz_sat({0}, {1}, {2})",
        lambda a, b, c: saturate(flush(fused(flush(a), flush(b), flush(c)))),
    )  # fmt: skip
    t.add("flushed", F32, two, "minimum_ftz({0}, {1})", lambda a, b: exact.minimum(flush(a), flush(b)))
    t.add("flushed", F32, two, "maximum_ftz({0}, {1})", lambda a, b: exact.maximum(flush(a), flush(b)))
    t.add(
        "flushed", F32, two, "__fadd_rn(set_greater_or_unordered_ftz({0}, {1}), 0.25f)",
        lambda a, b: (~(flush(a) <= flush(b))).astype(np.float32) + quarter,
    )  # fmt: skip
    t.add("flushed", BOOL, two, "less_ftz({0}, {1})", lambda a, b: flush(a) < flush(b))


def single_comparisons(t: Table) -> None:
    for sign, function in (
        ("<", np.less), ("<=", np.less_equal), ("==", np.equal), ("!=", np.not_equal), (">", np.greater),
        (">=", np.greater_equal),
    ):  # fmt: skip
        t.add("compare", BOOL, (F32, F32), f"({{0}} {sign} {{1}})", function, name=f"single {sign}")
        if sign in ("<", "<=", ">", ">="):
            t.add("compare", BOOL, (F32, F32), f"!({{0}} {sign} {{1}})", lambda a, b, f=function: ~f(a, b))
    t.add("compare", BOOL, (F32, F32), "(fabsf({0}) < -{1})", lambda a, b: np.abs(a) < -b)
    t.add("compare", BOOL, F32, "({0} != {0})", np.isnan, name="is NaN")
    t.add("compare", BOOL, (F32, F32, BOOL), "less_and({0}, {1}, {2})", lambda a, b, c: (a < b) & c)


def halves(t: Table) -> None:
    two, three = (H2, H2), (H2, H2, H2)
    saturate = exact.saturate

    def twice(x: np.ndarray, place: int) -> np.ndarray:
        return np.repeat(x[:, place : place + 1], 2, 1)

    def pair(low: np.ndarray, high: np.ndarray) -> np.ndarray:
        return np.stack([low, high], 1)

    t.add("half", H2, two, "__hadd2_rn({0}, {1})", exact.add)
    t.add("half", H2, two, "__hsub2_rn({0}, {1})", lambda a, b: exact.add(a, -b))
    t.add("half", H2, two, "__hmul2_rn({0}, {1})", exact.multiply)
    t.add("half", H2, three, "__hfma2({0}, {1}, {2})", exact.fused)
    t.add("half", H2, three, "__hfma2(__hneg2({0}), {1}, {2})", lambda a, b, c: exact.fused(-a, b, c))
    t.add("half", H2, three, "__hfma2(__low2half2({0}), {1}, {2})", lambda a, b, c: exact.fused(twice(a, 0), b, c))
    t.add("half", H2, three, "__hfma2({0}, __high2half2({1}), {2})", lambda a, b, c: exact.fused(a, twice(b, 1), c))
    t.add("half", H2, two, "__hmul2_rn(__high2half2({0}), {1})", lambda a, b: exact.multiply(twice(a, 1), b))
    t.add("half", H2, two, "__hadd2_rn({0}, __low2half2({1}))", lambda a, b: exact.add(a, twice(b, 0)))
    t.add("half", H2, two, "__hadd2_sat({0}, {1})", lambda a, b: saturate(exact.add(a, b)))
    t.add("half", H2, two, "__hmul2_sat({0}, {1})", lambda a, b: saturate(exact.multiply(a, b)))
    t.add("half", H2, three, "__hfma2_sat({0}, {1}, {2})", lambda a, b, c: saturate(exact.fused(a, b, c)))
    t.add("half", H2, H2, "__hneg2({0})", lambda a: -a)
    t.add("half", H2, H2, "__habs2({0})", np.abs)
    t.add("half", H2, H2, "__lowhigh2highlow({0})", lambda a: a[:, ::-1])
    t.add("half", H2, two, "__lows2half2({0}, {1})", lambda a, b: pair(a[:, 0], b[:, 0]))
    t.add("half", H2, two, "__highs2half2({0}, {1})", lambda a, b: pair(a[:, 1], b[:, 1]))
    t.add("half", H2, (BOOL, H2, H2), "({0} ? {1} : {2})", select, name="select pair")
    t.add(
        "half", H2, two, "__halves2half2(__hadd_rn(__low2half({0}), __high2half({1})), __high2half({0}))",
        lambda a, b: pair(exact.add(a[:, 0], b[:, 1]), a[:, 1]),
    )  # fmt: skip
    half_pi = 1.5703125  # a constant operand that prints as a fraction
    t.add(
        "half", H2, two, "__hfma2({0}, __float2half2_rn(1.5703125f), {1})",
        lambda a, b: exact.fused(a, np.full_like(a, half_pi), b),
    )  # fmt: skip
    for name, function in (
        ("lt", np.less), ("le", np.less_equal), ("gt", np.greater), ("ge", np.greater_equal), ("eq", np.equal),
    ):  # fmt: skip
        t.add("half", H2, two, f"__h{name}2({{0}}, {{1}})", lambda a, b, f=function: f(a, b).astype(np.float16))
        unordered = lambda a, b, f=function: f(a, b) | np.isnan(a) | np.isnan(b)  # noqa: E731
        t.add("half", H2, two, f"__h{name}u2({{0}}, {{1}})", lambda a, b, f=unordered: f(a, b).astype(np.float16))
        t.add("compare", BOOL, two, f"__hb{name}2({{0}}, {{1}})", lambda a, b, f=function: f(a, b).all(1))
        t.add(
            "compare", BOOL, two, f"__h{name}(__low2half({{0}}), __high2half({{1}}))",
            lambda a, b, f=function: f(a[:, 0], b[:, 1]),
        )  # fmt: skip


def conversions(t: Table) -> None:
    t.add("convert", U32, F32, "bits_of({0})", bits_of, name="bits of single")
    t.add("convert", U32, H2, "bits_of({0})", bits_of, name="bits of pair")
    one, window = np.uint32(0x3F800000), np.uint32(0x83FFFFFF)
    t.add("reseed", F32, U32, "between_one_and_two({0})", lambda a: (a & np.uint32(0x7FFFFF) | one).view(np.float32))
    t.add("reseed", F32, U32, "ordinary({0})", lambda a: ((a & window) + np.uint32(0x3E000000)).view(np.float32))
    t.add("reseed", H2, U32, "ordinary_pair({0})",
          lambda a: pair_from_bits((a & np.uint32(0x8FFF8FFF)) + np.uint32(0x34003400)))  # fmt: skip
    t.add("convert", F32, U32, "from_bits({0})", lambda a: a.view(np.float32))
    t.add("convert", H2, U32, "pair_from_bits({0})", pair_from_bits)
    for rounding, suffix in SUFFIXES.items():
        for kind, dtype, back, result in (
            ("uint", np.uint32, "{0}", U32), ("int", np.int32, "(unsigned){0}", U32), ("ull", np.uint64, "{0}", U64),
            ("ll", np.int64, "(wide){0}", U64),
        ):  # fmt: skip
            to_integer = back.format(f"__float2{kind}_{suffix}({{0}})")
            t.add(
                "convert", result, F32, to_integer,
                lambda a, d=dtype, r=rounding, u=result.dtype: exact.to_integer(a, d, r).view(u),
            )  # fmt: skip
            c_type = {"uint": "unsigned", "int": "int", "ull": "wide", "ll": "long long"}[kind]
            t.add(
                "convert", F32, result, f"__{kind}2float_{suffix}(({c_type}){{0}})",
                lambda a, d=dtype, r=rounding: exact.from_integer(a.view(d), np.float32, r),
            )  # fmt: skip
        t.add(
            "convert", H2, (F32, F32), f"__halves2half2(__float2half_{suffix}({{0}}), __float2half_{suffix}({{1}}))",
            lambda a, b, r=rounding: np.stack([exact.narrow(v.astype(np.float64), np.float16, r) for v in (a, b)], 1),
        )  # fmt: skip
        t.add(
            "convert", U32, H2, f"(unsigned)__half2int_{suffix}(__high2half({{0}}))",
            lambda a, r=rounding: exact.to_integer(a[:, 1], np.int32, r).view(np.uint32),
        )  # fmt: skip
    t.add("convert", H2, (F32, F32), "__floats2half2_rn({0}, {1})",
          lambda a, b: np.stack([a.astype(np.float16), b.astype(np.float16)], 1))  # fmt: skip
    t.add("convert", F32, H2, "__low2float({0})", lambda a: a[:, 0].astype(np.float32))
    t.add("convert", F32, H2, "__high2float({0})", lambda a: a[:, 1].astype(np.float32))
    t.add("convert", H2, U32, "__half2half2(__uint2half_rn({0} & 0xffffu))",
          lambda a: np.repeat(exact.from_integer(a & np.uint32(0xFFFF), np.float16)[:, None], 2, 1))  # fmt: skip
    t.add("convert", H2, U32, "__half2half2(__short2half_rn((short){0}))",
          lambda a: np.repeat(exact.from_integer(a.astype(np.int16), np.float16)[:, None], 2, 1))  # fmt: skip


def add_all(t: Table) -> None:
    """Every operation with floats."""
    singles(t)
    single_comparisons(t)
    halves(t)
    conversions(t)
