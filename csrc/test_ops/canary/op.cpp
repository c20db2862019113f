// canary: kernels with a planted fault, to prove that a memory check sees it. For tests only; no wheel holds it.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <string>

#include "runtime/launch.h"
#include "runtime/operator.h"
#include "runtime/tensor_checks.h"
#include "test_ops/canary/params.h"

SM70_CAPABILITY_REVISION(1)

namespace sm70::canary {

using runtime::Argument;
using torch::stable::Tensor;

void canary(const Tensor& out, const Tensor& in, const std::string& fault) {
    const char* op = "canary";
    const Argument out_arg{op, "out", out}, in_arg{op, "in", in};
    const auto& device = runtime::require_one_device({&out_arg, &in_arg});
    for (const Argument* argument : {&out_arg, &in_arg}) {
        runtime::require_dtype(*argument, {runtime::ScalarType::Int});
        runtime::require_dims(*argument, 1, "[elements]");
        runtime::require_unit_last_stride(*argument);
    }
    if (in.size(0) != out.size(0)) {
        runtime::refuse(op, "in", std::to_string(in.size(0)) + " elements", "as many as out", "Allocate them alike");
    }
    if (out.size(0) < 1 || out.size(0) >= kThreads) {
        runtime::refuse(op, "out", std::to_string(out.size(0)) + " elements", "1 to " + std::to_string(kThreads - 1),
                        "Allocate fewer than the kernel has threads");
    }
    const std::string kernel = "canary_" + fault;
    const Params params{static_cast<int32_t*>(out.data_ptr()), static_cast<const int32_t*>(in.data_ptr()),
                        static_cast<int32_t>(out.size(0))};
    runtime::Launch request{};
    request.kernel = kernel.c_str();  // an unknown fault has no kernel, which the driver reports
    if (fault == "global_race") request.grid = {2};
    request.block = {kThreads};
    request.params = &params;
    request.params_bytes = sizeof(params);
    request.device = &device;
    request.buffers = {runtime::buffer_of(out_arg, true), runtime::buffer_of(in_arg, false)};
    runtime::launch(request);
}

}  // namespace sm70::canary

STABLE_TORCH_LIBRARY_FRAGMENT(sm70_kernels_test, m) {
    m.def("canary(Tensor(a!) out, Tensor input, str fault) -> ()");
}
STABLE_TORCH_LIBRARY_IMPL(sm70_kernels_test, CUDA, m) {
    m.impl("canary", TORCH_BOX(&sm70::canary::canary));
}
STABLE_TORCH_LIBRARY_IMPL(sm70_kernels_test, CPU, m) {
    m.impl("canary", TORCH_BOX(&sm70::canary::canary));
}
