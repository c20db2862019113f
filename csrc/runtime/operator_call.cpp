#include "runtime/operator_call.h"

namespace sm70::runtime {

using torch::stable::Tensor;

const Argument& OperatorCall::declare(const char* name, const Tensor& tensor, bool writable) {
    declarations_.push_back({{op_, name, tensor}, writable});
    return declarations_.back().argument;
}

const Argument& OperatorCall::reads(const char* name, const Tensor& tensor) {
    return declare(name, tensor, false);
}

const Argument& OperatorCall::writes(const char* name, const Tensor& tensor) {
    return declare(name, tensor, true);
}

const Argument* OperatorCall::may_read(const char* name, const std::optional<Tensor>& tensor) {
    return tensor.has_value() ? &declare(name, *tensor, false) : nullptr;
}

const Argument* OperatorCall::may_write(const char* name, const std::optional<Tensor>& tensor) {
    return tensor.has_value() ? &declare(name, *tensor, true) : nullptr;
}

const DeviceFacts& OperatorCall::require_one_device() {
    std::vector<const Argument*> arguments;
    for (const Declaration& declaration : declarations_) arguments.push_back(&declaration.argument);
    device_ = &runtime::require_one_device(arguments);
    return *device_;
}

void OperatorCall::launch(const std::string& kernel, Dim3 grid, Dim3 block, int64_t dynamic_shared_bytes,
                          const void* params, size_t params_bytes) const {
    Launch request{};
    request.kernel = kernel.c_str();
    request.grid = grid;
    request.block = block;
    request.dynamic_shared_bytes = static_cast<uint32_t>(dynamic_shared_bytes);
    request.params = params;
    request.params_bytes = params_bytes;
    request.device = device_;
    for (const Declaration& declaration : declarations_) {
        request.buffers.push_back(buffer_of(declaration.argument, declaration.writable));
    }
    runtime::launch(request);
}

PagedAttention declare_paged_attention(OperatorCall& call, const Tensor& q, const Tensor& key_cache,
                                       const Tensor& value_cache, const Tensor& block_table, const Tensor& seq_lens,
                                       const Tensor& out) {
    // A braced list is evaluated from left to right: q, the first one declared, names the device.
    return {call.reads("q", q),
            call.reads("key_cache", key_cache),
            call.reads("value_cache", value_cache),
            call.reads("block_table", block_table),
            call.reads("seq_lens", seq_lens),
            call.writes("out", out)};
}

}  // namespace sm70::runtime
