// Which operation runs next.
#include <algorithm>
#include <exception>
#include <utility>

#include "tests/gpu_emulator/context.h"
#include "tests/gpu_emulator/machine.h"
#include "tests/gpu_emulator/stream_races.h"
#include "tests/gpu_emulator/streams.h"

namespace gpu_emulator {
namespace {

struct Scheduler {
    std::vector<OperationPtr> ready;
    std::size_t pending = 0;
    std::uint64_t random = 0, random_seed = 0;
    std::uint64_t waits = 0;
    std::vector<std::uint32_t> lane_length;  // by lane: operations so far
    std::vector<std::uint32_t> free_lanes;
    std::vector<std::uint32_t> host_clock;  // what the host knows to be done
    const Operation* running = nullptr;
};

Scheduler& scheduler() {
    // Never destroyed: static destructors of the program still free device memory.
    static auto* const only = new Scheduler;
    return *only;
}

std::uint64_t next_random() {
    Scheduler& s = scheduler();
    if (s.random_seed != seed()) {
        s.random_seed = seed();
        s.random = s.random_seed * 0x9e3779b97f4a7c15U;
    }
    std::uint64_t z = (s.random += 0x9e3779b97f4a7c15U);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
}

bool one_in(std::uint64_t n) { return next_random() % n == 0; }

// Mostly lazy: what is missing shows when work is late.
void change_mood(Lane& lane) {
    constexpr Lane::Mood kMoods[] = {Lane::Mood::kEager, Lane::Mood::kNormal, Lane::Mood::kLazy,
                                     Lane::Mood::kLazy};
    lane.mood = kMoods[next_random() % 4];
    lane.mood_seed = seed();
}

void join(std::vector<std::uint32_t>& clock, const std::vector<std::uint32_t>& other) {
    if (clock.size() < other.size()) clock.resize(other.size(), 0);
    for (std::size_t i = 0; i < other.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

void finish(const OperationPtr& operation) {
    Scheduler& s = scheduler();
    operation->done = true;
    operation->time = std::chrono::steady_clock::now();
    operation->advance = nullptr;
    operation->task.work = nullptr;
    operation->needs.clear();
    --s.pending;
    std::erase(s.ready, operation);
    for (const OperationPtr& next : operation->dependents) {
        if (--next->unmet == 0) s.ready.push_back(next);
    }
    operation->dependents.clear();
}

// True if the operation is done. By value: it may leave the list that the caller has it from.
bool advance(const OperationPtr operation) {
    Task& task = operation->task;
    const bool dropped = !task.bookkeeping && context_error() == cudaErrorLaunchFailure;
    bool done = true;
    if (task.work && !dropped) {
        const Operation* const before = std::exchange(scheduler().running, operation.get());
        try {
            if (!operation->advance) operation->advance = task.work();
            done = operation->advance();
        } catch (const std::exception& error) {
            report(task.what + ": " + error.what());
            set_kernel_failed();
        }
        scheduler().running = before;
    }
    operation->stalled = !done;
    if (done) finish(operation);
    return done;
}

void mark_needed(Operation& operation, std::uint64_t number) {
    std::vector<Operation*> stack{&operation};
    while (!stack.empty()) {
        Operation* const top = stack.back();
        stack.pop_back();
        if (top->done || top->needed_by == number) continue;
        top->needed_by = number;
        for (const OperationPtr& need : top->needs) stack.push_back(need.get());
    }
}

// By the mood of the streams, and whether the host waits for it. Null: all that may run is stalled.
OperationPtr choose(std::uint64_t wait) {
    const Scheduler& s = scheduler();
    std::vector<OperationPtr> needed, eager, normal, lazy;
    bool needed_is_stalled = false;
    for (const OperationPtr& operation : s.ready) {
        const bool is_needed = wait != 0 && operation->needed_by == wait;
        if (operation->stalled) {
            needed_is_stalled = needed_is_stalled || is_needed;
        } else if (is_needed) {
            needed.push_back(operation);
        } else {
            switch (operation->lane->mood) {
                case Lane::Mood::kEager:
                    eager.push_back(operation);
                    break;
                case Lane::Mood::kNormal:
                    normal.push_back(operation);
                    break;
                case Lane::Mood::kLazy:
                    lazy.push_back(operation);
                    break;
            }
        }
    }
    const auto any = [](const std::vector<OperationPtr>& from) {
        return from[next_random() % from.size()];
    };
    if (seed() == 0) {
        for (const OperationPtr& operation : s.ready) {
            if (!operation->stalled) return operation;
        }
        return nullptr;
    }
    if (!eager.empty() && !one_in(4)) return any(eager);
    if (!needed.empty() && (normal.empty() || !one_in(4))) return any(needed);
    if (!normal.empty()) return any(normal);
    if (!eager.empty()) return any(eager);
    if (!needed.empty()) return any(needed);
    return lazy.empty() || (wait != 0 && !needed_is_stalled) ? nullptr : any(lazy);
}

void unstall() {
    for (const OperationPtr& operation : scheduler().ready) operation->stalled = false;
}

template <typename IsDone>
void run_until(std::uint64_t wait, IsDone is_done) {
    while (!is_done()) {
        if (const OperationPtr next = choose(wait)) {
            advance(next);
        } else {
            unstall();
            ApiLock::yield();
        }
    }
    unstall();
}

}  // namespace

Lane::Lane() {
    Scheduler& s = scheduler();
    if (s.free_lanes.empty()) {
        number = static_cast<std::uint32_t>(s.lane_length.size());
        s.lane_length.push_back(0);
    } else {
        number = s.free_lanes.back();
        s.free_lanes.pop_back();
    }
    change_mood(*this);
}

Lane::~Lane() { scheduler().free_lanes.push_back(number); }

OperationPtr add_operation(Task task,
                           const std::shared_ptr<Lane>& lane,
                           std::vector<OperationPtr> needs) {
    watch_exit();
    Scheduler& s = scheduler();
    auto operation = std::make_shared<Operation>();
    operation->task = std::move(task);
    operation->lane = lane;
    operation->clock = s.host_clock;
    for (OperationPtr& need : needs) {
        if (need == nullptr) continue;
        join(operation->clock, need->clock);
        if (need->done) continue;
        need->dependents.push_back(operation);
        ++operation->unmet;
        operation->needs.push_back(std::move(need));
    }
    if (operation->clock.size() <= lane->number) operation->clock.resize(lane->number + 1, 0);
    operation->clock[lane->number] = ++s.lane_length[lane->number];
    number_operation(*operation);
    ++s.pending;
    if (operation->unmet == 0) s.ready.push_back(operation);
    return operation;
}

std::vector<OperationPtr> needs_of_next(const StreamState& stream) {
    std::vector<OperationPtr> needs{stream.last};
    if (stream.legacy) {
        for (const StreamState* other : streams_of(stream.device)) {
            if (other != &stream && (other->flags & cudaStreamNonBlocking) == 0) {
                needs.push_back(other->last);
            }
        }
    } else if ((stream.flags & cudaStreamNonBlocking) == 0) {
        needs.push_back(legacy_stream(stream.device).last);
    }
    return needs;
}

void run_some(const OperationPtr& newest) {
    constexpr std::size_t kLongest = 256;  // pending operations: staged memory costs room
    Scheduler& s = scheduler();
    if (seed() == 0) {
        while (const OperationPtr next = choose(0)) advance(next);
        unstall();
        return;
    }
    Lane& lane = *newest->lane;
    if (lane.mood_seed != seed() || one_in(16)) change_mood(lane);
    int steps = 0;
    switch (lane.mood) {
        case Lane::Mood::kEager:
            while (!newest->done && newest->unmet == 0 && advance(newest)) {
            }
            steps = one_in(2) ? 1 : 0;
            break;
        case Lane::Mood::kNormal:
            steps = one_in(3) ? 2 : 0;
            break;
        case Lane::Mood::kLazy:
            break;
    }
    for (; steps > 0 || s.pending > kLongest; --steps) {
        std::vector<OperationPtr> able;
        for (const OperationPtr& operation : s.ready) {
            const bool waits = operation->lane->mood == Lane::Mood::kLazy && s.pending <= kLongest;
            if (!operation->stalled && !waits) able.push_back(operation);
        }
        if (able.empty()) break;
        advance(able[next_random() % able.size()]);
    }
    unstall();
}

void run_one() {
    const Scheduler& s = scheduler();
    // Whoever asks again and again gets an answer in the end: any stream may be chosen.
    if (!s.ready.empty()) advance(s.ready[next_random() % s.ready.size()]);
    unstall();
}

void wait_for(const OperationPtr& operation) {
    Scheduler& s = scheduler();
    if (operation == nullptr) return;
    const std::uint64_t wait = ++s.waits;
    mark_needed(*operation, wait);
    run_until(wait, [&] { return operation->done; });
    join(s.host_clock, operation->clock);
}

void wait_for_device(int device) {
    for (StreamState* stream : streams_of(device)) wait_for(stream->last);
}

void finish_work(bool at_exit) {
    const ApiLock lock;
    for (;;) {
        OperationPtr next;
        for (const OperationPtr& operation : scheduler().ready) {
            if (!operation->stalled && !(at_exit && operation->task.foreign)) next = operation;
        }
        if (next == nullptr) break;
        advance(next);
    }
    unstall();
    if (scheduler().pending == 0) scheduler().host_clock = scheduler().lane_length;
}

const Operation* running_operation() { return scheduler().running; }

}  // namespace gpu_emulator
