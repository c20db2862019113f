// prefill: the torch operator, where tensors become parameters.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <limits>
#include <optional>
#include <string>

#include "ops/prefill/params.h"
#include "ops/prefill/schedule.h"
#include "runtime/launch.h"
#include "runtime/operator.h"
#include "runtime/paged_cache_checks.h"

SM70_CAPABILITY_REVISION(1)

namespace sm70::prefill {

using runtime::Argument;
using runtime::ScalarType;
using torch::stable::Tensor;

constexpr const char* kOp = "prefill";
constexpr int64_t kMaxGroup = 16;
constexpr int64_t kMaxQueries = 8192;
constexpr int64_t kMaxKeys = 262144;
constexpr int64_t kMaxTiles = int64_t{1} << 30;  // kernels count them, and one grid more, in 31 bits

void require_tokens(const Argument& argument) {
    runtime::require_dtype(argument, {ScalarType::Half});
    runtime::require_dims(argument, 3, "[tokens, heads, D]");
    runtime::require_unit_last_stride(argument);
}

TokenTensor token_tensor(const Tensor& tensor) {
    return {static_cast<const uint16_t*>(tensor.data_ptr()), tensor.stride(0), tensor.stride(1)};
}

void require_range(const char* name, int64_t value, int64_t least, int64_t most, const char* remedy) {
    if (value >= least && value <= most) return;
    runtime::refuse(kOp, name, std::to_string(value), std::to_string(least) + " to " + std::to_string(most), remedy);
}

void prefill(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& workspace,
             double softmax_scale, bool causal, const std::optional<Tensor>& cu_seqlens_q,
             const std::optional<Tensor>& cu_seqlens_k, int64_t max_seqlen_q, int64_t max_seqlen_k,
             const std::optional<Tensor>& lse) {
    const Argument q_arg{kOp, "q", q}, k_arg{kOp, "k", k}, v_arg{kOp, "v", v}, out_arg{kOp, "out", out};
    const Argument workspace_arg{kOp, "workspace", workspace};
    const auto cu_queries_arg = runtime::optional_argument(kOp, "cu_seqlens_q", cu_seqlens_q);
    const auto cu_keys_arg = runtime::optional_argument(kOp, "cu_seqlens_k", cu_seqlens_k);
    const auto lse_arg = runtime::optional_argument(kOp, "lse", lse);
    const auto& device = runtime::require_one_device(runtime::present(
        {&q_arg, &k_arg, &v_arg, &out_arg, &workspace_arg}, {&cu_queries_arg, &cu_keys_arg, &lse_arg}));

    for (const Argument* argument : {&q_arg, &k_arg, &v_arg, &out_arg}) require_tokens(*argument);
    runtime::require_writable_layout(out_arg);
    const int64_t heads = q.size(1), head_dim = q.size(2), kv_heads = k.size(1);
    for (int64_t dim = 0; dim < 3; ++dim) {
        runtime::require_size(out_arg, dim, q.size(dim), "shape of q");
        runtime::require_size(v_arg, dim, k.size(dim), "shape of k");
    }
    runtime::require_size(k_arg, 2, head_dim, "head dimension of q");
    if (kv_heads <= 0 || heads <= 0 || heads % kv_heads != 0 || heads / kv_heads > kMaxGroup) {
        runtime::refuse(kOp, "q", std::to_string(heads) + " query heads on " + std::to_string(kv_heads) + " KV heads",
                        "1 to " + std::to_string(kMaxGroup) + " query heads for each KV head",
                        "Pass the q, k and v of one model");
    }
    if (head_dim != 64 && head_dim != 128 && head_dim != 256) {
        runtime::refuse(kOp, "q", "a head dimension of " + std::to_string(head_dim), "64, 128 or 256",
                        "No kernel is built for others");
    }

    const bool ragged = cu_queries_arg.has_value();
    if (ragged != cu_keys_arg.has_value()) {
        runtime::refuse(kOp, ragged ? "cu_seqlens_k" : "cu_seqlens_q", "no tensor",
                        "a tensor, as the other one is given", "Pass both, or none for one sequence");
    }
    int64_t sequences = 1, queries = q.size(0), keys = k.size(0);
    if (ragged) {
        for (const Argument* argument : {&cu_queries_arg.value(), &cu_keys_arg.value()}) {
            runtime::require_dtype(*argument, {ScalarType::Int});
            runtime::require_dims(*argument, 1, "[sequences + 1]");
            runtime::require_unit_last_stride(*argument);
            if (argument->tensor.size(0) < 1) {
                runtime::refuse(kOp, argument->name, "no elements", "sequences + 1 elements", "Start with a 0");
            }
        }
        runtime::require_size(*cu_keys_arg, 0, cu_seqlens_q->size(0), "size of cu_seqlens_q");
        sequences = cu_seqlens_q->size(0) - 1;
        queries = max_seqlen_q;
        keys = max_seqlen_k;
    }
    const char* split = "Prefill in several calls, and merge them by lse";
    require_range(ragged ? "max_seqlen_q" : "q", queries, 0, kMaxQueries, "Prefill the queries in several calls");
    require_range(ragged ? "max_seqlen_k" : "k", keys, 0, kMaxKeys, split);
    require_range("cu_seqlens_q", sequences, 0, 65536, split);
    if (!ragged && causal && queries > keys) {
        runtime::refuse(kOp, "k", std::to_string(keys) + " keys",
                        "at least the " + std::to_string(queries) + " of q, the last of which sees the last key",
                        "Pass all keys, or causal=False");
    }
    if (q.size(0) > std::numeric_limits<int32_t>::max() || k.size(0) > std::numeric_limits<int32_t>::max()) {
        runtime::refuse(kOp, "q", "tokens beyond 31 bits", "fewer than 2^31", split);
    }
    if (lse_arg.has_value()) {
        runtime::require_dtype(*lse_arg, {ScalarType::Float});
        runtime::require_dims(*lse_arg, 2, "[tokens, Hq]");
        runtime::require_writable_layout(*lse_arg);
        runtime::require_size(*lse_arg, 0, q.size(0), "tokens of q");
        runtime::require_size(*lse_arg, 1, heads, "query heads of q");
    }
    int64_t alignment = 16;
    for (const Argument* argument : {&k_arg, &v_arg}) {
        const int64_t found = runtime::head_alignment(*argument);
        if (found < 8) {
            runtime::refuse(kOp, argument->name, "heads that are not 8-byte aligned",
                            "a base and strides of whole 4 elements", "Call .contiguous() on a copy: .clone()");
        }
        alignment = std::min(alignment, found);
    }

    PrefillParams params{};
    params.softmax_scale_log2 =
        static_cast<float>(runtime::require_scale(kOp, "softmax_scale", softmax_scale) * 1.4426950408889634);
    const Schedule schedule =
        make_schedule({sequences, queries, keys, heads, kv_heads, head_dim, device.multiprocessors});
    if (schedule.tiles > kMaxTiles) {
        runtime::refuse(kOp, "cu_seqlens_q", std::to_string(schedule.tiles) + " tiles of query rows",
                        std::to_string(kMaxTiles) + " at most", "Pass the longest sequence's max_seqlen_q, or split");
    }
    params.partial_states = static_cast<float*>(runtime::require_workspace(workspace_arg, schedule.workspace_bytes));
    if (schedule.tiles == 0) return;  // nothing to do

    params.q = token_tensor(q);
    params.k = token_tensor(k);
    params.v = token_tensor(v);
    params.key_piece_bytes = kKeyPieceKeys * 2 * k.stride(0);
    params.value_piece_bytes = value_piece_keys(head_dim) * 2 * v.stride(0);
    params.out = static_cast<uint16_t*>(out.data_ptr());
    params.out_token_stride = out.stride(0);
    params.out_head_stride = out.stride(1);
    if (lse_arg.has_value()) {
        params.lse = static_cast<float*>(lse->data_ptr());
        params.lse_token_stride = lse->stride(0);
        params.lse_head_stride = lse->stride(1);
    }
    if (ragged) {
        params.cu_seqlens_q = static_cast<const int32_t*>(cu_seqlens_q->data_ptr());
        params.cu_seqlens_k = static_cast<const int32_t*>(cu_seqlens_k->data_ptr());
    }
    params.group = make_fast_divisor(static_cast<uint32_t>(heads / kv_heads));
    params.sequences = static_cast<int32_t>(sequences);
    params.kv_heads = static_cast<int32_t>(kv_heads);
    params.queries = static_cast<int32_t>(queries);
    params.keys = static_cast<int32_t>(keys);
    params.query_tokens = static_cast<int32_t>(q.size(0));
    params.key_tokens = static_cast<int32_t>(k.size(0));
    params.row_tiles = static_cast<int32_t>(schedule.row_tiles);
    params.tiles = static_cast<int32_t>(schedule.tiles);
    params.whole_tiles = static_cast<int32_t>(schedule.whole_tiles);
    params.splits = static_cast<int32_t>(schedule.splits);
    params.causal = causal ? 1 : 0;

    const std::string kernel = "prefill_d" + std::to_string(head_dim) + "_a" + std::to_string(alignment);
    runtime::Launch request{};
    request.kernel = kernel.c_str();
    request.grid = {static_cast<uint32_t>(schedule.blocks)};
    request.block = {kThreads};
    request.dynamic_shared_bytes = static_cast<uint32_t>(shared_bytes(head_dim));
    request.params = &params;
    request.params_bytes = sizeof(params);
    request.device = &device;
    request.buffers = {runtime::buffer_of(q_arg, false), runtime::buffer_of(k_arg, false),
                       runtime::buffer_of(v_arg, false), runtime::buffer_of(out_arg, true),
                       runtime::buffer_of(workspace_arg, true)};
    for (const auto* argument : {&cu_queries_arg, &cu_keys_arg}) {
        if (argument->has_value()) request.buffers.push_back(runtime::buffer_of(argument->value(), false));
    }
    if (lse_arg.has_value()) request.buffers.push_back(runtime::buffer_of(*lse_arg, true));
    runtime::launch(request);

    if (schedule.whole_tiles == schedule.tiles) return;
    CombineParams combine{params, static_cast<int32_t>(schedule.blocks)};
    const std::string combine_kernel = "prefill_combine_d" + std::to_string(head_dim);
    request.kernel = combine_kernel.c_str();
    request.grid = {static_cast<uint32_t>(schedule.tiles - schedule.whole_tiles)};
    request.dynamic_shared_bytes = 0;
    request.params = &combine;
    request.params_bytes = sizeof(combine);
    runtime::launch(request);
}

}  // namespace sm70::prefill

