// One call of an operator: its tensors, their device, and the launches on them.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "runtime/launch.h"
#include "runtime/tensor_checks.h"

namespace sm70::runtime {

// Every tensor is declared once, with what the kernels may do to it. The declarations are what the device check and the
// buffers of each launch are made from, so neither can forget a tensor. References stay valid as long as the call.
class OperatorCall {
 public:
    explicit OperatorCall(const char* op) : op_(op) {}

    const Argument& reads(const char* name, const torch::stable::Tensor& tensor);
    const Argument& writes(const char* name, const torch::stable::Tensor& tensor);
    // Null for an optional tensor that the call does not have.
    const Argument* may_read(const char* name, const std::optional<torch::stable::Tensor>& tensor);
    const Argument* may_write(const char* name, const std::optional<torch::stable::Tensor>& tensor);

    // All tensors on one device that this build runs on; the first one declared names it. Call it once, after the
    // declarations and before anything reads a tensor.
    const DeviceFacts& require_one_device();

    template <typename Params>
    void launch(const std::string& kernel, Dim3 grid, Dim3 block, int64_t dynamic_shared_bytes,
                const Params& params) const {
        launch(kernel, grid, block, dynamic_shared_bytes, &params, sizeof(params));
    }

 private:
    struct Declaration {
        Argument argument;
        bool writable;
    };

    const Argument& declare(const char* name, const torch::stable::Tensor& tensor, bool writable);
    void launch(const std::string& kernel, Dim3 grid, Dim3 block, int64_t dynamic_shared_bytes, const void* params,
                size_t params_bytes) const;

    const char* op_;
    std::deque<Declaration> declarations_;
    const DeviceFacts* device_ = nullptr;
};

// The tensors of attention over a paged cache that every call has.
struct PagedAttention {
    const Argument &q, &key_cache, &value_cache, &block_table, &seq_lens, &out;
};
PagedAttention declare_paged_attention(OperatorCall& call, const torch::stable::Tensor& q,
                                       const torch::stable::Tensor& key_cache, const torch::stable::Tensor& value_cache,
                                       const torch::stable::Tensor& block_table, const torch::stable::Tensor& seq_lens,
                                       const torch::stable::Tensor& out);

}  // namespace sm70::runtime
