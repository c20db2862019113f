#include "runtime/emulation.h"

#include <dlfcn.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "emulator/api.h"
#include "runtime/embedded.h"
#include "runtime/environment.h"
#include "runtime/operator.h"

namespace sm70::runtime {

namespace {

constexpr uint32_t kMultiprocessors = 80;
constexpr int kMaxDynamicSharedBytes = 96 * 1024;

thread_local std::optional<sm70_kernels_emulation> thread_settings;

struct Record {
    std::string kernel;
    uint64_t blocks_run, blocks_total, warp_instructions;
    double seconds;
};
thread_local std::vector<Record> records;  // since the settings were last changed

sm70_kernels_emulation settings() {
    return thread_settings.value_or(sm70_kernels_emulation{});
}

// Where Python says that things are.
struct Places {
    std::mutex mutex;
    std::string library, nvdisasm, cache;
};

Places& places() {
    static Places known;
    return known;
}

// The emulator's C interface, and this DSO's cubin loaded in it.
struct Emulator {
    decltype(&sm70emu_launch) launch;
    sm70emu_module* module;
};

template <typename Function>
void resolve(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr) {
        throw std::runtime_error(std::string("the emulator has no function ") + name +
                                 ": it is from another build. Rebuild");
    }
}

Emulator open_emulator() {
    std::lock_guard lock(places().mutex);
    const Places& where = places();
    if (where.library.empty()) {
        throw std::runtime_error(
            "the emulator's library is not known: import sm70_kernels.ops, which names it, before calling operators");
    }
    void* library = dlopen(where.library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        throw std::runtime_error(std::string("the emulator can't be opened (") + dlerror() + "). Rebuild");
    }
    decltype(&sm70emu_abi_version) abi_version;
    resolve(library, "sm70emu_abi_version", abi_version);
    if (abi_version() != SM70EMU_ABI_VERSION) {
        throw std::runtime_error("the emulator has interface " + std::to_string(abi_version()) +
                                 ", this library wants " + std::to_string(SM70EMU_ABI_VERSION) + ". Rebuild");
    }
    decltype(&sm70emu_module_load_with_nvdisasm) load;
    resolve(library, "sm70emu_module_load_with_nvdisasm", load);
    Emulator emulator{};
    resolve(library, "sm70emu_launch", emulator.launch);
    char error[SM70EMU_ERROR_BYTES] = {};
    emulator.module = load(embedded_cubin().data(), embedded_cubin().size(), where.nvdisasm.c_str(),
                           where.cache.empty() ? nullptr : where.cache.c_str(), error, sizeof(error));
    if (emulator.module == nullptr) throw std::runtime_error(std::string("loading the cubin to emulate it: ") + error);
    return emulator;
}

const Emulator& emulator() {
    static const Emulator opened = open_emulator();  // thread-safe; an exception leaves it to be tried again
    return opened;
}

// Evenly spaced block numbers, the first included.
std::vector<uint64_t> sample(uint64_t total, uint64_t wanted) {
    std::vector<uint64_t> blocks(wanted);
    for (uint64_t i = 0; i < wanted; ++i) {
        blocks[i] = static_cast<uint64_t>(static_cast<unsigned __int128>(i) * total / wanted);
    }
    return blocks;
}

}  // namespace

bool emulation_enabled() {
    return thread_settings.has_value() || environment_flag("SM70_KERNELS_EMULATE");
}

const DeviceFacts& emulated_device() {
    thread_local DeviceFacts device{-1, "emulated V100", 7, 0, 0, kMaxDynamicSharedBytes, nullptr};
    const uint32_t asked = settings().multiprocessors;
    device.multiprocessors = static_cast<int>(asked == 0 ? kMultiprocessors : asked);
    return device;
}

