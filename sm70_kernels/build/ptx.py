"""One step of the build, run by ninja: CUDA C++ -> PTX through NVRTC.

NVRTC writes the working directory and the include folders into the PTX's ``.file`` lines. They are rewritten, so that
the PTX, and the cubin that ptxas makes of it, depend neither on where nor on when the sources were checked out.
"""

from __future__ import annotations

import argparse
import ctypes
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from sm70_kernels.build.settings import BuildError

_DEPRECATION = "Architectures prior to"  # NVRTC 12.8 says so of sm_70 on every compilation


def warnings(log: str) -> list[str]:
    """The lines of NVRTC's log that say something about the source."""
    return [line for line in log.splitlines() if line.strip() and _DEPRECATION not in line]


class Nvrtc:
    """The few functions of libnvrtc that a compilation needs (NVRTC 12.8 user guide)."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def _check(self, result: int, function: str) -> None:
        if result != 0:
            text = self._library.nvrtcGetErrorString(result).decode()
            raise BuildError(f"{function}: {text}")

    def _text(self, program: ctypes.c_void_p, what: str) -> str:
        size = ctypes.c_size_t()
        self._check(getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)), f"nvrtcGet{what}Size")
        buffer = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, f"nvrtcGet{what}")(program, buffer), f"nvrtcGet{what}")
        return buffer.value.decode()

    def compile(self, source: str, name: str, options: Sequence[str]) -> tuple[str, str]:
        """PTX and log of a program. Raises BuildError with NVRTC's log when it does not compile."""
        program = ctypes.c_void_p()
        self._check(
            self._library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name.encode(), 0, None, None),
            "nvrtcCreateProgram",
        )
        encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        result = self._library.nvrtcCompileProgram(program, len(options), encoded)
        log = self._text(program, "ProgramLog")
        if result != 0:
            raise BuildError(f"NVRTC could not compile {name}:\n{log}")
        return self._text(program, "PTX"), log


def included_files(source: Path, include_folder: Path) -> list[Path]:
    """The source and the project's own files that it includes with quotes, for ninja's dependencies."""
    found: dict[Path, None] = {}
    waiting = [source]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found[path] = None
        for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(), re.MULTILINE):
            candidate = include_folder / name
            if not candidate.is_file():
                raise BuildError(f"{path}: includes {name!r}, which is not in {include_folder}")
            waiting.append(candidate)
    return list(found)


def relocate(ptx: str, roots: dict[str, str]) -> str:
    """Replace absolute folders in ``.file`` lines; ``roots`` maps a folder to the name it gets ('' for none).

    Each line also gets a time stamp and a size, both 1. Without them, or with zeros, ptxas looks the file up where it
    happens to run and writes its modification time into the cubin.
    """

    def rename(line: re.Match[str]) -> str:
        path = line.group(2)
        for folder, name in roots.items():
            if path.startswith(folder + "/"):
                path = name + path[len(folder) + (0 if name else 1) :]
                break
        if path.startswith("/"):
            raise BuildError(f"PTX names {path!r}, which lies in no known folder: the build would not be reproducible")
        return f'{line.group(1)}"{path}", 1, 1'

    return re.sub(r'^(\s*\.file\s+\d+\s+)"([^"]+)"[^\n]*$', rename, ptx, flags=re.MULTILINE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile ``--source`` to ``--output`` and write a depfile; the current folder is the checkout."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    for name in ("nvrtc", "cuda-include", "source", "output", "depfile"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("flags", nargs="*", help="options for NVRTC, after --")
    options = parser.parse_args(arguments)
    try:
        nvrtc_options = [*options.flags, "-Icsrc", f"-I{options.cuda_include}"]
        ptx, log = Nvrtc(options.nvrtc).compile(options.source.read_text(), str(options.source), nvrtc_options)
        if found := warnings(log):
            raise BuildError(f"NVRTC warns about {options.source}, and warnings are errors:\n" + "\n".join(found))
        roots = {str(options.cuda_include.resolve()): "cuda", str(options.cuda_include): "cuda", str(Path.cwd()): ""}
        dependencies = included_files(options.source, Path("csrc"))
        options.depfile.write_text(f"{options.output}: {' '.join(map(str, dependencies))}\n")
        options.output.write_text(relocate(ptx, roots))
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
