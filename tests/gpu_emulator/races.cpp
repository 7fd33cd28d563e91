#include "tests/gpu_emulator/races.h"

#include <algorithm>

namespace gpu_emulator {

void Clocks::reset(std::uint32_t threads) {
    threads_ = threads;
    round_ = 1;
    now_.assign(threads, 1);
    floor_.assign(threads, 0);
    known_round_.assign(threads, 0);
}

void Clocks::join_all() {
    floor_ = now_;
    for (std::uint32_t& clock : now_) ++clock;
    ++round_;
}

void Clocks::collect(std::uint32_t thread, std::vector<std::uint32_t>& knowledge) const {
    auto merge = [&](const std::uint32_t* clocks) {
        for (std::uint32_t i = 0; i < threads_; ++i) {
            knowledge[i] = std::max(knowledge[i], clocks[i]);
        }
    };
    if (knowledge.empty()) knowledge.assign(threads_, 0);
    merge(floor_.data());
    if (known_round_[thread] == round_) merge(&known_[std::size_t(thread) * threads_]);
    knowledge[thread] = std::max(knowledge[thread], now_[thread]);
}

void Clocks::depart(std::uint32_t thread, std::vector<std::uint32_t>& knowledge) {
    collect(thread, knowledge);
    ++now_[thread];
}

void Clocks::join(const std::vector<std::uint32_t>& threads, std::vector<std::uint32_t> knowledge) {
    known_.resize(std::size_t(threads_) * threads_);
    for (std::uint32_t t : threads) collect(t, knowledge);
    for (std::uint32_t t : threads) {
        std::copy(knowledge.begin(), knowledge.end(), &known_[std::size_t(t) * threads_]);
        known_round_[t] = round_;
        ++now_[t];
    }
}

std::uint32_t Races::Pool::take() {
    if (free.empty()) {
        cells.emplace_back();
        return static_cast<std::uint32_t>(cells.size() - 1);
    }
    const std::uint32_t number = free.back();
    free.pop_back();
    return number;
}

void Races::Pool::clear() {
    cells.resize(1);
    free.clear();
}

void Races::begin_launch(std::uint32_t first_block) {
    first_block_ = first_block;
    ++launch_epoch_;
    global_cells_.clear();
}

void Races::begin_block(std::uint32_t block, std::uint32_t threads) {
    block_ = block;
    ++block_epoch_;
    clocks_.reset(threads);
    shared_cells_.clear();
    reads_.resize(1);
}

void Races::check(const Cell& cell, Access access, std::uint32_t me, Conflict& conflict) const {
    if (conflict.found) return;
    if (cell.write_block >= first_block_ && !(access == Access::kAtomic && cell.write_atomic) &&
        !(cell.write_block == block_ && clocks_.before(cell.write_thread, cell.write_clock, me))) {
        conflict = {true, true, cell.write_block, cell.write_thread, cell.write_pc};
        return;
    }
    if (access == Access::kRead) return;
    if (cell.other_block >= first_block_ && cell.other_block != block_) {
        conflict = {true, false, cell.other_block, cell.other_thread, cell.other_pc};
        return;
    }
    if (cell.read_block < first_block_) return;
    if (cell.read_block != block_ || !clocks_.before(cell.read_thread, cell.read_clock, me)) {
        conflict = {true, false, cell.read_block, cell.read_thread, cell.read_pc};
        return;
    }
    for (std::uint32_t i = cell.more_reads; i != 0; i = reads_[i].next) {
        if (!clocks_.before(reads_[i].thread, reads_[i].clock, me)) {
            conflict = {true, false, block_, reads_[i].thread, reads_[i].pc};
            return;
        }
    }
}

void Races::add_read(Cell& cell, std::uint32_t me, std::uint32_t pc) {
    const std::uint32_t now = clocks_.now(me);
    const std::uint16_t thread = static_cast<std::uint16_t>(me);
    if (cell.read_block != block_) {
        if (cell.read_block >= first_block_) {
            cell.other_block = cell.read_block;
            cell.other_thread = cell.read_thread;
            cell.other_pc = cell.read_pc;
        }
        cell.read_block = block_;
        cell.more_reads = 0;
    } else if (!clocks_.before(cell.read_thread, cell.read_clock, me)) {
        // Concurrent readers are all kept, each until a later reader knows of it.
        for (std::uint32_t i = cell.more_reads; i != 0; i = reads_[i].next) {
            if (clocks_.before(reads_[i].thread, reads_[i].clock, me)) {
                reads_[i].thread = thread;
                reads_[i].clock = now;
                reads_[i].pc = pc;
                return;
            }
        }
        reads_.push_back({now, pc, cell.more_reads, thread});
        cell.more_reads = static_cast<std::uint32_t>(reads_.size() - 1);
        return;
    }
    cell.read_thread = thread;
    cell.read_clock = now;
    cell.read_pc = pc;
}

void Races::touch(
    Cell& cell, Access access, std::uint32_t me, std::uint32_t pc, Conflict& conflict) {
    check(cell, access, me, conflict);
    if (access == Access::kRead) {
        add_read(cell, me, pc);
        return;
    }
    cell = Cell();
    cell.write_block = block_;
    cell.write_thread = static_cast<std::uint16_t>(me);
    cell.write_clock = clocks_.now(me);
    cell.write_pc = pc;
    cell.write_atomic = access == Access::kAtomic;
}

Conflict Races::access(Chunk& chunk,
                       bool shared,
                       std::uint32_t in_chunk,
                       std::uint32_t bytes,
                       Access access,
                       std::uint32_t thread,
                       std::uint32_t pc) {
    const std::uint32_t epoch = shared ? block_epoch_ : launch_epoch_;
    Pool& pool = shared ? shared_cells_ : global_cells_;
    if (chunk.epoch != epoch) chunk = Chunk{epoch, 0, Cell()};
    Conflict conflict;
    if (bytes == 16 && chunk.split == 0) {
        touch(chunk.whole, access, thread, pc, conflict);
        return conflict;
    }
    if (chunk.split == 0) {
        const std::uint32_t number = pool.take();
        Eight& copies = pool.cells[number];
        copies.fill(chunk.whole);
        // A list of readers belongs to one cell: the copies start their own.
        const std::uint32_t first = chunk.whole.read_block == block_ ? chunk.whole.more_reads : 0;
        for (std::size_t c = 1; c < 8 && first != 0; ++c) {
            std::uint32_t copied = 0;
            for (std::uint32_t i = first; i != 0; i = reads_[i].next) {
                Read read = reads_[i];
                read.next = copied;
                reads_.push_back(read);
                copied = static_cast<std::uint32_t>(reads_.size() - 1);
            }
            copies[c].more_reads = copied;
        }
        chunk.split = number;
    }
    Eight& cells = pool.cells[chunk.split];
    const std::uint32_t first = in_chunk / 2, last = (in_chunk + bytes - 1) / 2;
    for (std::uint32_t i = first; i <= last; ++i) touch(cells[i], access, thread, pc, conflict);
    if (bytes == 16 && access != Access::kRead) {  // all alike again
        chunk.whole = cells[0];
        pool.free.push_back(chunk.split);
        chunk.split = 0;
    }
    return conflict;
}

}  // namespace gpu_emulator
