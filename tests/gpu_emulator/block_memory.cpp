// Every access of a block to memory, with its checks.
#include <algorithm>
#include <cstring>

#include "tests/gpu_emulator/block.h"

namespace gpu_emulator {
namespace {

// True if every byte's state is exactly kWritten. bytes: a power of two up to 16.
inline bool all_written(const std::uint8_t* state, std::uint32_t bytes) {
    static_assert(kWritten == 1);
    constexpr std::uint64_t ones = 0x0101010101010101u;
    if (bytes >= 8) {
        std::uint64_t v[2] = {ones, ones};
        std::memcpy(v, state, std::min(bytes, 16u));
        return v[0] == ones && v[1] == ones;
    }
    std::uint64_t v = 0;
    std::memcpy(&v, state, bytes);
    return v == (ones & ((std::uint64_t(1) << (8 * bytes)) - 1));
}

inline bool any_of(const std::uint8_t* state, std::uint32_t bytes, std::uint8_t flag) {
    const std::uint64_t flags = 0x0101010101010101u * flag;
    std::uint64_t v = 0, w = 0;
    std::memcpy(&v, state, std::min(bytes, 8u));
    if (bytes == 16) std::memcpy(&w, state + 8, 8);
    return ((v | w) & flags) != 0;
}

const char* verb(bool write) { return write ? "write" : "read"; }

}  // namespace

// A generic address becomes one of its space.
void Block::resolve(Space& space, std::uint64_t& address) {
    if (space != Space::kGlobal || address < kSharedWindow) return;
    const std::uint64_t window = address & ~kWindowMask;
    if (window == kSharedWindow) {
        space = Space::kShared;
    } else if (window == kLocalWindow) {
        space = Space::kLocal;
    } else if (window == kParamWindow) {
        space = Space::kParam;
    } else {
        return;
    }
    address &= kWindowMask;
}

bool Block::out_of_bounds(
    const char* space, std::uint32_t bytes, bool write, const std::string& where, const Op& op) {
    report_at("out of bounds",
              std::string(verb(write)) + " of " + std::to_string(bytes) + " bytes of " + space +
                  " memory at " + where,
              pc_of(op));
    stopped_ = true;
    return false;
}

bool Block::check_aligned(std::uint64_t address, std::uint32_t bytes, const Op& op) {
    if (address % bytes == 0) return true;
    report_at("misaligned",
              "access of " + std::to_string(bytes) + " bytes at an address that is " +
                  std::to_string(address % bytes) + " modulo " + std::to_string(bytes),
              pc_of(op));
    stopped_ = true;
    return false;
}

void Block::race(const Conflict& conflict, Access access, const char* space, const Op& op) {
    const std::uint32_t pc = pc_of(op);
    if (!raced_.insert({pc, conflict.pc}).second) return;
    const bool blocks = conflict.block != serial_;
    report_between("race",
                   std::string(access == Access::kRead ? "read" : "write") + " of " + space +
                       " memory that another thread " +
                       (conflict.other_is_write ? "wrote" : "read") +
                       (blocks ? " in another block" : " with no barrier between"),
                   pc, current_, conflict.other_is_write ? "written at" : "read at", conflict.pc,
                   conflict.block, conflict.thread);
}

void Block::note_shared(std::uint32_t address, std::uint32_t bytes, Access access, const Op& op) {
    const Conflict c = races_.access(shared_chunks_[address / 16], true, address % 16, bytes,
                                     access, current_, pc_of(op));
    if (c.found) race(c, access, "shared", op);
}

void Block::note_global(std::uint64_t address, std::uint32_t bytes, Access access, const Op& op) {
    DeviceMemory::Page* page = memory_.page(address);
    note_stream_access(page->streams[address % DeviceMemory::kPageBytes / 16], address, bytes,
                       access != Access::kRead);
    const Conflict c =
        races_.access(page->chunks[address % DeviceMemory::kPageBytes / 16], false,
                      static_cast<std::uint32_t>(address % 16), bytes, access, current_, pc_of(op));
    if (c.found) race(c, access, "global", op);
}

void Block::replace_unwritten(
    const char* space, const std::uint8_t* state, std::uint32_t bytes, void* out, const Op& op) {
    bool unwritten = false;
    for (std::uint32_t i = 0; i < bytes; ++i) {
        if ((state[i] & kWritten) != 0) continue;
        unwritten = true;
        static_cast<std::uint8_t*>(out)[i] = 0xff;
    }
    if (unwritten) {
        report_at("unwritten memory", std::string("read of ") + space + " memory that nobody wrote",
                  pc_of(op));
    }
}

// Bounds and copies in flight; the rest of the way is for accesses inside.
bool Block::shared_range(std::uint64_t address, std::uint32_t bytes, bool write, const Op& op) {
    if (!check_aligned(address, bytes, op)) return false;
    if (address + bytes > shared_bytes_) {
        return out_of_bounds(
            "shared", bytes, write,
            "byte " + std::to_string(address) + " of " + std::to_string(shared_bytes_), op);
    }
    const std::uint8_t* state = &shared_state_[address];
    if (any_of(state, bytes, kGap)) {
        return out_of_bounds("shared", bytes, write,
                             "byte " + std::to_string(address) + ", outside of all variables", op);
    }
    if (any_of(state, bytes, kInFlight)) {
        report_at("asynchronous copy",
                  std::string(verb(write)) + " of shared memory that a cp.async may still write",
                  pc_of(op));
    }
    return true;
}

bool Block::load_shared(std::uint64_t address, std::uint32_t bytes, void* out, const Op& op) {
    const bool inside = address + bytes <= shared_bytes_ && address % bytes == 0;
    if (!inside || !all_written(&shared_state_[address], bytes)) {
        if (!shared_range(address, bytes, false, op)) return false;
        std::memcpy(out, &shared_[address], bytes);
        if (!any_of(&shared_state_[address], bytes, kInFlight)) {
            replace_unwritten("shared", &shared_state_[address], bytes, out, op);
        } else {
            std::memset(out, 0xff, bytes);
        }
    } else {
        std::memcpy(out, &shared_[address], bytes);
    }
    note_shared(static_cast<std::uint32_t>(address), bytes, Access::kRead, op);
    return true;
}

bool Block::store_shared(std::uint64_t address, std::uint32_t bytes, const void* in, const Op& op) {
    if (!shared_range(address, bytes, true, op)) return false;
    note_shared(static_cast<std::uint32_t>(address), bytes, Access::kWrite, op);
    std::memcpy(&shared_[address], in, bytes);
    std::memset(&shared_state_[address], kWritten, bytes);
    return true;
}

bool Block::load_global(std::uint64_t address, std::uint32_t bytes, void* out, const Op& op) {
    if (!check_aligned(address, bytes, op)) return false;
    DeviceMemory::Page* page = memory_.page(address);
    const std::uint64_t in_page = address % DeviceMemory::kPageBytes;
    if (page == nullptr || any_of(page->state + in_page, bytes, kGap)) {
        return out_of_bounds("global", bytes, false, memory_.describe(address), op);
    }
    std::memcpy(out, memory_.data(address), bytes);
    if (!all_written(page->state + in_page, bytes)) {
        replace_unwritten("global", page->state + in_page, bytes, out, op);
    }
    note_stream_access(page->streams[in_page / 16], address, bytes, false);
    const Conflict c =
        races_.access(page->chunks[in_page / 16], false, static_cast<std::uint32_t>(address % 16),
                      bytes, Access::kRead, current_, pc_of(op));
    if (c.found) race(c, Access::kRead, "global", op);
    return true;
}

bool Block::store_global(std::uint64_t address, std::uint32_t bytes, const void* in, const Op& op) {
    if (!check_aligned(address, bytes, op)) return false;
    DeviceMemory::Page* page = memory_.page(address);
    const std::uint64_t in_page = address % DeviceMemory::kPageBytes;
    if (page == nullptr || any_of(page->state + in_page, bytes, kGap)) {
        return out_of_bounds("global", bytes, true, memory_.describe(address), op);
    }
    for (const Copy& copy : copies_[current_].started) {
        if (address < copy.from + copy.read && copy.from < address + bytes) {
            report_between("asynchronous copy", "write of memory that a cp.async may still read",
                           pc_of(op), current_, "copied at", pc_of(*copy.op), serial_, current_);
        }
    }
    std::memcpy(memory_.data(address), in, bytes);
    std::memset(page->state + in_page, kWritten, bytes);
    note_stream_access(page->streams[in_page / 16], address, bytes, true);
    const Conflict c =
        races_.access(page->chunks[in_page / 16], false, static_cast<std::uint32_t>(address % 16),
                      bytes, Access::kWrite, current_, pc_of(op));
    if (c.found) race(c, Access::kWrite, "global", op);
    return true;
}

bool Block::local_access(
    std::uint64_t address, std::uint32_t bytes, void* out, const void* in, const Op& op) {
    if (!check_aligned(address, bytes, op)) return false;
    if (address + bytes > local_bytes_) {
        return out_of_bounds(
            "local", bytes, in != nullptr,
            "byte " + std::to_string(address) + " of " + std::to_string(local_bytes_), op);
    }
    const std::size_t at = std::size_t(current_) * local_bytes_ + address;
    if (in != nullptr) {
        std::memcpy(&local_[at], in, bytes);
        std::memset(&local_state_[at], kWritten, bytes);
        return true;
    }
    std::memcpy(out, &local_[at], bytes);
    if (!all_written(&local_state_[at], bytes)) {
        replace_unwritten("local", &local_state_[at], bytes, out, op);
    }
    return true;
}

bool Block::load_parameter(std::uint64_t address, std::uint32_t bytes, void* out, const Op& op) {
    const std::vector<std::byte>& parameters = launch_.launch->parameters;
    if (address + bytes > parameters.size()) {
        return out_of_bounds(
            "parameter", bytes, false,
            "byte " + std::to_string(address) + " of " + std::to_string(parameters.size()), op);
    }
    std::memcpy(out, parameters.data() + address, bytes);
    return check_aligned(address, bytes, op);
}

bool Block::load(Space space, std::uint64_t address, std::uint32_t bytes, void* out, const Op& op) {
    resolve(space, address);
    switch (space) {
        case Space::kShared:
            launch_.counter.shared(current_, op.memory_op, address, bytes);
            return load_shared(address & 0xffffffffu, bytes, out, op);
        case Space::kLocal:
            return local_access(address, bytes, out, nullptr, op);
        case Space::kParam:
            return load_parameter(address, bytes, out, op);
        case Space::kConst:
            return load_global(address, bytes, out, op);
        case Space::kGlobal:
            break;
    }
    launch_.counter.global(current_, op.memory_op, address, bytes);
    return load_global(address, bytes, out, op);
}

bool Block::store(
    Space space, std::uint64_t address, std::uint32_t bytes, const void* in, const Op& op) {
    resolve(space, address);
    switch (space) {
        case Space::kShared:
            launch_.counter.shared(current_, op.memory_op, address, bytes);
            return store_shared(address & 0xffffffffu, bytes, in, op);
        case Space::kLocal:
            return local_access(address, bytes, nullptr, in, op);
        case Space::kParam:
        case Space::kConst:
            return out_of_bounds("read-only", bytes, true, std::to_string(address), op);
        case Space::kGlobal:
            break;
    }
    launch_.counter.global(current_, op.memory_op, address, bytes);
    return store_global(address, bytes, in, op);
}

std::uint8_t* Block::atomic(Space space, std::uint64_t address, std::uint32_t bytes, const Op& op) {
    resolve(space, address);
    if (space == Space::kShared) {
        if (!shared_range(address, bytes, true, op)) return nullptr;
        if (!all_written(&shared_state_[address], bytes)) {
            replace_unwritten("shared", &shared_state_[address], bytes, &shared_[address], op);
        }
        std::memset(&shared_state_[address], kWritten, bytes);
        note_shared(static_cast<std::uint32_t>(address), bytes, Access::kAtomic, op);
        return &shared_[address];
    }
    if (space != Space::kGlobal) {
        out_of_bounds("private", bytes, true, "(atomic)", op);
        return nullptr;
    }
    if (!check_aligned(address, bytes, op)) return nullptr;
    DeviceMemory::Page* page = memory_.page(address);
    const std::uint64_t in_page = address % DeviceMemory::kPageBytes;
    if (page == nullptr || any_of(page->state + in_page, bytes, kGap)) {
        out_of_bounds("global", bytes, true, memory_.describe(address), op);
        return nullptr;
    }
    if (!all_written(page->state + in_page, bytes)) {
        replace_unwritten("global", page->state + in_page, bytes, memory_.data(address), op);
        std::memset(page->state + in_page, kWritten, bytes);
    }
    note_global(address, bytes, Access::kAtomic, op);
    return memory_.data(address);
}

bool Block::load_row(std::uint32_t thread, std::uint32_t address, void* out, const Op& op) {
    const std::uint32_t me = current_;
    current_ = thread;
    const bool good = load_shared(address, 16, out, op);
    current_ = me;
    return good;
}

// ---- cp.async: done as late as the program allows.

void Block::start_copy(
    std::uint32_t to, std::uint64_t from, std::uint32_t bytes, std::uint32_t read, const Op& op) {
    launch_.counter.shared(current_, op.memory_op, to, bytes);
    if (!shared_range(to, bytes, true, op)) return;
    Space space = Space::kGlobal;
    resolve(space, from);
    if (!check_aligned(from, bytes, op)) return;
    if (read > bytes || space != Space::kGlobal) {
        report_at(
            "misuse",
            "cp.async reads " + std::to_string(read) + " bytes to write " + std::to_string(bytes),
            pc_of(op));
        stopped_ = true;
        return;
    }
    launch_.counter.global(current_, op.memory_op, from, read > 0 ? bytes : 0);
    if (read > 0) {
        DeviceMemory::Page* page = memory_.page(from);
        if (page == nullptr || std::any_of(page->state + from % DeviceMemory::kPageBytes,
                                           page->state + from % DeviceMemory::kPageBytes + read,
                                           [](std::uint8_t s) { return (s & kGap) != 0; })) {
            out_of_bounds("global", read, false, memory_.describe(from), op);
            return;
        }
    }
    // It may write at once, and until the wait that covers it.
    note_shared(to, bytes, Access::kWrite, op);
    std::memset(&shared_state_[to], kInFlight, bytes);
    Copies& copies = copies_[current_];
    copies.started.push_back({to, bytes, read, copies.group, from, &op});
}

void Block::commit_copies() { ++copies_[current_].group; }

bool Block::wait_copies(std::uint32_t groups_left) {
    Copies& copies = copies_[current_];
    return copies.group < groups_left || finish_copies(copies, copies.group - groups_left);
}

bool Block::wait_all_copies() { return finish_copies(copies_[current_], kAllLanes); }

bool Block::finish_copies(Copies& copies, std::uint32_t before_group) {
    std::size_t done = 0;
    for (; done < copies.started.size() && copies.started[done].group < before_group; ++done) {
        const Copy& copy = copies.started[done];
        std::uint8_t bytes[16] = {};
        for (std::uint32_t i = 0; i < copy.read;) {
            // A whole copy is one access; a short one goes by its bytes.
            const std::uint32_t n = copy.read == copy.bytes ? copy.bytes
                                    : copy.read - i > 1     ? 2
                                                            : 1;
            if (!load_global(copy.from + i, n, bytes + i, *copy.op)) return false;
            i += n;
        }
        std::memset(&shared_state_[copy.to], 0, copy.bytes);
        if (!store_shared(copy.to, copy.bytes, bytes, *copy.op)) return false;
    }
    copies.started.erase(copies.started.begin(), copies.started.begin() + static_cast<long>(done));
    return true;
}

}  // namespace gpu_emulator
