// decode: the torch operator, where tensors become parameters.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <optional>
#include <string>

#include "ops/decode/params.h"
#include "ops/decode/schedule.h"
#include "runtime/attention_checks.h"
#include "runtime/operator.h"
#include "runtime/operator_call.h"
#include "runtime/paged_cache.h"
#include "runtime/route.h"

SM70_CAPABILITY_REVISION(1)

namespace sm70::decode {

using runtime::Argument;
using runtime::CacheFormat;
using runtime::ScalarType;
using torch::stable::Tensor;

constexpr const char* kOp = "decode";
constexpr int64_t kMaxRows = int64_t{1} << 20;

bool require_variant(const std::string& variant) {
    if (variant == "xqa") return true;
    if (variant == "scalar") return false;
    runtime::refuse(kOp, "variant", "'" + variant + "'", "'xqa' or 'scalar'", "Name the kernels to run");
}

void require_shapes(const Argument& q, const Argument& key, const Argument& out, const Argument* lse) {
    runtime::require_fp16(q, 3, "[rows, Hq, D]");
    runtime::require_size(q, 2, key.tensor.size(3), "head dimension of key_cache");
    runtime::require_heads(q, q.tensor.size(1), key.tensor.size(2), q.tensor.size(2),
                           "Pass the q and caches of one model");
    if (q.tensor.size(0) > kMaxRows) {
        runtime::refuse(kOp, "q", std::to_string(q.tensor.size(0)) + " rows", "at most 2^20",
                        "Decode in several calls");
    }
    runtime::require_output(out, q, "[rows, Hq, D]");
    runtime::require_lse(lse, q, "[rows, Hq]", {"rows of q", "query heads of q"});
}

void require_rows(const Argument& q, const Argument& table, const Argument& seq_lens, const Argument* requests) {
    runtime::require_block_table(table);
    runtime::require_dtype(seq_lens, {ScalarType::Int});
    runtime::require_leading_sizes(seq_lens, q, "[rows]", {"rows of q"});
    if (requests != nullptr) {
        runtime::require_dtype(*requests, {ScalarType::Int});
        runtime::require_leading_sizes(*requests, q, "[rows]", {"rows of q"});
    } else {
        runtime::require_size(table, 0, q.tensor.size(0), "rows of q, without row_requests");
    }
}

int64_t require_alignment(const Argument& key, const Argument& value, bool xqa) {
    if (!xqa) return std::min(runtime::head_alignment(key.tensor), runtime::head_alignment(value.tensor));
    return runtime::require_vector_alignment(
        {&key, &value}, "Align the cache, or run the variant 'scalar', which serves any layout, slowly");
}

void fill_queries(DecodeParams& params, const Argument& q, const Argument& out, const Argument* lse,
                  const Argument* requests) {
    params.q = runtime::data_of<const uint16_t>(q);
    params.q_row_stride = q.tensor.stride(0);
    params.q_head_stride = q.tensor.stride(1);
    params.out = runtime::data_of<uint16_t>(out);
    params.out_row_stride = out.tensor.stride(0);
    params.out_head_stride = out.tensor.stride(1);
    if (lse != nullptr) {
        params.lse = runtime::data_of<float>(*lse);
        params.lse_row_stride = lse->tensor.stride(0);
        params.lse_head_stride = lse->tensor.stride(1);
    }
    if (requests != nullptr) {
        params.row_requests = runtime::data_of<const int32_t>(*requests);
        params.row_requests_stride = requests->tensor.stride(0);
    }
}

RowSchedule row_schedule(const Problem& problem, const Schedule& schedule, const Argument& seq_lens) {
    RowSchedule rows{};
    rows.seq_lens = runtime::data_of<const int32_t>(seq_lens);
    rows.seq_lens_stride = seq_lens.tensor.stride(0);
    rows.rows = static_cast<int32_t>(problem.rows);
    rows.kv_heads = static_cast<int32_t>(problem.kv_heads);
    rows.max_tokens = static_cast<int32_t>(longest_row(problem));
    rows.max_level = static_cast<int32_t>(schedule.max_level);
    rows.target = static_cast<int32_t>(std::min<int64_t>(schedule.target, schedule.partial_states));
    return rows;
}

std::string route(const std::string& format, const Problem& problem) {
    const std::string shape = format + "_d" + std::to_string(problem.head_dim);
    return problem.xqa ? "decode_xqa_" + shape + "_r" + std::to_string(8 * problem.row_tiles())
                       : "decode_scalar_" + shape;
}

void launch_combine(const runtime::OperatorCall& call, const DecodeParams& params, const Problem& problem,
                    const Schedule& schedule, const std::string& format) {
    CombineParams combine{};
    combine.decode = params;
    combine.head_dim = static_cast<int32_t>(problem.head_dim);
    combine.operand_scale_inverse = format == "e4m3" ? 256.0f : 1.0f;
    combine.kv_heads = make_fast_divisor(static_cast<uint32_t>(problem.kv_heads));
    combine.warps_log2 = static_cast<int32_t>(schedule.warps_log2);
    combine.stack_levels = static_cast<int32_t>(schedule.stack_levels);
    // Warps per slice, slices per block: a block stays within one query head.
    const int64_t warps = int64_t{1} << schedule.warps_log2, slices = problem.head_dim / kCombineSlice;
    const int64_t slices_of_block = std::min(kCombineMaxWarps / warps, slices);
    while (slices_of_block << combine.parts_log2 < slices) ++combine.parts_log2;
    const runtime::Dim3 grid{static_cast<uint32_t>(problem.rows * problem.kv_heads),
                             static_cast<uint32_t>(problem.group() * (slices / slices_of_block))};
    call.launch("decode_combine", grid, {static_cast<uint32_t>(32 * warps * slices_of_block)},
                warps * slices_of_block * schedule.stack_levels * kCombineLevelBytes, combine);
}

void decode(const Tensor& q, const Tensor& key_cache, const Tensor& value_cache, const Tensor& block_table,
            const Tensor& seq_lens, const Tensor& out, const Tensor& workspace, const std::string& kv_format,
            const std::string& variant, double softmax_scale, double k_scale, double v_scale,
            const std::optional<Tensor>& k_scale_tensor, const std::optional<Tensor>& v_scale_tensor,
            const std::optional<Tensor>& row_requests, const std::optional<Tensor>& lse) {
    runtime::OperatorCall call(kOp);
    const auto paged = runtime::declare_paged_attention(call, q, key_cache, value_cache, block_table, seq_lens, out);
    const Argument& workspace_arg = call.writes("workspace", workspace);
    const Argument* k_scale_arg = call.may_read("k_scale", k_scale_tensor);
    const Argument* v_scale_arg = call.may_read("v_scale", v_scale_tensor);
    const Argument* requests_arg = call.may_read("row_requests", row_requests);
    const Argument* lse_arg = call.may_write("lse", lse);
    const auto& device = call.require_one_device();

    const CacheFormat format = runtime::require_cache_format(kOp, kv_format);
    const bool xqa = require_variant(variant);
    runtime::require_caches(paged.key_cache, paged.value_cache, format);
    require_shapes(paged.q, paged.key_cache, paged.out, lse_arg);
    require_rows(paged.q, paged.block_table, paged.seq_lens, requests_arg);
    const int64_t alignment = require_alignment(paged.key_cache, paged.value_cache, xqa);
    const auto scales = runtime::require_cache_scales(kOp, k_scale, v_scale, k_scale_arg, v_scale_arg);
    const int64_t max_tokens = block_table.size(1) * key_cache.size(1);
    const Problem problem{q.size(0), q.size(1), key_cache.size(2), q.size(2), max_tokens, device.multiprocessors, xqa};
    const Schedule schedule = make_schedule(problem);

    DecodeParams params{};
    params.softmax_scale_log2 = runtime::require_softmax_scale_log2(kOp, softmax_scale);
    params.partial_states = static_cast<float*>(runtime::require_workspace(workspace_arg, schedule.workspace_bytes));
    params.kv = runtime::paged_kv(paged.key_cache, paged.value_cache, paged.block_table, scales, alignment);
    params.schedule = row_schedule(problem, schedule, paged.seq_lens);
    params.group = static_cast<int32_t>(problem.group());
    fill_queries(params, paged.q, paged.out, lse_arg, requests_arg);
    if (problem.rows == 0) return;  // nothing to do

    call.launch(route(format.name, problem), {static_cast<uint32_t>(schedule.blocks)},
                {static_cast<uint32_t>(problem.head_dim)}, schedule.shared_bytes, params);
    launch_combine(call, params, problem, schedule, format.name);
}

}  // namespace sm70::decode

