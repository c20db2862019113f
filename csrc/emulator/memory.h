// Global memory as the launch describes it: named host buffers with extents and a write permission. Kernel pointers are
// host pointers, so translation is a range check; an access that is not inside one buffer is an error.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sm70emu {

// The memory that an instruction addresses; generic addresses say it lane by lane.
enum class MemorySpace : uint8_t { None, Global, Shared, Local, Generic, Constant };

enum class AccessKind : uint8_t { Load, Store, Atomic };

struct GlobalBuffer {
    std::string name;
    uint64_t address = 0;
    uint64_t bytes = 0;
    bool writable = false;

    bool allows(AccessKind kind) const { return writable || kind == AccessKind::Load; }
};

// Windows of the generic address space. Host pointers never look like these, so plain LD and ST can distinguish them.
constexpr uint64_t kSharedWindow = 0x0100000000000000ull;
constexpr uint64_t kLocalWindow = 0x0200000000000000ull;
constexpr uint64_t kWindowBytes = uint64_t{1} << 24;

class GlobalMemory {
 public:
    // Buffers may overlap (views of one tensor); empty ones are dropped.
    void add(GlobalBuffer buffer);
    void seal();

    // The buffer that holds [address, address + bytes), or null.
    const GlobalBuffer* find(uint64_t address, uint64_t bytes, AccessKind kind) const;
    // A sentence on why an access was refused, naming the nearest buffer.
    std::string explain(uint64_t address, uint64_t bytes, AccessKind kind) const;

 private:
    std::vector<GlobalBuffer> buffers_;  // sorted by address
    uint64_t longest_ = 0;
};

}  // namespace sm70emu
