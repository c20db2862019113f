"""Whether a run speaks of what is built now: by the DSO, else by the image that ran."""

from __future__ import annotations

import pytest

from sm70_kernels.evidence.binaries import built
from sm70_kernels.evidence.integrity import currency
from sm70_kernels.evidence.runs import schema

LIBRARY = "sm70_kernels/lib/libsm70_kv_cache.so"
OLD, NEW = "a" * 64, "b" * 64


@pytest.mark.parametrize(
    "images,dso,cubin,ptx,wanted",
    [
        ({"ptx": 1}, NEW, NEW, NEW, "current"),
        ({"ptx": 1}, OLD, NEW, NEW, "same kernel"),
        ({"ptx": 1}, OLD, OLD, NEW, "same kernel"),
        ({"ptx": 1}, OLD, NEW, OLD, "older"),
        ({"cubin": 1}, OLD, NEW, OLD, "same kernel"),
        ({"emulated": 1}, OLD, NEW, OLD, "same kernel"),
        ({"emulated": 1, "ptx": 1}, OLD, NEW, OLD, "older"),
        ({"cubin": 1, "ptx": 0}, OLD, OLD, NEW, "older"),
        ({}, OLD, NEW, OLD, "same kernel"),
    ],
)
def test_currency(images: dict[str, int], dso: str, cubin: str, ptx: str, wanted: str) -> None:
    library = schema.Library(
        operator="kv_cache",
        path=LIBRARY,
        sha256=dso,
        cubin_sha256=cubin,
        ptx_sha256=ptx,
        capability_revision=1,
        mapped=True,
        launches={"kernel": images},
    )
    operator = built.BuiltOperator(LIBRARY, NEW, NEW, NEW, 1, {})
    build = built.Build("0" * 40, False, {"kv_cache": operator}, built.BuiltFile("m", "0"), {}, {})
    assert currency.of_run([library], build) == wanted
    assert currency.of_run([library], None) == "unknown"
    assert currency.of_run([], build) == "unknown"
    gone = built.Build("0" * 40, False, {}, built.BuiltFile("m", "0"), {}, {})
    assert currency.of_run([library], gone) == "older"