// Bytes of workspace that prefill() wants for these shapes on a device of so many SMs.
extern "C" __attribute__((visibility("default"))) int64_t
sm70_kernels_prefill_workspace_bytes(int64_t sequences, int64_t max_seqlen_q, int64_t max_seqlen_k, int64_t query_heads,
                                     int64_t kv_heads, int64_t head_dim, int64_t multiprocessors) {
    return sm70::prefill::make_schedule(
               {sequences, max_seqlen_q, max_seqlen_k, query_heads, kv_heads, head_dim, multiprocessors})
        .workspace_bytes;
}

STABLE_TORCH_LIBRARY_FRAGMENT(sm70_kernels, m) {
    m.def(
        "prefill(Tensor q, Tensor k, Tensor v, Tensor(a!) out, Tensor(b!) workspace, float softmax_scale, "
        "bool causal=True, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, int max_seqlen_q=0, int "
        "max_seqlen_k=0, "
        "Tensor(c!)? lse=None) -> ()");
}
STABLE_TORCH_LIBRARY_IMPL(sm70_kernels, CUDA, m) {
    m.impl("prefill", TORCH_BOX(&sm70::prefill::prefill));
}
STABLE_TORCH_LIBRARY_IMPL(sm70_kernels, CPU, m) {
    m.impl("prefill", TORCH_BOX(&sm70::prefill::prefill));
}
