"""What a decode kernel spends its instructions on."""

from __future__ import annotations

import pytest
import torch

from sm70_kernels.build.settings import ROOT
from sm70_kernels.lab import inspect
from tests.ops.decode_cases import make_case

KERNELS = "csrc/ops/decode/xqa_inputs.cuh"


def lines_of(function: str) -> range:
    """Lines of a function of the kernels' source."""
    lines = (ROOT / KERNELS).read_text().splitlines()
    (first,) = (number for number, line in enumerate(lines, 1) if f" void {function}(" in line)
    last = next(number for number, line in enumerate(lines, 1) if number > first and line == "}")
    return range(first, last + 1)


@pytest.mark.parametrize("page", [16, 784, 1568])
def test_looking_pages_up_is_little_of_what_is_issued(page: int) -> None:
    """At most 5 %, for any page size: one warp of a block looks up the pages of a leaf."""
    case = make_case([3000], page=page, device=torch.device("cpu"))
    with inspect.statistics() as watched:
        case.run("xqa")
    (kernel,) = (found for name, found in watched.kernels.items() if name.startswith("decode_xqa"))
    where = lines_of("look_up_tiles")
    looking_up = sum(
        instruction.warps
        for instruction in kernel.instructions
        if any(file.endswith(KERNELS) and line in where for file, line in instruction.source)
    )
    issued = sum(instruction.warps for instruction in kernel.instructions)
    assert 0 < looking_up < 0.05 * issued, f"{looking_up} of {issued}"
