// verify_controls: verify with other numerics, by name. For tests only; no wheel holds it.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <string>

#include "ops/verify/call.h"
#include "runtime/operator.h"

SM70_CAPABILITY_REVISION(1)

namespace sm70::verify_controls {

using torch::stable::Tensor;

// The arguments of verify, and the name that kernel.cu gives the numerics. A shape without a kernel is the driver's to
// report.
void verify_controls(const Tensor& q, const Tensor& key_cache, const Tensor& value_cache, const Tensor& block_table,
                     const Tensor& seq_lens, const Tensor& out, const Tensor& workspace, const std::string& numerics,
                     double softmax_scale, double k_scale, double v_scale, const std::optional<Tensor>& lse) {
    const std::optional<Tensor> none;
    const verify::Tensors tensors{q, key_cache, value_cache, block_table, seq_lens, out, workspace, none, none, lse};
    verify::call("verify_controls", "verify_" + numerics, tensors, "e4m3", {softmax_scale, k_scale, v_scale},
                 numerics == "carried");
}

}  // namespace sm70::verify_controls

STABLE_TORCH_LIBRARY_FRAGMENT(sm70_kernels_test, m) {
    m.def(
        "verify_controls(Tensor q, Tensor key_cache, Tensor value_cache, Tensor block_table, Tensor seq_lens, "
        "Tensor(a!) out, Tensor(b!) workspace, str numerics, float softmax_scale, float k_scale=1.0, "
        "float v_scale=1.0, Tensor(c!)? lse=None) -> ()");
}
SM70_IMPLEMENT(sm70_kernels_test, "verify_controls", sm70::verify_controls::verify_controls)
