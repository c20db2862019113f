// decode: the torch operator, where tensors become parameters.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <cmath>
#include <limits>
#include <optional>
#include <string>

#include "ops/decode/params.h"
#include "ops/decode/schedule.h"
#include "runtime/launch.h"
#include "runtime/operator.h"
#include "runtime/paged_cache_checks.h"

SM70_CAPABILITY_REVISION(1)

namespace sm70::decode {

using runtime::Argument;
using runtime::ScalarType;
using torch::stable::Tensor;

constexpr const char* kOp = "decode";
constexpr int64_t kMaxGroup = 16;
constexpr int64_t kMaxRows = int64_t{1} << 20;

Problem problem_of(const Tensor& q, const Tensor& key_cache, const Tensor& block_table, bool xqa,
                   int64_t multiprocessors) {
    const int64_t tokens = block_table.size(1) * key_cache.size(1);
    return {q.size(0), q.size(1), key_cache.size(2), q.size(2), tokens, multiprocessors, xqa};
}

void require_shapes(const Argument& q, const Argument& key, const Argument& out) {
    runtime::require_dtype(q, {ScalarType::Half});
    runtime::require_dims(q, 3, "[rows, Hq, D]");
    runtime::require_unit_last_stride(q);
    runtime::require_size(q, 2, key.tensor.size(3), "head dimension of key_cache");
    const int64_t heads = q.tensor.size(1), kv_heads = key.tensor.size(2), head_dim = q.tensor.size(2);
    if (heads <= 0 || heads % kv_heads != 0 || heads / kv_heads > kMaxGroup) {
        runtime::refuse(kOp, "q", std::to_string(heads) + " query heads on " + std::to_string(kv_heads) + " KV heads",
                        "1 to " + std::to_string(kMaxGroup) + " query heads for each KV head",
                        "Pass the q and caches of one model");
    }
    if (head_dim != 64 && head_dim != 128 && head_dim != 256) {
        runtime::refuse(kOp, "q", "a head dimension of " + std::to_string(head_dim), "64, 128 or 256",
                        "No kernel is built for others");
    }
    if (q.tensor.size(0) > kMaxRows) {
        runtime::refuse(kOp, "q", std::to_string(q.tensor.size(0)) + " rows", "at most 2^20",
                        "Decode in several calls");
    }
    runtime::require_dtype(out, {ScalarType::Half});
    runtime::require_dims(out, 3, "[rows, Hq, D]");
    runtime::require_unit_last_stride(out);
    runtime::require_writable_layout(out);
    for (int64_t dim = 0; dim < 3; ++dim) runtime::require_size(out, dim, q.tensor.size(dim), "shape of q");
}

bool require_variant(const std::string& variant) {
    if (variant == "xqa") return true;
    if (variant == "scalar") return false;
    runtime::refuse(kOp, "variant", "'" + variant + "'", "'xqa' or 'scalar'", "Name the kernels to run");
}

PagedCache paged_cache(const Tensor& cache) {
    const int64_t element = static_cast<int64_t>(cache.element_size());
    return {cache.data_ptr(), cache.stride(0) * element, cache.stride(1) * element, cache.stride(2) * element};
}

void decode(const Tensor& q, const Tensor& key_cache, const Tensor& value_cache, const Tensor& block_table,
            const Tensor& seq_lens, const Tensor& out, const Tensor& workspace, const std::string& kv_format,
            const std::string& variant, double softmax_scale, double k_scale, double v_scale,
            const std::optional<Tensor>& k_scale_tensor, const std::optional<Tensor>& v_scale_tensor,
            const std::optional<Tensor>& row_requests, const std::optional<Tensor>& lse) {
    const Argument q_arg{kOp, "q", q}, key_arg{kOp, "key_cache", key_cache};
    const Argument value_arg{kOp, "value_cache", value_cache}, table_arg{kOp, "block_table", block_table};
    const Argument lengths_arg{kOp, "seq_lens", seq_lens}, out_arg{kOp, "out", out};
    const Argument workspace_arg{kOp, "workspace", workspace};
    const auto k_scale_arg = runtime::optional_argument(kOp, "k_scale", k_scale_tensor);
    const auto v_scale_arg = runtime::optional_argument(kOp, "v_scale", v_scale_tensor);
    const auto requests_arg = runtime::optional_argument(kOp, "row_requests", row_requests);
    const auto lse_arg = runtime::optional_argument(kOp, "lse", lse);

    const auto& device = runtime::require_one_device(
        runtime::present({&q_arg, &key_arg, &value_arg, &table_arg, &lengths_arg, &out_arg, &workspace_arg},
                         {&k_scale_arg, &v_scale_arg, &requests_arg, &lse_arg}));
    const auto format = runtime::require_cache_format(kOp, kv_format);
    const bool xqa = require_variant(variant);
    runtime::require_caches(key_arg, value_arg, format);
    require_shapes(q_arg, key_arg, out_arg);
    const int64_t rows = q.size(0), heads = q.size(1), head_dim = q.size(2), kv_heads = key_cache.size(2);

    runtime::require_block_table(table_arg);
    runtime::require_dtype(lengths_arg, {ScalarType::Int});
    runtime::require_dims(lengths_arg, 1, "[rows]");
    runtime::require_size(lengths_arg, 0, rows, "rows of q");
    if (requests_arg.has_value()) {
        runtime::require_dtype(*requests_arg, {ScalarType::Int});
        runtime::require_dims(*requests_arg, 1, "[rows]");
        runtime::require_size(*requests_arg, 0, rows, "rows of q");
    } else {
        runtime::require_size(table_arg, 0, rows, "rows of q, without row_requests");
    }
    if (lse_arg.has_value()) {
        runtime::require_dtype(*lse_arg, {ScalarType::Float});
        runtime::require_dims(*lse_arg, 2, "[rows, Hq]");
        runtime::require_writable_layout(*lse_arg);
        runtime::require_size(*lse_arg, 0, rows, "rows of q");
        runtime::require_size(*lse_arg, 1, heads, "query heads of q");
    }
    int64_t alignment = 16;
    for (const Argument* cache : {&key_arg, &value_arg}) {
        const int64_t found = runtime::head_alignment(*cache);
        if (xqa && found < 8) {
            runtime::refuse(kOp, cache->name, "heads that are not 8-byte aligned",
                            "a base and strides of whole 8 bytes",
                            "Align the cache, or run the variant 'scalar', which serves any layout, slowly");
        }
        alignment = std::min(alignment, found);
    }

    DecodeParams params{};
    params.kv.k_scale = runtime::require_scale(kOp, "k_scale", k_scale);
    params.kv.v_scale = runtime::require_scale(kOp, "v_scale", v_scale);
    params.softmax_scale_log2 =
        static_cast<float>(runtime::require_scale(kOp, "softmax_scale", softmax_scale) * 1.4426950408889634);
    const Problem problem = problem_of(q, key_cache, block_table, xqa, device.multiprocessors);
    const Schedule schedule = make_schedule(problem);
    params.partial_states = static_cast<float*>(runtime::require_workspace(workspace_arg, schedule.workspace_bytes));
    if (rows == 0) return;  // nothing to do

    params.q = static_cast<const uint16_t*>(q.data_ptr());
    params.q_row_stride = q.stride(0);
    params.q_head_stride = q.stride(1);
    params.out = static_cast<uint16_t*>(out.data_ptr());
    params.out_row_stride = out.stride(0);
    params.out_head_stride = out.stride(1);
    if (lse_arg.has_value()) {
        params.lse = static_cast<float*>(lse->data_ptr());
        params.lse_row_stride = lse->stride(0);
        params.lse_head_stride = lse->stride(1);
    }
    if (requests_arg.has_value()) {
        params.row_requests = static_cast<const int32_t*>(row_requests->data_ptr());
        params.row_requests_stride = row_requests->stride(0);
    }
    params.group = static_cast<int32_t>(problem.group());
    params.schedule.seq_lens = static_cast<const int32_t*>(seq_lens.data_ptr());
    params.schedule.seq_lens_stride = seq_lens.stride(0);
    params.schedule.rows = static_cast<int32_t>(rows);
    params.schedule.kv_heads = static_cast<int32_t>(kv_heads);
    params.schedule.max_tokens = static_cast<int32_t>(longest_row(problem));
    params.schedule.max_level = static_cast<int32_t>(schedule.max_level);
    params.schedule.target = static_cast<int32_t>(std::min<int64_t>(schedule.target, schedule.partial_states));
    params.kv.k = paged_cache(key_cache);
    params.kv.v = paged_cache(value_cache);
    params.kv.block_table = static_cast<const int32_t*>(block_table.data_ptr());
    params.kv.block_table_stride = block_table.stride(0);
    params.kv.k_device_scale = runtime::device_scale(k_scale_arg);
    params.kv.v_device_scale = runtime::device_scale(v_scale_arg);
    params.kv.requests = static_cast<int32_t>(block_table.size(0));
    params.kv.pages = static_cast<int32_t>(key_cache.size(0));
    params.kv.tiles_per_page = make_fast_divisor(static_cast<uint32_t>(key_cache.size(1) / kTileTokens));
    params.kv.alignment = static_cast<uint32_t>(alignment);

    const std::string shape_name = format.name + "_d" + std::to_string(head_dim);
    const std::string kernel = xqa ? "decode_xqa_" + shape_name + "_r" + std::to_string(8 * problem.row_tiles())
                                   : "decode_scalar_" + shape_name;
    runtime::Launch request{};
    request.kernel = kernel.c_str();
    request.grid = {static_cast<uint32_t>(schedule.blocks)};
    request.block = {static_cast<uint32_t>(head_dim)};
    request.dynamic_shared_bytes = static_cast<uint32_t>(schedule.shared_bytes);
    request.params = &params;
    request.params_bytes = sizeof(params);
    request.device = &device;
    request.buffers = {runtime::buffer_of(q_arg, false),       runtime::buffer_of(key_arg, false),
                       runtime::buffer_of(value_arg, false),   runtime::buffer_of(table_arg, false),
                       runtime::buffer_of(lengths_arg, false), runtime::buffer_of(out_arg, true),
                       runtime::buffer_of(workspace_arg, true)};
    for (const auto* argument : {&k_scale_arg, &v_scale_arg, &requests_arg}) {
        if (argument->has_value()) request.buffers.push_back(runtime::buffer_of(argument->value(), false));
    }
    if (lse_arg.has_value()) request.buffers.push_back(runtime::buffer_of(*lse_arg, true));
    runtime::launch(request);

    CombineParams combine{};
    combine.decode = params;
    combine.head_dim = static_cast<int32_t>(head_dim);
    combine.operand_scale_inverse = format.name == "e4m3" ? 256.0f : 1.0f;
    combine.kv_heads = make_fast_divisor(static_cast<uint32_t>(kv_heads));
    combine.warps_log2 = static_cast<int32_t>(schedule.warps_log2);
    combine.stack_levels = static_cast<int32_t>(schedule.stack_levels);
    // Warps of a slice, slices of a block: a block stays within a query head.
    const int64_t warps = int64_t{1} << schedule.warps_log2, slices = head_dim / kCombineSlice;
    const int64_t slices_of_block = std::min(kCombineMaxWarps / warps, slices);
    while (slices_of_block << combine.parts_log2 < slices) ++combine.parts_log2;
    request.kernel = "decode_combine";
    request.grid = {static_cast<uint32_t>(rows * kv_heads),
                    static_cast<uint32_t>(problem.group() * (slices / slices_of_block))};
    request.block = {static_cast<uint32_t>(32 * warps * slices_of_block)};
    request.dynamic_shared_bytes =
        static_cast<uint32_t>(warps * slices_of_block * schedule.stack_levels * kCombineLevelBytes);
    request.params = &combine;
    request.params_bytes = sizeof(combine);
    runtime::launch(request);
}

}  // namespace sm70::decode

