#include "runtime/attention_checks.h"

#include <algorithm>

namespace sm70::runtime {

void require_fp16(const Argument& argument, int64_t dims, const char* picture) {
    require_dtype(argument, {ScalarType::Half});
    require_dims(argument, dims, picture);
    require_unit_last_stride(argument);
}

void require_heads(const Argument& q, int64_t query_heads, int64_t kv_heads, int64_t head_dim, const char* remedy) {
    if (kv_heads <= 0 || query_heads <= 0 || query_heads % kv_heads != 0 || query_heads / kv_heads > kMaxGroup) {
        refuse(q.op, q.name, std::to_string(query_heads) + " query heads on " + std::to_string(kv_heads) + " KV heads",
               "1 to " + std::to_string(kMaxGroup) + " query heads for each KV head", remedy);
    }
    if (head_dim != 64 && head_dim != 128 && head_dim != 256) {
        refuse(q.op, q.name, "a head dimension of " + std::to_string(head_dim), "64, 128 or 256",
               "No kernel is built for others");
    }
}

void require_output(const Argument& out, const Argument& q, const char* picture) {
    require_fp16(out, q.tensor.dim(), picture);
    require_writable_layout(out);
    for (int64_t dim = 0; dim < q.tensor.dim(); ++dim) require_size(out, dim, q.tensor.size(dim), "shape of q");
}

void require_lse(const Argument* lse, const Argument& q, const char* picture, std::initializer_list<const char*> dims) {
    if (lse == nullptr) return;
    require_dtype(*lse, {ScalarType::Float});
    require_leading_sizes(*lse, q, picture, dims);
    require_writable_layout(*lse);
}

int64_t require_vector_alignment(std::initializer_list<const Argument*> arguments, const char* remedy) {
    int64_t alignment = 16;
    for (const Argument* argument : arguments) {
        const int64_t found = head_alignment(argument->tensor);
        if (found < 8) {
            refuse(argument->op, argument->name, "heads that are not 8-byte aligned",
                   "a base and strides of whole 8 bytes", remedy);
        }
        alignment = std::min(alignment, found);
    }
    return alignment;
}

float require_softmax_scale_log2(const char* op, double softmax_scale) {
    return static_cast<float>(require_scale(op, "softmax_scale", softmax_scale) * 1.4426950408889634);
}

}  // namespace sm70::runtime
