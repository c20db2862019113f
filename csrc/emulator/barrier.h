// BAR: what its decoded form and its registers say.
#pragma once

#include <cstdint>

#include "emulator/machine.h"

namespace sm70emu {

// Instruction::mode of BAR.
struct BarrierForm {
    BarrierOperation operation = BarrierOperation::None;
    bool arrives_only = false;  // BAR.ARV: the lanes do not wait
    bool counted = false;       // it is for a number of threads, not for the whole block
    bool packed = false;  // both in one register, as ptxas packs them: number in bits 0-15, thread count from bit 16

    uint8_t mode() const {
        return static_cast<uint8_t>(static_cast<int>(operation) | (arrives_only ? 4 : 0) | (counted ? 8 : 0) |
                                    (packed ? 16 : 0));
    }
    static BarrierForm from_mode(uint8_t mode) {
        return {static_cast<BarrierOperation>(mode & 3), (mode & 4) != 0, (mode & 8) != 0, (mode & 16) != 0};
    }
};

// Lanes that arrive at a barrier.
struct BarrierArrival {
    uint32_t number = 0;
    uint32_t threads = 0;  // that the barrier is for; 0: all live threads of the block
    BarrierOperation operation = BarrierOperation::None;
    bool counted = false;
    bool waits = true;
};

// What one lane's registers say. Nothing is checked: run_bar() does.
inline BarrierArrival barrier_arrival(const Core& core, const Instruction& in, int lane) {
    const BarrierForm form = BarrierForm::from_mode(in.mode);
    const uint32_t a = core.row(in.a)[lane];
    const uint32_t b = form.counted ? core.row(in.b)[lane] : 0;
    BarrierArrival arrival;
    arrival.number = form.packed ? a & 0xffff : a;
    arrival.threads = form.packed ? b >> 16 & 0xfff : b;
    arrival.operation = form.operation;
    arrival.counted = form.counted;
    arrival.waits = !form.arrives_only;
    return arrival;
}

}  // namespace sm70emu