// Bytes of workspace that decode() wants for these shapes on a device of so many SMs.
extern "C" __attribute__((visibility("default"))) int64_t
sm70_kernels_decode_workspace_bytes(int64_t rows, int64_t query_heads, int64_t kv_heads, int64_t head_dim,
                                    int64_t max_tokens, int64_t multiprocessors, int64_t xqa) {
    return sm70::decode::make_schedule({rows, query_heads, kv_heads, head_dim, max_tokens, multiprocessors, xqa != 0})
        .workspace_bytes;
}

STABLE_TORCH_LIBRARY_FRAGMENT(sm70_kernels, m) {
    m.def(
        "decode(Tensor q, Tensor key_cache, Tensor value_cache, Tensor block_table, Tensor seq_lens, "
        "Tensor(a!) out, Tensor(b!) workspace, str kv_format, str variant, float softmax_scale, float k_scale=1.0, "
        "float v_scale=1.0, Tensor? k_scale_tensor=None, Tensor? v_scale_tensor=None, Tensor? row_requests=None, "
        "Tensor(c!)? lse=None) -> ()");
}
STABLE_TORCH_LIBRARY_IMPL(sm70_kernels, CUDA, m) {
    m.impl("decode", TORCH_BOX(&sm70::decode::decode));
}
STABLE_TORCH_LIBRARY_IMPL(sm70_kernels, CPU, m) {
    m.impl("decode", TORCH_BOX(&sm70::decode::decode));
}
