"""Writes build/build.ninja: every command of the build, and what it depends on.

An operator goes through  kernel.cu -> kernel.ptx -> kernel.cubin -> kernel.sass, resources.txt  and, with op.cpp and
csrc/runtime, into one DSO. The emulator is one DSO of csrc/emulator and csrc/instruments; the interpreter module is
csrc/bindings with the same objects. Ninja runs in the checkout, so that every path of the project is relative.
"""

from __future__ import annotations

import json
from pathlib import Path

from sm70_kernels import __version__
from sm70_kernels.build.settings import (
    ARCHITECTURES,
    BUILD,
    CXX_FLAGS,
    EMULATOR_FLAGS,
    LIBRARY_FOLDER,
    LINK_FLAGS,
    NVRTC_FLAGS,
    PACKAGE,
    PTXAS_FLAGS,
    ROOT,
    BuildError,
    library_name,
    operators,
)
from sm70_kernels.build.toolchain import Toolchain

#: The interpreter's own module: the only file whose bytes depend on the Python version.
INTERPRETER_MODULE = "_emulator"


def operator_folder(operator: str, kind: str = "ops") -> str:
    """The folder of an operator's intermediate files, relative to the checkout."""
    return f"build/{kind}/{operator}"


def built_library(operator: str, kind: str = "ops") -> str:
    """The operator's DSO as linked, relative to the checkout. Those of test_ops stay there, out of the package."""
    return f"{operator_folder(operator, kind)}/{library_name(operator)}"


def installed_library(operator: str) -> str:
    """The operator's DSO, relative to the checkout."""
    return f"{PACKAGE.name}/{LIBRARY_FOLDER}/{library_name(operator)}"


def installed_emulator() -> str:
    """The emulator's DSO, relative to the checkout."""
    return f"{PACKAGE.name}/{LIBRARY_FOLDER}/{library_name('emulator')}"


def installed_module(toolchain: Toolchain) -> str:
    """The interpreter module, relative to the checkout. Its suffix is the interpreter's own, never a constant."""
    return f"{PACKAGE.name}/{INTERPRETER_MODULE}{toolchain.extension_suffix}"


def installed_files(toolchain: Toolchain) -> dict[str, str]:
    """Built file inside the package -> the file that was linked, both relative to the checkout."""
    files = {installed_library(operator): built_library(operator) for operator in operators()}
    files[installed_emulator()] = f"build/emulator/{library_name('emulator')}"
    files[installed_module(toolchain)] = f"{_module_folder(toolchain)}/{Path(installed_module(toolchain)).name}"
    return files


def _module_folder(toolchain: Toolchain) -> str:
    """The folder in which the module is compiled. Its name is this Python's: two Pythons can share a checkout."""
    return f"build/bindings/{toolchain.extension_suffix.lstrip('.')}"


def build_facts(operator: str, toolchain: Toolchain) -> str:
    """The JSON text that the DSO holds. Nothing in it differs between two builds of one commit."""
    compilers = ("gcc", "nvrtc", "ptxas", "torch")
    facts = {
        "operator": operator,
        "package_version": __version__,
        "architectures": list(ARCHITECTURES),
        "compilers": {name: toolchain.versions[name] for name in compilers},
    }
    return json.dumps(facts, sort_keys=True) + "\n"


def _quote(path: Path | str) -> str:
    """A path as ninja and the shell both take it."""
    text = str(path)
    if any(character in text for character in " '\"$`\\;&|<>()*?"):
        raise BuildError(
            f"the path {text!r} has a character that the build can't quote, a space say: move the checkout"
        )
    return text.replace(":", "$:")


