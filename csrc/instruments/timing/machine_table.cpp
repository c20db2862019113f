#include "instruments/timing/machine_table.h"

#include <cstring>

#include "emulator/error.h"

namespace sm70emu::timing {
namespace {

// Sources, by the names used below.
//   datasheet   NVIDIA, Tesla V100 datasheet and "Tesla V100 GPU architecture" (WP-08608)
//   guide       NVIDIA, CUDA C++ programming guide, technical specifications of compute capability 7.0
//   Jia         Jia, Maggioni, Staiger, Scarpazza, "Dissecting the NVIDIA Volta GPU architecture via
//               microbenchmarking", arXiv:1804.06826 (V100-PCIe)
//   Arafa       Arafa, Badawy, Chennupati, Santhi, Eidenbenz, "Low overhead instruction latency characterization for
//               NVIDIA GPGPUs", HPEC 2019
//   Raihan      Raihan, Goli, Aamodt, "Modeling deep learning accelerator enabled GPUs", ISPASS 2019 (Titan V)
//   Huerta      Huerta, Abaie Shoushtary, Cruz, Gonzalez, "Analyzing modern NVIDIA GPU cores", 2025: measured on
//               Ampere, the closest there is in public
//   1Cat        1Cat-vLLM, docs/design, chains measured on a V100-SXM2 at 1530 MHz
//   roofs       read 879, copy 795 to 822, GEMV 843 GB/s on V100-SXM2: GPUInspector.jl, v100-skinny
//   graphs      NVIDIA, "Getting started with CUDA graphs", 2019: on a V100 a kernel of 2.9 us takes 3.4 us each in a
//               graph of twenty
//   derived     reasoned from the sources named; no measurement on a V100 stands behind it
const std::vector<Parameter>& table() {
    static const std::vector<Parameter> rows = {
        {"sms", &Machine::sms, 80, "", "datasheet"},
        {"clock_mhz", &Machine::clock_mhz, 1380, "MHz",
         "datasheet gives 1530 as boost; a V100-SXM2 under load holds 1260 to 1530, and most reports use 1380"},
        {"warps", &Machine::warps, 64, "an SM", "guide"},
        {"blocks", &Machine::blocks, 32, "an SM", "guide"},
        {"registers", &Machine::registers, 65536, "an SM", "guide"},
        {"shared_bytes", &Machine::shared_bytes, 96 * 1024, "bytes an SM", "guide"},
        {"l1_bytes", &Machine::l1_bytes, 128 * 1024, "bytes an SM, shared memory's share included", "guide"},
        {"l2_bytes", &Machine::l2_bytes, 6 * 1024 * 1024, "bytes", "datasheet"},

        {"tensor_issue", &Machine::tensor_issue, 2, "cycles an HMMA step with FP32 accumulator",
         "datasheet: 64 FMA a clock and tensor core, two in a sub-core: 8 cycles an m8n8k4, four steps"},
        {"tensor_chain_latency", &Machine::tensor_chain_latency, 3, "cycles from the last step to a dependent HMMA",
         "1Cat: 8.66 cycles a dependent m8n8k4, 8.38 with four chains; whole cycles that come closest to both"},
        {"tensor_latency", &Machine::tensor_latency, 12, "cycles from the last step to another reader",
         "Raihan: 18 cycles from the first step to the last result, the last step issues at 6"},
        {"xu_latency", &Machine::xu_latency, 18, "cycles", "Arafa: 14 to 22 by function"},
        {"fp64_latency", &Machine::fp64_latency, 8, "cycles", "Jia; Arafa"},
        {"branch_cycles", &Machine::branch_cycles, 10, "cycles from a taken branch to the next issue",
         "derived: Huerta's pipeline of fetch, decode and issue after the branch unit"},
        {"bank_conflict_cycles", &Machine::bank_conflict_cycles, 1, "cycles", "Jia: two banks, two operands each"},
        {"greedy_youngest", &Machine::greedy_youngest, 1, "1: greedy then youngest, 0: greedy then oldest", "Huerta"},
        {"instruction_cache_bytes", &Machine::instruction_cache_bytes, 12 * 1024, "bytes a sub-core (L0)", "Jia"},
        {"instruction_fetch_cycles", &Machine::instruction_fetch_cycles, 16, "cycles a 128-byte line past L0",
         "calibrated: 32 bytes a cycle for four sub-cores, a line ahead (Huerta). Of 4, 8, 12, 16 and 24 the one "
         "nearest to "
         "the attention kernel with head size 40 of docs/cycle-model.md; no published figure"},

        {"mio_queue", &Machine::mio_queue, 5, "instructions a sub-core", "Huerta"},
        {"mio_spacing", &Machine::mio_spacing, 2, "cycles between instructions that leave a sub-core's queue",
         "derived: 16 address lanes a sub-core, as for its other half-warp pipes"},
        {"operands_read_cycles", &Machine::operands_read_cycles, 9, "cycles from leaving the queue to operands read",
         "Huerta: write-after-read release of memory instructions, 9 to 11"},
        {"shared_latency", &Machine::shared_latency, 26, "cycles, conflict-free 32-bit load",
         "1Cat: 26.4 a dependent load; Jia has 19"},
        {"shuffle_latency", &Machine::shuffle_latency, 24, "cycles", "Arafa, Jia: 22 to 24"},
        {"special_register_latency", &Machine::special_register_latency, 24, "cycles", "derived: as a shuffle"},
        {"constant_latency", &Machine::constant_latency, 28, "cycles, indexed constant (LDC) that hits", "Jia: L1 27"},
        {"barrier_latency", &Machine::barrier_latency, 20, "cycles from the last arrival to the next issue",
         "derived: Jia's 22 of a block-wide synchronisation of one warp"},
        {"membar_latency", &Machine::membar_latency, 211, "cycles, GPU scope", "derived: one L2 round trip"},
        {"atomic_cycles", &Machine::atomic_cycles, 1, "L2 cycles a sector, beside its transfer",
         "derived: Jia's throughput of conflict-free atomics"},

        {"l1_latency", &Machine::l1_latency, 28, "cycles", "Jia"},
        {"l1_tags", &Machine::l1_tags, 4, "128-byte lines a cycle", "Jia; Khairy et al., Accel-Sim, ISCA 2020"},
        {"l2_latency", &Machine::l2_latency, 210, "cycles, hit", "1Cat: 210.7 a dependent load; Jia has 193"},
        {"l2_port_bytes", &Machine::l2_port_bytes, 64, "bytes a cycle from L2 to one SM", "datasheet"},
        {"l2_total_bytes", &Machine::l2_total_bytes, 1562, "bytes a cycle from L2 to all SMs",
         "Jia: 2155 GB/s at 1380 MHz"},
        {"dram_gbps", &Machine::dram_gbps, 850, "GB/s",
         "roofs: between the best GEMV and the best pure read; 900 is nominal"},
        {"dram_latency_ns", &Machine::dram_latency_ns, 132, "ns beyond an L2 hit, idle",
         "Jia: 375 cycles past L2 against 193, at 1380 MHz"},
        {"dram_loaded_ns", &Machine::dram_loaded_ns, 215, "ns more when the bus is always busy",
         "derived: about 500 ns under load in all"},
        {"dram_write_cost", &Machine::dram_write_cost, 1.1, "read bytes a written byte costs",
         "roofs: a copy runs at 795 to 822 where reads run at 850"},
        {"store_backlog_cycles", &Machine::store_backlog_cycles, 1000, "cycles of DRAM time that stores may run ahead",
         "derived: L2 holds back writes until about an eighth of it waits"},

        {"burst_cycles", &Machine::burst_cycles, 1000, "cycles of its share of L2 or DRAM that an SM may save up",
         "derived: SMs ask in bursts at different times, so one gets more than its share if it had less before"},

        {"launch_us", &Machine::launch_us, 2.0, "us a kernel, first block's start and last one's end included",
         "graphs: 3.4 us for 4 MB that take 1.4 us"},
        {"block_start_cycles", &Machine::block_start_cycles, 150, "cycles from a free place to the first issue",
         "derived: registers and shared memory are handed out, parameters miss the constant cache once"},
        {"dispatch_cycles", &Machine::dispatch_cycles, 1, "cycles a block, for the grid as a whole", "derived"},
    };
    return rows;
}

const Parameter& find(const std::string& name) {
    for (const auto& row : table()) {
        if (name == row.name) return row;
    }
    fail("timing: got parameter '" + name + "', which is not in the table of machine_table.cpp");
}

}  // namespace

const std::vector<Parameter>& parameters() {
    return table();
}

const std::vector<Board>& boards() {
    static const std::vector<Board> rows = {
        {"v100-sxm2", {}, "datasheet"},
        {"v100-72", {{"sms", 72}}, "1Cat: boards with 72 SMs are sold as V100"},
        {"v100-pcie",
         {{"clock_mhz", 1246}, {"dram_gbps", 850}},
         "1380 MHz boost at 250 W; 1246 MHz is what GEMM loops hold (NVIDIA forum); memory as on SXM2"},
    };
    return rows;
}

Machine default_machine() {
    Machine machine{};
    for (const auto& row : table()) machine.*row.field = row.value;
    return machine;
}

void set_parameter(Machine& machine, const std::string& name, double value) {
    const bool may_be_zero = name == "greedy_youngest" || name == "launch_us" || name == "dram_loaded_ns";
    if (!(value > 0) && !(may_be_zero && value == 0)) fail("timing: parameter '" + name + "' must be positive");
    machine.*find(name).field = value;
}

void apply_board(Machine& machine, const std::string& board) {
    std::string known;
    for (const auto& row : boards()) {
        if (board == row.name) {
            for (const auto& [name, value] : row.changes) set_parameter(machine, name, value);
            return;
        }
        known += (known.empty() ? "" : ", ") + std::string(row.name);
    }
    fail("timing: got board '" + board + "', want one of " + known);
}

std::string table_digest() {
    uint64_t hash = 0xcbf29ce484222325ull;  // FNV-1a
    const auto mix = [&](const void* data, size_t bytes) {
        const auto* p = static_cast<const unsigned char*>(data);
        for (size_t i = 0; i < bytes; ++i) hash = (hash ^ p[i]) * 0x100000001b3ull;
    };
    for (const auto& row : table()) {
        mix(row.name, std::strlen(row.name) + 1);
        mix(&row.value, sizeof(row.value));
    }
    static constexpr char digits[] = "0123456789abcdef";
    std::string text;
    for (int shift = 60; shift >= 0; shift -= 4) text += digits[hash >> shift & 15];
    return text;
}

}  // namespace sm70emu::timing
