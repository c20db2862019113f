// decode_unmasked: decode of rows of one leaf, with and without the mask of the tail. For tests only; no wheel holds
// it.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <string>

#include "runtime/launch.h"
#include "runtime/operator.h"
#include "runtime/paged_cache_checks.h"
#include "test_ops/decode_unmasked/params.h"

SM70_CAPABILITY_REVISION(1)

namespace sm70::decode_unmasked {

using runtime::Argument;
using torch::stable::Tensor;

PagedCache paged_cache(const Tensor& cache) {
    const int64_t element = static_cast<int64_t>(cache.element_size());
    return {cache.data_ptr(), cache.stride(0) * element, cache.stride(1) * element, cache.stride(2) * element};
}

// q, out [rows, G, 64], caches [pages, page, 1, 64], rows of at most 128 tokens: one unit each, no workspace.
void decode_unmasked(const Tensor& q, const Tensor& key_cache, const Tensor& value_cache, const Tensor& block_table,
                     const Tensor& seq_lens, const Tensor& out, const std::string& kv_format, bool masked) {
    const char* op = "decode_unmasked";
    const Argument q_arg{op, "q", q}, key_arg{op, "key_cache", key_cache}, value_arg{op, "value_cache", value_cache};
    const Argument table_arg{op, "block_table", block_table}, lengths_arg{op, "seq_lens", seq_lens};
    const Argument out_arg{op, "out", out};
    const auto& device =
        runtime::require_one_device({&q_arg, &key_arg, &value_arg, &table_arg, &lengths_arg, &out_arg});
    const auto format = runtime::require_cache_format(op, kv_format);
    runtime::require_caches(key_arg, value_arg, format);
    runtime::require_block_table(table_arg);
    runtime::require_dims(q_arg, 3, "[rows, G, 64]");
    runtime::require_size(q_arg, 2, kHeadDim, "the one head dimension");
    runtime::require_size(key_arg, 2, 1, "the one KV head");
    runtime::require_size(key_arg, 3, kHeadDim, "the one head dimension");
    const int64_t max_tokens = block_table.size(1) * key_cache.size(1);
    if (max_tokens > kLeafTokens) {
        runtime::refuse(op, "block_table", "rows of " + std::to_string(max_tokens) + " tokens", "at most a leaf's 128",
                        "Pass a narrower table");
    }

    Params params{};
    params.q = static_cast<const uint16_t*>(q.data_ptr());
    params.q_row_stride = q.stride(0);
    params.q_head_stride = q.stride(1);
    params.out = static_cast<uint16_t*>(out.data_ptr());
    params.out_row_stride = out.stride(0);
    params.out_head_stride = out.stride(1);
    params.softmax_scale_log2 = 1.4426950408889634f / 8.0f;
    params.group = static_cast<int32_t>(q.size(1));
    params.schedule.seq_lens = static_cast<const int32_t*>(seq_lens.data_ptr());
    params.schedule.seq_lens_stride = seq_lens.stride(0);
    params.schedule.rows = static_cast<int32_t>(q.size(0));
    params.schedule.kv_heads = 1;
    params.schedule.max_tokens = static_cast<int32_t>(max_tokens);
    params.schedule.target = params.schedule.rows;
    params.kv.k = paged_cache(key_cache);
    params.kv.v = paged_cache(value_cache);
    params.kv.block_table = static_cast<const int32_t*>(block_table.data_ptr());
    params.kv.block_table_stride = block_table.stride(0);
    params.kv.k_scale = params.kv.v_scale = 1.0f;
    params.kv.requests = static_cast<int32_t>(block_table.size(0));
    params.kv.pages = static_cast<int32_t>(key_cache.size(0));
    params.kv.tiles_per_page = make_fast_divisor(static_cast<uint32_t>(key_cache.size(1) / kTileTokens));
    params.kv.alignment = 16;

    const std::string kernel = (masked ? "decode_masked_" : "decode_unmasked_") + format.name;
    runtime::Launch request{};
    request.kernel = kernel.c_str();  // a format without a kernel is the driver's to report
    request.grid = {static_cast<uint32_t>(q.size(0))};
    request.block = {kHeadDim};
    request.dynamic_shared_bytes = static_cast<uint32_t>(decode::xqa_shared_bytes(kHeadDim, kRowTiles));
    request.params = &params;
    request.params_bytes = sizeof(params);
    request.device = &device;
    request.buffers = {runtime::buffer_of(q_arg, false),       runtime::buffer_of(key_arg, false),
                       runtime::buffer_of(value_arg, false),   runtime::buffer_of(table_arg, false),
                       runtime::buffer_of(lengths_arg, false), runtime::buffer_of(out_arg, true)};
    runtime::launch(request);
}

}  // namespace sm70::decode_unmasked

STABLE_TORCH_LIBRARY_FRAGMENT(sm70_kernels_test, m) {
    m.def(
        "decode_unmasked(Tensor q, Tensor key_cache, Tensor value_cache, Tensor block_table, Tensor seq_lens, "
        "Tensor(a!) out, str kv_format, bool masked) -> ()");
}
STABLE_TORCH_LIBRARY_IMPL(sm70_kernels_test, CUDA, m) {
    m.impl("decode_unmasked", TORCH_BOX(&sm70::decode_unmasked::decode_unmasked));
}
STABLE_TORCH_LIBRARY_IMPL(sm70_kernels_test, CPU, m) {
    m.impl("decode_unmasked", TORCH_BOX(&sm70::decode_unmasked::decode_unmasked));
}
