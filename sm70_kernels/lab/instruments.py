"""What watches emulated launches: checkers, statistics, traces, timing.

    with Instruments("execution_counts") as instruments:
        with sm70_kernels.lab.emulator.enabled(instruments=instruments):
            ...
        counts = instruments.report("execution_counts")

The instruments themselves are in ``csrc/instruments``; ``docs/emulator.md`` says what each reports.
"""

from __future__ import annotations

import ctypes
import functools
import json
from types import TracebackType
from typing import Any

from sm70_kernels import _native

_ERROR_BYTES = 4096


class InstrumentError(RuntimeError):
    """An instrument that does not exist, or does not take what it was told."""


@functools.cache
def _emulator() -> ctypes.CDLL:
    """The emulator's DSO: the very one that operators open."""
    path = _native.LIBRARIES / "libsm70_emulator.so"
    if not path.is_file():
        raise _native.LibraryError(f"the emulator's library {path} is missing. Rebuild: scripts/nox -s build")
    library = ctypes.CDLL(str(path))
    text, handle, error = ctypes.c_char_p, ctypes.c_void_p, (ctypes.c_char_p, ctypes.c_uint64)
    library.sm70emu_instruments_create.restype = handle
    library.sm70emu_instruments_destroy.argtypes = (handle,)
    library.sm70emu_instruments_add.argtypes = (handle, text, text, *error)
    library.sm70emu_instruments_mark.argtypes = (handle, text, ctypes.c_uint64, ctypes.c_uint64, text, *error)
    library.sm70emu_instruments_report.argtypes = (handle, text, *error)
    library.sm70emu_instruments_report.restype = ctypes.c_void_p
    library.sm70emu_text_free.argtypes = (ctypes.c_void_p,)
    return library


class Instruments:
    """A set of instruments that watch launches together. Close it, or use it as a context, to free what it holds."""

    def __init__(self, *names: str, **options: dict[str, Any]) -> None:
        """Add instruments by name; those that take options as ``name={"key": value}``.

        Raises:
            InstrumentError: no such instrument, or no such option.
        """
        self._library = _emulator()
        self._handle: int | None = self._library.sm70emu_instruments_create()
        try:
            for name in names:
                self.add(name)
            for name, values in options.items():
                self.add(name, **values)
        except BaseException:
            self.close()
            raise

    @property
    def handle(self) -> int:
        """The C handle (``sm70emu_instruments*``) that launches take."""
        if self._handle is None:
            raise InstrumentError("these instruments are closed. Make new ones")
        return self._handle

    def add(self, name: str, **options: Any) -> None:
        """Add one instrument, with options it knows."""
        lines = "\n".join(f"{key}={value}" for key, value in options.items())
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        if self._library.sm70emu_instruments_add(self.handle, name.encode(), lines.encode(), error, len(error)) != 0:
            raise InstrumentError(error.value.decode())

    def mark(self, name: str, address: int, size: int, what: str) -> None:
        """Tell an instrument something about ``size`` bytes of host memory, in a word that it knows."""
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        arguments = (self.handle, name.encode(), address, size, what.encode(), error, len(error))
        if self._library.sm70emu_instruments_mark(*arguments) != 0:
            raise InstrumentError(error.value.decode())

    def report(self, name: str) -> Any:
        """What an instrument saw so far, decoded from its JSON."""
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        text = self._library.sm70emu_instruments_report(self.handle, name.encode(), error, len(error))
        if text is None:
            raise InstrumentError(error.value.decode())
        try:
            return json.loads(ctypes.string_at(text).decode())
        finally:
            self._library.sm70emu_text_free(text)

    def close(self) -> None:
        """Free them. Launches must be over."""
        if self._handle is not None:
            self._library.sm70emu_instruments_destroy(self._handle)
            self._handle = None

    def __enter__(self) -> Instruments:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
