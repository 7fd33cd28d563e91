// Device memory: where it lies, which bytes belong to an allocation, which were written, who
// touched them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "tests/gpu_emulator/races.h"
#include "tests/gpu_emulator/stream_races.h"

namespace gpu_emulator {

// One byte of state for each byte of memory.
constexpr std::uint8_t kWritten = 1, kGap = 2, kInFlight = 4;

// Windows of the generic address space. Device addresses are below.
constexpr std::uint64_t kSharedWindow = std::uint64_t(1) << 56;
constexpr std::uint64_t kLocalWindow = std::uint64_t(2) << 56;
constexpr std::uint64_t kParamWindow = std::uint64_t(3) << 56;
constexpr std::uint64_t kWindowMask = (std::uint64_t(1) << 56) - 1;

class DeviceMemory {
  public:
    static constexpr std::uint64_t kPageBytes = 16384;
    struct Page {
        std::uint8_t state[kPageBytes];
        Chunk chunks[kPageBytes / 16];
        StreamAccess streams[kPageBytes / 16];
    };

    static DeviceMemory& instance();

    std::uint64_t allocate(std::size_t bytes);
    // An address whose memory is not there before commit().
    std::uint64_t reserve(std::size_t bytes);
    bool commit(std::uint64_t address, std::size_t bytes);
    bool release(std::uint64_t address);
    bool contains(std::uint64_t address) const { return address - base_ < next_ - base_; }
    // State of the page around an address; nullptr if no allocation, living or freed, has bytes
    // there.
    Page* page(std::uint64_t address) {
        if (!contains(address)) return nullptr;
        Page* page = pages_[(address - base_) / kPageBytes];
        return page != nullptr ? page : make_page((address - base_) / kPageBytes);
    }
    std::uint8_t* data(std::uint64_t address) { return backing_ + (address - base_); }
    // True if all bytes lie in one living allocation; else why not, for a report.
    bool inside(std::uint64_t address, std::size_t bytes) const;
    std::string describe(std::uint64_t address) const;
    // Number of the work that made the allocation around an address; 0: the host, at once.
    std::uint32_t made_by(std::uint64_t address) const;

    // Calls f(state, data, bytes) for each page's part of a range inside an allocation, which the
    // work that runs reads or writes.
    template <class F>
    void for_each_part(std::uint64_t address, std::size_t bytes, bool write, F f) {
        while (bytes > 0) {
            const std::uint64_t in_page = address % kPageBytes;
            const std::size_t n = std::min<std::size_t>(bytes, kPageBytes - in_page);
            Page* const part = page(address);
            note_stream_accesses(part->streams, address, n, write);
            f(part->state + in_page, data(address), n);
            address += n;
            bytes -= n;
        }
    }

  private:
    DeviceMemory();
    Page* make_page(std::uint64_t number);

    std::uint64_t base_ = 0, next_ = 0, end_ = 0;
    std::uint8_t* backing_ = nullptr;  // the memory itself; at base_ nothing can be read or written
    Page** pages_ = nullptr;
    std::map<std::uint64_t, std::size_t> living_, freed_, reserved_;
    std::map<std::uint64_t, std::uint32_t> makers_;  // work that made living allocations
};

}  // namespace gpu_emulator
