#include "tests/gpu_emulator/memory_table.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "tests/gpu_emulator/context.h"
#include "tests/gpu_emulator/machine.h"
#include "tests/gpu_emulator/memory.h"

namespace gpu_emulator {
namespace {

// A GPU's 80 GB would only hide a leak.
constexpr std::size_t kDefaultBytes = std::size_t{8} << 30;

std::map<int, DeviceAccount>& accounts() {
    static auto* const only = new std::map<int, DeviceAccount>;
    return *only;
}

std::size_t size_of(const DeviceBlock& block) { return block.bytes; }
std::size_t size_of(std::size_t bytes) { return bytes; }

template <typename Map>
typename Map::const_iterator block_around(const Map& map, std::uint64_t address) {
    auto found = map.upper_bound(address);
    if (found == map.begin()) return map.end();
    --found;
    return address - found->first < size_of(found->second) ? found : map.end();
}

}  // namespace

MemoryTable& memory_table() {
    // Never destroyed: static destructors of the program still free device memory.
    static auto* const only = new MemoryTable;
    return *only;
}

bool is_living_for_host(std::uint64_t address, std::size_t bytes) {
    const MemoryTable& table = memory_table();
    const auto block = block_around(table.device, address);
    if (block != table.device.end()) {
        return bytes <= block->second.bytes - (address - block->first);
    }
    // Variables of device code are in no table.
    return block_around(table.freed, address) == table.freed.end() &&
           DeviceMemory::instance().inside(address, bytes);
}

bool is_pinned(const void* pointer) {
    const auto& pinned = memory_table().pinned;
    return block_around(pinned, reinterpret_cast<std::uint64_t>(pointer)) != pinned.end();
}

int device_of(std::uint64_t address) {
    const auto& blocks = memory_table().device;
    const auto block = block_around(blocks, address);
    if (block != blocks.end()) return block->second.device;
    return is_device_address(address) ? 0 : -1;
}

std::size_t DeviceAccount::total() {
    const char* const text = std::getenv("EVENKEEL_EMULATOR_MEMORY");
    return text == nullptr ? kDefaultBytes : std::strtoull(text, nullptr, 10);
}

std::size_t DeviceAccount::free_bytes() const {
    const std::size_t held = allocated + pool_reserved;
    return held < total() ? total() - held : 0;
}

bool DeviceAccount::make_room(std::size_t bytes) {
    if (bytes > free_bytes()) trim(0);
    return bytes <= free_bytes();
}

bool DeviceAccount::take_from_pool(std::size_t bytes, const StreamState* stream) {
    // Without room, the pool waits for what other streams have freed.
    if (pool_used + allocated > total() || bytes > total() - pool_used - allocated) return false;
    pool_used += bytes;
    pool_reserved =
        std::max(pool_reserved, std::min(pool_used + pending(stream), total() - allocated));
    pool_used_high = std::max(pool_used_high, pool_used);
    pool_reserved_high = std::max(pool_reserved_high, pool_reserved);
    return true;
}

std::function<void()> DeviceAccount::give_to_pool(std::size_t bytes, const StreamState* stream) {
    pool_used -= bytes;
    const std::uint64_t number = next_++;
    pending_[number] = {stream, bytes};
    return [this, number] { pending_.erase(number); };
}

void DeviceAccount::trim(std::size_t keep) {
    const std::size_t needed = pool_used + pending(nullptr);
    pool_reserved = std::min(pool_reserved, std::max(needed, keep));
}

std::size_t DeviceAccount::pending(const StreamState* except) const {
    std::size_t sum = 0;
    for (const auto& [number, freed] : pending_) sum += freed.first == except ? 0 : freed.second;
    return sum;
}

DeviceAccount& account_of(int device) { return accounts()[device]; }

void trim_pools() {
    for (auto& [device, account] : accounts()) account.trim(account.threshold);
}

}  // namespace gpu_emulator
