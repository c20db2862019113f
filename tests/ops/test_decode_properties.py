"""decode of any shape it is built for: hypothesis chooses."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sm70_kernels.lab import emulator
from tests.ops.decode_cases import FORMATS, check, make_case
from tests.ops.kv_cases import LAYOUTS

SHAPES = st.fixed_dictionaries(
    {
        "group": st.integers(1, 16),
        "kv_heads": st.integers(1, 4),
        "head_dim": st.sampled_from([64, 128, 256]),
        "kv_format": st.sampled_from(FORMATS),
        "page": st.integers(1, 12).map(lambda tiles: 16 * tiles),
        "layout": st.sampled_from([layout for layout in LAYOUTS if layout not in ("offset_1", "token_stride_264")]),
        "order": st.sampled_from(["random", "ascending", "descending"]),
        "spare_blocks": st.integers(0, 3),
        "seed": st.integers(0, 1000),
    }
)
LENGTHS = st.lists(st.one_of(st.integers(0, 40), st.integers(100, 300), st.integers(0, 1500)), min_size=1, max_size=5)


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(shape=SHAPES, lengths=LENGTHS, multiprocessors=st.sampled_from([1, 3, 80]))
def test_any_shape(shape: dict[str, object], lengths: list[int], multiprocessors: int) -> None:
    if not any(lengths):
        shape["spare_blocks"] = 1  # a table of no columns holds no row
    case = make_case(lengths, device=torch.device("cpu"), **shape)  # type: ignore[arg-type]
    with emulator.enabled(multiprocessors=multiprocessors):
        check(case, what=f"{shape} {lengths}")
