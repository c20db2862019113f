"""Instruments watch launches, whichever way a launch was made."""

from __future__ import annotations

import numpy as np
import pytest

from sm70_kernels.lab import emulator
from sm70_kernels.lab.instruments import InstrumentError, Instruments
from sm70_kernels.ops import kv_cache


def test_a_module_s_launch_is_counted(compiled):
    program = compiled("lanes")
    a, d = np.zeros(32, np.int32), np.zeros((11, 32), np.int32)
    with Instruments("execution_counts") as instruments:
        total = sum(
            program.kernel("shuffles").launch(1, 32, [a, d], outputs=(1,), instruments=instruments).warp_instructions
            for _ in range(3)
        )
        counts = instruments.report("execution_counts")["shuffles"]
    assert [text for text, _, _ in counts] == [i["text"] for i in program.code.instructions("shuffles")]
    assert sum(warps for _, warps, _ in counts) == total > 0
    assert max(lanes for _, _, lanes in counts) == 3 * 32


def test_an_operator_s_launch_is_counted():
    torch = pytest.importorskip("torch")
    k = torch.ones(16, 1, 64, dtype=torch.float16)
    cache = torch.zeros(1, 16, 1, 64, dtype=torch.uint8)
    slots = torch.arange(16)
    with Instruments("execution_counts") as instruments, emulator.enabled(instruments=instruments) as emulation:
        kv_cache.write_paged_kv(k, k, cache, cache.clone(), slots, kv_format="e4m3")
        with emulator.enabled():  # not watched
            kv_cache.write_paged_kv(k, k, cache, cache.clone(), slots, kv_format="e4m3")
        counts = instruments.report("execution_counts")
    (launched,) = {launch.kernel for launch in emulation.launches}
    assert list(counts) == [launched]
    assert sum(warps for _, warps, _ in counts[launched]) == emulation.warp_instructions > 0


def test_what_instruments_refuse():
    with pytest.raises(InstrumentError, match=r"got 'thermometer', want one of .*execution_counts"):
        Instruments("thermometer")
    with pytest.raises(InstrumentError, match="takes no options, got 'depth=3'"):
        Instruments(execution_counts={"depth": 3})
    with Instruments("execution_counts") as instruments:
        with pytest.raises(InstrumentError, match="is there already"):
            instruments.add("execution_counts")
        with pytest.raises(InstrumentError, match="'timing' was not added"):
            instruments.report("timing")
        with pytest.raises(InstrumentError, match="takes no marks, got 'taint'"):
            instruments.mark("execution_counts", 4096, 16, "taint")
    with pytest.raises(InstrumentError, match="closed"):
        _ = instruments.handle
