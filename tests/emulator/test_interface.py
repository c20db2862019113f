"""The C interface that operator libraries use, the portable implementation, and what a person can look at."""

from __future__ import annotations

import ctypes
import hashlib

import numpy as np
import pytest

from sm70_kernels import _emulator
from sm70_kernels.lab.toolchain import tool


class Buffer(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("writable", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    ]


class Request(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32),
        ("dynamic_shared_bytes", ctypes.c_uint32),
        ("kernel", ctypes.c_char_p),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("parameters", ctypes.c_void_p),
        ("parameter_bytes", ctypes.c_uint64),
        ("buffers", ctypes.POINTER(Buffer)),
        ("buffer_count", ctypes.c_uint64),
        ("sampled_blocks", ctypes.POINTER(ctypes.c_uint64)),
        ("sampled_block_count", ctypes.c_uint64),
        ("seed", ctypes.c_uint64),
        ("instruction_limit", ctypes.c_uint64),
        ("threads", ctypes.c_uint32),
        ("tensor_rounding", ctypes.c_uint32),
        ("instruments", ctypes.c_void_p),
    ]


class Result(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("warp_instructions", ctypes.c_uint64),
        ("blocks_run", ctypes.c_uint64),
        ("blocks_total", ctypes.c_uint64),
        ("seconds", ctypes.c_double),
        ("error", ctypes.c_char * 4096),
    ]


class Info(ctypes.Structure):
    _fields_ = [
        (n, ctypes.c_uint32)
        for n in ("struct_bytes", "registers", "static_shared_bytes", "local_bytes", "parameter_bytes", "max_threads")
    ]


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    """The interpreter module exports the C interface too: it is built from the same sources."""
    library = ctypes.CDLL(_emulator.__file__)
    library.sm70emu_version.restype = ctypes.c_char_p
    library.sm70emu_module_load.restype = library.sm70emu_module_load_with_nvdisasm.restype = ctypes.c_void_p
    library.sm70emu_module_load.argtypes = [
        ctypes.c_char_p,
        ctypes.c_uint64,
        ctypes.c_char_p,
        ctypes.c_uint64,
        ctypes.c_char_p,
        ctypes.c_uint64,
    ]
    library.sm70emu_module_load_with_nvdisasm.argtypes = [
        ctypes.c_char_p,
        ctypes.c_uint64,
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_uint64,
    ]
    library.sm70emu_module_unload.argtypes = [ctypes.c_void_p]
    library.sm70emu_launch.argtypes = [ctypes.c_void_p, ctypes.POINTER(Request), ctypes.POINTER(Result)]
    library.sm70emu_kernel_query.argtypes = [
        ctypes.c_void_p,
        ctypes.c_char_p,
        ctypes.POINTER(Info),
        ctypes.c_char_p,
        ctypes.c_uint64,
    ]
    return library


@pytest.fixture
def loaded(library, compiled):
    program = compiled("memory")
    error = ctypes.create_string_buffer(512)
    listing = program.listing.encode()
    module = library.sm70emu_module_load(program.cubin, len(program.cubin), listing, len(listing), error, len(error))
    assert module, error.value
    yield module
    library.sm70emu_module_unload(module)


def launch(library, module, kernel: bytes, array: np.ndarray, index: int, **fields) -> tuple[int, Result]:
    blob = ctypes.create_string_buffer(array.ctypes.data.to_bytes(8, "little") + index.to_bytes(4, "little"), 12)
    buffers = (Buffer * 1)(Buffer(b"output", array.ctypes.data, array.nbytes, 1, 0))
    request = Request(ctypes.sizeof(Request), 0, kernel, (1, 1, 1), (1, 1, 1), ctypes.addressof(blob), 12, buffers, 1)
    for name, value in fields.items():
        setattr(request, name, value)
    result = Result(ctypes.sizeof(Result))
    return library.sm70emu_launch(module, request, result), result


def test_launch(library, loaded):
    d = np.zeros(8, np.int32)
    status, result = launch(library, loaded, b"stray_store", d, 5)
    assert status == 0 and result.error == b"" and d[5] == 1
    assert (result.blocks_run, result.blocks_total) == (1, 1) and result.warp_instructions > 0


def test_launch_error(library, loaded):
    d = np.zeros(8, np.int32)
    status, result = launch(library, loaded, b"stray_store", d, 8)
    assert status != 0 and b"nearest buffer 'output' has 32 bytes" in result.error and not d.any()


def test_another_interface_version_is_refused(library, loaded):
    status, result = launch(library, loaded, b"stray_store", np.zeros(8, np.int32), 0, struct_bytes=8)
    assert status != 0 and b"another interface version" in result.error


