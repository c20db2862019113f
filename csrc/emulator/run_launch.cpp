#include "emulator/run_launch.h"

#include <xmmintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <thread>

#include "emulator/error.h"
#include "emulator/interpreter.h"
#include "emulator/observer.h"

namespace sm70emu {
namespace {

// Limits of compute capability 7.0 (CUDA programming guide, technical specifications).
constexpr uint32_t kMaxThreadsPerBlock = 1024;
constexpr uint32_t kMaxSharedBytes = 96 * 1024;
constexpr uint32_t kRegistersPerBlock = 64 * 1024;
constexpr uint32_t kRegisterGranularity = 8;  // registers are allocated to a thread eight at a time

constexpr uint64_t kDefaultSlice = 4096;
// A block that executes more than this is taken to hang: fifty times what a tile of queries needs over 256K keys.
constexpr uint64_t kDefaultInstructionLimit = 2'000'000'000ull;
// Memory that a kernel has not written holds NaN in every float format.
constexpr int kPoison = 0xff;

// Deterministic random numbers (splitmix64).
class Random {
 public:
    explicit Random(uint64_t seed) : state_(seed) {}
    uint64_t next() {
        uint64_t z = state_ += 0x9e3779b97f4a7c15ull;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        return z ^ (z >> 31);
    }
    template <class T>
    void shuffle(std::vector<T>& items) {
        for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[next() % i]);
    }

 private:
    uint64_t state_;
};

struct FreeDeleter {
    void operator()(void* p) const { std::free(p); }
};
using Storage = std::unique_ptr<uint8_t, FreeDeleter>;

Storage allocate(size_t bytes) {
    void* p = std::aligned_alloc(64, (std::max<size_t>(bytes, 64) + 63) / 64 * 64);
    if (!p) throw std::bad_alloc();
    return Storage(static_cast<uint8_t*>(p));
}

// Constant bank 0: launch dimensions, windows of the generic address space, stack top, then the parameters.
std::vector<uint8_t> make_bank0(const LaunchRequest& request, uint32_t local_bytes) {
    std::vector<uint8_t> bank(kParameterBase);
    std::memcpy(&bank[0x0], request.block, 12);
    std::memcpy(&bank[0xc], request.grid, 12);
    std::memcpy(&bank[0x18], &kSharedWindow, 8);
    std::memcpy(&bank[0x20], &kLocalWindow, 8);
    std::memcpy(&bank[0x28], &local_bytes, 4);
    bank.insert(bank.end(), request.parameters.begin(), request.parameters.end());
    while (bank.size() % 16) bank.push_back(0);
    return bank;
}

uint64_t product(const uint32_t* extent) {
    return static_cast<uint64_t>(extent[0]) * extent[1] * extent[2];
}

void check_request(const KernelImage& image, const LaunchRequest& request) {
    if (!image.refusal.empty()) fail(image.name + ": " + image.refusal);
    const uint64_t threads = product(request.block);
    if (product(request.grid) == 0 || threads == 0) fail("grid and block must not be empty");
    if (request.grid[1] > 65535 || request.grid[2] > 65535) fail("grid dimensions y and z are limited to 65535");
    if (threads > kMaxThreadsPerBlock || request.block[2] > 64) {
        fail("a block of " + std::to_string(threads) + " threads is too large");
    }
    if (image.max_threads && threads > image.max_threads) {
        fail("a block of " + std::to_string(threads) + " threads exceeds the kernel's launch bound of " +
             std::to_string(image.max_threads));
    }
    const uint64_t shared = static_cast<uint64_t>(image.static_shared_bytes) + request.dynamic_shared_bytes;
    if (shared > kMaxSharedBytes) {
        fail(std::to_string(shared) + " bytes of shared memory asked, a block can have " +
             std::to_string(kMaxSharedBytes));
    }
    const uint64_t warps = (threads + kLanes - 1) / kLanes;
    const uint64_t per_thread =
        (image.registers + kRegisterGranularity - 1) / kRegisterGranularity * kRegisterGranularity;
    if (warps * kLanes * per_thread > kRegistersPerBlock) {
        fail(std::to_string(threads) + " threads of " + std::to_string(image.registers) +
             " registers do not fit an SM");
    }
    if (request.parameters.size() != image.parameter_bytes) {
        fail("the kernel takes " + std::to_string(image.parameter_bytes) + " bytes of parameters, the launch gives " +
             std::to_string(request.parameters.size()));
    }
}

// One worker's storage and its loop over blocks.
template <class Observer>
class Worker {
 public:
    template <class... ObserverArguments>
    Worker(const LaunchState& state, const LoadedKernel& kernel, ObserverArguments&... arguments)
        : state_(state), rows_(kernel.decoded->register_rows), observer_(arguments...) {
        const auto threads = static_cast<uint32_t>(product(state.block));
        const uint32_t warps = (threads + kLanes - 1) / kLanes;
        block_.shared_bytes = state.static_shared_bytes + state.dynamic_shared_bytes;
        block_.local_bytes = state.local_bytes;
        shared_ = allocate(block_.shared_bytes);
        registers_ = allocate(static_cast<size_t>(warps) * rows_ * kLanes * 4);
        local_ = allocate(static_cast<size_t>(warps) * state.local_bytes * kLanes);
        block_.shared = shared_.get();
        block_.warps.resize(warps);
        for (uint32_t w = 0; w < warps; ++w) {
            Warp& warp = block_.warps[w];
            warp.index = w;
            warp.registers = reinterpret_cast<uint32_t*>(registers_.get()) + static_cast<size_t>(w) * rows_ * kLanes;
            warp.local = local_.get() + static_cast<size_t>(w) * state.local_bytes * kLanes;
            for (int lane = 0; lane < kLanes; ++lane) {
                const uint32_t thread = w * kLanes + static_cast<uint32_t>(lane);
                warp.thread_id[0][lane] = thread % state.block[0];
                warp.thread_id[1][lane] = thread / state.block[0] % state.block[1];
                warp.thread_id[2][lane] = thread / state.block[0] / state.block[1];
            }
        }
        core_.launch = &state;
        buffers_.resize(kernel.decoded->instructions.size());
        core_.buffers = buffers_.data();
        core_.bases[1] = state.constants;
        core_.block = &block_;
        core_.tensor_rounding = state.tensor_rounding;
    }

