// verify: the torch operator.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <string>

#include "ops/verify/call.h"
#include "runtime/operator.h"
#include "runtime/route.h"

SM70_CAPABILITY_REVISION(1)

namespace sm70::verify {

void verify(const Tensor& q, const Tensor& key_cache, const Tensor& value_cache, const Tensor& block_table,
            const Tensor& seq_lens, const Tensor& out, const Tensor& workspace, const std::string& kv_format,
            double softmax_scale, double k_scale, double v_scale, const std::optional<Tensor>& k_scale_tensor,
            const std::optional<Tensor>& v_scale_tensor, const std::optional<Tensor>& lse) {
    const Tensors tensors{q,   key_cache, value_cache,    block_table,    seq_lens,
                          out, workspace, k_scale_tensor, v_scale_tensor, lse};
    call("verify", "verify", tensors, kv_format, {softmax_scale, k_scale, v_scale});
}

}  // namespace sm70::verify

// Bytes of workspace that verify() wants for these shapes.
SM70_EXPORT int64_t sm70_kernels_verify_workspace_bytes(int64_t requests, int64_t q_rows, int64_t query_heads,
                                                        int64_t kv_heads, int64_t head_dim, int64_t max_tokens) {
    return sm70::verify::make_schedule({requests, q_rows, query_heads, kv_heads, head_dim, max_tokens, 1})
        .workspace_bytes;
}

// Name of the attention kernel for these shapes.
SM70_EXPORT const char* sm70_kernels_verify_route(const char* kv_format, int64_t q_rows, int64_t query_heads,
                                                  int64_t kv_heads, int64_t head_dim) {
    const auto schedule = sm70::verify::make_schedule({1, q_rows, query_heads, kv_heads, head_dim, 1, 1});
    return sm70::runtime::route_text(sm70::verify::route("verify", kv_format, head_dim, schedule));
}

STABLE_TORCH_LIBRARY_FRAGMENT(sm70_kernels, m) {
    m.def(
        "verify(Tensor q, Tensor key_cache, Tensor value_cache, Tensor block_table, Tensor seq_lens, "
        "Tensor(a!) out, Tensor(b!) workspace, str kv_format, float softmax_scale, float k_scale=1.0, "
        "float v_scale=1.0, Tensor? k_scale_tensor=None, Tensor? v_scale_tensor=None, Tensor(c!)? lse=None) -> ()");
}
SM70_IMPLEMENT(sm70_kernels, "verify", sm70::verify::verify)
