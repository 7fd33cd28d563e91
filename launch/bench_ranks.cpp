// Two ranks against one, and what concerns several ranks only: the watchdog, the comparison of copies, sequence
// parallelism, a cut optimizer. What is compared is timed in pairs of alternating order.
#include <omp.h>

#include <chrono>
#include <thread>

#include "framework/buffer.h"
#include "framework/cores.h"
#include "launch/bench_stepper.h"
#include "model/memory_plan.h"
#include "parallel/collective_log.h"
#include "parallel/watchdog.h"

namespace evenkeel::bench {
namespace {

struct Pairs {
    std::vector<double> with, without;  // seconds
};

// Collective over two ranks, as the bodies are.
Pairs time_pairs(const std::string& what,
                 Communicator& world,
                 const StepBench& size,
                 const Body& with,
                 const Body& without) {
    Pairs pairs;
    with();
    without();
    Rounds rounds(what, 2 * size.rounds, size.seconds, &world);
    while (rounds.next()) {
        const bool with_first = rounds.number() % 2 == 0;
        const double first = seconds_of(with_first ? with : without, 1);
        const double second = seconds_of(with_first ? without : with, 1);
        pairs.with.push_back(with_first ? first : second);
        pairs.without.push_back(with_first ? second : first);
    }
    return pairs;
}

Lines measure_two_against_one(Communicator& world, const StepBench& size, Stepper& two) {
    const bool measures = world.rank() == 0;
    const auto single = make_single_communicator();
    const ProcessGrid one_rank(*single, {});
    std::unique_ptr<Stepper> one;
    if (measures) one = std::make_unique<Stepper>(one_rank, size);
    std::vector<double> one_times, two_times;
    double one_seconds = 1.0;  // how long the other rank sleeps; a guess before the first round
    // The first round warms up.
    Rounds rounds("1 rank x 2 threads against 2 ranks x 1 thread", size.rounds + 1, size.seconds,
                  &world);
    while (rounds.next()) {
        world.barrier();
        double seconds = 0.0;
        if (measures) {
            omp_set_num_threads(2);
            seconds = one->seconds_of_step();
        } else {
            // Waiting in a barrier would take the core that rank 0's second thread needs.
            std::this_thread::sleep_for(std::chrono::duration<double>(one_seconds));
        }
        one_seconds = world.all_reduce_scalar(seconds, ReduceOp::kMax);
        omp_set_num_threads(1);
        const double pair = two.seconds_of_step();
        if (rounds.number() == 1) continue;
        one_times.push_back(one_seconds);
        two_times.push_back(pair);
    }
    return {{name_of(size, "1 rank x 2 threads, step"), 1e3 * median(one_times), "ms", {}},
            {"2 ranks x 1 thread, step",
             1e3 * median(two_times),
             "ms",
             {share_of_rounds(ratios_of(one_times, two_times), "of the speed of 1 rank x 2 threads",
                              0.90)}}};
}

// Steps with the thread that looks for lost ranks and steps without it; starting and ending it is not timed.
Pairs time_with_watchdog(Communicator& world, const StepBench& size, Stepper& stepper) {
    constexpr int kSteps = 2;  // in a row
    const WatchdogOptions options{.timeout_seconds = 300.0};
    Pairs pairs;
    Rounds rounds("watchdog", 2 * size.rounds, size.seconds, &world);
    while (rounds.next()) {
        for (const bool second : {false, true}) {
            const bool watches = second == (rounds.number() % 2 == 0);
            watches ? start_watchdog(world, options) : stop_watchdog();
            world.barrier();
            (watches ? pairs.with : pairs.without)
                .push_back(seconds_of([&] { stepper.step(); }, kSteps));
        }
    }
    start_watchdog(world, options);
    return pairs;
}

// What watching for lost ranks and drifting copies takes of a step.
Lines measure_watching(Communicator& world, const StepBench& size, Stepper& stepper) {
    const Pairs watched = time_with_watchdog(world, size, stepper);
    // What every operation between ranks leaves in a log, which nothing turns off: far less than two steps differ by.
    CollectiveLog& log = CollectiveLog::instance();
    const auto operations = [&] { return log.records().back().index; };
    const std::int64_t before = operations();
    stepper.step();
    const auto per_step = static_cast<double>(operations() - before);
    // In a log of its own: the process's is what a report would show.
    const auto scratch = std::make_unique<CollectiveLog>();
    CollectiveRecord record;
    record.group = scratch->add_group({"bench", {0, 1}});
    std::int64_t sequence = 0;
    const double one = seconds_of([&] { scratch->end(scratch->begin(record, &sequence)); }, 200000);

    constexpr double kInterval = 100.0;  // steps between comparisons
    const Pairs compared = time_pairs(
        "comparing copies", world, size, [&] { stepper.model().replica_drift(); },
        [&] { stepper.step(); });
    std::vector<double> added = ratios_of(watched.with, watched.without);
    for (double& ratio : added) ratio -= 1.0;
    const double step = median(watched.without);
    return {{"watchdog, what it adds to a step",
             1e3 * step * median(added),
             "ms",
             {share_of_rounds(added, "of the step without", 0.01, true)}},
            {concat("recording ", per_step, " operations, a step"),
             1e3 * per_step * one,
             "ms",
             {{per_step * one / step, "of that step", 0.01, true}}},
            {"comparing the ranks' copies",
             1e3 * median(compared.with),
             "ms",
             {share_of_rounds(ratios_of(compared.with, compared.without), "of 100 steps", 0.01,
                              true, 1.0 / kInterval)}}};
}

// A step's time and memory with sequence parallelism against without.
Lines measure_sequence_parallel(Communicator& world, const StepBench& size) {
    // Bytes that a step takes beside what is held before and after it.
    const auto bytes_of_step = [](Stepper& stepper) {
        const std::size_t before = Buffer::live_bytes(Device::kCpu);
        Buffer::reset_peak(Device::kCpu);
        stepper.step();
        return static_cast<double>(Buffer::peak_bytes(Device::kCpu) - before);
    };
    const ProcessGrid whole(world, {.tensor_parallel = 2});
    const ProcessGrid cut(world, {.tensor_parallel = 2, .sequence_parallel = true});
    Stepper without(whole, size), with(cut, size);
    const double bytes = bytes_of_step(with), bytes_without = bytes_of_step(without);
    const Pairs pairs = time_pairs(
        "sequence parallel", world, size, [&] { with.step(); }, [&] { without.step(); });
    return {{"sequence parallel, step",
             1e3 * median(pairs.with),
             "ms",
             {share_of_rounds(ratios_of(pairs.with, pairs.without), "of the time without")}},
            {"sequence parallel, memory of a step",
             bytes / (1 << 20),
             "MiB",
             {{bytes / bytes_without, "of that without"}}}};
}

// Two data-parallel ranks whose optimizer's state is cut against two that have all of it.
Lines measure_zero_stage(Communicator& world, const StepBench& size) {
    struct Copy {
        std::unique_ptr<ProcessGrid> grid;
        std::unique_ptr<Stepper> stepper;
        double bytes = 0.0, planned = 0.0;  // at the peak of a step
    };
    const auto make = [&](std::int64_t stage) {
        Copy made;
        const std::size_t before = Buffer::live_bytes(Device::kCpu);
        Buffer::reset_peak(Device::kCpu);
        made.grid = std::make_unique<ProcessGrid>(
            world, ParallelConfig{.tensor_parallel = 1, .zero_stage = stage});
        made.stepper = std::make_unique<Stepper>(*made.grid, size);
        made.stepper->step();
        made.bytes = static_cast<double>(Buffer::peak_bytes(Device::kCpu) - before);
        const StepShape shape{.data_parallel = world.size(),
                              .zero_stage = stage,
                              .micro_batch_size = size.batch,
                              .seq_len = size.tokens};
        made.planned = static_cast<double>(plan_memory(model_of(size), shape).peak());
        return made;
    };
    const Copy whole = make(0), cut = make(1);
    const Pairs pairs = time_pairs(
        "zero_stage", world, size, [&] { cut.stepper->step(); }, [&] { whole.stepper->step(); });
    return {{"zero_stage 1, step of 2 data-parallel ranks",
             1e3 * median(pairs.with),
             "ms",
             {share_of_rounds(ratios_of(pairs.with, pairs.without), "of the time of 0")}},
            {"zero_stage 0, memory at its peak",
             whole.bytes / (1 << 20),
             "MiB",
             {{whole.bytes / whole.planned, "of the formula", 1.05, true}}},
            {"zero_stage 1, memory at its peak",
             cut.bytes / (1 << 20),
             "MiB",
             {{cut.bytes / cut.planned, "of the formula", 1.05, true},
              {cut.bytes / whole.bytes, "of that of 0"}}}};
}

}  // namespace

Lines measure_ranks(Communicator& world, const StepBench& size) {
    EVENKEEL_CHECK_CODE(world.size() == 2, ErrorCode::kConfig, "bench", "ranks: got ", world.size(),
                        " ranks, want 2; start: mpirun -np 2 --bind-to none evenkeel bench");
    EVENKEEL_CHECK_CODE(allowed_cores().size() != 1, ErrorCode::kConfig, "bench",
                        "ranks: this rank may use one core only, want two; start: mpirun -np 2 "
                        "--bind-to none evenkeel bench");
    Lines lines;
    const auto append = [&](const Lines& more) {
        lines.insert(lines.end(), more.begin(), more.end());
    };
    {
        const ProcessGrid grid(world, {.tensor_parallel = 2});
        Stepper two(grid, size);
        append(measure_two_against_one(world, size, two));
        append(measure_watching(world, size, two));
    }
    append(measure_sequence_parallel(world, size));
    append(measure_zero_stage(world, size));
    return world.rank() == 0 ? lines : Lines{};
}

}  // namespace evenkeel::bench