    uint64_t executed() const { return core_.executed; }

    // Empty, or the report of what went wrong.
    std::string run_block(uint64_t linear) {
        start_block(linear);
        try {
            observer_.begin_block(core_);
            run_warps();
            if (!block_.live_lanes) observer_.end_block(core_);
        } catch (const EmulatorError& error) {
            return report(error.what());
        }
        return {};
    }

 private:
    void start_block(uint64_t linear) {
        block_.linear = linear;
        block_.id[0] = static_cast<uint32_t>(linear % state_.grid[0]);
        block_.id[1] = static_cast<uint32_t>(linear / state_.grid[0] % state_.grid[1]);
        block_.id[2] = static_cast<uint32_t>(linear / state_.grid[0] / state_.grid[1]);
        block_.live_lanes = static_cast<uint32_t>(product(state_.block));
        for (auto& barrier : block_.barriers) barrier = {};
        std::memset(block_.shared, kPoison, block_.shared_bytes);
        uint32_t left = block_.live_lanes;
        for (auto& warp : block_.warps) {
            const uint32_t lanes = std::min<uint32_t>(left, kLanes);
            left -= lanes;
            warp.live = lanes == kLanes ? kAllLanes : (1u << lanes) - 1;
            std::memset(warp.registers, kPoison, static_cast<size_t>(rows_) * kLanes * 4);
            std::memset(warp.local, kPoison, static_cast<size_t>(state_.local_bytes) * kLanes);
            std::memset(warp.predicates, 0, sizeof(warp.predicates));
            warp.predicates[kPredicateTrue] = kAllLanes;
            std::memset(warp.convergence, 0, sizeof(warp.convergence));
            warp.groups.assign(1, {warp.live, 0, GroupState::Ready, 0, 0});
        }
    }

