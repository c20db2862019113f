// What the timing model believes about the machine: one table, machine_table.cpp, with a source for every row.
#pragma once

#include <string>
#include <vector>

namespace sm70emu::timing {

// Every estimate carries it. It changes with any value, source or meaning in the table, and a change that claims speed
// does not touch it.
constexpr int kRevision = 3;

// Cycles are the SM's. Fields are doubles, whole or not, so that one table names them all.
struct Machine {
    // The chip.
    double sms, clock_mhz;
    double warps, blocks, registers, shared_bytes, l1_bytes, l2_bytes;

    // Sub-cores.
    double tensor_issue, tensor_chain_latency, tensor_latency, xu_latency, fp64_latency;
    double branch_cycles, bank_conflict_cycles, greedy_youngest;
    double instruction_cache_bytes, instruction_fetch_cycles;

    // Memory input and output: the queue of a sub-core, the port of the SM.
    double mio_queue, mio_spacing, operands_read_cycles;
    double shared_latency, shuffle_latency, special_register_latency, constant_latency, barrier_latency;
    double membar_latency, atomic_cycles;

    // Caches and DRAM.
    double l1_latency, l1_tags, l2_latency, l2_port_bytes, l2_total_bytes;
    double dram_gbps, dram_latency_ns, dram_loaded_ns, dram_write_cost, store_backlog_cycles;
    double burst_cycles;

    // Launches.
    double launch_us, block_start_cycles, dispatch_cycles;
};

struct Parameter {
    const char* name;
    double Machine::* field;
    double value;
    const char* unit;
    const char* source;
};

const std::vector<Parameter>& parameters();

// A board: rows of the table that differ from the first, the V100-SXM2 with 80 SMs.
struct Board {
    const char* name;
    std::vector<std::pair<const char*, double>> changes;
    const char* source;
};

const std::vector<Board>& boards();

// The table's values.
Machine default_machine();
// Applies a board's rows; throws if there is no such board.
void apply_board(Machine& machine, const std::string& board);
// Replaces one value, for "what if"; throws if there is no such parameter or the value is not positive.
void set_parameter(Machine& machine, const std::string& name, double value);
// Sixteen hexadecimal digits that differ when any value of the table does.
std::string table_digest();

}  // namespace sm70emu::timing
