#include "instruments/timing/report.h"

#include <cmath>
#include <cstdio>
#include <sstream>

namespace sm70emu::timing {
namespace {

// A small JSON writer: keys and values in the order they are given.
class Json {
 public:
    std::string text;
    Json& open(char bracket) {
        separate();
        text += bracket;
        fresh_ = true;
        return *this;
    }
    Json& close(char bracket) {
        text += bracket;
        fresh_ = false;
        return *this;
    }
    Json& key(const char* name) {
        separate();
        quote(name);
        text += ": ";
        fresh_ = true;
        return *this;
    }
    Json& value(double number) {
        separate();
        char digits[40];
        if (!std::isfinite(number)) number = 0;
        std::snprintf(digits, sizeof(digits), "%.10g", number);
        text += digits;
        return *this;
    }
    Json& value(const std::string& word) {
        separate();
        quote(word);
        return *this;
    }
    Json& put(const char* name, double number) { return key(name).value(number); }
    Json& put(const char* name, const std::string& word) { return key(name).value(word); }

 private:
    void separate() {
        if (!fresh_) text += ", ";
        fresh_ = false;
    }
    void quote(const std::string& word) {
        text += '"';
        for (const char c : word) {
            if (c == '"' || c == '\\') text += '\\';
            text += c;
        }
        text += '"';
    }
    bool fresh_ = true;
};

// Sub-cores have a pipe each, but the SM has one port.
double pipe_capacity(Pipe pipe) {
    return pipe == Pipe::Lsu ? 1.0 : 4.0;
}

void put_utilisation(Json& json, const Estimate& estimate, const Machine& machine) {
    const SmResult& sm = estimate.sm;
    const double cycles = std::max(1.0, sm.cycles);
    json.key("utilisation").open('{').put("issue", static_cast<double>(sm.issued) / (4 * cycles));
    for (int p = 0; p < kPipes - 1; ++p) {
        json.put(pipe_name(static_cast<Pipe>(p)),
                 sm.busy[static_cast<size_t>(p)] / (pipe_capacity(static_cast<Pipe>(p)) * cycles));
    }
    json.put("l2", sm.memory.l2_busy / cycles);
    const double per_cycle =
        std::min(machine.l2_port_bytes, machine.dram_gbps * 1000 / estimate.clock_mhz / estimate.sharing);
    json.put("dram",
             (sm.memory.dram_read_bytes + machine.dram_write_cost * sm.memory.dram_write_bytes) / per_cycle / cycles);
    json.close('}');
}

void put_stalls(Json& json, const std::array<double, kStalls>& stalls) {
    json.open('{');
    for (int s = 0; s < kStalls; ++s) {
        if (stalls[static_cast<size_t>(s)] > 0) {
            json.put(stall_name(static_cast<Stall>(s)), stalls[static_cast<size_t>(s)]);
        }
    }
    json.close('}');
}

void put_details(Json& json, const LaunchReport& launch, const Machine& machine) {
    const Estimate& estimate = launch.estimates.front();
    const SmResult& sm = estimate.sm;
    put_utilisation(json, estimate, machine);
    std::array<double, kStalls> all{};
    for (const auto& counters : sm.instructions) {
        for (int s = 0; s < kStalls; ++s) all[static_cast<size_t>(s)] += counters.stalls[static_cast<size_t>(s)];
    }
    json.key("warp_cycles");
    put_stalls(json, all);
    json.key("instructions").open('[');
    for (size_t pc = 0; pc < sm.instructions.size(); ++pc) {
        const auto& counters = sm.instructions[pc];
        if (!counters.issued) continue;
        json.open('{').put("offset", static_cast<double>(pc * 16)).put("text", launch.texts[pc]);
        if (!launch.sources[pc].empty()) json.put("source", launch.sources[pc]);
        json.put("issued", static_cast<double>(counters.issued)).key("warp_cycles");
        put_stalls(json, counters.stalls);
        const Traffic& traffic = launch.reuse.by_instruction[pc];
        if (traffic.sectors) json.put("dram_share", launch.reuse.dram_share(static_cast<uint32_t>(pc)));
        json.close('}');
    }
    json.close(']');
    json.key("timeline").open('{').put("bucket_cycles", sm.timeline.width).key("issued").open('[');
    for (const auto& bucket : sm.timeline.buckets) json.value(bucket.issued);
    json.close(']').key("dram_bytes").open('[');
    for (const auto& bucket : sm.timeline.buckets) json.value(bucket.dram_bytes);
    json.close(']').key("busy").open('{');
    for (int p = 0; p < kPipes - 1; ++p) {
        if (sm.busy[static_cast<size_t>(p)] <= 0) continue;
        json.key(pipe_name(static_cast<Pipe>(p))).open('[');
        for (const auto& bucket : sm.timeline.buckets) json.value(bucket.busy[static_cast<size_t>(p)]);
        json.close(']');
    }
    json.close('}').key("blocks").open('[');
    for (const auto& span : sm.blocks) {
        json.open('[').value(static_cast<double>(span.block)).value(span.begin).value(span.end).close(']');
    }
    json.close(']').close('}');
}

}  // namespace

std::string to_json(const LaunchReport& launch, const Machine& machine) {
    Json json;
    json.open('{').put("kernel", launch.kernel);
    const std::pair<const char*, const uint32_t*> extents[] = {{"grid", launch.grid}, {"block", launch.block}};
    for (const auto& [name, extent] : extents) {
        json.key(name).open('[');
        for (int i = 0; i < 3; ++i) json.value(extent[i]);
        json.close(']');
    }
    json.put("blocks", static_cast<double>(launch.shape.blocks)).put("warps_per_block", launch.shape.warps);
    json.put("registers", launch.shape.registers).put("shared_bytes", launch.shape.shared_bytes);
    json.put("blocks_per_sm", launch.occupied.blocks).put("occupancy_limit", launch.occupied.limit);
    json.put("l1_bytes", launch.occupied.l1_bytes);
    json.put("waves", std::ceil(static_cast<double>(launch.shape.blocks) / (machine.sms * launch.occupied.blocks)));
    json.key("traced_blocks").open('[');
    for (const uint64_t block : launch.traced_blocks) json.value(static_cast<double>(block));
    json.close(']').put("heads", static_cast<double>(launch.heads));
    const Estimate& first = launch.estimates.front();
    json.put("warp_instructions", first.instructions);
    json.put("dram_read_bytes", first.dram_read_bytes).put("dram_write_bytes", first.dram_write_bytes);
    json.put("tensor_flops", first.tensor_flops);
    const auto hits = [](const Traffic& t) {
        return t.sectors ? 1 - static_cast<double>(t.dram) / static_cast<double>(t.sectors) : 0.0;
    };
    json.put("l2_load_hit_rate", hits(launch.reuse.loads)).put("l2_store_hit_rate", hits(launch.reuse.stores));
    const auto& memory = first.sm.memory;
    json.put("l1_load_hit_rate", memory.l1_sectors > 0 ? memory.l1_hit_sectors / memory.l1_sectors : 0.0);
    json.put("busy_sms", first.busy_sms).put("sharing", first.sharing).put("balance", first.balance);
    json.put("simulated_share", first.simulated_share);
    json.put("simulated_instructions", static_cast<double>(first.sm.issued));
    json.put("extrapolation_error", first.extrapolation_error).put("sampling_error", first.sampling_error);
    json.put("phase_error", first.phase_error);
    json.key("estimates").open('[');
    for (const auto& estimate : launch.estimates) {
        json.open('{').put("clock_mhz", estimate.clock_mhz).put("cycles", estimate.cycles).put("ms", estimate.ms);
        json.close('}');
    }
    json.close(']');
    put_details(json, launch, machine);
    json.put("model_seconds", launch.seconds);
    return json.close('}').text;
}

std::string machine_to_json(const Machine& machine, const std::string& board, const std::vector<std::string>& changed) {
    Json json;
    json.open('{').put("revision", kRevision).put("digest", table_digest()).put("board", board);
    json.put("sms", machine.sms).put("dram_gbps", machine.dram_gbps).put("launch_us", machine.launch_us);
    json.key("changed").open('{');
    for (const auto& name : changed) {
        for (const auto& row : parameters()) {
            if (name == row.name) json.put(row.name, machine.*row.field);
        }
    }
    return json.close('}').close('}').text;
}

std::string table_to_json() {
    Json json;
    json.open('[');
    for (const auto& row : parameters()) {
        json.open('{')
            .put("name", row.name)
            .put("value", row.value)
            .put("unit", row.unit)
            .put("source", row.source)
            .close('}');
    }
    return json.close(']').text;
}

}  // namespace sm70emu::timing
