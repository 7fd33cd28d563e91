#include "tests/gpu_emulator/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "tests/gpu_emulator/machine.h"
#include "tests/gpu_emulator/streams.h"

namespace gpu_emulator {
namespace {

constexpr std::uint64_t kAlignment = 256, kGuard = 256;

void* map(std::size_t bytes, int protection) {
    void* p = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? nullptr : p;
}

std::string hex(std::uint64_t address) {
    char text[32];
    std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(address));
    return text;
}

}  // namespace

DeviceMemory& DeviceMemory::instance() {
    static DeviceMemory* memory =
        new DeviceMemory;  // outlives every static object that frees memory
    return *memory;
}

// Addresses are never used twice, so the range is large; only what is touched costs memory.
DeviceMemory::DeviceMemory() {
    for (std::size_t bytes = std::size_t(1) << 40; bytes >= (std::size_t(1) << 30); bytes /= 2) {
        void* closed = map(bytes, PROT_NONE);
        void* backing = map(bytes, PROT_READ | PROT_WRITE);
        void* pages = map(bytes / kPageBytes * sizeof(Page*), PROT_READ | PROT_WRITE);
        if (closed != nullptr && backing != nullptr && pages != nullptr) {
            // Pages begin where addresses are multiples of their size.
            const auto first = reinterpret_cast<std::uint64_t>(closed);
            base_ = next_ = (first + kPageBytes - 1) / kPageBytes * kPageBytes;
            end_ = first + bytes;
            backing_ = static_cast<std::uint8_t*>(backing);
            pages_ = static_cast<Page**>(pages);
            return;
        }
        if (closed != nullptr) munmap(closed, bytes);
        if (backing != nullptr) munmap(backing, bytes);
        if (pages != nullptr) munmap(pages, bytes / kPageBytes * sizeof(Page*));
    }
    throw std::bad_alloc();
}

std::uint64_t DeviceMemory::reserve(std::size_t bytes) {
    const std::uint64_t start = next_ + kGuard;
    if (bytes > end_ - base_ || start + bytes + kGuard + kAlignment > end_) return 0;
    next_ = (start + bytes + kGuard + kAlignment - 1) / kAlignment * kAlignment;
    reserved_[start] = bytes;
    return start;
}

bool DeviceMemory::commit(std::uint64_t address, std::size_t bytes) {
    if (!living_.emplace(address, bytes).second) return false;
    reserved_.erase(address);
    freed_.erase(address);
    // Pages may exist already: those around the ends, and what was touched too early.
    const std::uint64_t end = address + bytes;
    for (std::uint64_t at = address; at < end;) {
        const std::uint64_t in_page = (at - base_) % kPageBytes;
        const std::uint64_t n = std::min(end - at, kPageBytes - in_page);
        if (Page* const page = pages_[(at - base_) / kPageBytes]) {
            std::memset(page->state + in_page, 0, n);
            std::fill_n(page->streams + in_page / 16, (n + 15) / 16, StreamAccess());
        }
        at += n;
    }
    if (const Operation* const maker = running_operation()) makers_[address] = maker->number;
    return true;
}

std::uint32_t DeviceMemory::made_by(std::uint64_t address) const {
    auto it = living_.upper_bound(address);
    if (it == living_.begin()) return 0;
    const auto maker = makers_.find(std::prev(it)->first);
    return maker == makers_.end() ? 0 : maker->second;
}

std::uint64_t DeviceMemory::allocate(std::size_t bytes) {
    const std::uint64_t address = reserve(bytes);
    if (address != 0) commit(address, bytes);
    return address;
}

bool DeviceMemory::release(std::uint64_t address) {
    auto found = living_.find(address);
    if (found == living_.end()) return false;
    const std::uint64_t end = address + found->second;
    for (std::uint64_t at = address; at < end;) {
        const std::uint64_t number = (at - base_) / kPageBytes;
        const std::uint64_t in_page = (at - base_) % kPageBytes;
        const std::uint64_t n = std::min(end - at, kPageBytes - in_page);
        // To free memory is to write all that was touched.
        if (pages_[number] != nullptr) {
            for (std::uint64_t i = 0; i < n; i += 16) {
                StreamAccess& access = pages_[number]->streams[(in_page + i) / 16];
                if (access.write != 0 || access.read != 0) {
                    note_stream_access(access, at + i, 16, true);
                }
            }
        }
        if (n == kPageBytes) {
            delete pages_[number];
            pages_[number] = nullptr;
            madvise(data(at), n, MADV_DONTNEED);
        } else if (pages_[number] != nullptr) {
            std::memset(pages_[number]->state + in_page, kGap, n);
        }
        at += n;
    }
    freed_[address] = found->second;
    makers_.erase(address);
    living_.erase(found);
    return true;
}

DeviceMemory::Page* DeviceMemory::make_page(std::uint64_t number) {
    Page* page = new Page;
    std::memset(page->state, kGap, sizeof page->state);
    const std::uint64_t from = base_ + number * kPageBytes, to = from + kPageBytes;
    auto it = living_.upper_bound(from);
    if (it != living_.begin()) --it;
    for (; it != living_.end() && it->first < to; ++it) {
        const std::uint64_t a = std::max(from, it->first), b = std::min(to, it->first + it->second);
        if (a < b) std::memset(page->state + (a - from), 0, b - a);
    }
    pages_[number] = page;
    return page;
}

