"""Names that every public function shares: scales by keyword alone, and the names of KV formats."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest

from sm70_kernels import reference
from sm70_kernels.ops import _arguments, decode, kv_cache, prefill, verify
from sm70_kernels.reference import fp8

FUNCTIONS = [
    decode.decode, decode.DecodePlan.run, kv_cache.write_paged_kv, kv_cache.gather_paged_kv, prefill.prefill,
    prefill.prefill_paged, prefill.PrefillPlan.run, verify.verify, verify.VerifyPlan.run, reference.decode_attention,
    reference.verify_attention, reference.write_paged_kv, reference.gather_paged_kv,
]  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: f"{function.__module__}.{function.__qualname__}")
def test_scales_are_given_by_keyword(function: Callable[..., object]) -> None:
    parameters = inspect.signature(function).parameters
    scales = [parameters[name] for name in ("softmax_scale", "k_scale", "v_scale") if name in parameters]
    assert scales and all(scale.kind is inspect.Parameter.KEYWORD_ONLY for scale in scales)


@pytest.mark.parametrize("alias,name", [("fp8", "e4m3"), ("fp8_e4m3", "e4m3"), ("fp8_e5m2", "e5m2"), ("e4m3", "e4m3")])
def test_formats_have_the_names_of_vllm_too(alias: str, name: str) -> None:
    shape = {"query_heads": 6, "kv_heads": 1, "head_dim": 64, "max_tokens": 32, "device": "cpu", "kv_format": alias}
    plans = decode.plan(rows=1, **shape), verify.plan(requests=1, q_rows=2, **shape)  # type: ignore[arg-type]
    assert [planned.kv_format for planned in plans] == [name, name]
    assert fp8.layout_of(alias) is fp8.layout_of(name)


def test_the_reference_takes_the_names_that_the_operators_take() -> None:
    assert fp8.ALIASES == _arguments.ALIASES and tuple(_arguments.FORMATS) == fp8.FORMATS