    void run_warps() {
        Random random(state_.seed ^ (block_.linear * 0x9e3779b97f4a7c15ull));
        std::vector<uint32_t> order(block_.warps.size());
        std::iota(order.begin(), order.end(), 0u);
        const uint64_t start = core_.executed;
        while (block_.live_lanes) {
            if (state_.seed) random.shuffle(order);
            bool progress = false;
            for (const uint32_t index : order) {
                Warp& warp = block_.warps[index];
                if (warp.finished()) continue;
                const uint64_t before = core_.executed;
                core_.fault_lane = -1;
                if (state_.seed && warp.groups.size() > 1) random.shuffle(warp.groups);
                run_warp(core_, warp, state_.seed ? 1 + random.next() % 256 : kDefaultSlice, observer_);
                progress |= core_.executed != before;
            }
            if (observer_.enough()) return;
            if (!progress) {
                deadlocked_ = true;
                fail(describe_deadlock(block_, *state_.kernel));
            }
            if (core_.executed - start > state_.instruction_limit) {
                fail("the block has executed " + std::to_string(core_.executed - start) +
                     " warp instructions without ending; it is taken to hang");
            }
            if (state_.stop->load(std::memory_order_relaxed)) return;
        }
    }

    std::string report(const std::string& what) {
        const auto& kernel = *state_.kernel;
        std::string where = kernel.name;
        if (!deadlocked_) where += "+" + hex(16ull * core_.pc) + ": " + kernel.texts[core_.pc];
        where += ": " + what + " [block (" + std::to_string(block_.id[0]) + "," + std::to_string(block_.id[1]) + "," +
                 std::to_string(block_.id[2]) + ")";
        if (!deadlocked_) where += ", warp " + std::to_string(core_.warp->index);
        if (core_.fault_lane >= 0 && !deadlocked_) where += ", lane " + std::to_string(core_.fault_lane);
        const std::string source = deadlocked_ ? "" : kernel.sources[core_.pc].text();
        if (!source.empty()) where += ", " + source;
        return where + "]";
    }

    const LaunchState& state_;
    uint32_t rows_;
    Block block_;
    Core core_;
    Observer observer_;
    Storage shared_, registers_, local_;
    std::vector<const GlobalBuffer*> buffers_;
    bool deadlocked_ = false;
};

// Default rounding and no flushing for the emulated arithmetic, whatever the caller's thread has set.
class FloatingPointState {
 public:
    FloatingPointState() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
    ~FloatingPointState() { _mm_setcsr(saved_); }
    FloatingPointState(const FloatingPointState&) = delete;
    FloatingPointState& operator=(const FloatingPointState&) = delete;