def _rules(toolchain: Toolchain) -> list[str]:
    includes = {
        name: [f"-isystem {_quote(path)}" for path in paths]
        for name, paths in {
            "runtime": (
                toolchain.torch_include,
                toolchain.torch_include / "torch" / "csrc" / "api" / "include",
                toolchain.cuda_include,
            ),
            "bindings": (toolchain.pybind11_include, toolchain.python_include),
        }.items()
    }
    # __FILE__ in a header must not contain the environment's path.
    prefix_maps = [f"-ffile-prefix-map={_quote(ROOT)}=."] + [
        f"-ffile-prefix-map={_quote(path)}={name}" for name, path in sorted(toolchain.include_roots().items())
    ]
    flags = " ".join([*CXX_FLAGS, *prefix_maps, "-Icsrc"])
    compile_cxx = f"{_quote(toolchain.cxx)} {flags} $options -MMD -MF $out.d -c $in -o $out"
    return [
        "rule ptx",
        f"  command = {_quote(toolchain.python)} -m sm70_kernels.build.ptx --nvrtc {_quote(toolchain.nvrtc)} "
        f"--cuda-include {_quote(toolchain.cuda_include)} --source $in --output $out --depfile $out.d "
        f"-- {' '.join(NVRTC_FLAGS)}",
        "  depfile = $out.d",
        "  deps = gcc",
        "  description = NVRTC $in",
        "rule cubin",
        f"  command = {_quote(toolchain.ptxas)} {' '.join(PTXAS_FLAGS)} $in -o $out > $out.log 2>&1 || "
        "{ cat $out.log; exit 1; }",
        "  description = PTXAS $out",
        "rule sass",
        f"  command = {_quote(toolchain.nvdisasm)} -c -hex -g $in > $out",
        "  description = NVDISASM $out",
        "rule resources",
        f"  command = {_quote(toolchain.cuobjdump)} -res-usage $in > $out",
        "  description = RESOURCES $out",
        "rule embed",
        f"  command = {_quote(toolchain.cxx)} -x assembler-with-cpp $defines -c $in -o $out",
        "  description = EMBED $out",
        "rule cxx",
        f"  command = {compile_cxx}",
        "  depfile = $out.d",
        "  deps = gcc",
        "  description = CXX $in",
        "rule link",
        f"  command = {_quote(toolchain.cxx)} {' '.join(LINK_FLAGS)} $soname $in $libraries -o $out",
        "  description = LINK $out",
        "rule install",
        "  command = cp $in $out.tmp && mv $out.tmp $out",
        "  description = INSTALL $out",
        "",
        f"runtime_options = {' '.join(includes['runtime'])}",
        f"emulator_options = {' '.join(EMULATOR_FLAGS)}",
        f"instruments_options = {' '.join(EMULATOR_FLAGS)}",
        f"bindings_options = {' '.join(includes['bindings'])}",
        f"torch_libraries = -Wl,--no-undefined -L{_quote(toolchain.torch_lib)} "
        "-Wl,--as-needed -ltorch_cpu -ltorch_cuda -ldl",
        "",
    ]


def _compile_edges(part: str, folder: str) -> tuple[list[str], list[str]]:
    """Edges and object files of all sources of csrc/``part``, subfolders included, compiled into ``folder``."""
    lines, objects = [], []
    root = ROOT / "csrc" / part
    for source in sorted(path.relative_to(root) for path in root.rglob("*.cpp")):
        target = f"{folder}/{source.with_suffix('.o')}"
        lines += [f"build {target}: cxx csrc/{part}/{source}", f"  options = ${part}_options"]
        objects.append(target)
    return lines, objects


