// Happens-before between the threads of a launch, and the shadow that remembers who touched what.
//
// Time: every thread counts its synchronisations. Only bar.sync and bar.warp.sync order threads; a
// barrier of the whole block raises a floor under all clocks, so that full vector clocks are needed
// only after smaller ones. Blocks of a launch are never ordered.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace gpu_emulator {

class Clocks {
  public:
    void reset(std::uint32_t threads);
    std::uint32_t now(std::uint32_t thread) const { return now_[thread]; }
    bool before(std::uint32_t thread, std::uint32_t clock, std::uint32_t me) const {
        return thread == me || clock <= floor_[thread] ||
               (known_round_[me] == round_ && clock <= known_[std::size_t(me) * threads_ + thread]);
    }
    void join_all();
    // The thread leaves what it did and knows for others, and goes on.
    void depart(std::uint32_t thread, std::vector<std::uint32_t>& knowledge);
    // The threads learn from one another, and what others left.
    void join(const std::vector<std::uint32_t>& threads, std::vector<std::uint32_t> knowledge = {});

  private:
    void collect(std::uint32_t thread, std::vector<std::uint32_t>& knowledge) const;

    std::uint32_t threads_ = 0;
    std::uint32_t round_ = 1;  // barriers of the whole block so far
    std::vector<std::uint32_t> now_, floor_, known_round_, known_, joined_;
};

// The last accesses of 2 bytes, or of 16 that were always accessed as one.
struct Cell {
    std::uint32_t write_block = 0, write_clock = 0, write_pc = 0;
    std::uint32_t read_block = 0, read_clock = 0, read_pc = 0;
    std::uint32_t more_reads = 0;                 // list of concurrent readers of read_block
    std::uint32_t other_block = 0, other_pc = 0;  // an earlier block that read
    std::uint16_t write_thread = 0, read_thread = 0, other_thread = 0;
    bool write_atomic = false;
};

struct Chunk {                // 16 bytes
    std::uint32_t epoch = 0;  // of ShadowCells; older: forget
    std::uint32_t split = 0;  // 8 cells in the pool, or 0: whole
    Cell whole;
};

struct Conflict {
    bool found = false;
    bool other_is_write = false;
    std::uint32_t block = 0, thread = 0, pc = 0;  // who is in conflict; block: serial number
};

enum class Access { kRead, kWrite, kAtomic };

// Block serial numbers grow through all launches and start at 1; a launch's first is given to
// begin_launch.
class Races {
  public:
    void begin_launch(std::uint32_t first_block);
    void begin_block(std::uint32_t block, std::uint32_t threads);
    Clocks& clocks() { return clocks_; }

    // bytes <= 16, within one chunk; in_chunk: offset of the first byte. shared: forgotten with
    // each block.
    Conflict access(Chunk& chunk,
                    bool shared,
                    std::uint32_t in_chunk,
                    std::uint32_t bytes,
                    Access access,
                    std::uint32_t thread,
                    std::uint32_t pc);

  private:
    struct Read {
        std::uint32_t clock, pc, next;
        std::uint16_t thread;
    };
    using Eight = std::array<Cell, 8>;

    void touch(
        Cell& cell, Access access, std::uint32_t thread, std::uint32_t pc, Conflict& conflict);
    void check(const Cell& cell, Access access, std::uint32_t thread, Conflict& conflict) const;
    void add_read(Cell& cell, std::uint32_t thread, std::uint32_t pc);

    Clocks clocks_;
    std::uint32_t first_block_ = 1, block_ = 1;
    std::uint32_t launch_epoch_ = 0, block_epoch_ = 0;
    std::vector<Read> reads_;
    // The cells of split chunks, by number; 0 is no chunk's.
    struct Pool {
        std::vector<Eight> cells{1};
        std::vector<std::uint32_t> free;
        std::uint32_t take();
        void clear();
    };
    Pool shared_cells_, global_cells_;
};

}  // namespace gpu_emulator