bool DeviceMemory::inside(std::uint64_t address, std::size_t bytes) const {
    auto it = living_.upper_bound(address);
    if (it == living_.begin()) return false;
    --it;
    return address - it->first <= it->second && bytes <= it->second - (address - it->first);
}

std::string DeviceMemory::describe(std::uint64_t address) const {
    auto nearest = [address](const std::map<std::uint64_t, std::size_t>& table) {
        auto it = table.upper_bound(address);
        return it == table.begin() ? table.end() : std::prev(it);
    };
    auto live = nearest(living_), dead = nearest(freed_), later = nearest(reserved_);
    if (later != reserved_.end() && address < later->first + later->second) {
        return hex(address) + " in memory whose allocation the stream has not come to (" +
               std::to_string(later->second) + " bytes at " + hex(later->first) + ")";
    }
    if (dead != freed_.end() && address < dead->first + dead->second) {
        return hex(address) + " in freed memory (" + std::to_string(dead->second) + " bytes at " +
               hex(dead->first) + ")";
    }
    if (live != living_.end() && address - live->first < live->second + (1 << 20)) {
        return hex(address) + ", byte " + std::to_string(address - live->first) +
               " of an allocation of " + std::to_string(live->second);
    }
    auto next = living_.upper_bound(address);
    if (next != living_.end() && next->first - address <= (1 << 20)) {
        return hex(address) + ", " + std::to_string(next->first - address) +
               " bytes before an allocation of " + std::to_string(next->second);
    }
    return hex(address) + " outside of all allocations";
}

// ---- machine.h

namespace {

bool checked(const char* what, std::uint64_t address, std::size_t bytes) {
    DeviceMemory& memory = DeviceMemory::instance();
    if (bytes == 0 || memory.inside(address, bytes)) return true;
    report("out of bounds: " + std::string(what) + " of " + std::to_string(bytes) + " bytes at " +
           memory.describe(address));
    return false;
}

}  // namespace

std::uint64_t allocate(std::size_t bytes) { return DeviceMemory::instance().allocate(bytes); }

std::uint64_t reserve(std::size_t bytes) { return DeviceMemory::instance().reserve(bytes); }

bool commit(std::uint64_t address, std::size_t bytes) {
    if (DeviceMemory::instance().commit(address, bytes)) return true;
    report("memory is given out twice: " + DeviceMemory::instance().describe(address));
    return false;
}

bool release(std::uint64_t address) { return DeviceMemory::instance().release(address); }

bool copy_to_device(std::uint64_t to, const void* from, std::size_t bytes) {
    if (!checked("copy to device memory", to, bytes)) return false;
    const std::uint8_t* source = static_cast<const std::uint8_t*>(from);
    DeviceMemory::instance().for_each_part(
        to, bytes, true, [&](std::uint8_t* state, std::uint8_t* data, std::size_t n) {
            std::memcpy(data, source, n);
            std::memset(state, kWritten, n);
            source += n;
        });
    return true;
}

bool copy_to_host(void* to, std::uint64_t from, std::size_t bytes) {
    if (!checked("copy from device memory", from, bytes)) return false;
    std::uint8_t* target = static_cast<std::uint8_t*>(to);
    std::size_t unwritten = 0, done = 0, first = 0;
    DeviceMemory::instance().for_each_part(
        from, bytes, false,
        [&](const std::uint8_t* state, const std::uint8_t* data, std::size_t n) {
            std::memcpy(target, data, n);
            if (std::memchr(state, 0, n) != nullptr) {
                for (std::size_t i = 0; i < n; ++i) {
                    if ((state[i] & kWritten) != 0) continue;
                    target[i] = 0xff;
                    if (unwritten++ == 0) first = done + i;
                }
            }
            target += n;
            done += n;
        });
    if (unwritten == 0) return true;
    report("unwritten memory: " + std::to_string(unwritten) + " of " + std::to_string(bytes) +
           " bytes copied to the host were never written, first " +
           DeviceMemory::instance().describe(from + first));
    return false;
}

bool copy_on_device(std::uint64_t to, std::uint64_t from, std::size_t bytes) {
    if (!checked("copy to device memory", to, bytes) ||
        !checked("copy from device memory", from, bytes)) {
        return false;
    }
    DeviceMemory& memory = DeviceMemory::instance();
    memory.for_each_part(
        to, bytes, true, [&](std::uint8_t* to_state, std::uint8_t* to_data, std::size_t size) {
            memory.for_each_part(from, size, false,
                                 [&](std::uint8_t* state, std::uint8_t* data, std::size_t n) {
                                     std::memmove(to_data, data, n);
                                     std::memmove(to_state, state, n);
                                     to_data += n;
                                     to_state += n;
                                 });
            from += size;
        });
    return true;
}

bool set_on_device(std::uint64_t to, int byte, std::size_t bytes) {
    if (!checked("filling of device memory", to, bytes)) return false;
    DeviceMemory::instance().for_each_part(
        to, bytes, true, [&](std::uint8_t* state, std::uint8_t* data, std::size_t n) {
            std::memset(data, byte, n);
            std::memset(state, kWritten, n);
        });
    return true;
}

bool is_device_address(std::uint64_t address) {
    return DeviceMemory::instance().inside(address, 1);
}

bool in_device_window(std::uint64_t address) { return DeviceMemory::instance().contains(address); }

}  // namespace gpu_emulator
