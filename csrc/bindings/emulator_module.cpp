// Python access to the emulator: what a person wants to look at, and what tests drive.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "emulator/api.h"
#include "emulator/error.h"
#include "emulator/module.h"
#include "emulator/opcodes.h"
#include "emulator/tensor_core.h"
#include "instruments/instruments.h"
#include "instruments/liveness.h"
#include "instruments/pipes.h"

namespace py = pybind11;
using namespace pybind11::literals;
using namespace sm70emu;

namespace {

TensorRounding rounding_named(const std::string& name) {
    if (name == "truncate") return TensorRounding::Truncate;
    if (name == "nearest") return TensorRounding::Nearest;
    throw py::value_error("tensor_rounding is 'truncate' or 'nearest', not '" + name + "'");
}

// A grid or block: an int or up to three of them.
void fill_extent(const py::object& value, uint32_t* extent) {
    extent[0] = extent[1] = extent[2] = 1;
    if (py::isinstance<py::int_>(value)) {
        extent[0] = value.cast<uint32_t>();
        return;
    }
    const auto items = value.cast<std::vector<uint32_t>>();
    if (items.empty() || items.size() > 3) throw py::value_error("a grid or block has one to three dimensions");
    std::copy(items.begin(), items.end(), extent);
}

// (name, buffer or (address, bytes), writable)
GlobalBuffer buffer_from(const py::tuple& item) {
    if (item.size() != 3) throw py::value_error("a buffer is (name, array or (address, bytes), writable)");
    GlobalBuffer buffer;
    buffer.name = item[0].cast<std::string>();
    buffer.writable = item[2].cast<bool>();
    if (py::isinstance<py::tuple>(item[1])) {
        const auto range = item[1].cast<std::pair<uint64_t, uint64_t>>();
        buffer.address = range.first;
        buffer.bytes = range.second;
        return buffer;
    }
    const auto info = py::reinterpret_borrow<py::buffer>(item[1]).request(buffer.writable);
    py::ssize_t expected = info.itemsize;
    for (auto dimension = info.ndim; dimension-- > 0;) {
        if (info.shape[static_cast<size_t>(dimension)] > 1 &&
            info.strides[static_cast<size_t>(dimension)] != expected) {
            throw py::value_error("buffer '" + buffer.name + "' is not contiguous; pass (address, bytes) for a view");
        }
        expected *= info.shape[static_cast<size_t>(dimension)];
    }
    buffer.address = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(info.ptr));
    buffer.bytes = static_cast<uint64_t>(info.size * info.itemsize);
    return buffer;
}

py::dict describe_kernel(const KernelImage& kernel) {
    py::list parameters;
    for (const auto& p : kernel.parameters) {
        parameters.append(py::dict("ordinal"_a = p.ordinal, "offset"_a = p.offset, "size"_a = p.size));
    }
    return py::dict("registers"_a = kernel.registers, "static_shared_bytes"_a = kernel.static_shared_bytes,
                    "local_bytes"_a = kernel.local_bytes, "parameter_bytes"_a = kernel.parameter_bytes,
                    "parameters"_a = parameters, "max_threads"_a = kernel.max_threads,
                    "instructions"_a = kernel.code.size() / 16, "refusal"_a = kernel.refusal);
}

py::dict describe_instruction(const ParsedInstruction& instruction) {
    py::list operands;
    for (const auto& operand : instruction.operands) operands.append(operand.text);
    const ControlCode& c = instruction.control;
    const PipeUse use = pipe_use(instruction);
    return py::dict("pipe"_a = pipe_name(use.pipe), "pipe_cycles"_a = use.cycles, "pipe_known"_a = use.known,
                    "offset"_a = instruction.offset, "text"_a = instruction.text, "opcode"_a = instruction.opcode,
                    "modifiers"_a = instruction.modifiers, "operands"_a = operands, "guard"_a = instruction.guard,
                    "guard_negated"_a = instruction.guard_negated, "low"_a = instruction.low,
                    "high"_a = instruction.high, "stall"_a = c.stall, "yield"_a = c.yield_hint,
                    "write_barrier"_a = c.write_barrier, "read_barrier"_a = c.read_barrier, "wait_mask"_a = c.wait_mask,
                    "reuse"_a = c.reuse);
}

