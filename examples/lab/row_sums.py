"""docs/lab.md's five lines: compile a kernel, run it on the emulated V100, check, count, estimate and export it."""

import tempfile

import numpy as np

from sm70_kernels import lab

matrix, sums = np.random.default_rng(0).standard_normal((4, 300), np.float32), np.zeros(4, np.float32)

row_sums = lab.compile("examples/lab/row_sums_fixed.cu").kernel("row_sums")  # or lab.load("foreign.cubin")
report = row_sums.launch(grid=4, block=256, args=[matrix, sums, np.int32(300)], outputs=[1], checkers=lab.ALL)
print(report.findings, report.statistics.issued)
print(report.hot_spots(1)[0], report.estimate().ms)
print(report.export_accel_sim(tempfile.mkdtemp()))

assert np.allclose(sums, matrix.sum(1), atol=1e-4)
