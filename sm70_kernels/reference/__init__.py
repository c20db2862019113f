"""Float64 reference oracles: what every operator is compared with, written to be believed by reading.

The modules need only torch, run on any device and are slow on purpose: one idea at a time, no shared code
with the kernels. Tensors and their meaning are those of the operator contracts.
"""

from sm70_kernels.reference.accuracy import (
    GroupChanges,
    differing_elements,
    fp16_rounding_floor,
    fp16_spacing,
    fraction_differing,
    group_changes,
    max_abs_error,
    prefill_flops,
    relative_l2,
    steps_apart,
    ulp_distance,
)
from sm70_kernels.reference.attention import (
    AttentionResult,
    DenseRow,
    attention,
    causal_seq_lens,
    decode_attention,
    prefill_attention,
    verify_attention,
)
from sm70_kernels.reference.compare import compare_bitwise
from sm70_kernels.reference.fp8 import (
    FORMATS,
    decode,
    decode_code,
    decode_table,
    dequantize,
    dequantize_fp16,
    encode,
    quantize,
    round_to_fp16,
)
from sm70_kernels.reference.merge import merge_states
from sm70_kernels.reference.paged import PagedRow, gather_paged_kv, write_paged_kv

__all__ = [
    "FORMATS",
    "AttentionResult",
    "DenseRow",
    "GroupChanges",
    "PagedRow",
    "attention",
    "causal_seq_lens",
    "compare_bitwise",
    "decode",
    "decode_attention",
    "decode_code",
    "decode_table",
    "dequantize",
    "dequantize_fp16",
    "differing_elements",
    "encode",
    "fp16_rounding_floor",
    "fp16_spacing",
    "fraction_differing",
    "gather_paged_kv",
    "group_changes",
    "max_abs_error",
    "merge_states",
    "prefill_attention",
    "prefill_flops",
    "quantize",
    "relative_l2",
    "round_to_fp16",
    "steps_apart",
    "ulp_distance",
    "verify_attention",
    "write_paged_kv",
]
