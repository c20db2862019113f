"""What a call would take on a V100, estimated from its real machine code.

    from sm70_kernels.lab.cycle_model import estimate
    result = estimate(lambda: kv_cache.gather_paged_kv(...))  # CPU tensors
    print(result.ms, result.dram_gbps, result.bound)
    print(report(result))

The call runs on the emulated V100 with the instrument ``timing``, which chooses the thread blocks it needs: a few from
start to end, and the beginnings of all that run at the same time. So the tensors' values matter only where control flow
depends on them, and memory that no chosen block touches is never backed: ``torch.empty`` of many gigabytes is fine.

Every number is an estimate, never a measurement. It carries the revision of the machine table,
``csrc/instruments/timing/machine_table.cpp``, and has the error that ``docs/cycle-model.md`` gives.
"""

from sm70_kernels.lab.cycle_model.model import CLOCKS_MHZ, AtClock, Estimate, KernelEstimate, estimate, machine_table
from sm70_kernels.lab.cycle_model.text import report

__all__ = [
    "CLOCKS_MHZ",
    "AtClock",
    "Estimate",
    "KernelEstimate",
    "estimate",
    "machine_table",
    "report",
]