 private:
    unsigned saved_;
};

Storage make_constant_rows(const DecodedKernel& kernel, const LaunchState& state) {
    Storage rows = allocate(kernel.constants.size() * kLanes * 4);
    auto* words = reinterpret_cast<uint32_t*>(rows.get());
    for (const auto& row : kernel.constants) {
        uint32_t value = row.value;
        if (row.bank >= 0) {
            if (row.bank > 4 || row.value + 4 > state.banks[row.bank].size()) {
                fail(kernel.name + ": constant c[" + std::to_string(row.bank) + "][" + hex(row.value) +
                     "] is outside its bank");
            }
            std::memcpy(&value, state.banks[row.bank].data() + row.value, 4);
        }
        std::fill_n(words, kLanes, value);
        words += kLanes;
    }
    return rows;
}

// `wished`: by the observer, which chooses if the caller does not.
std::vector<uint64_t> blocks_to_run(const LaunchRequest& request, uint64_t total, std::vector<uint64_t> wished) {
    std::vector<uint64_t> blocks = request.sampled ? request.sampled_blocks : std::move(wished);
    if (request.sampled || !blocks.empty()) {
        std::sort(blocks.begin(), blocks.end());
        blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
        if (!blocks.empty() && blocks.back() >= total) {
            fail("sampled block " + std::to_string(blocks.back()) + " is not in the grid of " + std::to_string(total));
        }
    } else {
        blocks.resize(total);
        std::iota(blocks.begin(), blocks.end(), uint64_t{0});
    }
    if (request.seed) Random(request.seed).shuffle(blocks);
    return blocks;
}

// Runs blocks on the requested number of threads and adds to the result. `stop`: a block has failed.
void run_round(const LoadedKernel& kernel, const LaunchRequest& request, const LaunchState& state,
               const std::vector<uint64_t>& blocks, std::atomic<bool>& stop, LaunchResult& result) {
    std::atomic<size_t> next{0};
    std::mutex mutex;
    size_t failed_at = blocks.size();
    const auto run_blocks = [&](auto& worker) {
        uint64_t finished = 0;
        std::string error;
        size_t index = 0;
        while (!stop.load(std::memory_order_relaxed) && (index = next.fetch_add(1)) < blocks.size()) {
            error = worker.run_block(blocks[index]);
            if (!error.empty()) break;
            if (!stop.load(std::memory_order_relaxed)) ++finished;
        }
        const std::lock_guard<std::mutex> lock(mutex);
        result.warp_instructions += worker.executed();
        result.blocks_run += finished;
        if (!error.empty()) {
            stop.store(true);
            if (index < failed_at) {
                failed_at = index;
                result.error = error;
            }
        }
    };
    const auto work = [&] {
        const FloatingPointState floating_point;
        if (request.observer) {
            Worker<ObserverList> worker(state, kernel, *request.observer);
            run_blocks(worker);
        } else {
            Worker<NoObserver> worker(state, kernel);
            run_blocks(worker);
        }
    };
    const unsigned processors = std::max(1u, std::thread::hardware_concurrency());
    const unsigned wanted = std::min(request.threads ? request.threads : processors, 4 * processors);
    const auto count = static_cast<unsigned>(std::min<size_t>(wanted, blocks.size()));
    std::vector<std::thread> helpers;
    try {
        for (unsigned i = 1; i < count; ++i) helpers.emplace_back(work);
    } catch (const std::system_error&) {
        // No more threads are to be had: the ones that exist, at least this one, do the work.
    }
    work();
    for (auto& helper : helpers) helper.join();
}

}  // namespace

LaunchResult run_launch(const LoadedKernel& kernel, const LaunchRequest& request) {
    const auto begin = std::chrono::steady_clock::now();
    LaunchResult result;
    result.blocks_total = product(request.grid);
    try {
        check_request(*kernel.image, request);
        std::atomic<bool> stop{false};
        LaunchState state;
        state.kernel = kernel.decoded;
        std::copy_n(request.grid, 3, state.grid);
        std::copy_n(request.block, 3, state.block);
        state.static_shared_bytes = kernel.image->static_shared_bytes;
        state.dynamic_shared_bytes = request.dynamic_shared_bytes;
        state.local_bytes = kernel.image->local_bytes;
        state.tensor_rounding = request.tensor_rounding;
        state.seed = request.seed;
        state.instruction_limit = request.instruction_limit ? request.instruction_limit : kDefaultInstructionLimit;
        state.stop = &stop;
        for (const auto& buffer : request.buffers) state.memory.add(buffer);
        for (const auto& buffer : *kernel.globals) state.memory.add(buffer);
        state.memory.seal();
        state.banks[0] = make_bank0(request, state.local_bytes);
        state.banks[2] = kernel.image->constant2;
        state.banks[3] = *kernel.constant3;
        state.banks[4] = *kernel.constant4;
        state.externals = *kernel.externals;
        const Storage rows = make_constant_rows(*kernel.decoded, state);
        state.constants = reinterpret_cast<const uint32_t*>(rows.get());

        std::unique_lock<std::mutex> watched;
        std::vector<uint64_t> wished;
        if (request.observer) {
            watched = request.observer->lock();
            request.observer->begin_launch(state, kernel, request);
            wished = request.observer->blocks();
        }
        const bool observer_chooses = !request.sampled && !wished.empty();
        std::vector<uint64_t> blocks = blocks_to_run(request, result.blocks_total, std::move(wished));
        while (!blocks.empty()) {
            run_round(kernel, request, state, blocks, stop, result);
            if (!observer_chooses || stop) break;
            blocks = request.observer->more_blocks();
            if (!blocks.empty()) blocks = blocks_to_run(request, result.blocks_total, std::move(blocks));
        }
        if (request.observer) request.observer->end_launch(result.error);
    } catch (const EmulatorError& error) {
        result.error = error.what();
    }
    result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return result;
}

}  // namespace sm70emu
