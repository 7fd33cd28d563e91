// Device memory as the program sees it when it makes a call, whatever the streams have come to; and
// how much of it there is.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

namespace gpu_emulator {

struct StreamState;

// kCaptured: allocated in a capture whose graph was not launched yet; kGraph: launched.
enum class MemoryKind { kPlain, kPool, kCaptured, kGraph };

struct DeviceBlock {
    std::size_t bytes = 0;
    int device = 0;
    MemoryKind kind = MemoryKind::kPlain;
};

struct MemoryTable {
    std::map<std::uint64_t, DeviceBlock> device;  // by address
    std::map<std::uint64_t, std::size_t> freed;   // by a stream that has not come to it yet
    std::map<std::uint64_t, std::size_t> pinned;
};
MemoryTable& memory_table();

bool is_living_for_host(std::uint64_t address, std::size_t bytes);
bool is_pinned(const void* pointer);
// The device whose memory it is; -1: none.
int device_of(std::uint64_t address);

// One device's memory. The pool of stream-ordered memory reuses what was freed in the same stream,
// and what other streams have freed and come to; it keeps the rest up to its threshold.
class DeviceAccount {
  public:
    static std::size_t total();  // EVENKEEL_EMULATOR_MEMORY, by default 8 GiB
    std::size_t free_bytes() const;

    // Whether so much more fits; gives back what the pool holds unused if it must.
    bool make_room(std::size_t bytes);
    bool take_from_pool(std::size_t bytes, const StreamState* stream);
    // Call the result when the stream has come to it.
    std::function<void()> give_to_pool(std::size_t bytes, const StreamState* stream);
    void trim(std::size_t keep);

    std::size_t allocated = 0;  // cudaMalloc, and the graphs' memory
    std::size_t pool_used = 0, pool_reserved = 0, pool_used_high = 0, pool_reserved_high = 0;
    std::uint64_t threshold = 0;

  private:
    std::size_t pending(const StreamState* except) const;
    std::map<std::uint64_t, std::pair<const StreamState*, std::size_t>> pending_;
    std::uint64_t next_ = 0;
};
DeviceAccount& account_of(int device);

}  // namespace gpu_emulator