def _operator_edges(operator: str, kind: str, runtime_objects: list[str]) -> tuple[list[str], list[str]]:
    """Edges of one operator, and its final files."""
    folder, source, library = operator_folder(operator, kind), f"csrc/{kind}/{operator}", built_library(operator, kind)
    embedded = f"{folder}/kernel.cubin {folder}/kernel.ptx {folder}/facts.json"
    files = {"CUBIN": "kernel.cubin", "PTX": "kernel.ptx", "FACTS": "facts.json"}
    defines = " ".join(f"-DSM70_{name}_FILE={folder}/{file}" for name, file in files.items())
    lines = [
        f"build {folder}/kernel.ptx: ptx {source}/kernel.cu | sm70_kernels/build/ptx.py",
        f"build {folder}/kernel.cubin: cubin {folder}/kernel.ptx",
        f"build {folder}/kernel.sass: sass {folder}/kernel.cubin",
        f"build {folder}/resources.txt: resources {folder}/kernel.cubin",
        f"build {folder}/embedded.o: embed csrc/runtime/embedded.S | {embedded}",
        f"  defines = {defines}",
        f"build {folder}/op.o: cxx {source}/op.cpp",
        "  options = $runtime_options",
        f"build {library}: link {folder}/op.o {folder}/embedded.o {' '.join(runtime_objects)}",
        f"  soname = -Wl,-soname,{library_name(operator)}",
        "  libraries = $torch_libraries",
    ]
    if kind == "ops":
        lines.append(f"build {installed_library(operator)}: install {library}")
        library = installed_library(operator)
    return lines, [library, f"{folder}/kernel.sass", f"{folder}/resources.txt"]


def _emulator_edges(objects: list[str]) -> tuple[list[str], list[str]]:
    """Edges of the emulator's DSO, and the file."""
    name = library_name("emulator")
    lines = [
        f"build build/emulator/{name}: link {' '.join(objects)}",
        f"  soname = -Wl,-soname,{name}",
        "  libraries = -Wl,--no-undefined -pthread",
        f"build {installed_emulator()}: install build/emulator/{name}",
    ]
    return lines, [installed_emulator()]


def _module_edges(toolchain: Toolchain, emulator_objects: list[str]) -> tuple[list[str], list[str]]:
    """Edges of the interpreter module, and the file."""
    folder = _module_folder(toolchain)
    lines, objects = _compile_edges("bindings", folder)
    module = installed_module(toolchain)
    built = f"{folder}/{Path(module).name}"
    lines += [
        f"build {built}: link {' '.join([*objects, *emulator_objects])}",
        "  libraries = -pthread",
        f"build {module}: install {built}",
    ]
    return lines, [module]


def write(toolchain: Toolchain) -> Path:
    """Write build.ninja and the build facts; unchanged files keep their time stamps. Returns build.ninja's path."""
    lines = ["# Written by sm70_kernels.build.graph.", "ninja_required_version = 1.10", "builddir = build", ""]
    lines += _rules(toolchain)
    runtime_lines, runtime_objects = _compile_edges("runtime", "build/runtime")
    emulator_lines, emulator_objects = _compile_edges("emulator", "build/emulator")
    instrument_lines, instrument_objects = _compile_edges("instruments", "build/instruments")
    emulator_objects += instrument_objects
    lines += runtime_lines + emulator_lines + instrument_lines
    everything: list[str] = []
    for kind in ("ops", "test_ops"):
        for operator in operators(kind=kind):
            facts = ROOT / operator_folder(operator, kind) / "facts.json"
            _write_if_changed(facts, build_facts(operator, toolchain))
            edges, outputs = _operator_edges(operator, kind, runtime_objects)
            lines += ["", *edges, f"build {kind}/{operator}: phony {' '.join(outputs)}"]
            everything.append(f"{kind}/{operator}")
    for target, (edges, outputs) in {
        "emulator": _emulator_edges(emulator_objects),
        "interpreter": _module_edges(toolchain, emulator_objects),
    }.items():
        lines += ["", *edges, f"build {target}: phony {' '.join(outputs)}"]
        everything.append(target)
    lines += ["", f"build all: phony {' '.join(everything)}", "default all", ""]
    path = BUILD / "build.ninja"
    _write_if_changed(path, "\n".join(lines))
    return path


def _write_if_changed(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file() or path.read_text() != text:
        path.write_text(text)
