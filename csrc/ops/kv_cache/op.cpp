// kv_cache: torch operators write_paged_kv and gather_paged_kv. The only place where their tensors become parameters.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "ops/kv_cache/params.h"
#include "ops/kv_cache/write_scale.h"
#include "runtime/launch.h"
#include "runtime/operator.h"
#include "runtime/paged_cache_checks.h"
#include "runtime/tensor_checks.h"

SM70_CAPABILITY_REVISION(1)

namespace sm70::kv_cache {

using runtime::Argument;
using runtime::CacheFormat;
using runtime::ScalarType;
using torch::stable::Tensor;

// Blocks of the gather's grid for each SM: several times what is resident, so that SMs that finish early take over work
// from others (measured against 8, 24 and 32 on a memory-bound row).
constexpr int64_t kBlocksPerMultiprocessor = 16;
constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

// Strides of a tensor `[outer, tokens, Hkv, D]` or `[tokens, Hkv, D]`.
TokenTensor token_tensor(const Tensor& tensor) {
    const int64_t dims = tensor.dim();
    return {tensor.data_ptr(), dims == 4 ? tensor.stride(0) : 0, tensor.stride(dims - 3), tensor.stride(dims - 2)};
}

// Whether every vector of `bytes` bytes that starts at a multiple of its width in a head is aligned to its size.
bool vectors_aligned(const Tensor& tensor, int64_t bytes) {
    const int64_t element = static_cast<int64_t>(tensor.element_size());
    if (reinterpret_cast<uintptr_t>(tensor.data_ptr()) % static_cast<uintptr_t>(bytes) != 0) return false;
    for (int64_t dim = 0; dim + 1 < tensor.dim(); ++dim) {
        if (tensor.size(dim) > 1 && tensor.stride(dim) * element % bytes != 0) return false;
    }
    return true;
}

// Elements a thread moves at once: see vector.cuh.
int64_t vector_width(const CacheFormat& format, int64_t head_dim, const std::vector<const Tensor*>& caches,
                     const std::vector<const Tensor*>& halves) {
    const int64_t stored_bytes = format.dtype == ScalarType::Half ? 16 : 8;
    const bool wide =
        head_dim % 8 == 0 &&
        std::all_of(caches.begin(), caches.end(), [&](const Tensor* t) { return vectors_aligned(*t, stored_bytes); }) &&
        std::all_of(halves.begin(), halves.end(), [](const Tensor* t) { return vectors_aligned(*t, 16); });
    return wide ? 8 : 1;
}

void write_paged_kv(const Tensor& k, const Tensor& v, const Tensor& key_cache, const Tensor& value_cache,
                    const Tensor& slot_mapping, const std::string& kv_format, double k_scale, double v_scale,
                    const std::optional<Tensor>& k_scale_tensor, const std::optional<Tensor>& v_scale_tensor) {
    const char* op = "write_paged_kv";
    const Argument k_arg{op, "k", k}, v_arg{op, "v", v};
    const Argument key_arg{op, "key_cache", key_cache}, value_arg{op, "value_cache", value_cache};
    const Argument slot_arg{op, "slot_mapping", slot_mapping};
    const auto k_scale_arg = runtime::optional_argument(op, "k_scale", k_scale_tensor);
    const auto v_scale_arg = runtime::optional_argument(op, "v_scale", v_scale_tensor);

    const auto& device = runtime::require_one_device(
        runtime::present({&key_arg, &value_arg, &k_arg, &v_arg, &slot_arg}, {&k_scale_arg, &v_scale_arg}));
    const CacheFormat format = runtime::require_cache_format(op, kv_format);
    runtime::require_caches(key_arg, value_arg, format);
    runtime::require_writable_layout(key_arg);
    runtime::require_writable_layout(value_arg);
    runtime::require_dtype(slot_arg, {ScalarType::Long});
    runtime::require_dims(slot_arg, 1, "[tokens]");
    const int64_t tokens = slot_mapping.size(0);
    for (const Argument* argument : {&k_arg, &v_arg}) {
        runtime::require_dtype(*argument, {ScalarType::Half});
        runtime::require_dims(*argument, 3, "[tokens, Hkv, D]");
        runtime::require_unit_last_stride(*argument);
        runtime::require_size(*argument, 0, tokens, "tokens of slot_mapping");
        runtime::require_size(*argument, 1, key_cache.size(2), "KV heads of key_cache");
        runtime::require_size(*argument, 2, key_cache.size(3), "head dimension of key_cache");
    }
    const int64_t slots = key_cache.size(0) * key_cache.size(1);
    if (slots > kMaxInt32) {
        runtime::refuse(op, "key_cache", std::to_string(slots) + " token slots", "fewer than 2^31", "Split the cache");
    }

    WriteParams params{};
    params.k_device_scale = runtime::device_scale(k_scale_arg);
    params.v_device_scale = runtime::device_scale(v_scale_arg);
    params.k_scale = make_write_scale(runtime::require_scale(op, "k_scale", k_scale));
    params.v_scale = make_write_scale(runtime::require_scale(op, "v_scale", v_scale));
    const int64_t heads = key_cache.size(2), head_dim = key_cache.size(3);
    const int64_t width = vector_width(format, head_dim, {&key_cache, &value_cache}, {&k, &v});
    params.k = token_tensor(k);
    params.v = token_tensor(v);
    params.key_cache = token_tensor(key_cache);
    params.value_cache = token_tensor(value_cache);
    params.slot_mapping = static_cast<const int64_t*>(slot_mapping.data_ptr());
    params.slot_stride = slot_mapping.stride(0);
    params.slots = slots;
    if (tokens > kMaxInt32) {
        runtime::refuse(op, "k", std::to_string(tokens) + " tokens", "fewer than 2^31",
                        "Write the tokens in several calls");
    }
    if (tokens == 0) return;  // nothing to write
    const auto vectors_per_token = static_cast<uint32_t>(heads * (head_dim / width));
    const uint32_t lanes = std::min<uint32_t>(vectors_per_token, kThreads);
    params.tokens = static_cast<uint32_t>(tokens);
    params.vectors_per_token = vectors_per_token;
    params.tokens_per_pass = kThreads / lanes;
    params.lanes_per_token = make_fast_divisor(lanes);
    params.vectors_per_head = make_fast_divisor(static_cast<uint32_t>(head_dim / width));
    params.page_tokens = make_fast_divisor(static_cast<uint32_t>(key_cache.size(1)));
    const int64_t tokens_per_block = params.tokens_per_pass * kPasses;

    runtime::Launch request{};
    const std::string kernel = "kv_cache_write_" + format.name + "_x" + std::to_string(width);
    request.kernel = kernel.c_str();
    request.grid = {static_cast<uint32_t>((tokens + tokens_per_block - 1) / tokens_per_block)};
    request.block = {kThreads};
    request.params = &params;
    request.params_bytes = sizeof(params);
    request.device = &device;
    request.buffers = {runtime::buffer_of(k_arg, false), runtime::buffer_of(v_arg, false),
                       runtime::buffer_of(slot_arg, false), runtime::buffer_of(key_arg, true),
                       runtime::buffer_of(value_arg, true)};
    for (const auto* scale : {&k_scale_arg, &v_scale_arg}) {
        if (scale->has_value()) request.buffers.push_back(runtime::buffer_of(scale->value(), false));
    }
    runtime::launch(request);
}

void gather_paged_kv(const Tensor& key_cache, const Tensor& value_cache, const Tensor& block_table,
                     const Tensor& seq_lens, const Tensor& k_out, const Tensor& v_out, const std::string& kv_format,
                     double k_scale, double v_scale, const std::optional<Tensor>& k_scale_tensor,
                     const std::optional<Tensor>& v_scale_tensor, const std::optional<Tensor>& out_block_table) {
    const char* op = "gather_paged_kv";
    const Argument key_arg{op, "key_cache", key_cache}, value_arg{op, "value_cache", value_cache};
    const Argument table_arg{op, "block_table", block_table}, lens_arg{op, "seq_lens", seq_lens};
    const Argument k_arg{op, "k_out", k_out}, v_arg{op, "v_out", v_out};
    const auto k_scale_arg = runtime::optional_argument(op, "k_scale", k_scale_tensor);
    const auto v_scale_arg = runtime::optional_argument(op, "v_scale", v_scale_tensor);
    const auto out_table_arg = runtime::optional_argument(op, "out_block_table", out_block_table);

    const auto& device = runtime::require_one_device(runtime::present(
        {&key_arg, &value_arg, &table_arg, &lens_arg, &k_arg, &v_arg}, {&k_scale_arg, &v_scale_arg, &out_table_arg}));
    const CacheFormat format = runtime::require_cache_format(op, kv_format);
    runtime::require_caches(key_arg, value_arg, format);
    const int64_t page = key_cache.size(1), heads = key_cache.size(2), head_dim = key_cache.size(3);

    runtime::require_dtype(lens_arg, {ScalarType::Int});
    runtime::require_dims(lens_arg, 1, "[B]");
    const int64_t batch = seq_lens.size(0);
    const auto require_table = [&](const Argument& table) {
        runtime::require_block_table(table);
        runtime::require_size(table, 0, batch, "rows of seq_lens");
    };
    require_table(table_arg);
    const bool paged = out_table_arg.has_value();
    if (paged) require_table(*out_table_arg);

    for (const Argument* argument : {&k_arg, &v_arg}) {
        runtime::require_dtype(*argument, {ScalarType::Half});
        runtime::require_dims(*argument, 4, paged ? "[out_pages, out_page, Hkv, D]" : "[B, tokens, Hkv, D]");
        runtime::require_unit_last_stride(*argument);
        runtime::require_writable_layout(*argument);
        if (!paged) runtime::require_size(*argument, 0, batch, "rows of seq_lens");
        runtime::require_size(*argument, 2, heads, "KV heads of key_cache");
        runtime::require_size(*argument, 3, head_dim, "head dimension of key_cache");
    }
    runtime::require_size(v_arg, 0, k_out.size(0), "size of k_out");
    runtime::require_size(v_arg, 1, k_out.size(1), "size of k_out");
    const int64_t out_page = k_out.size(1);
    if (paged && (out_page <= 0 || out_page % kTileTokens != 0)) {
        runtime::refuse(op, "k_out", "a page of " + std::to_string(out_page) + " tokens",
                        "a multiple of " + std::to_string(kTileTokens) + " tokens",
                        "Allocate the output with such a page size");
    }

    GatherParams params{};
    params.k_device_scale = runtime::device_scale(k_scale_arg);
    params.v_device_scale = runtime::device_scale(v_scale_arg);
    params.k_scale = runtime::require_scale(op, "k_scale", k_scale);
    params.v_scale = runtime::require_scale(op, "v_scale", v_scale);
    const int64_t out_tokens = paged ? out_block_table->size(1) * out_page : out_page;
    const int64_t max_tokens = std::min(out_tokens, block_table.size(1) * page);
    if (out_tokens > kMaxInt32 - kTileTokens || batch > kMaxInt32 || k_out.size(0) > kMaxInt32) {
        runtime::refuse(op, "k_out", "rows or tokens beyond 31 bits", "sizes below 2^31", "Gather in several calls");
    }
    params.out_tokens = static_cast<int32_t>(out_tokens);
    params.max_tokens = static_cast<int32_t>(max_tokens);
    const int64_t width = vector_width(format, head_dim, {&key_cache, &value_cache}, {&k_out, &v_out});
    params.key_cache = token_tensor(key_cache);
    params.value_cache = token_tensor(value_cache);
    params.k_out = token_tensor(k_out);
    params.v_out = token_tensor(v_out);
    params.block_table = static_cast<const int32_t*>(block_table.data_ptr());
    params.block_table_stride = block_table.stride(0);
    params.seq_lens = static_cast<const int32_t*>(seq_lens.data_ptr());
    params.seq_lens_stride = seq_lens.stride(0);
    if (paged) {
        params.out_block_table = static_cast<const int32_t*>(out_block_table->data_ptr());
        params.out_block_table_stride = out_block_table->stride(0);
        params.tiles_per_out_page = make_fast_divisor(static_cast<uint32_t>(out_page / kTileTokens));
    }
    params.batch = static_cast<int32_t>(batch);
    params.pages = static_cast<int32_t>(key_cache.size(0));
    params.out_pages = static_cast<int32_t>(k_out.size(0));
    params.tiles_per_page = make_fast_divisor(static_cast<uint32_t>(page / kTileTokens));
    params.vectors_per_head = make_fast_divisor(static_cast<uint32_t>(head_dim / width));
    params.vectors_per_token = make_fast_divisor(static_cast<uint32_t>(heads * (head_dim / width)));

    const int64_t tiles = batch * ((max_tokens + kTileTokens - 1) / kTileTokens);
    if (tiles == 0) return;  // no row, or no room for a token: nothing to read or write

    runtime::Launch request{};
    const std::string kernel = "kv_cache_gather_" + format.name + "_x" + std::to_string(width);
    request.kernel = kernel.c_str();
    request.grid = {static_cast<uint32_t>(std::min(tiles, device.multiprocessors * kBlocksPerMultiprocessor))};
    request.block = {kThreads};
    request.params = &params;
    request.params_bytes = sizeof(params);
    request.device = &device;
    request.buffers = {runtime::buffer_of(key_arg, false),   runtime::buffer_of(value_arg, false),
                       runtime::buffer_of(table_arg, false), runtime::buffer_of(lens_arg, false),
                       runtime::buffer_of(k_arg, true),      runtime::buffer_of(v_arg, true)};
    for (const auto* argument : {&k_scale_arg, &v_scale_arg, &out_table_arg}) {
        if (argument->has_value()) request.buffers.push_back(runtime::buffer_of(argument->value(), false));
    }
    runtime::launch(request);
}

}  // namespace sm70::kv_cache

// The operators are registered for CPU tensors too, so that these get the sentence that says what to do.
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
STABLE_TORCH_LIBRARY_IMPL(sm70_kernels, CUDA, m) {
    m.impl("write_paged_kv", TORCH_BOX(&sm70::kv_cache::write_paged_kv));
    m.impl("gather_paged_kv", TORCH_BOX(&sm70::kv_cache::gather_paged_kv));
}
STABLE_TORCH_LIBRARY_IMPL(sm70_kernels, CPU, m) {
    m.impl("write_paged_kv", TORCH_BOX(&sm70::kv_cache::write_paged_kv));
    m.impl("gather_paged_kv", TORCH_BOX(&sm70::kv_cache::gather_paged_kv));
}