def test_kernel_query(library, loaded):
    info, error = Info(ctypes.sizeof(Info)), ctypes.create_string_buffer(256)
    assert library.sm70emu_kernel_query(loaded, b"transpose", info, error, 256) == 0
    assert (info.static_shared_bytes, info.parameter_bytes) == (32 * 33 * 4, 20)
    assert (
        library.sm70emu_kernel_query(loaded, b"nothing", info, error, 256) != 0 and b"no kernel nothing" in error.value
    )


def test_listing_is_made_and_kept(library, compiled, tmp_path):
    program = compiled("memory")
    error = ctypes.create_string_buffer(512)
    arguments = [
        program.cubin,
        len(program.cubin),
        str(tool("nvdisasm")).encode(),
        str(tmp_path / "cache").encode(),
        error,
        len(error),
    ]
    module = library.sm70emu_module_load_with_nvdisasm(*arguments)
    assert module, error.value
    library.sm70emu_module_unload(module)
    (kept,) = (tmp_path / "cache").iterdir()
    assert kept.name == hashlib.sha256(program.cubin).hexdigest() + ".listing"
    sealed = hashlib.sha256(program.listing.encode()).hexdigest() + "\n" + program.listing
    assert kept.read_text() == sealed
    # A kept listing that was changed, cut short or emptied is made again: registers are named by its text only.
    for damaged in (sealed.replace("R2", "R3", 1), sealed[: len(sealed) // 2], "", "x"):
        kept.write_text(damaged)
        module = library.sm70emu_module_load_with_nvdisasm(*arguments)
        assert module, error.value
        library.sm70emu_module_unload(module)
        assert kept.read_text() == sealed
    # A folder that can't be used is no hindrance: it only keeps.
    (tmp_path / "file").touch()
    module = library.sm70emu_module_load_with_nvdisasm(*arguments[:3], bytes(tmp_path / "file"), *arguments[4:])
    assert module, error.value
    library.sm70emu_module_unload(module)
    arguments[2] = b"/does/not/exist"  # not needed any more
    module = library.sm70emu_module_load_with_nvdisasm(*arguments)
    assert module, error.value
    library.sm70emu_module_unload(module)
    kept.unlink()
    assert not library.sm70emu_module_load_with_nvdisasm(*arguments) and b"cannot run /does/not/exist" in error.value


def test_not_a_cubin(library):
    error = ctypes.create_string_buffer(256)
    assert not library.sm70emu_module_load(b"junk" * 100, 400, b"", 0, error, 256) and error.value == b"not an ELF file"


def test_portable_code_gives_the_same_bits(compiled):
    """Everything that is compiled for wider vectors, against the same sources for any machine."""
    rng = np.random.default_rng(11)
    n = 1024
    for name, kernel, dtypes, rows in [
        ("arithmetic", "float_basic", [np.float32] * 4, 12),
        ("arithmetic", "special", [np.float32] * 2, 12),
        ("arithmetic", "integer", [np.int32] * 4, 23),
        ("arithmetic", "half_pairs", [np.uint32] * 5, 7),
        ("conversion", "floats", [np.float32, np.int32, np.int64, np.uint16, np.float64], 5),
        ("conversion", "integers", [np.int32, np.int64, np.float32, np.float64], 8),
    ]:
        program = compiled(name)
        modules = [_emulator.Module(program.cubin, program.listing, portable) for portable in (False, True)]
        arrays = [np.frombuffer(rng.bytes(rows * n * np.dtype(t).itemsize), t).copy() for t in dtypes]
        results = []
        for module in modules:
            mine = [a.copy() for a in arrays]
            blob = b"".join(a.ctypes.data.to_bytes(8, "little") for a in mine) + n.to_bytes(4, "little")
            module.launch(kernel, n // 128, 128, blob, [(str(i), a, True) for i, a in enumerate(mine)])
            results.append(mine)
        for one, other in zip(*results, strict=True):
            assert one.tobytes() == other.tobytes(), (kernel, one.dtype)


def test_control_codes(compiled):
    instructions = compiled("tensor").code.instructions("single_row_col")
    hmma = [i for i in instructions if i["opcode"] == "HMMA"]
    assert [i["modifiers"][-1] for i in hmma] == ["STEP0", "STEP1", "STEP2", "STEP3"]
    loads = [i for i in instructions if i["opcode"] == "LDG"]
    barriers = {i["write_barrier"] for i in loads}
    assert barriers <= set(range(6)), "loads announce their result through a scoreboard"
    waited = 0
    for i in instructions:
        waited |= i["wait_mask"]
    assert all(waited >> b & 1 for b in barriers)


def test_kernel_description(compiled):
    kernel = compiled("memory").code.kernels()["transpose"]
    assert kernel["static_shared_bytes"] == 32 * 33 * 4
    assert [(p["offset"], p["size"]) for p in kernel["parameters"]] == [(0, 8), (8, 8), (16, 4)]
    assert compiled("memory").code.kernels()["local_array"]["local_bytes"] == 160
