"""What the builders of attention calls share: arguments, results, and how two results are compared."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from sm70_kernels import reference
from sm70_kernels.ops._planning import AttentionPlan
from sm70_kernels.reference import AttentionResult
from sm70_kernels.reference.compare import compare_bitwise
from tests.ops import marks

#: Sampled normals repeat with this period: prime, so that no two tokens or pages hold the same values.
PERIOD = 1048583
#: Keys that the reference reads at once: on a GPU as many as keep it busy.
CHUNK_KEYS = {"cpu": 16384, "cuda": 65536}
#: What outputs hold before a run: an element that is not written fails every comparison.
UNWRITTEN = float("nan")
#: FP32 scores: their roundings, and the truncations of a tensor core, stay below 8 FP32 spacings of the largest score.
SCORE_ERROR = 2.0**-20

C = TypeVar("C", bound="AttentionCase")


class Result(NamedTuple):
    """Output, FP16 of the shape of Q, and natural logarithm of the denominators, FP32 without the last dimension."""

    out: Tensor
    lse: Tensor

    def copy(self) -> Result:
        """What it holds now."""
        return Result(self.out.clone(), self.lse.clone())

    def cpu(self) -> Result:
        """On the CPU, to be compared with a result of another device."""
        return Result(self.out.cpu(), self.lse.cpu())

    def forget(self) -> None:
        """Nothing is written any more."""
        for tensor in self:
            tensor.fill_(UNWRITTEN)


@dataclass(frozen=True)
class AttentionCase:
    """The arguments of a call."""

    q: Tensor

    def but(self: C, **changes: Any) -> C:
        """The same call with other arguments."""
        return replace(self, **changes)

    def new_result(self) -> Result:
        """Outputs in which nothing is written yet."""
        out = torch.full(self.q.shape, UNWRITTEN, dtype=torch.float16, device=self.q.device)
        return Result(out, torch.full(self.q.shape[:-1], UNWRITTEN, device=self.q.device))

    def buffers(
        self, planned: AttentionPlan, into: Result | None, workspace: Tensor | None
    ) -> tuple[Result, dict[str, Tensor]]:
        """Result and the arguments that name it, with a workspace of NaN: what a launch did not write is no state."""
        result = self.new_result() if into is None else into
        if workspace is None:
            workspace = planned.new_workspace().fill_(0xFF)
        marks.undefined(workspace)
        return result, {"out": result.out, "lse": result.lse, "workspace": workspace}


@dataclass(frozen=True)
class PagedCase(AttentionCase):
    """The arguments of a call over a paged cache."""

    key_cache: Tensor
    value_cache: Tensor
    block_table: Tensor
    seq_lens: Tensor
    kv_format: str
    softmax_scale: float | None = None
    k_scale: float | Tensor = 1.0
    v_scale: float | Tensor = 1.0

    @property
    def caches(self) -> tuple[Tensor, Tensor]:
        return self.key_cache, self.value_cache

    @property
    def kv_heads(self) -> int:
        return int(self.key_cache.shape[2])

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors of every call, in order."""
        return self.q, *self.caches, self.block_table, self.seq_lens

    @property
    def scales(self) -> dict[str, Any]:
        return {"softmax_scale": self.softmax_scale, "k_scale": self.k_scale, "v_scale": self.v_scale}

    @property
    def planned_for(self) -> dict[str, Any]:
        """The arguments of a plan that follow from cache, table and device."""
        return {
            "query_heads": self.q.shape[-2], "kv_heads": self.kv_heads, "head_dim": self.q.shape[-1],
            "max_tokens": self.block_table.shape[1] * self.key_cache.shape[1], "kv_format": self.kv_format,
            "device": self.q.device,
        }  # fmt: skip

    @property
    def scale(self) -> float:
        """The softmax scale of the call."""
        return self.softmax_scale or 1.0 / math.sqrt(self.q.shape[-1])

    @property
    def of_reference(self) -> dict[str, Any]:
        """What the float64 reference wants beside the tensors."""
        chunk_keys = CHUNK_KEYS[self.q.device.type]
        return {**self.scales, "softmax_scale": self.scale, "kv_format": self.kv_format, "chunk_keys": chunk_keys}


@functools.lru_cache(maxsize=16)
def sampled_normals(count: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Normal values on the CPU."""
    return torch.randn(count, generator=torch.Generator().manual_seed(seed)).to(dtype)


def repeated(values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The values, over and over, as a tensor of this shape."""
    wanted = math.prod(shape)
    return values.repeat(-(-wanted // max(1, len(values))))[:wanted].view(shape)


def check_lse(result: Result, exact: AttentionResult, *, error: float, what: str, largest_score: float = 0.0) -> None:
    """lse within ``error`` and what scores of this size allow; -inf for rows without keys."""
    live = exact.lse != -math.inf
    assert bool((result.lse[~live] == -math.inf).all()), f"{what}: lse of rows without keys is not -inf"
    size = float(exact.lse[live].abs().max()) if bool(live.any()) else 0.0
    found = reference.max_abs_error(result.lse[live], exact.lse[live])
    bound = error + SCORE_ERROR * (1.0 + size + largest_score)
    assert found <= bound, f"{what}: lse is off by {found:.2e}, want at most {bound:.2e}"


def check_near_rounding(
    result: Result, exact: AttentionResult, *, factor: float, offset: float, what: str, largest_score: float = 0.0
) -> None:
    """Relative L2 against float64 within ``factor`` times what rounding to FP16 costs by itself, and ``offset``; lse.

    Scores of normal data are of the size of the lse; larger ones are named: an error in a score is a relative error
    in a weight.
    """
    floor = reference.fp16_rounding_floor(exact.out)
    found = reference.relative_l2(result.out, exact.out)
    bound = factor * floor + offset + SCORE_ERROR * largest_score
    assert found <= bound, f"{what}: relative L2 {found:.5e}, want at most {bound:.5e} (rounding alone: {floor:.5e})"
    check_lse(result, exact, error=0.0, what=what, largest_score=largest_score)


def check_same_bits(actual: Result, expected: Result, what: str = "") -> None:
    """Bit for bit, lse included."""
    compare_bitwise(actual.out, expected.out, f"{what} out")
    compare_bitwise(actual.lse, expected.lse, f"{what} lse")