// Bytes of workspace that decode() wants for these shapes on a device of so many SMs.
SM70_EXPORT int64_t sm70_kernels_decode_workspace_bytes(int64_t rows, int64_t query_heads, int64_t kv_heads,
                                                        int64_t head_dim, int64_t max_tokens, int64_t multiprocessors,
                                                        int64_t xqa) {
    return sm70::decode::make_schedule({rows, query_heads, kv_heads, head_dim, max_tokens, multiprocessors, xqa != 0})
        .workspace_bytes;
}

// Name of the attention kernel for these shapes.
SM70_EXPORT const char* sm70_kernels_decode_route(const char* kv_format, int64_t query_heads, int64_t kv_heads,
                                                  int64_t head_dim, int64_t xqa) {
    return sm70::runtime::route_text(
        sm70::decode::route(kv_format, {0, query_heads, kv_heads, head_dim, 0, 1, xqa != 0}));
}

STABLE_TORCH_LIBRARY_FRAGMENT(sm70_kernels, m) {
    m.def(
        "decode(Tensor q, Tensor key_cache, Tensor value_cache, Tensor block_table, Tensor seq_lens, "
        "Tensor(a!) out, Tensor(b!) workspace, str kv_format, str variant, float softmax_scale, float k_scale=1.0, "
        "float v_scale=1.0, Tensor? k_scale_tensor=None, Tensor? v_scale_tensor=None, Tensor? row_requests=None, "
        "Tensor(c!)? lse=None) -> ()");
}
SM70_IMPLEMENT(sm70_kernels, "decode", sm70::decode::decode)