// [(file, line), ...]: the instruction's own line first, then the lines it was inlined at.
py::list describe_source(const KernelImage& kernel, size_t instruction) {
    py::list lines;
    if (instruction < kernel.sources.size()) {
        for (const auto& line : kernel.sources[instruction].lines) lines.append(py::make_tuple(line.file, line.line));
    }
    return lines;
}

py::dict launch(Module& module, const std::string& kernel, const py::object& grid, const py::object& block,
                const py::bytes& parameters, const std::vector<py::tuple>& buffers, uint32_t dynamic_shared_bytes,
                const std::optional<std::vector<uint64_t>>& blocks, uint64_t seed, uint32_t threads,
                const std::string& tensor_rounding, uint64_t instruction_limit, uint64_t instruments) {
    LaunchRequest request;
    fill_extent(grid, request.grid);
    fill_extent(block, request.block);
    const auto blob = static_cast<std::string>(parameters);
    request.parameters.assign(blob.begin(), blob.end());
    for (const auto& item : buffers) request.buffers.push_back(buffer_from(item));
    request.dynamic_shared_bytes = dynamic_shared_bytes;
    request.sampled = blocks.has_value();
    if (blocks) request.sampled_blocks = *blocks;
    request.seed = seed;
    request.threads = threads;
    request.tensor_rounding = rounding_named(tensor_rounding);
    request.instruction_limit = instruction_limit;
    // A handle of the emulator's DSO, which is of the same build as this module.
    request.observer = reinterpret_cast<LaunchObserver*>(static_cast<uintptr_t>(instruments));
    LaunchResult result;
    {
        const py::gil_scoped_release unlocked;
        result = module.launch(kernel, request);
    }
    if (!result.error.empty()) throw EmulatorError(result.error);
    return py::dict("warp_instructions"_a = result.warp_instructions, "blocks_run"_a = result.blocks_run,
                    "blocks_total"_a = result.blocks_total, "seconds"_a = result.seconds);
}

using Words = py::array_t<uint32_t, py::array::c_style | py::array::forcecast>;

// One HMMA step on rows of 32 lanes: a and b are [2, 32], c is [2, 32]; returns d as [2, 32].
Words hmma_step(const Words& a, const Words& b, const Words& c, int step, bool a_column, bool b_row, bool d_half,
                bool c_half, const std::string& tensor_rounding, bool scalar) {
    for (const Words* rows : {&a, &b, &c}) {
        if (rows->size() != 2 * kLanes) throw py::value_error("fragments are [2, 32] words");
    }
    HmmaForm form;
    form.a_column = a_column;
    form.b_row = b_row;
    form.d_half = d_half;
    form.c_half = c_half;
    form.step = step;
    Words d({2, kLanes});
    const HmmaStep run = scalar || !machine_has_avx2() ? hmma_step_scalar : hmma_step_avx2;
    run(form, a.data(), b.data(), c.data(), d.mutable_data(), rounding_named(tensor_rounding));
    return d;
}

// c accumulated `count` times with the four products of a and b.
float tensor_accumulate(const std::vector<float>& a, const std::vector<float>& b, float c, uint64_t count,
                        const std::string& tensor_rounding) {
    if (a.size() != 4 || b.size() != 4) throw py::value_error("a and b have four elements");
    const TensorRounding rounding = rounding_named(tensor_rounding);
    for (uint64_t i = 0; i < count; ++i) c = tensor_dot(a.data(), b.data(), c, rounding);
    return c;
}

uint16_t tensor_accumulate_half(const std::vector<float>& a, const std::vector<float>& b, float c,
                                const std::string& tensor_rounding) {
    if (a.size() != 4 || b.size() != 4) throw py::value_error("a and b have four elements");
    return tensor_dot_half(a.data(), b.data(), c, rounding_named(tensor_rounding));
}

}  // namespace

