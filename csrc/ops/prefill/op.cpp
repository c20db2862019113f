// prefill: the torch operator, where tensors become parameters.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <limits>
#include <optional>
#include <string>

#include "ops/prefill/params.h"
#include "ops/prefill/schedule.h"
#include "runtime/attention_checks.h"
#include "runtime/operator.h"
#include "runtime/operator_call.h"
#include "runtime/route.h"

SM70_CAPABILITY_REVISION(1)

namespace sm70::prefill {

using runtime::Argument;
using torch::stable::Tensor;

constexpr const char* kOp = "prefill";
constexpr int64_t kMaxQueries = 8192;
constexpr int64_t kMaxKeys = 262144;
constexpr int64_t kMaxTiles = int64_t{1} << 30;  // kernels count them, and one grid more, in 31 bits
constexpr const char* kSplit = "Prefill in several calls, and merge them by lse";

void require_range(const char* name, int64_t value, int64_t least, int64_t most, const char* remedy) {
    if (value >= least && value <= most) return;
    runtime::refuse(kOp, name, std::to_string(value), std::to_string(least) + " to " + std::to_string(most), remedy);
}

void require_shapes(const Argument& q, const Argument& k, const Argument& v, const Argument& out, const Argument* lse) {
    for (const Argument* argument : {&q, &k, &v}) runtime::require_fp16(*argument, 3, "[tokens, heads, D]");
    runtime::require_output(out, q, "[tokens, heads, D]");
    for (int64_t dim = 0; dim < 3; ++dim) runtime::require_size(v, dim, k.tensor.size(dim), "shape of k");
    runtime::require_size(k, 2, q.tensor.size(2), "head dimension of q");
    runtime::require_heads(q, q.tensor.size(1), k.tensor.size(1), q.tensor.size(2), "Pass the q, k and v of one model");
    constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();
    if (q.tensor.size(0) > kMaxTokens || k.tensor.size(0) > kMaxTokens) {
        runtime::refuse(kOp, "q", "tokens beyond 31 bits", "fewer than 2^31", kSplit);
    }
    runtime::require_lse(lse, q, "[tokens, Hq]", {"tokens of q", "query heads of q"});
}

// Offsets come in pairs, of the same number.
void require_offsets(const Argument* cu_seqlens_q, const Argument* cu_seqlens_k) {
    const bool ragged = cu_seqlens_q != nullptr;
    if (ragged != (cu_seqlens_k != nullptr)) {
        runtime::refuse(kOp, ragged ? "cu_seqlens_k" : "cu_seqlens_q", "no tensor",
                        "a tensor, as the other one is given", "Pass both, or none for one sequence");
    }
    if (!ragged) return;
    for (const Argument* argument : {cu_seqlens_q, cu_seqlens_k}) {
        runtime::require_dtype(*argument, {runtime::ScalarType::Int});
        runtime::require_dims(*argument, 1, "[sequences + 1]");
        runtime::require_unit_last_stride(*argument);
        if (argument->tensor.size(0) < 1) {
            runtime::refuse(kOp, argument->name, "no elements", "sequences + 1 elements", "Start with a 0");
        }
    }
    runtime::require_size(*cu_seqlens_k, 0, cu_seqlens_q->tensor.size(0), "size of cu_seqlens_q");
}

void require_lengths(const Problem& problem, bool ragged, bool causal) {
    require_range(ragged ? "max_seqlen_q" : "q", problem.queries, 0, kMaxQueries,
                  "Prefill the queries in several calls");
    require_range(ragged ? "max_seqlen_k" : "k", problem.keys, 0, kMaxKeys, kSplit);
    require_range("cu_seqlens_q", problem.sequences, 0, 65536, kSplit);
    if (!ragged && causal && problem.queries > problem.keys) {
        runtime::refuse(
            kOp, "k", std::to_string(problem.keys) + " keys",
            "at least the " + std::to_string(problem.queries) + " of q, the last of which sees the last key",
            "Pass all keys, or causal=False");
    }
}

void require_tiles(const Schedule& schedule) {
    if (schedule.tiles <= kMaxTiles) return;
    runtime::refuse(kOp, "cu_seqlens_q", std::to_string(schedule.tiles) + " tiles of query rows",
                    std::to_string(kMaxTiles) + " at most", "Pass the longest sequence's max_seqlen_q, or split");
}

RaggedTensor token_tensor(const Argument& argument) {
    return {runtime::data_of<const uint16_t>(argument), argument.tensor.stride(0), argument.tensor.stride(1)};
}

void fill_tensors(PrefillParams& params, const Argument& q, const Argument& k, const Argument& v, const Argument& out,
                  const Argument* lse) {
    params.q = token_tensor(q);
    params.k = token_tensor(k);
    params.v = token_tensor(v);
    params.key_vector_stride_bytes = kHalfSliceKeys * 2 * k.tensor.stride(0);
    params.value_vector_stride_bytes = half_slice_value_keys(q.tensor.size(2)) * 2 * v.tensor.stride(0);
    params.query_tokens = static_cast<int32_t>(q.tensor.size(0));
    params.key_tokens = static_cast<int32_t>(k.tensor.size(0));
    params.out = runtime::data_of<uint16_t>(out);
    params.out_token_stride = out.tensor.stride(0);
    params.out_head_stride = out.tensor.stride(1);
    if (lse != nullptr) {
        params.lse = runtime::data_of<float>(*lse);
        params.lse_token_stride = lse->tensor.stride(0);
        params.lse_head_stride = lse->tensor.stride(1);
    }
}

void fill_schedule(PrefillParams& params, const Problem& problem, const Schedule& schedule) {
    params.group = make_fast_divisor(static_cast<uint32_t>(problem.query_heads / problem.kv_heads));
    params.sequences = static_cast<int32_t>(problem.sequences);
    params.kv_heads = static_cast<int32_t>(problem.kv_heads);
    params.queries = static_cast<int32_t>(problem.queries);
    params.keys = static_cast<int32_t>(problem.keys);
    params.row_tiles = static_cast<int32_t>(schedule.row_tiles);
    params.tiles = static_cast<int32_t>(schedule.tiles);
    params.whole_tiles = static_cast<int32_t>(schedule.whole_tiles);
    params.splits = static_cast<int32_t>(schedule.splits);
}

std::string route(int64_t head_dim, int64_t alignment) {
    return "prefill_d" + std::to_string(head_dim) + "_a" + std::to_string(alignment);
}

void prefill(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& workspace,
             double softmax_scale, bool causal, const std::optional<Tensor>& cu_seqlens_q,
             const std::optional<Tensor>& cu_seqlens_k, int64_t max_seqlen_q, int64_t max_seqlen_k,
             const std::optional<Tensor>& lse) {
    runtime::OperatorCall call(kOp);
    const Argument& q_arg = call.reads("q", q);
    const Argument& k_arg = call.reads("k", k);
    const Argument& v_arg = call.reads("v", v);
    const Argument& out_arg = call.writes("out", out);
    const Argument& workspace_arg = call.writes("workspace", workspace);
    const Argument* offsets_q = call.may_read("cu_seqlens_q", cu_seqlens_q);
    const Argument* offsets_k = call.may_read("cu_seqlens_k", cu_seqlens_k);
    const Argument* lse_arg = call.may_write("lse", lse);
    const auto& device = call.require_one_device();

    require_shapes(q_arg, k_arg, v_arg, out_arg, lse_arg);
    require_offsets(offsets_q, offsets_k);
    const bool ragged = offsets_q != nullptr;
    Problem problem{1, q.size(0), k.size(0), q.size(1), k.size(1), q.size(2), device.multiprocessors};
    if (ragged) {
        problem.sequences = cu_seqlens_q->size(0) - 1;
        problem.queries = max_seqlen_q;
        problem.keys = max_seqlen_k;
    }
    require_lengths(problem, ragged, causal);
    const int64_t alignment =
        runtime::require_vector_alignment({&k_arg, &v_arg}, "Call .contiguous() on a copy: .clone()");
    const Schedule schedule = make_schedule(problem);
    require_tiles(schedule);

    PrefillParams params{};
    params.softmax_scale_log2 = runtime::require_softmax_scale_log2(kOp, softmax_scale);
    params.partial_states = static_cast<float*>(runtime::require_workspace(workspace_arg, schedule.workspace_bytes));
    params.causal = causal ? 1 : 0;
    if (ragged) {
        params.cu_seqlens_q = runtime::data_of<const int32_t>(*offsets_q);
        params.cu_seqlens_k = runtime::data_of<const int32_t>(*offsets_k);
    }
    fill_tensors(params, q_arg, k_arg, v_arg, out_arg, lse_arg);
    fill_schedule(params, problem, schedule);
    if (schedule.tiles == 0) return;  // nothing to do

    call.launch(route(problem.head_dim, alignment), {static_cast<uint32_t>(schedule.blocks)}, {kThreads},
                shared_bytes(problem.head_dim), params);
    if (schedule.whole_tiles == schedule.tiles) return;
    const CombineParams combine{params, static_cast<int32_t>(schedule.blocks)};
    call.launch("prefill_combine_d" + std::to_string(problem.head_dim),
                {static_cast<uint32_t>(schedule.tiles - schedule.whole_tiles)}, {kThreads}, 0, combine);
}

}  // namespace sm70::prefill

