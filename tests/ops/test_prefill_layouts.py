"""Every head count, layout and alignment of Q, K, V and the outputs that prefill takes, and by which kernels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sm70_kernels.ops import prefill
from tests.ops.prefill_cases import Case, Result, check, check_same_bits, launched, make_case

NAN = float("nan")


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("group", [1, 4, 6, 8, 16])
def test_heads(device: torch.device, group: int, kv_heads: int, head_dim: int) -> None:
    causal = (group + kv_heads) % 2 == 0
    case = make_case((11, 140), group=group, kv_heads=kv_heads, head_dim=head_dim, causal=causal, device=device)
    check(case)


@pytest.mark.memcheck
@pytest.mark.parametrize("group", [2, 3, 5, 7, 9, 11, 13, 15])
def test_groups_that_do_not_divide_a_tile(device: torch.device, group: int) -> None:
    check(make_case((140 // group, 150), group=group, kv_heads=2, head_dim=64, device=device, seed=group))


def strided(values: Tensor, layout: str) -> Tensor:
    """The same values in another layout; NaN in the memory between them."""
    tokens, heads, dim = values.shape
    if layout == "head_major":
        return values.transpose(0, 1).contiguous().transpose(0, 1)
    pad = {"padded_heads": 8, "padded_4": 4, "padded_1": 1}.get(layout, 0)
    offset = {"offset_8": 8, "offset_4": 4, "offset_1": 1}.get(layout, 0)
    if layout == "fused_qkv":  # a slice of wider tokens
        memory = torch.full((tokens, heads * dim + 64), NAN, dtype=values.dtype, device=values.device)
        view = memory[:, 64:].unflatten(1, (heads, dim))
    else:
        memory = torch.full((offset + tokens * heads * (dim + pad),), NAN, dtype=values.dtype, device=values.device)
        view = memory[offset:].view(tokens, heads, dim + pad)[..., :dim]
    view.copy_(values)
    return view


#: Layout -> alignment of heads in bytes.
ALIGNED = {"head_major": 16, "padded_heads": 16, "fused_qkv": 16, "offset_8": 16, "padded_4": 8, "offset_4": 8}


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("layout", ALIGNED)
def test_layouts_of_k_and_v(device: torch.device, layout: str, head_dim: int) -> None:
    """The same bits as from contiguous tensors, by the kernel that the plan names."""
    case = make_case((30, 200), group=2, kv_heads=2, head_dim=head_dim, device=device)
    expected = case.run()
    k, v = strided(case.k, layout), strided(case.v, layout)
    for changed in (case.but(k=k, v=v), case.but(k=k), case.but(v=v)):
        route = changed.plan().route_for(changed.k, changed.v)
        assert route == f"prefill_d{head_dim}_a{ALIGNED[layout]}"
        before = launched(route)
        check_same_bits(changed.run(), expected, layout)
        assert launched(route) == before + 1


@pytest.mark.parametrize("layout", ["offset_1", "padded_1"])
@pytest.mark.parametrize("name", ["k", "v"])
def test_k_and_v_below_8_bytes_are_refused(device: torch.device, name: str, layout: str) -> None:
    case = make_case((4, 9), group=2, kv_heads=2, head_dim=64, device=device)
    before, into = prefill.library.launch_counts(), case.new_result()
    with pytest.raises(RuntimeError, match=f"'{name}': got heads that are not 8-byte aligned, want .*Call"):
        case.but(**{name: strided(getattr(case, name), layout)}).run(into)
    assert prefill.library.launch_counts() == before and bool(into.out.isnan().all())


@pytest.mark.parametrize("head_dim", [64, 256])
@pytest.mark.parametrize("layout", [*ALIGNED, "offset_1", "padded_1"])
def test_q_and_out_of_any_layout(device: torch.device, layout: str, head_dim: int) -> None:
    case = make_case((30, 140), group=3, kv_heads=2, head_dim=head_dim, device=device)
    expected = case.run()
    out = strided(torch.zeros_like(case.q), layout)
    lse = torch.full((6, 60), NAN, device=device)[:, ::2].transpose(0, 1)
    memory = torch.empty(0, dtype=out.dtype, device=device).set_(out.untyped_storage())
    before = memory.clone()
    check_same_bits(case.but(q=strided(case.q, layout)).run(Result(out, lse)), expected, layout)
    out.zero_()
    assert torch.equal(memory.view(torch.int16), before.view(torch.int16)), "written between rows or heads of out"


def test_contract_shapes(device: torch.device) -> None:
    """With a batch of one, out and lse have it too."""
    case = make_case((20, 50), head_dim=64, device=device)
    expected = case.run()
    lse = torch.full((1, 20, 6), NAN, device=device)
    out = prefill.prefill(case.q[None], case.k[None], case.v[None], lse=lse)
    assert out.shape == (1, 20, 6, 64)
    check_same_bits(Result(out[0], lse[0]), expected)
    assert torch.equal(prefill.prefill(case.q, case.k, case.v), expected.out)


def test_heads_that_share_k(device: torch.device) -> None:
    case = make_case((20, 50), group=2, kv_heads=1, head_dim=64, device=device)
    one, two = case.k.expand(-1, 3, -1), case.v.expand(-1, 3, -1)
    q = case.q.repeat(1, 3, 1)
    expected = Case(q, one.contiguous(), two.contiguous()).run()
    check_same_bits(Case(q, one, two).run(), expected)


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_routes(device: torch.device, head_dim: int) -> None:
    """The kernel that the plan names, and one that combines where blocks shared a tile's keys; no other."""
    for queries, keys, combined in ((5, 100, False), (5, 1000, True)):
        case = make_case((queries, keys), head_dim=head_dim, device=device)
        counts = prefill.library.launch_counts()
        case.run()
        after = prefill.library.launch_counts()
        grown = {kernel for kernel in after if after[kernel] != counts.get(kernel)}
        assert grown == {case.plan().route, *([f"prefill_combine_d{head_dim}"] if combined else [])}


def test_k_beyond_2_31_elements(cuda_device: torch.device) -> None:
    """Offsets of tokens and heads are 64-bit numbers: 256K tokens whose stride is 32K elements, 16 GiB."""
    if torch.cuda.get_device_properties(cuda_device).total_memory < 24 << 30:
        pytest.skip("needs 24 GiB of GPU memory")
    case = make_case((3, 262144), head_dim=64, device=cuda_device)
    memory = torch.zeros(262144, 32768, dtype=torch.float16, device=cuda_device)
    k = memory[:, -64:].unflatten(1, (1, 64))
    k.copy_(case.k)
    check_same_bits(case.but(k=k).run(), case.run())
