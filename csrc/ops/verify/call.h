// A call of verify: tensors become parameters, and two kernels run. Operators of tests, which build the kernels in
// other ways, call it too.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <limits>
#include <optional>
#include <string>

#include "ops/verify/params.h"
#include "ops/verify/schedule.h"
#include "runtime/attention_checks.h"
#include "runtime/operator_call.h"
#include "runtime/paged_cache.h"

namespace sm70::verify {

using runtime::Argument;
using torch::stable::Tensor;

constexpr int64_t kMaxQueryRows = 16;
constexpr int64_t kMaxRows = int64_t{1} << 20;

struct Tensors {
    const Tensor &q, &key_cache, &value_cache, &block_table, &seq_lens, &out, &workspace;
    const std::optional<Tensor>&k_scale, &v_scale, &lse;
};

struct Numbers {
    double softmax_scale, k_scale, v_scale;
};

inline runtime::CacheFormat require_fp8_format(const char* op, const std::string& name) {
    const runtime::CacheFormat format = runtime::require_cache_format(op, name);
    if (format.name == "fp16") {
        runtime::refuse(op, "kv_format", "'fp16'", "'e4m3' or 'e5m2'",
                        "No kernel is built for FP16 caches: decode serves them, a row of a request at a time");
    }
    return format;
}

inline void require_shapes(const Argument& q, const Argument& key, const Argument& out, const Argument* lse) {
    runtime::require_fp16(q, 4, "[B, q_rows, Hq, D]");
    runtime::require_size(q, 3, key.tensor.size(3), "head dimension of key_cache");
    runtime::require_heads(q, q.tensor.size(2), key.tensor.size(2), q.tensor.size(3),
                           "Pass the q and caches of one model");
    const int64_t requests = q.tensor.size(0), q_rows = q.tensor.size(1);
    if (q_rows < 1 || q_rows > kMaxQueryRows) {
        runtime::refuse(q.op, "q", std::to_string(q_rows) + " query rows a request",
                        "1 to " + std::to_string(kMaxQueryRows), "Verify longer drafts in parts");
    }
    if (requests * q_rows > kMaxRows) {
        runtime::refuse(q.op, "q", std::to_string(requests * q_rows) + " rows", "at most 2^20",
                        "Verify in several calls");
    }
    runtime::require_output(out, q, "[B, q_rows, Hq, D]");
    runtime::require_lse(lse, q, "[B, q_rows, Hq]", {"requests of q", "query rows of q", "query heads of q"});
}

inline void require_chunks(const Argument& q, const Problem& problem, const Schedule& schedule) {
    const int64_t rows = problem.requests * problem.q_rows;
    if (rows * schedule.row_groups * problem.kv_heads * schedule.chunks > std::numeric_limits<int32_t>::max()) {
        runtime::refuse(q.op, "q", std::to_string(rows) + " rows of " + std::to_string(problem.kv_heads) + " KV heads",
                        "fewer than 2^31 chunks of keys", "Verify in several calls");
    }
}

inline void fill_queries(VerifyParams& params, const Argument& q, const Argument& seq_lens, const Argument& out,
                         const Argument* lse) {
    params.q = runtime::data_of<const uint16_t>(q);
    params.q_request_stride = q.tensor.stride(0);
    params.q_row_stride = q.tensor.stride(1);
    params.q_head_stride = q.tensor.stride(2);
    params.q_aligned = runtime::heads_aligned(q.tensor, 16);
    params.seq_lens = runtime::data_of<const int32_t>(seq_lens);
    params.seq_lens_request_stride = seq_lens.tensor.stride(0);
    params.seq_lens_row_stride = seq_lens.tensor.stride(1);
    params.out = runtime::data_of<uint16_t>(out);
    params.out_request_stride = out.tensor.stride(0);
    params.out_row_stride = out.tensor.stride(1);
    params.out_head_stride = out.tensor.stride(2);
    if (lse != nullptr) {
        params.lse = runtime::data_of<float>(*lse);
        params.lse_request_stride = lse->tensor.stride(0);
        params.lse_row_stride = lse->tensor.stride(1);
        params.lse_head_stride = lse->tensor.stride(2);
    }
}

inline void fill_schedule(VerifyParams& params, const Problem& problem, const Schedule& schedule) {
    params.requests = static_cast<int32_t>(problem.requests);
    params.q_rows = static_cast<int32_t>(problem.q_rows);
    params.group = static_cast<int32_t>(problem.group());
    params.kv_heads = static_cast<int32_t>(problem.kv_heads);
    params.row_groups = static_cast<int32_t>(schedule.row_groups);
    params.by_group = make_fast_divisor(static_cast<uint32_t>(params.group));
    params.by_row_groups = make_fast_divisor(static_cast<uint32_t>(params.row_groups));
    params.max_tokens = static_cast<int32_t>(schedule.max_tokens);
    params.chunks = static_cast<int32_t>(schedule.chunks);
}

inline std::string route(const std::string& prefix, const std::string& format, int64_t head_dim,
                         const Schedule& schedule) {
    return prefix + "_" + format + "_d" + std::to_string(head_dim) + "_r" + std::to_string(8 * schedule.row_tiles);
}

inline void launch_combine(const runtime::OperatorCall& call, const VerifyParams& params, const Problem& problem,
                           const std::string& format, bool one_chunk) {
    CombineParams combine{};
    combine.verify = params;
    combine.head_dim = static_cast<int32_t>(problem.head_dim);
    combine.operand_scale_inverse = format == "e4m3" ? 256.0f : 1.0f;
    combine.most_chunks = one_chunk ? 1 : most_chunks(static_cast<int32_t>(problem.head_dim));
    combine.slices = static_cast<int32_t>(ceil_div<int64_t>(problem.group() * problem.head_dim, kCombineSlice));
    const int64_t blocks = problem.requests * problem.q_rows * problem.kv_heads * combine.slices;
    call.launch("verify_combine", {static_cast<uint32_t>(blocks)}, {kCombineThreads}, 0, combine);
}

// Runs `<prefix>_<format>_d<D>_r<rows>` and `verify_combine`. `one_chunk`: kernels that do not cut rows into chunks.
inline void call(const char* op, const std::string& prefix, const Tensors& t, const std::string& kv_format,
                 const Numbers& numbers, bool one_chunk = false) {
    runtime::OperatorCall call(op);
    const auto [q, key, value, table, seq_lens, out] =
        runtime::declare_paged_attention(call, t.q, t.key_cache, t.value_cache, t.block_table, t.seq_lens, t.out);
    const Argument& workspace = call.writes("workspace", t.workspace);
    const Argument* k_scale = call.may_read("k_scale", t.k_scale);
    const Argument* v_scale = call.may_read("v_scale", t.v_scale);
    const Argument* lse = call.may_write("lse", t.lse);
    const auto& device = call.require_one_device();

    const runtime::CacheFormat format = require_fp8_format(op, kv_format);
    runtime::require_caches(key, value, format);
    require_shapes(q, key, out, lse);
    runtime::require_block_table(table);
    runtime::require_size(table, 0, t.q.size(0), "requests of q");
    runtime::require_dtype(seq_lens, {runtime::ScalarType::Int});
    runtime::require_leading_sizes(seq_lens, q, "[B, q_rows]", {"requests of q", "query rows of q"});
    const int64_t alignment = runtime::require_vector_alignment(
        {&key, &value}, "Align the cache, or run decode's variant 'scalar' row by row, which serves any layout");
    const auto scales = runtime::require_cache_scales(op, numbers.k_scale, numbers.v_scale, k_scale, v_scale);
    const Problem problem{t.q.size(0),           t.q.size(1), t.q.size(2),
                          t.key_cache.size(2),   t.q.size(3), t.block_table.size(1) * t.key_cache.size(1),
                          device.multiprocessors};
    const Schedule schedule = make_schedule(problem);
    require_chunks(q, problem, schedule);

    VerifyParams params{};
    params.softmax_scale_log2 = runtime::require_softmax_scale_log2(op, numbers.softmax_scale);
    params.partial_states = static_cast<float*>(runtime::require_workspace(workspace, schedule.workspace_bytes));
    params.kv = runtime::paged_kv(key, value, table, scales, alignment);
    fill_queries(params, q, seq_lens, out, lse);
    fill_schedule(params, problem, schedule);
    if (problem.requests == 0) return;  // nothing to do

    call.launch(route(prefix, format.name, problem.head_dim, schedule), {static_cast<uint32_t>(schedule.blocks)},
                {static_cast<uint32_t>(problem.head_dim)}, schedule.shared_bytes, params);
    launch_combine(call, params, problem, format.name, one_chunk);
}

}  // namespace sm70::verify
