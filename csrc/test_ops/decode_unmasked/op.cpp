// decode_unmasked: decode of rows of one leaf, with and without the mask of the tail. For tests only; no wheel holds
// it.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <string>

#include "runtime/attention_checks.h"
#include "runtime/operator.h"
#include "runtime/operator_call.h"
#include "runtime/paged_cache.h"
#include "test_ops/decode_unmasked/params.h"

SM70_CAPABILITY_REVISION(1)

namespace sm70::decode_unmasked {

using torch::stable::Tensor;

// q, out [rows, G, 64], caches [pages, page, 1, 64], rows of at most 128 tokens: one unit each, no workspace.
void decode_unmasked(const Tensor& q, const Tensor& key_cache, const Tensor& value_cache, const Tensor& block_table,
                     const Tensor& seq_lens, const Tensor& out, const std::string& kv_format, bool masked) {
    constexpr const char* kOp = "decode_unmasked";
    runtime::OperatorCall call(kOp);
    const auto paged = runtime::declare_paged_attention(call, q, key_cache, value_cache, block_table, seq_lens, out);
    call.require_one_device();

    const auto format = runtime::require_cache_format(kOp, kv_format);
    runtime::require_caches(paged.key_cache, paged.value_cache, format);
    runtime::require_block_table(paged.block_table);
    runtime::require_fp16(paged.q, 3, "[rows, G, 64]");
    runtime::require_size(paged.q, 2, kHeadDim, "the one head dimension");
    runtime::require_output(paged.out, paged.q, "[rows, G, 64]");
    runtime::require_size(paged.key_cache, 2, 1, "the one KV head");
    runtime::require_size(paged.key_cache, 3, kHeadDim, "the one head dimension");
    const int64_t max_tokens = block_table.size(1) * key_cache.size(1);
    if (max_tokens > kLeafTokens) {
        runtime::refuse(kOp, "block_table", "rows of " + std::to_string(max_tokens) + " tokens", "at most a leaf's 128",
                        "Pass a narrower table");
    }

    Params params{};
    params.q = runtime::data_of<const uint16_t>(paged.q);
    params.q_row_stride = q.stride(0);
    params.q_head_stride = q.stride(1);
    params.out = runtime::data_of<uint16_t>(paged.out);
    params.out_row_stride = out.stride(0);
    params.out_head_stride = out.stride(1);
    params.softmax_scale_log2 = 1.4426950408889634f / 8.0f;
    params.group = static_cast<int32_t>(q.size(1));
    params.schedule.seq_lens = runtime::data_of<const int32_t>(paged.seq_lens);
    params.schedule.seq_lens_stride = seq_lens.stride(0);
    params.schedule.rows = static_cast<int32_t>(q.size(0));
    params.schedule.kv_heads = 1;
    params.schedule.max_tokens = static_cast<int32_t>(max_tokens);
    params.schedule.target = params.schedule.rows;
    params.kv =
        runtime::paged_kv(paged.key_cache, paged.value_cache, paged.block_table, {1.0f, 1.0f, nullptr, nullptr}, 16);

    // A format without a kernel is the driver's to report.
    call.launch((masked ? "decode_masked_" : "decode_unmasked_") + format.name, {static_cast<uint32_t>(q.size(0))},
                {kHeadDim}, decode::xqa_shared_bytes(kHeadDim, kRowTiles), params);
}

}  // namespace sm70::decode_unmasked

STABLE_TORCH_LIBRARY_FRAGMENT(sm70_kernels_test, m) {
    m.def(
        "decode_unmasked(Tensor q, Tensor key_cache, Tensor value_cache, Tensor block_table, Tensor seq_lens, "
        "Tensor(a!) out, str kv_format, bool masked) -> ()");
}
SM70_IMPLEMENT(sm70_kernels_test, "decode_unmasked", sm70::decode_unmasked::decode_unmasked)
