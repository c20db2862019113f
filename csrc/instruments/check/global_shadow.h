// Shadow of global memory: sparse pages, made by marks and kept from launch to launch. What was never marked is clean.
// The set of pages does not change while a launch runs, so that worker threads look them up without locks.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "instruments/check/shadow.h"

namespace sm70emu::check {

constexpr int kPageBits = 16;  // 64 KiB of memory
constexpr uint64_t kPageWords = (uint64_t{1} << kPageBits) / 4;

// A page that was marked as a whole keeps one value for all of its words until a kernel writes one of them.
class ShadowPage {
 public:
    explicit ShadowPage(Shadow fill) : fill_(fill) {}
    ~ShadowPage() { delete[] words_.load(std::memory_order_relaxed); }
    ShadowPage(const ShadowPage&) = delete;
    ShadowPage& operator=(const ShadowPage&) = delete;

    Shadow at(uint64_t address) const {
        const Word* words = words_.load(std::memory_order_acquire);
        return words ? words[index(address)].load(std::memory_order_relaxed) : fill_;
    }
    // The bits of `keep` stay, those of `set` are set; blocks may write other bytes of the same word at the same time.
    void update(uint64_t address, Shadow keep, Shadow set) {
        const Word* present = words_.load(std::memory_order_acquire);
        if (!present && !keep && set == fill_) return;
        Word& word = (present ? words_.load(std::memory_order_relaxed) : unfold())[index(address)];
        if (!keep) {
            word.store(set, std::memory_order_relaxed);
            return;
        }
        word.fetch_and(keep, std::memory_order_relaxed);
        if (set) word.fetch_or(set, std::memory_order_relaxed);
    }

 private:
    using Word = std::atomic<Shadow>;
    static uint64_t index(uint64_t address) { return address >> 2 & (kPageWords - 1); }
    Word* unfold();

    std::atomic<Word*> words_{nullptr};
    const Shadow fill_;
};

class GlobalShadow {
 public:
    // `what`: undefined, tainted, clean, or scratch: memory that may hold anything, in which a store is a copy.
    void mark(uint64_t address, uint64_t bytes, const std::string& what);
    bool empty() const { return pages_.empty(); }
    ShadowPage* find(uint64_t page) const {
        const auto found = pages_.find(page);
        return found == pages_.end() ? nullptr : found->second.get();
    }
    bool is_scratch(uint64_t address, uint32_t bytes) const;

 private:
    struct Range {
        uint64_t address, bytes;
    };
    std::unordered_map<uint64_t, std::unique_ptr<ShadowPage>> pages_;
    std::vector<Range> scratch_;
};

// The pages that one worker thread looked up last.
class PageCache {
 public:
    explicit PageCache(const GlobalShadow& shadow) : shadow_(shadow) {}
    // Null: clean.
    ShadowPage* find(uint64_t address) {
        const uint64_t page = address >> kPageBits;
        Entry& entry = entries_[page % kEntries];
        if (entry.page != page) entry = {page, shadow_.find(page)};
        return entry.found;
    }

 private:
    static constexpr uint64_t kEntries = 64;
    struct Entry {
        uint64_t page = ~uint64_t{0};
        ShadowPage* found = nullptr;
    };
    const GlobalShadow& shadow_;
    Entry entries_[kEntries];
};

}  // namespace sm70emu::check
