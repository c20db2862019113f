// A call of verify: tensors become parameters, and two kernels run. Also for operators of tests, which build the
// kernels in other ways.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <limits>
#include <optional>
#include <string>

#include "ops/verify/params.h"
#include "ops/verify/schedule.h"
#include "runtime/launch.h"
#include "runtime/paged_cache_checks.h"

namespace sm70::verify {

using runtime::Argument;
using runtime::ScalarType;
using torch::stable::Tensor;

constexpr int64_t kMaxGroup = 16;
constexpr int64_t kMaxQueryRows = 16;
constexpr int64_t kMaxRows = int64_t{1} << 20;

struct Tensors {
    const Tensor &q, &key_cache, &value_cache, &block_table, &seq_lens, &out, &workspace;
    const std::optional<Tensor>&k_scale, &v_scale, &lse;
};

struct Numbers {
    double softmax_scale, k_scale, v_scale;
};

inline void require_shapes(const char* op, const Argument& q, const Argument& key, const Argument& out) {
    runtime::require_dtype(q, {ScalarType::Half});
    runtime::require_dims(q, 4, "[B, q_rows, Hq, D]");
    runtime::require_unit_last_stride(q);
    runtime::require_size(q, 3, key.tensor.size(3), "head dimension of key_cache");
    const int64_t heads = q.tensor.size(2), kv_heads = key.tensor.size(2), head_dim = q.tensor.size(3);
    if (heads <= 0 || heads % kv_heads != 0 || heads / kv_heads > kMaxGroup) {
        runtime::refuse(op, "q", std::to_string(heads) + " query heads on " + std::to_string(kv_heads) + " KV heads",
                        "1 to " + std::to_string(kMaxGroup) + " query heads for each KV head",
                        "Pass the q and caches of one model");
    }
    if (head_dim != 64 && head_dim != 128 && head_dim != 256) {
        runtime::refuse(op, "q", "a head dimension of " + std::to_string(head_dim), "64, 128 or 256",
                        "No kernel is built for others");
    }
    if (q.tensor.size(1) < 1 || q.tensor.size(1) > kMaxQueryRows) {
        runtime::refuse(op, "q", std::to_string(q.tensor.size(1)) + " query rows a request",
                        "1 to " + std::to_string(kMaxQueryRows), "Verify longer drafts in parts");
    }
    if (q.tensor.size(0) * q.tensor.size(1) > kMaxRows) {
        runtime::refuse(op, "q", std::to_string(q.tensor.size(0) * q.tensor.size(1)) + " rows", "at most 2^20",
                        "Verify in several calls");
    }
    runtime::require_dtype(out, {ScalarType::Half});
    runtime::require_dims(out, 4, "[B, q_rows, Hq, D]");
    runtime::require_unit_last_stride(out);
    runtime::require_writable_layout(out);
    for (int64_t dim = 0; dim < 4; ++dim) runtime::require_size(out, dim, q.tensor.size(dim), "shape of q");
}

inline PagedCache paged_cache(const Tensor& cache) {
    const int64_t element = static_cast<int64_t>(cache.element_size());
    return {cache.data_ptr(), cache.stride(0) * element, cache.stride(1) * element, cache.stride(2) * element};
}

// Whether 16 bytes of q can be loaded wherever a head's dimensions 0, 8, 16, .. lie.
inline bool loads_16_bytes(const Tensor& q) {
    bool aligned = reinterpret_cast<uintptr_t>(q.data_ptr()) % 16 == 0;
    for (int64_t dim = 0; dim < 3; ++dim) aligned = aligned && (q.size(dim) == 1 || q.stride(dim) % 8 == 0);
    return aligned;
}

// Runs `<prefix>_<format>_d<D>_r<rows>` and `verify_combine`. `one_chunk`: kernels that do not cut rows into chunks.
inline void call(const char* op, const std::string& prefix, const Tensors& t, const std::string& kv_format,
                 const Numbers& numbers, bool one_chunk = false) {
    const Argument q{op, "q", t.q}, key{op, "key_cache", t.key_cache}, value{op, "value_cache", t.value_cache};
    const Argument table{op, "block_table", t.block_table}, lengths{op, "seq_lens", t.seq_lens};
    const Argument out{op, "out", t.out}, workspace{op, "workspace", t.workspace};
    const auto k_scale = runtime::optional_argument(op, "k_scale", t.k_scale);
    const auto v_scale = runtime::optional_argument(op, "v_scale", t.v_scale);
    const auto lse = runtime::optional_argument(op, "lse", t.lse);

    const auto& device = runtime::require_one_device(
        runtime::present({&q, &key, &value, &table, &lengths, &out, &workspace}, {&k_scale, &v_scale, &lse}));
    const auto format = runtime::require_cache_format(op, kv_format);
    if (format.name == "fp16") {
        runtime::refuse(op, "kv_format", "'fp16'", "'e4m3' or 'e5m2'",
                        "No kernel is built for FP16 caches: decode serves them, a row of a request at a time");
    }
    runtime::require_caches(key, value, format);
    require_shapes(op, q, key, out);
    const int64_t requests = t.q.size(0), q_rows = t.q.size(1), heads = t.q.size(2), head_dim = t.q.size(3);
    const int64_t kv_heads = t.key_cache.size(2);

    runtime::require_block_table(table);
    runtime::require_size(table, 0, requests, "requests of q");
    runtime::require_dtype(lengths, {ScalarType::Int});
    runtime::require_dims(lengths, 2, "[B, q_rows]");
    runtime::require_size(lengths, 0, requests, "requests of q");
    runtime::require_size(lengths, 1, q_rows, "query rows of q");
    if (lse.has_value()) {
        runtime::require_dtype(*lse, {ScalarType::Float});
        runtime::require_dims(*lse, 3, "[B, q_rows, Hq]");
        runtime::require_writable_layout(*lse);
        for (int64_t dim = 0; dim < 3; ++dim) runtime::require_size(*lse, dim, t.q.size(dim), "shape of q");
    }
    int64_t alignment = 16;
    for (const Argument* cache : {&key, &value}) {
        const int64_t found = runtime::head_alignment(*cache);
        if (found < 8) {
            runtime::refuse(op, cache->name, "heads that are not 8-byte aligned", "a base and strides of whole 8 bytes",
                            "Align the cache, or run decode's variant 'scalar' row by row, which serves any layout");
        }
        alignment = std::min(alignment, found);
    }

    VerifyParams params{};
    params.kv.k_scale = runtime::require_scale(op, "k_scale", numbers.k_scale);
    params.kv.v_scale = runtime::require_scale(op, "v_scale", numbers.v_scale);
    params.softmax_scale_log2 =
        static_cast<float>(runtime::require_scale(op, "softmax_scale", numbers.softmax_scale) * 1.4426950408889634);
    const Problem problem{requests,
                          q_rows,
                          heads,
                          kv_heads,
                          head_dim,
                          t.block_table.size(1) * t.key_cache.size(1),
                          device.multiprocessors};
    const Schedule schedule = make_schedule(problem);
    if (requests * q_rows * schedule.row_groups * kv_heads * schedule.chunks > std::numeric_limits<int32_t>::max()) {
        runtime::refuse(op, "q",
                        std::to_string(requests * q_rows) + " rows of " + std::to_string(kv_heads) + " KV heads",
                        "fewer than 2^31 chunks of keys", "Verify in several calls");
    }
    params.partial_states = static_cast<float*>(runtime::require_workspace(workspace, schedule.workspace_bytes));
    if (requests == 0) return;  // nothing to do

    params.q = static_cast<const uint16_t*>(t.q.data_ptr());
    params.q_request_stride = t.q.stride(0);
    params.q_row_stride = t.q.stride(1);
    params.q_head_stride = t.q.stride(2);
    params.out = static_cast<uint16_t*>(t.out.data_ptr());
    params.out_request_stride = t.out.stride(0);
    params.out_row_stride = t.out.stride(1);
    params.out_head_stride = t.out.stride(2);
    if (lse.has_value()) {
        params.lse = static_cast<float*>(t.lse->data_ptr());
        params.lse_request_stride = t.lse->stride(0);
        params.lse_row_stride = t.lse->stride(1);
        params.lse_head_stride = t.lse->stride(2);
    }
    params.seq_lens = static_cast<const int32_t*>(t.seq_lens.data_ptr());
    params.seq_lens_request_stride = t.seq_lens.stride(0);
    params.seq_lens_row_stride = t.seq_lens.stride(1);
    params.requests = static_cast<int32_t>(requests);
    params.q_rows = static_cast<int32_t>(q_rows);
    params.group = static_cast<int32_t>(problem.group());
    params.kv_heads = static_cast<int32_t>(kv_heads);
    params.row_groups = static_cast<int32_t>(schedule.row_groups);
    params.by_group = make_fast_divisor(static_cast<uint32_t>(params.group));
    params.by_row_groups = make_fast_divisor(static_cast<uint32_t>(params.row_groups));
    params.max_tokens = static_cast<int32_t>(schedule.max_tokens);
    params.chunks = static_cast<int32_t>(schedule.chunks);
    params.q_aligned = loads_16_bytes(t.q);
    params.kv.k = paged_cache(t.key_cache);
    params.kv.v = paged_cache(t.value_cache);
    params.kv.block_table = static_cast<const int32_t*>(t.block_table.data_ptr());
    params.kv.block_table_stride = t.block_table.stride(0);
    params.kv.k_device_scale = runtime::device_scale(k_scale);
    params.kv.v_device_scale = runtime::device_scale(v_scale);
    params.kv.requests = static_cast<int32_t>(requests);
    params.kv.pages = static_cast<int32_t>(t.key_cache.size(0));
    params.kv.tiles_per_page = make_fast_divisor(static_cast<uint32_t>(t.key_cache.size(1) / kTileTokens));
    params.kv.alignment = static_cast<uint32_t>(alignment);

    const std::string kernel =
        prefix + "_" + format.name + "_d" + std::to_string(head_dim) + "_r" + std::to_string(8 * schedule.row_tiles);
    runtime::Launch request{};
    request.kernel = kernel.c_str();
    request.grid = {static_cast<uint32_t>(schedule.blocks)};
    request.block = {static_cast<uint32_t>(head_dim)};
    request.dynamic_shared_bytes = static_cast<uint32_t>(schedule.shared_bytes);
    request.params = &params;
    request.params_bytes = sizeof(params);
    request.device = &device;
    request.buffers = {runtime::buffer_of(q, false),       runtime::buffer_of(key, false),
                       runtime::buffer_of(value, false),   runtime::buffer_of(table, false),
                       runtime::buffer_of(lengths, false), runtime::buffer_of(out, true),
                       runtime::buffer_of(workspace, true)};
    for (const auto* argument : {&k_scale, &v_scale}) {
        if (argument->has_value()) request.buffers.push_back(runtime::buffer_of(argument->value(), false));
    }
    if (lse.has_value()) request.buffers.push_back(runtime::buffer_of(*lse, true));
    runtime::launch(request);

    CombineParams combine{};
    combine.verify = params;
    combine.head_dim = static_cast<int32_t>(head_dim);
    combine.operand_scale_inverse = format.name == "e4m3" ? 256.0f : 1.0f;
    combine.most_chunks = one_chunk ? 1 : most_chunks(static_cast<int32_t>(head_dim));
    combine.slices = static_cast<int32_t>(ceil_div<int64_t>(problem.group() * head_dim, kCombineSlice));
    request.kernel = "verify_combine";
    request.grid = {static_cast<uint32_t>(requests * q_rows * kv_heads * combine.slices)};
    request.block = {kCombineThreads};
    request.dynamic_shared_bytes = 0;
    request.params = &combine;
    request.params_bytes = sizeof(combine);
    runtime::launch(request);
}

}  // namespace sm70::verify
