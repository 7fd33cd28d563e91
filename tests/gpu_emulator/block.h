// One thread block: its threads, who runs when, barriers, warp-wide operations, and every access to
// memory.
#pragma once

#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "tests/gpu_emulator/counters.h"
#include "tests/gpu_emulator/kernel_code.h"
#include "tests/gpu_emulator/machine.h"
#include "tests/gpu_emulator/memory.h"
#include "tests/gpu_emulator/races.h"
#include "tests/gpu_emulator/thread.h"

namespace gpu_emulator {

constexpr std::uint32_t kAllLanes = 0xffffffffu;

// SplitMix64: fast, and good enough to shuffle with.
struct Random {
    using result_type = std::uint64_t;
    static constexpr std::uint64_t min() { return 0; }
    static constexpr std::uint64_t max() { return ~std::uint64_t(0); }
    std::uint64_t state = 0;
    std::uint64_t operator()() {
        std::uint64_t z = state += 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }
};

// Reports unless the same was reported since the last take_reports().
void report_once(const std::string& key, const std::string& text);

// What the blocks of a launch share.
struct LaunchState {
    const KernelCode* program = nullptr;
    const Launch* launch = nullptr;
    std::vector<std::uint64_t> initial;  // registers, with the addresses of module-wide variables
    std::uint32_t first_serial = 1;
    std::vector<std::uint32_t> block_of_serial;  // in the order they ran
    bool reported = false;
    std::string name;
    Random random;
    bool in_order = false;
    std::uint64_t instructions = 0;
    AccessCounter counter;
};

class Block {
  public:
    Block(LaunchState& launch, Races& races);
    // Runs one block to its end; false: the launch must stop.
    bool run(std::uint32_t block, std::uint32_t serial);

    // ---- For handlers
    std::uint32_t thread() const { return current_; }
    std::uint64_t* registers(std::uint32_t thread) {
        return &registers_[std::size_t(thread) * slots_];
    }
    std::uint32_t pc_of(const Op& op) const { return std::uint32_t(&op - program_.ops.data()); }
    void set_jump(std::uint32_t pc) { jump_ = pc; }
    std::uint32_t thread_count() const { return threads_count_; }

    // Reads or writes bytes (a power of two up to 16) for the thread that runs. False: the launch
    // stops.
    bool load(Space space, std::uint64_t address, std::uint32_t bytes, void* out, const Op& op);
    bool store(
        Space space, std::uint64_t address, std::uint32_t bytes, const void* in, const Op& op);
    // Where an atomic operation may read and write now; nullptr: the launch stops.
    std::uint8_t* atomic(Space space, std::uint64_t address, std::uint32_t bytes, const Op& op);
    // A row of ldmatrix, read by the given lane of the warp.
    bool load_row(std::uint32_t thread, std::uint32_t address, void* out, const Op& op);

    void count_matrix(const Op& op, const std::uint64_t* rows) {
        launch_.counter.matrix(op.memory_op, rows);
    }

    void start_copy(std::uint32_t to,
                    std::uint64_t from,
                    std::uint32_t bytes,
                    std::uint32_t read,
                    const Op& op);
    void commit_copies();
    bool wait_copies(std::uint32_t groups_left);
    bool wait_all_copies();

    using WarpOperation = bool (*)(Block& block,
                                   std::uint32_t warp,
                                   std::uint32_t lanes,
                                   const Op& op);
    // The thread has come to a warp-wide operation; the last lane of the mask carries it out.
    // whole_warp: the mask may not name lanes that do not exist.
    Step meet(const Op& op, std::uint32_t mask, bool whole_warp, WarpOperation operation);
    // Barrier of count threads (0: all). waits: false for bar.arrive.
    enum class Reduction { kNone, kPopc, kAnd, kOr };
    Step barrier(const Op& op,
                 std::uint32_t number,
                 std::uint32_t count,
                 bool waits,
                 Reduction reduction,
                 bool predicate);
    void join_lanes(std::uint32_t warp, std::uint32_t lanes);

