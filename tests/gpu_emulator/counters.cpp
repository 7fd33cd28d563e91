#include "tests/gpu_emulator/counters.h"

#include <algorithm>
#include <bit>

#include "tests/gpu_emulator/context.h"
#include "tests/gpu_emulator/forms.h"
#include "tests/gpu_emulator/kernel_code.h"

namespace gpu_emulator {
namespace {

constexpr std::size_t kMostOpen = 64;  // requests that wait for late lanes of one instruction

std::map<std::string, Counters>& table() {
    static auto* counters = new std::map<std::string, Counters>;
    return *counters;
}

// Passes that these lanes' words need: a bank gives one word a pass, to any number of lanes.
std::uint32_t passes(const std::uint64_t* addresses, std::uint32_t lanes, std::uint32_t bytes) {
    std::uint64_t seen[32][8];  // words by bank, as far as they fit
    std::uint8_t count[32] = {};
    std::uint32_t most = 1;
    for (; lanes != 0; lanes &= lanes - 1) {
        const std::uint64_t first = addresses[std::countr_zero(lanes)] / 4;
        for (std::uint64_t word = first; word < first + std::max(bytes / 4, 1u); ++word) {
            const std::uint32_t bank = word & 31;
            const std::uint32_t kept = std::min<std::uint32_t>(count[bank], 8);
            if (std::find(seen[bank], seen[bank] + kept, word) != seen[bank] + kept) continue;
            if (kept < 8) seen[bank][kept] = word;
            most = std::max<std::uint32_t>(most, ++count[bank]);
        }
    }
    return most;
}

}  // namespace

void AccessCounter::begin_launch(const KernelCode& program, std::uint32_t threads) {
    threads_ = threads;
    queues_per_warp_ = 2 * program.memory_ops;
    queues_.assign(std::size_t(queues_per_warp_) * ((threads + 31) / 32), Queue());
    open_.clear();
    conflicts_.assign(program.memory_ops, 0);
    sum_ = Counters();
}

void AccessCounter::skipped(std::uint32_t thread, std::uint32_t memory_op, std::uint8_t kinds) {
    if ((kinds & kCountsShared) != 0) add(thread, 2 * memory_op, 0, 0);
    if ((kinds & kCountsGlobal) != 0) add(thread, 2 * memory_op + 1, 0, 0);
}

void AccessCounter::add(std::uint32_t thread,
                        std::uint32_t queue_in_warp,
                        std::uint64_t address,
                        std::uint32_t bytes) {
    const std::uint32_t warp = thread / 32, lane = thread % 32;
    const std::uint32_t index = warp * queues_per_warp_ + queue_in_warp;
    Queue& queue = queues_[index];
    const std::uint32_t turn = queue.done[lane]++;
    if (turn >= queue.requests.size()) {
        queue.requests.emplace_back();
        if (!queue.listed) {
            queue.listed = true;
            open_.push_back(index);
        }
    }
    Request& request = queue.requests[turn];
    request.seen |= 1u << lane;
    if (bytes != 0) {
        request.active |= 1u << lane;
        request.bytes = bytes;
        request.address[lane] = address;
    }
    const std::uint32_t lanes = std::min(threads_ - warp * 32, 32u);
    if (turn == 0 && static_cast<std::uint32_t>(std::popcount(request.seen)) == lanes) {
        price(request, queue_in_warp);
        queue.requests.erase(queue.requests.begin());
        for (std::uint16_t& done : queue.done) done -= done > 0 ? 1 : 0;
    } else if (queue.requests.size() > kMostOpen) {
        flush(index);
    }
}

void AccessCounter::flush(std::uint32_t index) {
    Queue& queue = queues_[index];
    for (const Request& request : queue.requests) price(request, index % queues_per_warp_);
    queue.requests.clear();
    std::fill(std::begin(queue.done), std::end(queue.done), std::uint16_t(0));
}

void AccessCounter::barrier() {
    for (std::uint32_t index : open_) {
        flush(index);
        queues_[index].listed = false;
    }
    open_.clear();
}

void AccessCounter::price(const Request& request, std::uint32_t queue_in_warp) {
    if (request.active == 0) return;
    if (queue_in_warp % 2 == 0) {
        price_shared(request.address, request.active, request.bytes, queue_in_warp / 2);
        return;
    }
    std::uint64_t sectors[32];
    std::uint32_t count = 0;
    for (std::uint32_t lanes = request.active; lanes != 0; lanes &= lanes - 1) {
        const std::uint64_t sector = request.address[std::countr_zero(lanes)] / 32;
        if (std::find(sectors, sectors + count, sector) == sectors + count) {
            sectors[count++] = sector;
        }
        sum_.global_bytes += request.bytes;
    }
    ++sum_.global_requests;
    sum_.global_sectors += count;
}

// Accesses of 8 bytes go by half warps, of 16 by quarters.
void AccessCounter::price_shared(const std::uint64_t* addresses,
                                 std::uint32_t active,
                                 std::uint32_t bytes,
                                 std::uint32_t memory_op) {
    const std::uint32_t group = bytes <= 4 ? 32 : bytes == 8 ? 16 : 8;
    ++sum_.shared_requests;
    for (std::uint32_t first = 0; first < 32; first += group) {
        const std::uint32_t mask = group == 32 ? ~0u : ((1u << group) - 1) << first;
        if ((active & mask) == 0) continue;
        const std::uint32_t needed = passes(addresses, active & mask, bytes);
        sum_.shared_wavefronts += needed;
        ++sum_.shared_ideal;
        conflicts_[memory_op] += needed - 1;
    }
}

void AccessCounter::matrix(std::uint32_t memory_op, const std::uint64_t* rows) {
    price_shared(rows, 0xff, 16, memory_op);
}

void AccessCounter::end_launch(Counters& totals, const KernelCode& program) {
    barrier();
    totals.shared_requests += sum_.shared_requests;
    totals.shared_wavefronts += sum_.shared_wavefronts;
    totals.shared_ideal += sum_.shared_ideal;
    totals.global_requests += sum_.global_requests;
    totals.global_sectors += sum_.global_sectors;
    totals.global_bytes += sum_.global_bytes;
    for (std::size_t i = 0; i < conflicts_.size(); ++i) {
        if (conflicts_[i] != 0) {
            totals.conflicts_at[program.place(program.memory_op_pc[i])] += conflicts_[i];
        }
    }
}

const std::map<std::string, Counters>& counters() {
    finish_work();
    return table();
}
void reset_counters() {
    finish_work();
    table().clear();
}
Counters& counters_of(const std::string& kernel) { return table()[kernel]; }

}  // namespace gpu_emulator