void launch_emulated(const Launch& request) {
    const sm70_kernels_emulation how = settings();
    std::vector<sm70emu_buffer> buffers;
    buffers.reserve(request.buffers.size());
    for (const Buffer& buffer : request.buffers) {
        buffers.push_back({buffer.name, reinterpret_cast<uint64_t>(buffer.data), buffer.bytes, buffer.writable, 0});
    }
    sm70emu_launch_request launch{};
    launch.struct_bytes = sizeof(launch);
    launch.kernel = request.kernel;
    launch.dynamic_shared_bytes = request.dynamic_shared_bytes;
    const Dim3* extents[] = {&request.grid, &request.block};
    uint32_t* targets[] = {launch.grid, launch.block};
    for (int i = 0; i < 2; ++i) {
        targets[i][0] = extents[i]->x;
        targets[i][1] = extents[i]->y;
        targets[i][2] = extents[i]->z;
    }
    launch.parameters = request.params;
    launch.parameter_bytes = request.params_bytes;
    launch.buffers = buffers.data();
    launch.buffer_count = buffers.size();
    const uint64_t blocks = uint64_t{request.grid.x} * request.grid.y * request.grid.z;
    std::vector<uint64_t> sampled;
    if (how.max_blocks != 0 && how.max_blocks < blocks) {
        sampled = sample(blocks, how.max_blocks);
        launch.sampled_blocks = sampled.data();
        launch.sampled_block_count = sampled.size();
    }
    launch.seed = how.seed;
    launch.instruction_limit = how.instruction_limit;
    launch.threads = how.threads;
    launch.tensor_rounding = how.round_to_nearest ? SM70EMU_NEAREST : SM70EMU_TRUNCATE;
    launch.observer = static_cast<sm70emu_observer*>(how.instruments);
    sm70emu_launch_result result{};
    result.struct_bytes = sizeof(result);
    if (emulator().launch(emulator().module, &launch, &result) != 0) {
        throw std::runtime_error("emulated V100: " + std::string(result.error));
    }
    records.push_back(
        {request.kernel, result.blocks_run, result.blocks_total, result.warp_instructions, result.seconds});
}

}  // namespace sm70::runtime

// Paths of the emulator's DSO, of nvdisasm, and of a folder for listings ("" for none).
SM70_EXPORT void sm70_kernels_emulator_places(const char* library, const char* nvdisasm, const char* cache) {
    using sm70::runtime::places;
    std::lock_guard lock(places().mutex);
    places().library = library;
    places().nvdisasm = nvdisasm;
    places().cache = cache;
}

// Switches the emulator on for the calling thread; null returns to what the environment says. Forgets earlier launches.
// Returns 0, or 1 if the struct is not the one this library knows.
SM70_EXPORT int sm70_kernels_emulate(const sm70_kernels_emulation* settings) {
    if (settings != nullptr && settings->struct_bytes != sizeof(*settings)) return 1;
    sm70::runtime::records.clear();
    if (settings == nullptr) {
        sm70::runtime::thread_settings.reset();
    } else {
        sm70::runtime::thread_settings = *settings;
    }
    return 0;
}

// SMs of the device that CPU tensors run on in the calling thread.
SM70_EXPORT int64_t sm70_kernels_emulated_multiprocessors() {
    return sm70::runtime::emulated_device().multiprocessors;
}

// JSON text: the calling thread's emulated launches since the last sm70_kernels_emulate(). Valid until the next call on
// the same thread.
SM70_EXPORT const char* sm70_kernels_emulated_launches() {
    thread_local std::string text;
    std::ostringstream json;
    json << "[";
    const char* separator = "";
    for (const auto& record : sm70::runtime::records) {
        json << separator << "{\"kernel\": \"" << record.kernel << "\", \"blocks_run\": " << record.blocks_run
             << ", \"blocks_total\": " << record.blocks_total << ", \"warp_instructions\": " << record.warp_instructions
             << ", \"seconds\": " << record.seconds << "}";
        separator = ", ";
    }
    json << "]";
    text = json.str();
    return text.c_str();
}
