#include "runtime/tensor_checks.h"

#include <cmath>
#include <sstream>
#include <stdexcept>

#include "runtime/emulation.h"

namespace sm70::runtime {

namespace {

std::string list(const torch::headeronly::IntHeaderOnlyArrayRef& values) {
    std::string text = "[";
    for (size_t i = 0; i < values.size(); ++i) text += (i ? ", " : "") + std::to_string(values[i]);
    return text + "]";
}

std::string device_name(const torch::stable::Tensor& tensor) {
    if (tensor.is_cpu()) return "cpu";
    const std::string kind = tensor.is_cuda() ? "cuda:" : "device ";
    return kind + std::to_string(tensor.get_device_index());
}

}  // namespace

void refuse(const char* op, const char* name, const std::string& got, const std::string& want,
            const std::string& remedy) {
    throw std::runtime_error(std::string(op) + ": argument '" + name + "': got " + got + ", want " + want + ". " +
                             remedy);
}

std::string dtype_name(ScalarType type) {
    switch (type) {
        case ScalarType::Byte: return "torch.uint8";
        case ScalarType::Char: return "torch.int8";
        case ScalarType::Short: return "torch.int16";
        case ScalarType::Int: return "torch.int32";
        case ScalarType::Long: return "torch.int64";
        case ScalarType::Half: return "torch.float16";
        case ScalarType::BFloat16: return "torch.bfloat16";
        case ScalarType::Float: return "torch.float32";
        case ScalarType::Double: return "torch.float64";
        case ScalarType::Bool: return "torch.bool";
        case ScalarType::Float8_e4m3fn: return "torch.float8_e4m3fn";
        case ScalarType::Float8_e5m2: return "torch.float8_e5m2";
        default: return "dtype number " + std::to_string(static_cast<int>(type));
    }
}

const DeviceFacts& require_one_device(const std::vector<const Argument*>& arguments) {
    for (const Argument* argument : arguments) {
        if (!argument->tensor.defined()) {
            refuse(argument->op, argument->name, "no tensor", "a tensor", "Pass one");
        }
    }
    const Argument& first = *arguments.front();
    const bool emulated = first.tensor.is_cpu() && emulation_enabled();
    if (first.tensor.is_cpu() && !emulated) {
        refuse(first.op, first.name, "a tensor on the CPU", "a tensor on a CUDA device",
               "Move the tensors to a V100, to check results to a newer GPU with SM70_KERNELS_ALLOW_JIT=1, or run the "
               "machine code on the emulated V100, slowly: 'with sm70_kernels.lab.emulator.enabled():' or "
               "SM70_KERNELS_EMULATE=1");
    }
    if (!emulated && !first.tensor.is_cuda()) {
        refuse(first.op, first.name, "a tensor on " + device_name(first.tensor), "a tensor on a CUDA device",
               "Move the tensors to a V100");
    }
    const DeviceFacts& device = emulated ? emulated_device() : device_facts(first.tensor.get_device_index());
    choose_image(device);
    const std::string wanted = device_name(first.tensor);
    for (const Argument* argument : arguments) {
        if (const std::string found = device_name(argument->tensor); found != wanted) {
            refuse(argument->op, argument->name, "a tensor on " + found,
                   "a tensor on " + wanted + ", where '" + first.name + "' is", "Move all tensors to one device");
        }
    }
    return device;
}

void require_dtype(const Argument& argument, std::initializer_list<ScalarType> wanted) {
    const ScalarType got = argument.tensor.scalar_type();
    std::string names;
    for (const ScalarType type : wanted) {
        if (type == got) return;
        names += (names.empty() ? "" : " or ") + dtype_name(type);
    }
    refuse(argument.op, argument.name, dtype_name(got), names, "Convert the tensor or pass the one that was meant");
}

void require_dims(const Argument& argument, int64_t dims, const char* picture) {
    if (argument.tensor.dim() == dims) return;
    refuse(argument.op, argument.name, "shape " + list(argument.tensor.sizes()), picture,
           "Reshape or unsqueeze the tensor");
}

void require_size(const Argument& argument, int64_t dim, int64_t wanted, const char* why) {
    if (argument.tensor.size(dim) == wanted) return;
    refuse(argument.op, argument.name, "shape " + list(argument.tensor.sizes()),
           "size " + std::to_string(wanted) + " in dimension " + std::to_string(dim) + " (" + why + ")",
           "Pass tensors whose shapes agree");
}

void require_leading_sizes(const Argument& argument, const Argument& other, const char* picture,
                           std::initializer_list<const char*> dims) {
    require_dims(argument, static_cast<int64_t>(dims.size()), picture);
    int64_t dim = 0;
    for (const char* what : dims) {
        require_size(argument, dim, other.tensor.size(dim), what);
        ++dim;
    }
}

void require_unit_last_stride(const Argument& argument) {
    const int64_t last = argument.tensor.dim() - 1;
    if (argument.tensor.size(last) <= 1 || argument.tensor.stride(last) == 1) return;
    refuse(argument.op, argument.name, "strides " + list(argument.tensor.strides()), "stride 1 in the last dimension",
           "Call .contiguous(), or lay the tensor out with D innermost");
}

void require_writable_layout(const Argument& argument) {
    for (int64_t dim = 0; dim < argument.tensor.dim(); ++dim) {
        if (argument.tensor.size(dim) > 1 && argument.tensor.stride(dim) == 0) {
            refuse(argument.op, argument.name, "strides " + list(argument.tensor.strides()),
                   "a tensor whose elements have memory of their own", "Pass a tensor that was not expanded");
        }
    }
}

float require_scale(const char* op, const char* name, double scale) {
    const float value = static_cast<float>(scale);
    if (!(value > 0.0f) || !std::isfinite(value)) {
        std::ostringstream got;
        got << scale;
        refuse(op, name, got.str(), "a positive finite FP32 number",
               "Pass the factor between stored and real values, 1.0 for none");
    }
    return value;
}

void* require_workspace(const Argument& workspace, int64_t bytes) {
    require_dtype(workspace, {ScalarType::Byte});
    require_dims(workspace, 1, "[bytes]");
    require_unit_last_stride(workspace);
    if (workspace.tensor.size(0) < bytes) {
        refuse(workspace.op, workspace.name, std::to_string(workspace.tensor.size(0)) + " bytes",
               std::to_string(bytes) + " bytes at least", "Ask the plan: workspace_bytes");
    }
    if (reinterpret_cast<uintptr_t>(workspace.tensor.data_ptr()) % 16 != 0) {
        refuse(workspace.op, workspace.name, "an address that is not a multiple of 16", "16-byte alignment",
               "Pass a tensor of its own, or a slice that starts at a multiple of 16");
    }
    return workspace.tensor.data_ptr();
}

bool heads_aligned(const torch::stable::Tensor& tensor, int64_t bytes) {
    const auto element = static_cast<int64_t>(tensor.element_size());
    if (reinterpret_cast<uintptr_t>(tensor.data_ptr()) % static_cast<uintptr_t>(bytes) != 0) return false;
    for (int64_t dim = 0; dim + 1 < tensor.dim(); ++dim) {
        if (tensor.size(dim) > 1 && tensor.stride(dim) * element % bytes != 0) return false;
    }
    return true;
}

int64_t head_alignment(const torch::stable::Tensor& tensor) {
    return heads_aligned(tensor, 16) ? 16 : heads_aligned(tensor, 8) ? 8 : 1;
}

Buffer buffer_of(const Argument& argument, bool writable) {
    int64_t last = 0;  // offset of the last element
    for (int64_t dim = 0; dim < argument.tensor.dim(); ++dim) {
        if (argument.tensor.size(dim) == 0) return {argument.name, nullptr, 0, writable};
        last += (argument.tensor.size(dim) - 1) * argument.tensor.stride(dim);
    }
    return {argument.name, argument.tensor.data_ptr(), static_cast<size_t>(last + 1) * argument.tensor.element_size(),
            writable};
}

}  // namespace sm70::runtime
