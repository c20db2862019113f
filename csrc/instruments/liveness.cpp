#include "instruments/liveness.h"

#include <algorithm>
#include <bitset>
#include <map>

namespace sm70emu {
namespace {

using Registers = std::bitset<kMaxRegisters>;

Registers set_of(const std::vector<RegisterRange>& ranges) {
    Registers set;
    for (const auto& range : ranges) {
        for (int i = 0; i < range.count; ++i) set.set(static_cast<size_t>(range.first + i));
    }
    return set;
}

// What a called function does to registers, seen from outside.
struct Summary {
    Registers used;     // may be read before it writes them
    Registers written;  // written on every way through it
    bool operator==(const Summary& other) const { return used == other.used && written == other.written; }
};

class Analysis {
 public:
    Analysis(const std::vector<ParsedInstruction>& code, const std::vector<RegisterOperands>& registers,
             const ControlFlow& flow)
        : flow_(flow), size_(code.size()), used_(size_), written_(size_), killed_(size_) {
        for (size_t i = 0; i < size_; ++i) {
            used_[i] = set_of(registers[i].read);
            written_[i] = set_of(registers[i].written);
            if (code[i].guard < 0 && !code[i].guard_negated) killed_[i] = written_[i];
        }
        for (const int64_t callee : flow.callees) {
            if (callee >= 0 && static_cast<size_t>(callee) < size_) summaries_[static_cast<uint32_t>(callee)];
        }
        for (auto& [entry, summary] : summaries_) bodies_[entry] = flow.body(entry);
        bodies_[0] = flow.body(0);
        find_writes();
    }

    std::vector<uint32_t> run() {
        // Functions call functions, so summaries are repeated until they hold still; they only grow.
        for (bool changed = true; changed;) {
            changed = false;
            for (auto& [entry, summary] : summaries_) {
                const Summary next = summarize(entry);
                changed |= !(next == summary);
                summary = next;
            }
        }
        std::vector<Registers> live(size_);
        // What is live after a call is live in the function when it returns.
        std::map<uint32_t, Registers> after_return;
        for (bool changed = true; changed;) {
            changed = false;
            for (const auto& [entry, body] : bodies_) flow_backward(body, after_return[entry], live);
            for (size_t i = 0; i < size_; ++i) {
                if (flow_.callees[i] < 0) continue;
                Registers& after = after_return[static_cast<uint32_t>(flow_.callees[i])];
                const Registers needed = after | live_after(i, Registers(), live);
                changed |= needed != after;
                after = needed;
            }
        }
        // A register that nothing on the way here has written holds nothing, whatever guarded writes suggest.
        const std::vector<Registers> defined = defined_before();
        std::vector<uint32_t> counts(size_);
        for (size_t i = 0; i < size_; ++i) {
            counts[i] = static_cast<uint32_t>(((live[i] & defined[i]) | written_[i]).count());
        }
        return counts;
    }

 private:
    Registers live_after(size_t i, const Registers& at_return, const std::vector<Registers>& live) const {
        Registers after;
        if (flow_.returns[i]) after |= at_return;
        for (const uint32_t next : flow_.successors[i]) after |= live[next];
        return after;
    }

    void flow_backward(const std::vector<uint32_t>& body, const Registers& at_return,
                       std::vector<Registers>& live) const {
        for (bool changed = true; changed;) {
            changed = false;
            for (auto at = body.rbegin(); at != body.rend(); ++at) {
                const size_t i = *at;
                Registers before = live_after(i, at_return, live);
                Registers killed = killed_[i], used = used_[i];
                const auto summary = summaries_.find(static_cast<uint32_t>(std::max<int64_t>(flow_.callees[i], 0)));
                if (flow_.callees[i] >= 0 && summary != summaries_.end()) {
                    killed |= summary->second.written;
                    used |= summary->second.used;
                }
                before = (before & ~killed) | used | live[i];
                changed |= before != live[i];
                live[i] = before;
            }
        }
    }

    Summary summarize(uint32_t entry) const {
        const auto& body = bodies_.at(entry);
        std::vector<Registers> live(size_);
        flow_backward(body, Registers(), live);
        // Written on every way from here to a return; a way that never returns promises everything.
        std::vector<Registers> certain(size_, Registers().set());
        for (bool changed = true; changed;) {
            changed = false;
            for (auto at = body.rbegin(); at != body.rend(); ++at) {
                const size_t i = *at;
                Registers after = flow_.returns[i] ? Registers() : Registers().set();
                for (const uint32_t next : flow_.successors[i]) after &= certain[next];
                after |= killed_[i];
                if (flow_.callees[i] >= 0) {
                    const auto summary = summaries_.find(static_cast<uint32_t>(flow_.callees[i]));
                    if (summary != summaries_.end()) after |= summary->second.written;
                }
                changed |= after != certain[i];
                certain[i] = after;
            }
        }
        return {live[entry], certain[entry]};
    }

    // Registers that a function or anything it calls may write.
    void find_writes() {
        for (bool changed = true; changed;) {
            changed = false;
            for (const auto& [entry, body] : bodies_) {
                Registers set;
                for (const uint32_t i : body) {
                    set |= written_[i];
                    if (flow_.callees[i] >= 0) set |= writes_[static_cast<uint32_t>(flow_.callees[i])];
                }
                changed |= set != writes_[entry];
                writes_[entry] = set;
            }
        }
    }

    std::vector<Registers> defined_before() const {
        std::vector<Registers> before(size_);
        for (bool changed = true; changed;) {
            changed = false;
            for (size_t i = 0; i < size_; ++i) {
                const Registers after = before[i] | written_[i];
                const auto pass_on = [&](size_t next, const Registers& set) {
                    const Registers joined = before[next] | set;
                    changed |= joined != before[next];
                    before[next] = joined;
                };
                for (const uint32_t next : flow_.successors[i]) pass_on(next, after);
                if (flow_.callees[i] < 0 || static_cast<size_t>(flow_.callees[i]) >= size_) continue;
                const auto callee = static_cast<uint32_t>(flow_.callees[i]);
                pass_on(callee, after);
                for (const uint32_t next : flow_.successors[i]) pass_on(next, writes_.at(callee));
            }
        }
        return before;
    }

    const ControlFlow& flow_;
    size_t size_;
    std::vector<Registers> used_, written_, killed_;  // killed: written whatever the guard says
    std::map<uint32_t, Summary> summaries_;           // by first instruction
    std::map<uint32_t, std::vector<uint32_t>> bodies_;
    std::map<uint32_t, Registers> writes_;
};

}  // namespace

std::vector<uint32_t> live_registers(const std::vector<ParsedInstruction>& code,
                                     const std::vector<RegisterOperands>& registers, const ControlFlow& flow) {
    if (code.empty()) return {};
    return Analysis(code, registers, flow).run();
}

}  // namespace sm70emu