    // Reports once for each kind and places. text follows "kind: ".
    void report_at(const std::string& kind, const std::string& text, std::uint32_t pc);
    void report_between(const std::string& kind,
                        const std::string& text,
                        std::uint32_t pc,
                        std::uint32_t thread,
                        const std::string& other_did,
                        std::uint32_t other_pc,
                        std::uint32_t other_serial,
                        std::uint32_t other_thread);
    bool stopped() const { return stopped_; }
    Step stop() {
        stopped_ = true;
        return Step::kStop;
    }

  private:
    struct Meeting {
        const Op* op;
        std::uint32_t mask, arrived;
    };
    struct Warp {
        std::uint32_t ready = 0, exited = 0, exists = 0;
        std::vector<Meeting> meetings;
    };
    struct Barrier {
        std::array<std::uint32_t, 32> lane = {};  // by warp: a thread of it that waits, plus 1
        std::uint32_t count = 0;                  // 0: nobody there
        bool all = false;
        std::uint32_t first_pc = 0, first_thread = 0, predicates = 0;
        Reduction reduction = Reduction::kNone;
        std::uint32_t arrived = 0;
        std::vector<std::uint32_t> waiting;
        std::vector<std::uint32_t> knowledge;  // of the threads that did not wait
    };
    struct Copy {
        std::uint32_t to, bytes, read, group;
        std::uint64_t from;
        const Op* op;
    };
    struct Copies {
        std::vector<Copy> started;
        std::uint32_t group = 0;  // commits so far
    };

    void reset(std::uint32_t block, std::uint32_t serial);
    bool schedule();
    Step run_thread(std::uint32_t thread, std::uint32_t budget);
    void set_ready(std::uint32_t thread, std::uint32_t pc);
    bool exit_thread(std::uint32_t thread);
    void complete_barrier(std::uint32_t number);
    void report_deadlock();
    bool disagree(const Op& op, std::uint32_t warp, std::uint32_t mask, const Meeting& other);

    static void resolve(Space& space, std::uint64_t& address);
    bool check_aligned(std::uint64_t address, std::uint32_t bytes, const Op& op);
    bool shared_range(std::uint64_t address, std::uint32_t bytes, bool write, const Op& op);
    bool out_of_bounds(
        const char* space, std::uint32_t bytes, bool write, const std::string& where, const Op& op);
    void note_shared(std::uint32_t address, std::uint32_t bytes, Access access, const Op& op);
    void note_global(std::uint64_t address, std::uint32_t bytes, Access access, const Op& op);
    void race(const Conflict& conflict, Access access, const char* space, const Op& op);
    bool load_shared(std::uint64_t address, std::uint32_t bytes, void* out, const Op& op);
    bool store_shared(std::uint64_t address, std::uint32_t bytes, const void* in, const Op& op);
    bool load_global(std::uint64_t address, std::uint32_t bytes, void* out, const Op& op);
    bool store_global(std::uint64_t address, std::uint32_t bytes, const void* in, const Op& op);
    bool local_access(
        std::uint64_t address, std::uint32_t bytes, void* out, const void* in, const Op& op);
    bool load_parameter(std::uint64_t address, std::uint32_t bytes, void* out, const Op& op);
    void replace_unwritten(
        const char* space, const std::uint8_t* state, std::uint32_t bytes, void* out, const Op& op);
    bool finish_copies(Copies& copies, std::uint32_t before_group);

    std::string at(std::uint32_t pc, std::uint32_t block, std::uint32_t thread) const;

    LaunchState& launch_;
    const KernelCode& program_;
    Races& races_;
    DeviceMemory& memory_;
    const std::uint32_t threads_count_, slots_, shared_bytes_, local_bytes_;
    std::uint32_t block_ = 0, serial_ = 0, current_ = 0, exited_ = 0, jump_ = 0;
    bool stopped_ = false;
    std::vector<std::uint64_t> registers_;
    std::vector<Thread> threads_;
    std::vector<Warp> warps_;
    std::array<Barrier, 16> barriers_;
    std::vector<Copies> copies_;
    std::vector<std::uint8_t> shared_, shared_state_, fresh_shared_state_;
    std::vector<Chunk> shared_chunks_;
    std::vector<std::uint8_t> local_, local_state_;
    std::set<std::pair<std::uint32_t, std::uint32_t>> raced_;  // places already reported
};

}  // namespace gpu_emulator
