// Large blocks of the CPU's memory, kept from step to step. A training step takes and frees the same sizes over and
// over. From the system each would come as new pages, which it must clear; in a heap, tensors that live for a whole
// step and others that live for one operation leave gaps between one another that nothing fits (a fifth of the heap,
// in some models). Here every block is pages of its own: a freed one waits for the next of its size, and is given back
// as soon as those that wait would take the memory that another size needs.
//
// So what is mapped stays within 1/16 of the most that ever lived at once (counted in blocks, which are up to 1/32
// larger than what was asked for), and once every size of a step has been seen little more is asked of the system, as a
// rule nothing. Where blocks are given back only to be missed so soon that clearing new pages takes more than some 2 %
// of the time, as among calls of a few milliseconds, more of them may wait, up to 1/4.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace evenkeel {

class LargeBlocks {
  public:
    // Smaller ones are the C library's business.
    static constexpr std::size_t kSmallest = 1 << 20;

    LargeBlocks() = default;
    ~LargeBlocks();
    LargeBlocks(const LargeBlocks&) = delete;
    LargeBlocks& operator=(const LargeBlocks&) = delete;

    // Uninitialised, aligned to a page; null where the system has no more. From any thread.
    void* take(std::size_t bytes);
    void give(void* block);
    // Back to the system with all that wait.
    void release_unused();

    struct Count {
        std::size_t live, mapped;  // bytes, of whole pages
        std::uint64_t mappings;    // asked of the system so far
    };
    Count count() const;

  private:
    struct Waiting {
        void* block;
        std::size_t bytes;
    };
    void unmap(std::size_t waiting);
    void count_if_missed(std::size_t bytes);
    std::size_t most_mapped(std::size_t most_live) const;

    mutable std::mutex mutex_;
    std::unordered_map<void*, std::size_t> live_;
    std::vector<Waiting> waiting_;  // the one that has waited longest first
    struct GivenBack {
        std::size_t bytes;
        std::chrono::steady_clock::time_point when;
    };
    std::vector<GivenBack> given_back_;            // the last few, to see whether they are missed
    std::unordered_map<std::size_t, int> misses_;  // how often, of each size
    std::size_t missed_ = 0;  // bytes, of sizes that are missed again and again
    std::size_t live_bytes_ = 0, mapped_ = 0, most_live_ = 0;
    std::uint64_t mappings_ = 0;
};

// Those of buffers (buffer.h).
LargeBlocks& large_blocks();

}  // namespace evenkeel
