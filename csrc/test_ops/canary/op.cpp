// canary: kernels with a planted fault, to prove that a memory check sees it. For tests only; no wheel holds it.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <string>

#include "runtime/operator.h"
#include "runtime/operator_call.h"
#include "runtime/tensor_checks.h"
#include "test_ops/canary/params.h"

SM70_CAPABILITY_REVISION(1)

namespace sm70::canary {

using runtime::Argument;
using torch::stable::Tensor;

void canary(const Tensor& out, const Tensor& in, const std::string& fault) {
    constexpr const char* kOp = "canary";
    runtime::OperatorCall call(kOp);
    const Argument& out_arg = call.writes("out", out);
    const Argument& in_arg = call.reads("in", in);
    call.require_one_device();
    for (const Argument* argument : {&out_arg, &in_arg}) {
        runtime::require_dtype(*argument, {runtime::ScalarType::Int});
        runtime::require_dims(*argument, 1, "[elements]");
        runtime::require_unit_last_stride(*argument);
    }
    if (in.size(0) != out.size(0)) {
        runtime::refuse(kOp, "in", std::to_string(in.size(0)) + " elements", "as many as out", "Allocate them alike");
    }
    if (out.size(0) < 1 || out.size(0) >= kThreads) {
        runtime::refuse(kOp, "out", std::to_string(out.size(0)) + " elements", "1 to " + std::to_string(kThreads - 1),
                        "Allocate fewer than the kernel has threads");
    }
    const Params params{runtime::data_of<int32_t>(out_arg), runtime::data_of<const int32_t>(in_arg),
                        static_cast<int32_t>(out.size(0))};
    const uint32_t blocks = fault == "global_race" ? 2 : 1;
    call.launch("canary_" + fault, {blocks}, {kThreads}, 0, params);  // the driver reports a fault without a kernel
}

}  // namespace sm70::canary

STABLE_TORCH_LIBRARY_FRAGMENT(sm70_kernels_test, m) {
    m.def("canary(Tensor(a!) out, Tensor input, str fault) -> ()");
}
SM70_IMPLEMENT(sm70_kernels_test, "canary", sm70::canary::canary)
