#include "tests/gpu_emulator/stream_races.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu_emulator/block.h"
#include "tests/gpu_emulator/memory.h"
#include "tests/gpu_emulator/streams.h"

namespace gpu_emulator {
namespace {

struct Record {
    std::uint32_t lane = 0, index = 0;
    const std::string* name = nullptr;
};

// By number.
std::vector<Record>& records() {
    static auto* const all = new std::vector<Record>(1);
    return *all;
}

const std::string* shared_name(const std::string& name) {
    static auto* const names = new std::set<std::string>;
    return &*names->insert(name).first;
}

bool is_before(std::uint32_t earlier, const Operation& later) {
    const Record& record = records()[earlier];
    return record.lane < later.clock.size() && later.clock[record.lane] >= record.index;
}

void report_race(const Operation& now,
                 bool writes,
                 std::uint32_t before,
                 const char* what,
                 std::uint64_t address) {
    const std::string& other = *records()[before].name;
    const char* const verb = now.task.frees != 0 ? " frees " : writes ? " writes " : " reads ";
    report_once("stream race " + now.task.what + what + other,
                "stream race: " + now.task.what + verb +
                    DeviceMemory::instance().describe(address) + ", which " + other + what +
                    ", and nothing orders the two");
}

}  // namespace

void number_operation(Operation& operation) {
    if (records().size() > 0xfffffff0U) throw std::runtime_error("gpu emulator: too much work");
    operation.number = static_cast<std::uint32_t>(records().size());
    const std::uint32_t lane = operation.lane->number;
    records().push_back({lane, operation.clock[lane], shared_name(operation.task.what)});
}

void note_stream_access(StreamAccess& access,
                        std::uint64_t address,
                        std::uint32_t bytes,
                        bool write) {
    const Operation* const now = running_operation();
    if (now == nullptr) return;
    const std::uint32_t me = now->number;
    const auto mask = static_cast<std::uint16_t>(((1u << bytes) - 1) << address % 16);
    if (access.write == me && (mask & ~access.write_mask) == 0) return;
    if (!write && ((access.read == me && (mask & ~access.read_mask) == 0) ||
                   (access.other_read == me && (mask & ~access.other_mask) == 0))) {
        return;
    }
    if (access.write == 0 && access.read == 0) {
        const std::uint32_t maker = DeviceMemory::instance().made_by(address);
        if (maker != 0 && !is_before(maker, *now)) {
            report_race(*now, write, maker, " allocates", address);
        }
    }
    if ((access.write_mask & mask) != 0 && access.write != me && !is_before(access.write, *now)) {
        report_race(*now, write, access.write, " writes", address);
    }
    if (write) {
        for (const auto& [reader, read_mask] : {std::pair(access.read, access.read_mask),
                                                std::pair(access.other_read, access.other_mask)}) {
            if ((read_mask & mask) != 0 && reader != me && !is_before(reader, *now)) {
                report_race(*now, true, reader, " reads", address);
            }
        }
        access.write_mask = access.write == me ? access.write_mask | mask : mask;
        access.write = me;
        access.read_mask &= static_cast<std::uint16_t>(~mask);
        access.other_mask &= static_cast<std::uint16_t>(~mask);
        return;
    }
    if (access.read == me) {
        access.read_mask |= mask;
    } else if (access.other_read == me) {
        access.other_mask |= mask;
    } else if (access.read_mask == 0 ||
               ((access.read_mask & ~mask) == 0 && is_before(access.read, *now))) {
        access.read = me;
        access.read_mask = mask;
    } else {
        access.other_read = me;
        access.other_mask = mask;
    }
}

void note_stream_accesses(StreamAccess* first,
                          std::uint64_t address,
                          std::uint64_t bytes,
                          bool write) {
    if (running_operation() == nullptr) return;
    while (bytes > 0) {
        const auto n =
            static_cast<std::uint32_t>(std::min<std::uint64_t>(bytes, 16 - address % 16));
        note_stream_access(first[address % DeviceMemory::kPageBytes / 16], address, n, write);
        address += n;
        bytes -= n;
    }
}

}  // namespace gpu_emulator
