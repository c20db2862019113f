// Follows one worker thread: keeps the shadow of its block and asks the checkers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "instruments/check/findings.h"
#include "instruments/check/flow.h"
#include "instruments/check/global_races.h"
#include "instruments/check/global_shadow.h"
#include "instruments/check/shared_races.h"
#include "instruments/check/warp_shadow.h"
#include "instruments/instrument.h"
#include "instruments/memory_use.h"

namespace sm70emu::check {

// Which checkers are on. Uninitialised and taint share the shadow: it is kept if one of them is on.
struct Enabled {
    bool on[kCheckers] = {true, true, true, true, true, true};
    bool operator[](Checker checker) const { return on[static_cast<int>(checker)]; }
    bool shadow() const { return (*this)[Checker::Uninitialised] || (*this)[Checker::Taint]; }
};

// What all worker threads of a launch share.
struct LaunchContext {
    Enabled enabled;
    Findings& findings;
    GlobalShadow& shadow;
    GlobalRaces& races;
    const std::vector<Flow>* flows = nullptr;
    bool several_blocks = false;
};

class CheckObserver : public ThreadObserver {
 public:
    explicit CheckObserver(const LaunchContext& context);
    void begin_block(Core& core) override;
    void before(Core& core, const Instruction& in, uint32_t exec) override;
    void after(Core& core, const Instruction& in, uint32_t exec) override;

 private:
    // --- check_observer.cpp
    void check_guard(Core& core, const Instruction& in, const Flow& flow, uint32_t bad);
    void check_decision(Core& core, const Instruction& in, const Flow& flow, uint32_t exec);
    void before_event(Core& core, const Instruction& in, const Flow& flow, uint32_t exec);
    void check_barrier(Core& core, uint32_t exec);
    void tensor_core(Core& core, const Instruction& in, const Flow& flow, uint32_t exec);
    void stack_pointer_moved(Core& core, uint32_t exec);
    // Reports bytes of a shadow that lead to something seen, in the words of `what`.
    void report(Core& core, int lane, Shadow shadow, const std::string& what, const MemoryRange& place = {});

    // --- check_memory.cpp
    void check_address(Core& core, const Instruction& in, const Flow& flow, uint32_t exec);
    void load(Core& core, const Instruction& in, const Flow& flow, uint32_t exec);
    void store(Core& core, const Instruction& in, const Flow& flow, uint32_t exec);
    void atomic(Core& core, const Instruction& in, const Flow& flow, uint32_t exec);
    void check_races(Core& core, const Instruction& in, const Flow& flow, const LaneAccess& access);
    void check_stack(Core& core, const Instruction& in, const LaneAccess& access);
    void store_global(Core& core, const Instruction& in, const Row* data, const LaneAccess& access, uint32_t words);
    bool inside_shared(const Core& core, uint64_t address, uint32_t width) const;
    bool inside_local(const Core& core, uint64_t address, uint32_t width) const;

    const LaunchContext& context_;
    const Enabled enabled_;
    const Flow* flows_;
    std::vector<WarpShadow> warps_;
    WarpShadow* warp_ = nullptr;  // the running one
    std::vector<Shadow> shared_;  // by word
    PageCache pages_;
    SharedRaces races_;
    GlobalRaceCheck global_races_;
};

}  // namespace sm70emu::check
