#include "instruments/check/findings.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "emulator/error.h"
#include "instruments/json.h"

namespace sm70emu::check {
namespace {

// Which of the checks that are always on an error comes from.
const char* checker_of(const std::string& error) {
    const std::pair<const char*, const char*> known[] = {{"out of bounds", "bounds"},
                                                         {"is read-only", "permission"},
                                                         {"misaligned", "alignment"},
                                                         {"deadlock", "deadlock"}};
    for (const auto& [words, checker] : known) {
        if (error.find(words) != std::string::npos) return checker;
    }
    return "error";
}

}  // namespace

std::string instruction_text(const DecodedKernel& kernel, uint64_t pc) {
    const std::string source = kernel.sources[pc].text();
    return "+" + hex(16 * pc) + " " + kernel.texts[pc] + (source.empty() ? "" : " (" + source + ")");
}

void Findings::add(Core& core, Checker checker, int lane, const std::string& sentence, const MemoryRange& place) {
    const DecodedKernel& kernel = *core.launch->kernel;
    const std::lock_guard<std::mutex> lock(mutex_);
    Finding finding;
    finding.checker = kCheckerNames[static_cast<int>(checker)];
    finding.kernel = kernel.name;
    finding.offset = 16ull * core.pc;
    const auto known = std::find_if(findings_.begin(), findings_.end(), [&](const Finding& other) {
        return other.checker == finding.checker && other.offset == finding.offset && other.kernel == finding.kernel;
    });
    if (known != findings_.end()) {
        ++known->count;
        if (limit_) return;
    }
    finding.sass = kernel.texts[core.pc];
    finding.source = kernel.sources[core.pc].text();
    finding.what = finding.checker + ": " + sentence;
    std::copy_n(core.block->id, 3, finding.block);
    finding.warp = core.warp->index;
    finding.lane = lane;
    if (place.space) {
        finding.space = place.space;
        finding.address = place.address;
        finding.bytes = place.bytes;
        finding.what += ", " + finding.space + " address " + hex(place.address);
        if (const GlobalBuffer* buffer = finding.space == "global"
                                             ? core.launch->memory.find(place.address, place.bytes, AccessKind::Load)
                                             : nullptr) {
            finding.buffer = buffer->name;
            finding.buffer_offset = place.address - buffer->address;
            finding.what += ": buffer '" + buffer->name + "' at its offset " + std::to_string(finding.buffer_offset);
        }
    }
    if (known == findings_.end()) findings_.push_back(finding);
    if (findings_.size() < limit_) return;  // what earlier launches left counts too
    stopped_ = true;
    core.fault_lane = lane;
    fail(finding.what);
}

void Findings::add_error(const std::string& error) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (error.empty() || stopped_) return;
    Finding finding;
    finding.checker = checker_of(error);
    finding.kernel = error.substr(0, error.find_first_of("+:"));
    finding.what = error;
    findings_.push_back(finding);
}

std::string Findings::json() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::ostringstream out;
    out << "[";
    const char* separator = "";
    for (const auto& f : findings_) {
        out << separator << "{\"checker\": " << quoted(f.checker) << ", \"kernel\": " << quoted(f.kernel)
            << ", \"what\": " << quoted(f.what) << ", \"count\": " << f.count;
        if (f.lane >= 0) {
            out << ", \"offset\": " << f.offset << ", \"sass\": " << quoted(f.sass)
                << ", \"source\": " << quoted(f.source) << ", \"block\": [" << f.block[0] << ", " << f.block[1] << ", "
                << f.block[2] << "], \"warp\": " << f.warp << ", \"lane\": " << f.lane;
        }
        if (!f.space.empty()) {
            out << ", \"space\": " << quoted(f.space) << ", \"address\": " << f.address << ", \"bytes\": " << f.bytes;
        }
        if (!f.buffer.empty()) {
            out << ", \"buffer\": " << quoted(f.buffer) << ", \"buffer_offset\": " << f.buffer_offset;
        }
        out << "}";
        separator = ", ";
    }
    out << "]";
    return out.str();
}

}  // namespace sm70emu::check
