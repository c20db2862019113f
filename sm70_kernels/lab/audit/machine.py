"""The V100 in numbers, as the audit uses them. The pipes' cycles are in ``csrc/instruments/pipes.cpp``."""

from __future__ import annotations

# CUDA C++ programming guide, "Compute Capabilities", table "Technical Specifications", column 7.0.
WARP = 32
MAX_WARPS = 64
MAX_BLOCKS = 32
REGISTERS = 64 * 1024
MAX_REGISTERS_PER_THREAD = 255
SHARED_BYTES = 96 * 1024

# CUDA occupancy calculator (cuda_occupancy.h), compute capability 7.0: registers are given to a warp 256 at a time, to
# each sub-core's warps from its quarter of the file; shared memory is given to a block 256 bytes at a time.
REGISTER_UNIT = 256
SHARED_UNIT = 256
SUB_CORES = 4

# V100-SXM2: 80 SMs (some boards 72). NVIDIA's data sheet says 900 GB/s; 850 GB/s is what read-only kernels of public
# benchmarks reach (BabelStream, GPUInspector.jl: 840 to 880). 1.38 GHz is the clock under a memory-bound load.
MULTIPROCESSORS = 80
DRAM_GBPS = 850.0
CLOCK_GHZ = 1.38
DRAM_BYTES_PER_CYCLE = DRAM_GBPS / CLOCK_GHZ / (MULTIPROCESSORS * SUB_CORES)
"""A sub-core's share: 1.92 bytes."""
