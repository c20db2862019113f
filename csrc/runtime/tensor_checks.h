// Checks of operator arguments: first the device, which all must share and this build must serve, then each argument's
// dtype, dimensions, strides and sizes. Each refusal names the operator and argument, what was got, what is wanted and
// what to do. Nothing has been launched or written then.
#pragma once

#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "runtime/device_image.h"
#include "runtime/launch.h"

namespace sm70::runtime {

using torch::headeronly::ScalarType;

// A tensor with the names it is spoken of by.
struct Argument {
    const char* op;
    const char* name;
    const torch::stable::Tensor& tensor;
};

// Throws std::runtime_error "op: argument 'name': got ..., want .... remedy".
[[noreturn]] void refuse(const char* op, const char* name, const std::string& got, const std::string& want,
                         const std::string& remedy);

std::string dtype_name(ScalarType type);

// All arguments on one CUDA device that this build runs on, or on the CPU with the emulator switched on; returns its
// facts.
const DeviceFacts& require_one_device(const std::vector<const Argument*>& arguments);

void require_dtype(const Argument& argument, std::initializer_list<ScalarType> wanted);

// The number of dimensions; `picture`, like "[tokens, Hkv, D]", names them in the message.
void require_dims(const Argument& argument, int64_t dims, const char* picture);

// Size of one dimension; `why` says where the wanted number comes from.
void require_size(const Argument& argument, int64_t dim, int64_t wanted, const char* why);

// The sizes of another tensor's first dimensions, and no more dimensions. `dims` says what they are: {"rows of q"}.
void require_leading_sizes(const Argument& argument, const Argument& other, const char* picture,
                           std::initializer_list<const char*> dims);

// The last dimension is contiguous.
void require_unit_last_stride(const Argument& argument);

// No two elements share memory through a stride of 0 (an expanded tensor): such a tensor can't be written.
void require_writable_layout(const Argument& argument);

// A host scale: positive and finite.
float require_scale(const char* op, const char* name, double scale);

// A uint8 workspace of at least so many bytes, 16-byte aligned; returns its address.
void* require_workspace(const Argument& workspace, int64_t bytes);

// Whether the addresses of a tensor's base and of everything but its last dimension are multiples of so many bytes.
bool heads_aligned(const torch::stable::Tensor& tensor, int64_t bytes);

// The largest of 16, 8 and 1 for which they are.
int64_t head_alignment(const torch::stable::Tensor& tensor);

// The address of a checked tensor.
template <typename T>
T* data_of(const Argument& argument) {
    return static_cast<T*>(argument.tensor.data_ptr());
}

// The extent of a tensor from its first to its last element.
Buffer buffer_of(const Argument& argument, bool writable);

}  // namespace sm70::runtime