PYBIND11_MODULE(_emulator, m) {
    m.doc() = "Runs sm_70 machine code on the CPU.";
    py::register_exception<EmulatorError>(m, "EmulatorError", PyExc_RuntimeError);
    m.def("version", [] { return sm70emu_version(); });
    m.def("uses_avx2", &machine_has_avx2);
    m.def("hmma_step", &hmma_step, "a"_a, "b"_a, "c"_a, "step"_a, "a_column"_a = false, "b_row"_a = false,
          "d_half"_a = false, "c_half"_a = false, "tensor_rounding"_a = "truncate", "scalar"_a = false);
    m.def("tensor_accumulate", &tensor_accumulate, "a"_a, "b"_a, "c"_a, "count"_a = 1,
          "tensor_rounding"_a = "truncate");
    m.def("tensor_accumulate_half", &tensor_accumulate_half, "a"_a, "b"_a, "c"_a, "tensor_rounding"_a = "truncate");

    py::class_<Module>(m, "Module")
        .def(py::init([](const py::bytes& cubin, const std::string& listing, bool portable) {
                 const auto bytes = static_cast<std::string>(cubin);
                 return std::make_unique<Module>(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), listing,
                                                 portable ? InstructionSet::Portable : InstructionSet::Best);
             }),
             "cubin"_a, "listing"_a, "portable"_a = false, "portable: use only code that runs on any x86-64 machine.")
        .def("kernels",
             [](const Module& module) {
                 py::dict result;
                 for (const auto& [name, kernel] : module.kernels()) result[py::str(name)] = describe_kernel(kernel);
                 return result;
             })
        .def(
            "check", [](Module& module, const std::string& kernel) { module.decoded(kernel); }, "kernel"_a,
            "Decodes a kernel; raises EmulatorError at the first instruction that is not implemented.")
        .def(
            "unsupported",
            [](const Module& module, const std::string& kernel) {
                std::vector<std::string> refused;
                const uint32_t registers = module.kernel(kernel).registers;
                const ListedSection& section = module.section(kernel);
                for (const auto& instruction : section.instructions) {
                    try {
                        check_instruction(parse_instruction(instruction, section), registers);
                    } catch (const EmulatorError& error) {
                        refused.push_back(instruction.text + ": " + error.what());
                    }
                }
                return refused;
            },
            "kernel"_a, "Every instruction of a kernel that is not implemented, with the reason.")
        .def(
            "instructions",
            [](const Module& module, const std::string& kernel) {
                py::list result;
                const ListedSection& section = module.section(kernel);
                for (const auto& instruction : section.instructions) {
                    py::dict described = describe_instruction(parse_instruction(instruction, section));
                    described["source"] = describe_source(module.kernel(kernel), instruction.offset / 16);
                    result.append(described);
                }
                return result;
            },
            "kernel"_a)
        .def(
            "analyse",
            [](Module& module, const std::string& kernel) {
                const DecodedKernel& decoded = module.decoded(kernel);
                const ListedSection& section = module.section(kernel);
                const auto code = parse_section(section);
                const ControlFlow flow = control_flow(code, section);
                const auto live = live_registers(code, decoded.registers, flow);
                const auto ranges = [](const std::vector<RegisterRange>& registers) {
                    py::list numbers;
                    for (const auto& range : registers) numbers.append(py::make_tuple(range.first, range.count));
                    return numbers;
                };
                py::list result;
                for (size_t i = 0; i < code.size(); ++i) {
                    py::dict described = describe_instruction(code[i]);
                    described["source"] = describe_source(module.kernel(kernel), i);
                    described["written"] = ranges(decoded.registers[i].written);
                    described["read"] = ranges(decoded.registers[i].read);
                    described["live_registers"] = live[i];
                    described["successors"] = flow.successors[i];
                    described["callee"] = flow.callees[i];
                    result.append(described);
                }
                return result;
            },
            "kernel"_a,
            "instructions(), and what follows from the whole kernel: registers written and read as (first, count), "
            "live "
            "registers, indices of the instructions that can follow, and of a called function's first (-1: none).")
        .def(
            "decode",
            [](const Module& module, const std::string& kernel, uint32_t offset) {
                const ListedSection& section = module.section(kernel);
                const auto& instructions = section.instructions;
                if (offset % 16 || offset / 16 >= instructions.size()) {
                    throw py::index_error("no instruction at this offset");
                }
                return describe_instruction(parse_instruction(instructions[offset / 16], section));
            },
            "kernel"_a, "offset"_a)
        .def(
            "symbol",
            [](Module& module, const std::string& name) {
                const auto [address, bytes] = module.symbol(name);
                return py::memoryview::from_memory(address, static_cast<py::ssize_t>(bytes), false);
            },
            "name"_a, py::keep_alive<0, 1>(), "Writable view of a __device__ or __constant__ variable.")
        .def("launch", &launch, "kernel"_a, "grid"_a, "block"_a, "parameters"_a, "buffers"_a,
             "dynamic_shared_bytes"_a = 0, "blocks"_a = py::none(), "seed"_a = 0, "threads"_a = 0,
             "tensor_rounding"_a = "truncate", "instruction_limit"_a = 0, "instruments"_a = 0);
}
