#include "framework/large_blocks.h"

#include <sys/mman.h>

#include <algorithm>

namespace evenkeel {
namespace {

// Sizes are multiples of this, so that nearly equal ones are equal.
constexpr std::size_t kGranule = 64 << 10;
// At which the system clears pages, about, and how much of the time that may take.
constexpr double kBytesPerSecond = 4e9, kShareOfTime = 0.02;
constexpr std::size_t kRemembered = 16;  // blocks given back
constexpr int kChances = 1;              // of a size: a first step has misses that no other has

// Whether a block of that size may stand in for one that is needed.
bool fits(std::size_t has, std::size_t needed) {
    return has >= needed && has - needed <= needed / 32;
}

}  // namespace

LargeBlocks::~LargeBlocks() { release_unused(); }

void LargeBlocks::unmap(std::size_t waiting) {
    const auto at = waiting_.begin() + static_cast<std::ptrdiff_t>(waiting);
    munmap(at->block, at->bytes);
    mapped_ -= at->bytes;
    if (given_back_.size() == kRemembered) given_back_.erase(given_back_.begin());
    given_back_.push_back({at->bytes, std::chrono::steady_clock::now()});
    waiting_.erase(at);
}

void LargeBlocks::count_if_missed(std::size_t bytes) {
    for (auto block = given_back_.begin(); block != given_back_.end(); ++block) {
        if (block->bytes != bytes) continue;
        const std::chrono::duration<double> since = std::chrono::steady_clock::now() - block->when;
        const double clearing = static_cast<double>(bytes) / kBytesPerSecond;
        if (since.count() * kShareOfTime < clearing && ++misses_[bytes] > kChances) {
            missed_ += bytes;
        }
        given_back_.erase(block);
        return;
    }
}

std::size_t LargeBlocks::most_mapped(std::size_t most_live) const {
    return most_live + std::max(most_live / 16, std::min(missed_, most_live / 4));
}

void* LargeBlocks::take(std::size_t bytes) {
    const std::size_t needed = (bytes + kGranule - 1) / kGranule * kGranule;
    if (needed < bytes) return nullptr;
    const std::lock_guard lock(mutex_);
    std::size_t best = waiting_.size();
    for (std::size_t i = 0; i < waiting_.size(); ++i) {
        if (!fits(waiting_[i].bytes, needed)) continue;
        // Of the same size the one that was used last: its pages are the likeliest to be in a cache.
        if (best == waiting_.size() || waiting_[i].bytes <= waiting_[best].bytes) best = i;
    }
    // give() could not tell of a lack of memory.
    waiting_.reserve(live_.size() + waiting_.size() + 1);
    Waiting block;
    if (best < waiting_.size()) {
        block = waiting_[best];
        waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(best));
    } else {
        count_if_missed(needed);
        const std::size_t most = most_mapped(std::max(most_live_, live_bytes_ + needed));
        while (!waiting_.empty() && mapped_ + needed > most) unmap(0);
        const auto map = [&] {
            return mmap(nullptr, needed, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                        0);
        };
        block = {map(), needed};
        if (block.block == MAP_FAILED) {
            while (!waiting_.empty()) unmap(0);
            block.block = map();
            if (block.block == MAP_FAILED) return nullptr;
        }
        madvise(block.block, needed, MADV_HUGEPAGE);  // fewer page faults; no matter if refused
        mapped_ += needed;
        ++mappings_;
    }
    live_.emplace(block.block, block.bytes);
    live_bytes_ += block.bytes;
    most_live_ = std::max(most_live_, live_bytes_);
    return block.block;
}

void LargeBlocks::give(void* block) {
    const std::lock_guard lock(mutex_);
    const auto at = live_.find(block);
    live_bytes_ -= at->second;
    waiting_.push_back({block, at->second});
    live_.erase(at);
}

void LargeBlocks::release_unused() {
    const std::lock_guard lock(mutex_);
    while (!waiting_.empty()) unmap(waiting_.size() - 1);
}

LargeBlocks::Count LargeBlocks::count() const {
    const std::lock_guard lock(mutex_);
    return {live_bytes_, mapped_, mappings_};
}

// Never destroyed: buffers in static storage go after it would.
LargeBlocks& large_blocks() {
    static auto* blocks = new LargeBlocks;
    return *blocks;
}

}  // namespace evenkeel
