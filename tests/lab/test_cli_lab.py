"""``sm70-kernels lab``: what it runs, prints, saves and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from sm70_kernels.cli import main

from .conftest import SOURCE

TWO, N = "f32:2", "i32:64"


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["lab", *map(str, arguments)])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "kernels.cu"
    path.write_text(SOURCE)
    return path


def saxpy(source: Path, *more: str | Path) -> Result:
    words = [word for spec in (TWO, "x=f32[64]:arange", "y=f32[8,8]:ones", N) for word in ("--arg", spec)]
    return invoke("run", source, "--kernel", "saxpy", "--grid", "2", "--block", "32", *words, *more)


def test_a_launch_prints_arrays_and_findings(source: Path) -> None:
    result = saxpy(source)
    assert result.exit_code == 0, result.output
    for words in (
        "saxpy: grid 2x1x1, block 32x1x1: 2 blocks",
        "y           float32[8,8]  1 3 5 7 9 11 ...",
        "findings: none",
    ):
        assert words in result.output
    assert "findings" not in saxpy(source, "--checkers", "none").output


def test_every_look(source: Path, tmp_path: Path) -> None:
    out, traces = tmp_path / "y.npy", tmp_path / "traces"
    options = ("--statistics", "--hot-spots", "3", "--estimate", "--accel-sim", traces, "--save", f"y={out}")
    result = saxpy(source, "--output", "y", *options)
    assert result.exit_code == 0, result.output
    for words in ("saxpy: pipes", "saxpy: lines that issue most", "a * x[i] + y[i]", "estimated (emulated V100)"):
        assert words in result.output
    assert (traces / "kernel-1.traceg").is_file()
    assert np.array_equal(np.load(out).reshape(-1), 2 * np.arange(64) + 1)


def test_one_document(source: Path) -> None:
    document = json.loads(saxpy(source, "--statistics", "--estimate", "--json").output)
    assert (document["kernel"], document["grid"], document["findings"], document["stopped"]) == (
        "saxpy", [2, 1, 1], [], None,
    )  # fmt: skip
    assert document["statistics"]["blocks"] == 2 and document["estimate"]["kernels"][0]["kernel"] == "saxpy"


def test_findings_are_exit_code_1(source: Path) -> None:
    result = saxpy(source, "--output", "x", "--save", "y=" + str(source.with_name("y.npy")))
    assert result.exit_code == 1 and "findings: 1\n- saxpy+0x" in result.output and "'y'" in result.output
    assert "not counted, estimated or exported" in saxpy(source, "--output", "x", "--estimate").output
    result = saxpy(source, "--output", "x", "--checkers", "none")
    assert result.exit_code == 1 and result.output.startswith("Error: saxpy+0x")


def test_files_scalars_and_ptx(source: Path, tmp_path: Path) -> None:
    from sm70_kernels import lab

    values, module = tmp_path / "values.npy", lab.compile(source)
    np.save(values, np.arange(32, dtype=np.int32))
    for suffix, data in (("ptx", module.ptx.encode()), ("cubin", module.cubin)):
        path = tmp_path / f"kernels.{suffix}"
        path.write_bytes(data)
        result = invoke(
            "run", path, "--kernel", "reverse", "--grid", "1", "--block", "32,1", "--shared", "128", "--arg", values,
        )  # fmt: skip
        assert result.exit_code == 0 and "31 30 29 28 27 26 ..." in result.output, result.output
    assert np.load(values)[0] == 0  # the file is not written


def test_kernels_are_listed(source: Path) -> None:
    result = invoke("kernels", source, "-D", "UNUSED=3")
    assert result.exit_code == 0 and "void lib::scale<float>(float*, float)" in result.output
    listed = json.loads(invoke("kernels", source, "--json").output)
    assert {entry["name"] for entry in listed} >= {"saxpy", "_ZN3lib4fillEPi"}


@pytest.mark.parametrize("filling", ["zeros", "ones", "arange", "random", "nan", "undefined", "-2.5"])
@pytest.mark.parametrize("kind", ["f16", "f32", "f64", "i8", "u64"])
def test_fillings(kind: str, filling: str) -> None:
    from sm70_kernels.cli import lab_arguments
    from sm70_kernels.lab import LabError

    if kind in ("i8", "u64") and filling in ("nan", "-2.5"):
        with pytest.raises(LabError, match="--arg: got"):
            lab_arguments.parse([f"{kind}[3,4]:{filling}"], 0)
        return
    (argument,) = lab_arguments.parse([f"a={kind}[3,4]:{filling}"], 0)
    assert argument.name == "a" and argument.value.shape == (3, 4) and argument.value.ctypes.data % 512 == 0
    assert argument.undefined == (filling == "undefined")
    again = lab_arguments.parse([f"a={kind}[3x4]:{filling}"], 0)[0].value
    assert argument.value.tobytes() == again.tobytes()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("300", "want TYPE:VALUE, TYPE[SHAPE]:FILLING, a .npy file or null"),
        ("bf16:1", "one of the types f16 f32"),
        ("i8:300", "a number from -128 to 127"),
        ("i32:1.5", "a whole number in place of '1.5'"),
        ("f32:many", "a number in place of 'many'"),
        ("f32[0]:ones", "a shape of whole numbers from 1 on"),
        ("f32[4]:twos", "a number or one of zeros, ones"),
        ("none.npy", "a .npy file that can be read"),
    ],
)
def test_arguments_that_are_none(source: Path, spec: str, words: str) -> None:
    result = invoke("run", source, "--kernel", "nothing", "--grid", "1", "--block", "1", "--arg", spec)
    assert result.exit_code == 2 and words in " ".join(result.output.split()), result.output


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--grid", "a"), 2, "--grid: got 'a', want one to three whole numbers"),
        (("--kernel", "sale"), 2, "got 'sale', want one of"),
        (("--output", "z"), 2, "--output: got 'z', want the name of an array, which are x, y"),
        (("--save", "y"), 2, "--save: got 'y', want NAME=FILE.npy"),
        (("--save", "y=/no/where/y.npy"), 2, "whose folder does not exist"),
        (("--arg", "i32:1"), 2, "got 5 of them, want 4"),
        (("--arg", "x=i32:1"), 2, "got the name 'x' twice"),
        (("--checkers", "luck"), 2, "got 'luck', want some of"),
        (("--estimate", "--board", "v200"), 2, "v200"),
        (("-D", "saxpy=1"), 1, "NVRTC could not compile"),
    ],
)
def test_refusals(source: Path, options: tuple[str, ...], code: int, words: str) -> None:
    result = saxpy(source, *options)
    assert result.exit_code == code and words in " ".join(result.output.split()), result.output