// Bytes of workspace that prefill() wants for these shapes on a device of so many SMs.
SM70_EXPORT int64_t sm70_kernels_prefill_workspace_bytes(int64_t sequences, int64_t max_seqlen_q, int64_t max_seqlen_k,
                                                         int64_t query_heads, int64_t kv_heads, int64_t head_dim,
                                                         int64_t multiprocessors) {
    return sm70::prefill::make_schedule(
               {sequences, max_seqlen_q, max_seqlen_k, query_heads, kv_heads, head_dim, multiprocessors})
        .workspace_bytes;
}

// Name of the attention kernel where heads of K and V are aligned to so many bytes: 16 or 8.
SM70_EXPORT const char* sm70_kernels_prefill_route(int64_t head_dim, int64_t alignment) {
    return sm70::runtime::route_text(sm70::prefill::route(head_dim, alignment));
}

STABLE_TORCH_LIBRARY_FRAGMENT(sm70_kernels, m) {
    m.def(
        "prefill(Tensor q, Tensor k, Tensor v, Tensor(a!) out, Tensor(b!) workspace, float softmax_scale, "
        "bool causal=True, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, int max_seqlen_q=0, int "
        "max_seqlen_k=0, "
        "Tensor(c!)? lse=None) -> ()");
}
SM70_IMPLEMENT(sm70_kernels, "prefill", sm70::prefill::prefill)
