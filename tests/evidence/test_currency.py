"""Whether a run speaks of what is built now: by the DSO, else by the image that ran."""

from __future__ import annotations

import pytest

from sm70_kernels.evidence.binaries import built
from sm70_kernels.evidence.integrity import currency
from sm70_kernels.evidence.runs import schema

LIBRARY = "sm70_kernels/lib/libsm70_kv_cache.so"
OLD, NEW = "a" * 64, "b" * 64


def build_of(machine_code: str | None = None, instructions: str | None = None) -> built.Build:
    operator = built.BuiltOperator(LIBRARY, NEW, NEW, NEW, 1, {}, machine_code, instructions)
    return built.Build("0" * 40, False, {"kv_cache": operator}, built.BuiltFile("m", "0"), {}, {})


def library_of(
    dso: str, cubin: str, ptx: str, images: dict[str, int], code: str | None = None, instructions: str | None = None
) -> schema.Library:
    return schema.Library(
        operator="kv_cache",
        path=LIBRARY,
        sha256=dso,
        cubin_sha256=cubin,
        ptx_sha256=ptx,
        machine_code_sha256=code,
        ptx_instructions_sha256=instructions,
        capability_revision=1,
        mapped=True,
        launches={"kernel": images},
    )


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
def test_currency_by_file(images: dict[str, int], dso: str, cubin: str, ptx: str, wanted: str) -> None:
    library = library_of(dso, cubin, ptx, images)
    build = build_of()
    assert currency.of_run([library], build) == wanted
    assert currency.of_run([library], None) == "unknown"
    assert currency.of_run([], build) == "unknown"
    # A run from before these hashes, against a build that has them.
    assert currency.of_run([library], build_of(NEW, NEW)) == wanted
    gone = built.Build("0" * 40, False, {}, built.BuiltFile("m", "0"), {}, {})
    assert currency.of_run([library], gone) == "older"


@pytest.mark.parametrize(
    "image,code,instructions,wanted",
    [
        ("emulated", NEW, OLD, "same kernel"),
        ("cubin", NEW, OLD, "same kernel"),
        ("ptx", OLD, NEW, "same kernel"),
        ("cubin", OLD, NEW, "older"),
        ("ptx", NEW, OLD, "older"),
    ],
)
def test_currency_by_code_without_line_tables(image: str, code: str, instructions: str, wanted: str) -> None:
    """The files differ in every case: their line tables do not count."""
    library = library_of(OLD, OLD, OLD, {image: 1}, code, instructions)
    assert currency.of_run([library], build_of(NEW, NEW)) == wanted
    assert currency.of_run([library], build_of()) == "older"  # a build without the hashes speaks of the files
