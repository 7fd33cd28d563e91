#include "tests/gpu_emulator/block.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <utility>

namespace gpu_emulator {
namespace {

// A thread that runs this long does not come to an end.
constexpr std::uint64_t kMostInstructions = std::uint64_t(1) << 25;

std::string coordinates(std::uint32_t index, const Dim3& of) {
    char text[64];
    std::snprintf(text, sizeof text, "(%u,%u,%u)", index % of.x, index / of.x % of.y,
                  index / of.x / of.y);
    return text;
}

}  // namespace

Block::Block(LaunchState& launch, Races& races)
    : launch_(launch),
      program_(*launch.program),
      races_(races),
      memory_(DeviceMemory::instance()),
      threads_count_(launch.launch->block.x * launch.launch->block.y * launch.launch->block.z),
      slots_(static_cast<std::uint32_t>(launch.initial.size())),
      shared_bytes_(program_.dynamic_shared_at +
                    static_cast<std::uint32_t>(launch.launch->dynamic_shared_bytes)),
      local_bytes_(static_cast<std::uint32_t>(program_.function->local_bytes)),
      registers_(std::size_t(threads_count_) * slots_),
      threads_(threads_count_),
      warps_((threads_count_ + 31) / 32),
      copies_(threads_count_),
      shared_(shared_bytes_),
      fresh_shared_state_(shared_bytes_, kGap),
      shared_chunks_(shared_bytes_ / 16 + 1),
      local_(std::size_t(threads_count_) * local_bytes_),
      local_state_(std::size_t(threads_count_) * local_bytes_) {
    for (const KernelCode::Range& v : program_.shared_variables) {
        std::fill(fresh_shared_state_.begin() + v.from, fresh_shared_state_.begin() + v.to,
                  std::uint8_t(0));
    }
    std::fill(fresh_shared_state_.begin() + program_.dynamic_shared_at, fresh_shared_state_.end(),
              std::uint8_t(0));
}

void Block::reset(std::uint32_t block, std::uint32_t serial) {
    block_ = block;
    serial_ = serial;
    exited_ = 0;
    races_.begin_block(serial, threads_count_);
    std::fill(shared_.begin(), shared_.end(), std::uint8_t(0xff));
    shared_state_ = fresh_shared_state_;
    std::fill(local_.begin(), local_.end(), std::uint8_t(0xff));
    std::fill(local_state_.begin(), local_state_.end(), std::uint8_t(0));
    for (Barrier& barrier : barriers_) barrier = Barrier();
    const Dim3 &grid = launch_.launch->grid, &dim = launch_.launch->block;
    for (std::uint32_t w = 0; w < warps_.size(); ++w) {
        const std::uint32_t lanes = std::min(threads_count_ - w * 32, 32u);
        warps_[w].exists = warps_[w].ready = lanes == 32 ? kAllLanes : (1u << lanes) - 1;
        warps_[w].exited = 0;
        warps_[w].meetings.clear();
    }
    for (std::uint32_t t = 0; t < threads_count_; ++t) {
        threads_[t] = Thread();
        copies_[t].started.clear();
        copies_[t].group = 0;
        std::uint64_t* r = registers(t);
        std::copy(launch_.initial.begin() + program_.first_constant, launch_.initial.end(),
                  r + program_.first_constant);
        const std::uint32_t lane = t % 32;
        for (const KernelCode::Special& special : program_.specials) {
            std::uint64_t v = 0;
            using S = SpecialRegister;
            switch (special.which) {
                case S::kTidX:
                    v = t % dim.x;
                    break;
                case S::kTidY:
                    v = t / dim.x % dim.y;
                    break;
                case S::kTidZ:
                    v = t / dim.x / dim.y;
                    break;
                case S::kNtidX:
                    v = dim.x;
                    break;
                case S::kNtidY:
                    v = dim.y;
                    break;
                case S::kNtidZ:
                    v = dim.z;
                    break;
                case S::kCtaidX:
                    v = block % grid.x;
                    break;
                case S::kCtaidY:
                    v = block / grid.x % grid.y;
                    break;
                case S::kCtaidZ:
                    v = block / grid.x / grid.y;
                    break;
                case S::kNctaidX:
                    v = grid.x;
                    break;
                case S::kNctaidY:
                    v = grid.y;
                    break;
                case S::kNctaidZ:
                    v = grid.z;
                    break;
                case S::kLaneId:
                    v = lane;
                    break;
                case S::kWarpId:
                    v = t / 32;
                    break;
                case S::kNwarpId:
                    v = warps_.size();
                    break;
                // Time stands still: nothing may depend on it.
                case S::kClock:
                case S::kClock64:
                case S::kSmId:
                    v = 0;
                    break;
                case S::kDynamicSmemSize:
                    v = launch_.launch->dynamic_shared_bytes;
                    break;
                case S::kTotalSmemSize:
                    v = shared_bytes_;
                    break;
                case S::kLanemaskEq:
                    v = 1u << lane;
                    break;
                case S::kLanemaskLt:
                    v = (1u << lane) - 1;
                    break;
                case S::kLanemaskLe:
                    v = (2u << lane) - 1;
                    break;
                case S::kLanemaskGt:
                    v = ~((2u << lane) - 1) & kAllLanes;
                    break;
                case S::kLanemaskGe:
                    v = ~((1u << lane) - 1) & kAllLanes;
                    break;
            }
            r[special.slot] = lane == 31 && special.which == S::kLanemaskLe ? kAllLanes : v;
            if (lane == 31 && special.which == S::kLanemaskGt) r[special.slot] = 0;
        }
    }
}

bool Block::run(std::uint32_t block, std::uint32_t serial) {
    stopped_ = false;
    reset(block, serial);
    const bool good = schedule();
    for (const Thread& t : threads_) launch_.instructions += t.executed;
    return good;
}

// Stays with one warp for a while, whose lanes then run up to where they wait for each other.
bool Block::schedule() {
    std::uint32_t warp = 0;
    while (exited_ < threads_count_) {
        if (!launch_.in_order) warp = static_cast<std::uint32_t>(launch_.random() % warps_.size());
        std::uint32_t tried = 0;
        while (warps_[warp].ready == 0 && tried < warps_.size()) {
            warp = (warp + 1) % static_cast<std::uint32_t>(warps_.size());
            ++tried;
        }
        if (warps_[warp].ready == 0) {
            report_deadlock();
            return false;
        }
        std::uint32_t turns = launch_.in_order ? kAllLanes : 1 + launch_.random() % 512;
        while (warps_[warp].ready != 0 && turns-- > 0) {
            const std::uint32_t ready = warps_[warp].ready;
            std::uint32_t lane = static_cast<std::uint32_t>(std::countr_zero(ready));
            std::uint32_t budget = 4096;
            if (!launch_.in_order) {
                const std::uint64_t random = launch_.random();
                const std::uint32_t from = random & 31;
                lane = (from + static_cast<std::uint32_t>(
                                   std::countr_zero(std::rotr(ready, static_cast<int>(from))))) &
                       31;
                if ((random & 0x700) == 0) budget = 1 + (random >> 16) % 64;
            }
            if (run_thread(warp * 32 + lane, budget) == Step::kStop || stopped_) return false;
        }
    }
    return true;
}

Step Block::run_thread(std::uint32_t index, std::uint32_t budget) {
    current_ = index;
    Thread& thread = threads_[index];
    const Op* const code = program_.ops.data();
    const Op* op = code + thread.pc;
    std::uint64_t* r = registers(index);
    Step step = Step::kNext;
    std::uint32_t left = budget;
    while (left > 0) {
        --left;
        if (op->guard != kNoSlot && ((r[op->guard] & 1) != 0) == op->guard_skips) {
            if (op->memory_op != kNoSlot) {
                launch_.counter.skipped(index, op->memory_op, op->counted);
            }
            ++op;
            continue;
        }
        step = op->handler(*this, r, *op);
        if (step == Step::kNext) {
            ++op;
            continue;
        }
        if (step == Step::kJump) {
            op = code + op->target;
            continue;
        }
        if (step == Step::kIndirect) {
            op = code + jump_;
            continue;
        }
        break;
    }
    thread.executed += budget - left;
    if (step <= Step::kIndirect) {
        thread.pc = static_cast<std::uint32_t>(op - code);
        if (thread.executed > kMostInstructions) {
            report_at("endless loop", "after " + std::to_string(thread.executed) + " instructions",
                      thread.pc);
            return stop();
        }
    } else if (step == Step::kExit) {
        return exit_thread(index) ? step : Step::kStop;
    }
    return step;
}

void Block::set_ready(std::uint32_t thread, std::uint32_t pc) {
    threads_[thread].pc = pc;
    threads_[thread].state = Thread::State::kReady;
    warps_[thread / 32].ready |= 1u << (thread % 32);
}

bool Block::exit_thread(std::uint32_t index) {
    Thread& thread = threads_[index];
    thread.state = Thread::State::kExited;
    Warp& warp = warps_[index / 32];
    const std::uint32_t bit = 1u << (index % 32);
    warp.ready &= ~bit;
    warp.exited |= bit;
    ++exited_;
    for (const Meeting& meeting : warp.meetings) {
        if ((meeting.mask & bit) == 0) continue;
        const std::uint32_t lane = static_cast<std::uint32_t>(std::countr_zero(meeting.arrived));
        report_at("divergence",
                  "a lane exits while others wait for it at " +
                      at(pc_of(*meeting.op), serial_, index / 32 * 32 + lane),
                  thread.pc);
        return false;
    }
    for (const Barrier& barrier : barriers_) {
        if (barrier.count == 0 || !barrier.all) continue;
        report_at("divergence",
                  "a thread exits while others wait for the whole block at " +
                      at(barrier.first_pc, serial_, barrier.first_thread),
                  thread.pc);
        return false;
    }
    return true;
}

bool Block::disagree(const Op& op, std::uint32_t warp, std::uint32_t mask, const Meeting& other) {
    if ((mask & other.arrived) == 0) return false;
    const std::uint32_t bit = 1u << (current_ % 32);
    if ((other.mask & bit) == 0) return false;  // they wait for others and may come here later
    const std::uint32_t lane = static_cast<std::uint32_t>(std::countr_zero(other.arrived));
    const std::string text = other.op == &op
                                 ? "lanes of one warp give different masks to one operation"
                                 : "lanes of one warp wait at different operations";
    report_between("divergence", text, pc_of(op), current_, "waits at", pc_of(*other.op), serial_,
                   warp * 32 + lane);
    return true;
}

Step Block::meet(const Op& op, std::uint32_t mask, bool whole_warp, WarpOperation operation) {
    const std::uint32_t w = current_ / 32, bit = 1u << (current_ % 32);
    Warp& warp = warps_[w];
    if ((mask & bit) == 0) {
        report_at("divergence", "the mask of a warp operation leaves out the lane that executes it",
                  pc_of(op));
        return stop();
    }
    if (whole_warp ? (mask & ~warp.exists) != 0 || (mask & warp.exited) != 0
                   : (mask & warp.exited) != 0) {
        report_at("divergence", "a warp operation waits for lanes that have exited or do not exist",
                  pc_of(op));
        return stop();
    }
    mask &= warp.exists;
    Meeting* mine = nullptr;
    for (Meeting& m : warp.meetings) {
        if (m.op == &op && m.mask == mask) {
            mine = &m;
        } else if (disagree(op, w, mask, m)) {
            return stop();
        }
    }
    if (mine == nullptr) {
        warp.meetings.push_back({&op, mask, 0});
        mine = &warp.meetings.back();
    }
    mine->arrived |= bit;
    if (mine->arrived != mask) {
        threads_[current_].state = Thread::State::kAtWarpOperation;
        threads_[current_].wait_mask = mask;
        threads_[current_].pc = pc_of(op);
        warp.ready &= ~bit;
        return Step::kWait;
    }
    *mine = warp.meetings.back();
    warp.meetings.pop_back();
    if (!operation(*this, w, mask, op)) return stop();
    const std::uint32_t next = pc_of(op) + 1;
    for (std::uint32_t lanes = mask; lanes != 0; lanes &= lanes - 1) {
        set_ready(w * 32 + static_cast<std::uint32_t>(std::countr_zero(lanes)), next);
    }
    return Step::kNext;
}

void Block::join_lanes(std::uint32_t warp, std::uint32_t lanes) {
    std::vector<std::uint32_t> threads;
    for (; lanes != 0; lanes &= lanes - 1) {
        threads.push_back(warp * 32 + static_cast<std::uint32_t>(std::countr_zero(lanes)));
    }
    if (threads.size() == threads_count_) {
        races_.clocks().join_all();
    } else {
        races_.clocks().join(threads);
    }
}

Step Block::barrier(const Op& op,
                    std::uint32_t number,
                    std::uint32_t count,
                    bool waits,
                    Reduction reduction,
                    bool predicate) {
    const std::uint32_t pc = pc_of(op);
    const bool all = count == 0;
    if (number >= barriers_.size() || (!all && (count % 32 != 0 || count > threads_count_))) {
        report_at("misuse",
                  "barrier " + std::to_string(number) + " for " + std::to_string(count) + " of " +
                      std::to_string(threads_count_) + " threads",
                  pc);
        return stop();
    }
    if (all) count = threads_count_;
    Barrier& b = barriers_[number];
    if (all && exited_ > 0) {
        report_at("divergence",
                  "a barrier of the whole block after " + std::to_string(exited_) +
                      " of its threads have exited",
                  pc);
        return stop();
    }
    if (b.count == 0) {
        b.count = count;
        b.all = all;
        b.first_pc = pc;
        b.first_thread = current_;
        b.reduction = reduction;
    } else if (b.count != count || b.reduction != reduction) {
        report_between("divergence", "threads disagree on barrier " + std::to_string(number), pc,
                       current_, "waits at", b.first_pc, serial_, b.first_thread);
        return stop();
    }
    // The lanes of a warp must come to one barrier together.
    std::uint32_t& lane = b.lane[current_ / 32];
    if (lane != 0 && threads_[lane - 1].pc != pc) {
        report_between("divergence", "lanes of one warp wait at different barriers", pc, current_,
                       "waits at", threads_[lane - 1].pc, serial_, lane - 1);
        return stop();
    }
    if (waits) lane = current_ + 1;
    b.predicates += predicate ? 1 : 0;
    ++b.arrived;
    Thread& thread = threads_[current_];
    thread.pc = pc;
    if (waits) {
        b.waiting.push_back(current_);
        thread.state = Thread::State::kAtBarrier;
        thread.wait_barrier = number;
        warps_[current_ / 32].ready &= ~(1u << (current_ % 32));
    } else {
        races_.clocks().depart(current_, b.knowledge);
    }
    if (b.arrived == b.count) {
        complete_barrier(number);
    }
    return waits ? Step::kWait : Step::kNext;
}

void Block::complete_barrier(std::uint32_t number) {
    Barrier done;
    std::swap(done, barriers_[number]);
    if (done.waiting.size() == threads_count_) {
        races_.clocks().join_all();
    } else {
        races_.clocks().join(done.waiting, std::move(done.knowledge));
    }
    launch_.counter.barrier();
    for (std::uint32_t t : done.waiting) {
        const Op& op = program_.ops[threads_[t].pc];
        if (done.reduction == Reduction::kPopc) {
            put(registers(t), op.slots[0], done.predicates);
        } else if (done.reduction != Reduction::kNone) {
            put(registers(t), op.slots[0],
                done.reduction == Reduction::kAnd ? done.predicates == done.count
                                                  : done.predicates != 0);
        }
        set_ready(t, threads_[t].pc + 1);
    }
}

void Block::report_deadlock() {
    std::string text = "no thread can go on:";
    std::set<std::pair<std::uint32_t, Thread::State>> told;
    std::uint32_t pc = 0;
    for (std::uint32_t t = 0; t < threads_count_; ++t) {
        const Thread& thread = threads_[t];
        if (thread.state == Thread::State::kExited) continue;
        pc = thread.pc;
        if (!told.emplace(thread.pc, thread.state).second) continue;
        std::uint32_t count = 0;
        for (const Thread& other : threads_) {
            count += other.pc == thread.pc && other.state == thread.state ? 1 : 0;
        }
        text += " " + std::to_string(count) + " wait at " + at(thread.pc, serial_, t) +
                (thread.state == Thread::State::kAtBarrier
                     ? " (barrier " + std::to_string(thread.wait_barrier) + ");"
                     : " (warp operation);");
    }
    text += " " + std::to_string(exited_) + " have exited;";
    report_at("deadlock", text, pc);
    stopped_ = true;
}

std::string Block::at(std::uint32_t pc, std::uint32_t serial, std::uint32_t thread) const {
    const std::uint32_t block = launch_.block_of_serial[serial - launch_.first_serial];
    return program_.place(pc) + ", block " + coordinates(block, launch_.launch->grid) + " thread " +
           coordinates(thread, launch_.launch->block);
}

void Block::report_at(const std::string& kind, const std::string& text, std::uint32_t pc) {
    launch_.reported = true;
    report_once(kind + launch_.name + program_.place(pc),
                kind + ": " + text + ": kernel " + launch_.name + ", " + at(pc, serial_, current_));
}

void Block::report_between(const std::string& kind,
                           const std::string& text,
                           std::uint32_t pc,
                           std::uint32_t thread,
                           const std::string& other_did,
                           std::uint32_t other_pc,
                           std::uint32_t other_serial,
                           std::uint32_t other_thread) {
    launch_.reported = true;
    report_once(kind + launch_.name + program_.place(pc) + program_.place(other_pc),
                kind + ": " + text + ": kernel " + launch_.name + ", " + at(pc, serial_, thread) +
                    ", and " + other_did + " " + at(other_pc, other_serial, other_thread));
}

}  // namespace gpu_emulator
