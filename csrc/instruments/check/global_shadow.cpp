#include "instruments/check/global_shadow.h"

#include <algorithm>

#include "emulator/error.h"

namespace sm70emu::check {

ShadowPage::Word* ShadowPage::unfold() {
    auto fresh = std::make_unique<Word[]>(kPageWords);
    for (uint64_t i = 0; i < kPageWords; ++i) fresh[i].store(fill_, std::memory_order_relaxed);
    Word* present = nullptr;
    if (words_.compare_exchange_strong(present, fresh.get(), std::memory_order_acq_rel)) return fresh.release();
    return present;  // another thread was first
}

void GlobalShadow::mark(uint64_t address, uint64_t bytes, const std::string& what) {
    if (address + bytes < address) fail("the marked bytes wrap around the address space");
    if (what == "scratch") {
        scratch_.push_back({address, bytes});
        return;
    }
    Shadow bits = 0;
    if (what == "undefined") {
        bits = kUndefined;
    } else if (what == "tainted") {
        bits = kTainted;
    } else if (what != "clean") {
        fail("mark: got '" + what + "', want undefined, tainted, clean or scratch");
    }
    const uint64_t end = address + bytes, page_bytes = uint64_t{1} << kPageBits;
    for (uint64_t at = address; at < end;) {
        const uint64_t page = at >> kPageBits, page_end = (page + 1) << kPageBits, stop = std::min(end, page_end);
        auto& present = pages_[page];
        if (stop - at == page_bytes) {
            const bool adds = bits && present;  // the other kind may be there already
            if (!adds) {
                present = bits ? std::make_unique<ShadowPage>(bits) : nullptr;
                at = stop;
                if (!present) pages_.erase(page);
                continue;
            }
        }
        if (!present && !bits) {
            pages_.erase(page);
            at = stop;
            continue;
        }
        if (!present) present = std::make_unique<ShadowPage>(Shadow{0});
        while (at < stop) {
            const uint64_t word = at & ~uint64_t{3}, word_stop = std::min(stop, word + 4);
            Shadow touched = 0;
            for (uint64_t byte = at; byte < word_stop; ++byte) {
                touched = static_cast<Shadow>(touched | 0x11 << (byte - word));
            }
            const Shadow set = touched & bits;
            // A mark of one kind leaves the other as it is; "clean" takes both.
            present->update(at, static_cast<Shadow>(bits ? 0xff : ~touched), set);
            at = word_stop;
        }
    }
}

bool GlobalShadow::is_scratch(uint64_t address, uint32_t bytes) const {
    return std::any_of(scratch_.begin(), scratch_.end(), [&](const Range& range) {
        return address >= range.address && address + bytes <= range.address + range.bytes;
    });
}

}  // namespace sm70emu::check
