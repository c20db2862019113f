// kv_cache: torch operators write_paged_kv and gather_paged_kv. The only place where their tensors become parameters.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>

#include "device/ceil_div.h"
#include "ops/kv_cache/params.h"
#include "ops/kv_cache/write_scale.h"
#include "runtime/attention_checks.h"
#include "runtime/operator.h"
#include "runtime/operator_call.h"
#include "runtime/paged_cache.h"

SM70_CAPABILITY_REVISION(1)

namespace sm70::kv_cache {

using runtime::Argument;
using runtime::CacheFormat;
using runtime::ScalarType;
using torch::stable::Tensor;

// Blocks of the gather's grid per SM: several times what is resident, so that SMs that finish early take over work
// from others (measured against 8, 24 and 32 on a memory-bound row).
constexpr int64_t kBlocksPerMultiprocessor = 16;
constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

// K and V of one call, as FP16 tokens and as caches.
struct KeysAndValues {
    const Argument &k, &v, &key_cache, &value_cache;
};

// Strides of a tensor `[outer, tokens, Hkv, D]` or `[tokens, Hkv, D]`.
TokenTensor token_tensor(const Argument& argument) {
    const Tensor& tensor = argument.tensor;
    const int64_t dims = tensor.dim();
    return {tensor.data_ptr(), dims == 4 ? tensor.stride(0) : 0, tensor.stride(dims - 3), tensor.stride(dims - 2)};
}

// Elements a thread moves at once: see vector.cuh.
int64_t vector_width(const CacheFormat& format, const KeysAndValues& kv) {
    const int64_t stored_bytes = format.dtype == ScalarType::Half ? 16 : 8;
    const bool wide = kv.key_cache.tensor.size(3) % 8 == 0 &&
                      runtime::heads_aligned(kv.key_cache.tensor, stored_bytes) &&
                      runtime::heads_aligned(kv.value_cache.tensor, stored_bytes) &&
                      runtime::heads_aligned(kv.k.tensor, 16) && runtime::heads_aligned(kv.v.tensor, 16);
    return wide ? 8 : 1;
}

std::string route(const char* kernel, const std::string& format, int64_t width) {
    return std::string("kv_cache_") + kernel + "_" + format + "_x" + std::to_string(width);
}

void require_heads_of_cache(const Argument& argument, int64_t heads_dim, const Argument& key_cache) {
    runtime::require_size(argument, heads_dim, key_cache.tensor.size(2), "KV heads of key_cache");
    runtime::require_size(argument, heads_dim + 1, key_cache.tensor.size(3), "head dimension of key_cache");
}

void require_tokens(const KeysAndValues& kv, const Argument& slot_mapping) {
    runtime::require_writable_layout(kv.key_cache);
    runtime::require_writable_layout(kv.value_cache);
    runtime::require_dtype(slot_mapping, {ScalarType::Long});
    runtime::require_dims(slot_mapping, 1, "[tokens]");
    const int64_t tokens = slot_mapping.tensor.size(0);
    for (const Argument* argument : {&kv.k, &kv.v}) {
        runtime::require_fp16(*argument, 3, "[tokens, Hkv, D]");
        runtime::require_size(*argument, 0, tokens, "tokens of slot_mapping");
        require_heads_of_cache(*argument, 1, kv.key_cache);
    }
    const int64_t slots = kv.key_cache.tensor.size(0) * kv.key_cache.tensor.size(1);
    if (slots > kMaxInt32) {
        runtime::refuse(kv.k.op, "key_cache", std::to_string(slots) + " token slots", "fewer than 2^31",
                        "Split the cache");
    }
    if (tokens > kMaxInt32) {
        runtime::refuse(kv.k.op, "k", std::to_string(tokens) + " tokens", "fewer than 2^31",
                        "Write the tokens in several calls");
    }
}

void write_paged_kv(const Tensor& k, const Tensor& v, const Tensor& key_cache, const Tensor& value_cache,
                    const Tensor& slot_mapping, const std::string& kv_format, double k_scale, double v_scale,
                    const std::optional<Tensor>& k_scale_tensor, const std::optional<Tensor>& v_scale_tensor) {
    constexpr const char* kOp = "write_paged_kv";
    runtime::OperatorCall call(kOp);
    const Argument& key_arg = call.writes("key_cache", key_cache);
    const Argument& value_arg = call.writes("value_cache", value_cache);
    const KeysAndValues kv{call.reads("k", k), call.reads("v", v), key_arg, value_arg};
    const Argument& slots_arg = call.reads("slot_mapping", slot_mapping);
    const Argument* k_scale_arg = call.may_read("k_scale", k_scale_tensor);
    const Argument* v_scale_arg = call.may_read("v_scale", v_scale_tensor);
    call.require_one_device();

    const CacheFormat format = runtime::require_cache_format(kOp, kv_format);
    runtime::require_caches(key_arg, value_arg, format);
    require_tokens(kv, slots_arg);
    const auto scales = runtime::require_cache_scales(kOp, k_scale, v_scale, k_scale_arg, v_scale_arg);
    const int64_t tokens = slot_mapping.size(0);
    if (tokens == 0) return;  // nothing to write

    const int64_t page = key_cache.size(1), heads = key_cache.size(2), head_dim = key_cache.size(3);
    const int64_t width = vector_width(format, kv);
    const auto vectors_per_token = static_cast<uint32_t>(heads * (head_dim / width));
    const uint32_t lanes = std::min<uint32_t>(vectors_per_token, kThreads);
    WriteParams params{};
    params.k = token_tensor(kv.k);
    params.v = token_tensor(kv.v);
    params.key_cache = token_tensor(key_arg);
    params.value_cache = token_tensor(value_arg);
    params.slot_mapping = runtime::data_of<const int64_t>(slots_arg);
    params.slot_stride = slot_mapping.stride(0);
    params.k_scale = make_write_scale(scales.k);
    params.v_scale = make_write_scale(scales.v);
    params.k_device_scale = scales.k_device;
    params.v_device_scale = scales.v_device;
    params.slots = key_cache.size(0) * page;
    params.tokens = static_cast<uint32_t>(tokens);
    params.vectors_per_token = vectors_per_token;
    params.tokens_per_pass = kThreads / lanes;
    params.lanes_per_token = make_fast_divisor(lanes);
    params.vectors_per_head = make_fast_divisor(static_cast<uint32_t>(head_dim / width));
    params.page_tokens = make_fast_divisor(static_cast<uint32_t>(page));

    const int64_t blocks = ceil_div<int64_t>(tokens, params.tokens_per_pass * kPasses);
    call.launch(route("write", format.name, width), {static_cast<uint32_t>(blocks)}, {kThreads}, 0, params);
}

void require_tables(const Argument& seq_lens, const Argument& table, const Argument* out_table) {
    runtime::require_dtype(seq_lens, {ScalarType::Int});
    runtime::require_dims(seq_lens, 1, "[B]");
    for (const Argument* argument : {&table, out_table}) {
        if (argument == nullptr) continue;
        runtime::require_block_table(*argument);
        runtime::require_size(*argument, 0, seq_lens.tensor.size(0), "rows of seq_lens");
    }
}

void require_outputs(const KeysAndValues& kv, int64_t batch, bool paged) {
    for (const Argument* argument : {&kv.k, &kv.v}) {
        runtime::require_fp16(*argument, 4, paged ? "[out_pages, out_page, Hkv, D]" : "[B, tokens, Hkv, D]");
        runtime::require_writable_layout(*argument);
        if (!paged) runtime::require_size(*argument, 0, batch, "rows of seq_lens");
        require_heads_of_cache(*argument, 2, kv.key_cache);
    }
    for (int64_t dim = 0; dim < 2; ++dim) runtime::require_size(kv.v, dim, kv.k.tensor.size(dim), "size of k_out");
    if (paged) runtime::require_page(kv.k, "Allocate the output with such a page size");
}

// Tokens that a row of the output can hold.
int64_t require_out_tokens(const Argument& k_out, const Argument* out_table, int64_t batch) {
    const int64_t pages = out_table != nullptr ? out_table->tensor.size(1) : 1;
    const int64_t tokens = pages * k_out.tensor.size(1);
    if (tokens > kMaxInt32 - kTileTokens || batch > kMaxInt32 || k_out.tensor.size(0) > kMaxInt32) {
        runtime::refuse(k_out.op, "k_out", "rows or tokens beyond 31 bits", "sizes below 2^31",
                        "Gather in several calls");
    }
    return tokens;
}

void gather_paged_kv(const Tensor& key_cache, const Tensor& value_cache, const Tensor& block_table,
                     const Tensor& seq_lens, const Tensor& k_out, const Tensor& v_out, const std::string& kv_format,
                     double k_scale, double v_scale, const std::optional<Tensor>& k_scale_tensor,
                     const std::optional<Tensor>& v_scale_tensor, const std::optional<Tensor>& out_block_table) {
    constexpr const char* kOp = "gather_paged_kv";
    runtime::OperatorCall call(kOp);
    const Argument& key_arg = call.reads("key_cache", key_cache);
    const Argument& value_arg = call.reads("value_cache", value_cache);
    const Argument& table_arg = call.reads("block_table", block_table);
    const Argument& seq_lens_arg = call.reads("seq_lens", seq_lens);
    const KeysAndValues kv{call.writes("k_out", k_out), call.writes("v_out", v_out), key_arg, value_arg};
    const Argument* k_scale_arg = call.may_read("k_scale", k_scale_tensor);
    const Argument* v_scale_arg = call.may_read("v_scale", v_scale_tensor);
    const Argument* out_table_arg = call.may_read("out_block_table", out_block_table);
    const auto& device = call.require_one_device();

    const CacheFormat format = runtime::require_cache_format(kOp, kv_format);
    runtime::require_caches(key_arg, value_arg, format);
    require_tables(seq_lens_arg, table_arg, out_table_arg);
    const int64_t batch = seq_lens.size(0), page = key_cache.size(1);
    require_outputs(kv, batch, out_table_arg != nullptr);
    const auto scales = runtime::require_cache_scales(kOp, k_scale, v_scale, k_scale_arg, v_scale_arg);
    const int64_t out_tokens = require_out_tokens(kv.k, out_table_arg, batch);
    const int64_t max_tokens = std::min(out_tokens, block_table.size(1) * page);
    const int64_t tiles = batch * ceil_div<int64_t>(max_tokens, kTileTokens);
    if (tiles == 0) return;  // no row, or no room for a token: nothing to read or write

    const int64_t heads = key_cache.size(2), head_dim = key_cache.size(3);
    const int64_t width = vector_width(format, kv);
    GatherParams params{};
    params.key_cache = token_tensor(key_arg);
    params.value_cache = token_tensor(value_arg);
    params.k_out = token_tensor(kv.k);
    params.v_out = token_tensor(kv.v);
    params.block_table = runtime::data_of<const int32_t>(table_arg);
    params.block_table_stride = block_table.stride(0);
    params.seq_lens = runtime::data_of<const int32_t>(seq_lens_arg);
    params.seq_lens_stride = seq_lens.stride(0);
    if (out_table_arg != nullptr) {
        params.out_block_table = runtime::data_of<const int32_t>(*out_table_arg);
        params.out_block_table_stride = out_block_table->stride(0);
        params.tiles_per_out_page = make_fast_divisor(static_cast<uint32_t>(k_out.size(1) / kTileTokens));
    }
    params.k_scale = scales.k;
    params.v_scale = scales.v;
    params.k_device_scale = scales.k_device;
    params.v_device_scale = scales.v_device;
    params.max_tokens = static_cast<int32_t>(max_tokens);
    params.out_tokens = static_cast<int32_t>(out_tokens);
    params.batch = static_cast<int32_t>(batch);
    params.pages = static_cast<int32_t>(key_cache.size(0));
    params.out_pages = static_cast<int32_t>(k_out.size(0));
    params.tiles_per_page = make_fast_divisor(static_cast<uint32_t>(page / kTileTokens));
    params.vectors_per_head = make_fast_divisor(static_cast<uint32_t>(head_dim / width));
    params.vectors_per_token = make_fast_divisor(static_cast<uint32_t>(heads * (head_dim / width)));

    const int64_t blocks = std::min(tiles, device.multiprocessors * kBlocksPerMultiprocessor);
    call.launch(route("gather", format.name, width), {static_cast<uint32_t>(blocks)}, {kThreads}, 0, params);
}

}  // namespace sm70::kv_cache

STABLE_TORCH_LIBRARY_FRAGMENT(sm70_kernels, m) {
    m.def(
        "write_paged_kv(Tensor k, Tensor v, Tensor(a!) key_cache, Tensor(b!) value_cache, Tensor slot_mapping, "
        "str kv_format, float k_scale=1.0, float v_scale=1.0, Tensor? k_scale_tensor=None, "
        "Tensor? v_scale_tensor=None) -> ()");
    m.def(
        "gather_paged_kv(Tensor key_cache, Tensor value_cache, Tensor block_table, Tensor seq_lens, "
        "Tensor(a!) k_out, Tensor(b!) v_out, str kv_format, float k_scale=1.0, float v_scale=1.0, "
        "Tensor? k_scale_tensor=None, Tensor? v_scale_tensor=None, Tensor? out_block_table=None) -> ()");
}
SM70_IMPLEMENT(sm70_kernels, "write_paged_kv", sm70::kv_cache::write_paged_kv)
SM70_IMPLEMENT(sm70_kernels, "gather_paged_kv", sm70::kv_cache::gather_paged_kv)
