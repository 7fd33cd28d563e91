// Whole training steps: against matrix products, on two ranks against one, and with sequence parallelism.
#include <omp.h>
#include <sched.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "framework/buffer.h"
#include "framework/optimizer/adamw.h"
#include "framework/rng.h"
#include "framework/training/checkpoint_writer.h"
#include "launch/bench.h"
#include "model/language_model.h"
#include "parallel/collective_log.h"

namespace evenkeel::bench {
namespace {

constexpr std::int64_t kTokens = 1024;
constexpr std::int64_t kBatch = 2;

ModelConfig step_config() {
    ModelConfig config;
    config.num_layers = 8;
    config.width = 512;
    config.feed_forward_width = 1408;
    config.max_seq_len = kTokens;
    config.attention.num_heads = 8;
    config.attention.num_kv_heads = 4;
    config.attention.head_dim = 64;
    return config;
}

Batch random_batch() {
    Batch batch{Tensor::uninitialized({kBatch, kTokens}, DType::kInt32),
                Tensor::uninitialized({kBatch, kTokens}, DType::kInt32),
                {}};
    const CounterRng rng(1, purpose("bench"));
    for (std::int64_t i = 0; i < kBatch * kTokens; ++i) {
        const auto index = static_cast<std::uint64_t>(i);
        batch.tokens.data<std::int32_t>()[i] = static_cast<std::int32_t>(rng.below(index, 256));
        batch.targets.data<std::int32_t>()[i] =
            static_cast<std::int32_t>(rng.below(index + 1, 256));
    }
    return batch;
}

// A model and all that one step of training does to it.
class Stepper {
  public:
    Stepper(const ProcessGrid& grid, const ModelConfig& config)
        : model_(grid, config, 1), batch_(random_batch()) {}

    void step() {
        compute_gradients(model_, {&batch_, 1}, numbers_);
        adamw_step(model_.buckets(), {}, 1e-4, 0.0, numbers_, ++count_);
        model_.finish_update();
        model_.head_metrics();
    }
    std::string drift() { return model_.replica_drift(); }
    LanguageModel& model() { return model_; }
    double flops() const { return kBatch * kTokens * model_.flops_per_token(kTokens); }

  private:
    LanguageModel model_;
    Batch batch_;
    Tensor numbers_ = Tensor::zeros({2}, DType::kFloat64);
    std::int64_t count_ = 0;
};

std::string step_name(const char* what) {
    return concat(what, " (C=512, 8 layers, T=", kTokens, ", B=", kBatch, ")");
}

int cores_of_this_process() {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

double seconds_of_step(Stepper& stepper) {
    const auto start = std::chrono::steady_clock::now();
    stepper.step();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// What watching for lost ranks and drifting copies takes of a step. Both ranks call it.
Lines measure_watching(Stepper& stepper, double step_seconds) {
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
    constexpr double kInterval = 100.0;  // steps
    const double check = seconds_of([&] { stepper.drift(); }, 3);
    return {{concat("recording ", per_step, " operations, a step"),
             1e3 * per_step * one,
             "ms",
             {{per_step * one / step_seconds, "of a step of 2 ranks", 0.01, true}}},
            {"comparing the ranks' copies",
             1e3 * check,
             "ms",
             {{check / (kInterval * step_seconds), "of 100 such steps", 0.01, true}}}};
}

// Bytes that a step takes beside what is held before and after it.
std::size_t bytes_of_step(Stepper& stepper) {
    const std::size_t before = Buffer::live_bytes(Device::kCpu);
    Buffer::reset_peak(Device::kCpu);
    stepper.step();
    return Buffer::peak_bytes(Device::kCpu) - before;
}

// Steps with sequence parallelism against steps without, one after the other.
Lines measure_sequence_parallel(Communicator& world) {
    constexpr int kPairs = 12;
    const ProcessGrid whole(world, {.tensor_parallel = 2});
    const ProcessGrid cut(world, {.tensor_parallel = 2, .sequence_parallel = true});
    Stepper without(whole, step_config()), with(cut, step_config());
    const auto bytes = static_cast<double>(bytes_of_step(with)),
               bytes_without = static_cast<double>(bytes_of_step(without));
    std::vector<double> times, times_without;
    for (int pair = 0; pair < kPairs; ++pair) {
        const bool with_first = pair % 2 == 0;
        const double first = seconds_of_step(with_first ? with : without);
        const double second = seconds_of_step(with_first ? without : with);
        times.push_back(with_first ? first : second);
        times_without.push_back(with_first ? second : first);
    }
    return {{"sequence parallel, step",
             1e3 * median(times),
             "ms",
             {{median_ratio(times, times_without), "of the time without"}}},
            {"sequence parallel, memory of a step",
             bytes / (1 << 20),
             "MiB",
             {{bytes / bytes_without, "of that without"}}}};
}

}  // namespace

Lines measure_step() {
    const auto world = make_single_communicator();
    const ProcessGrid grid(*world, {});
    const ModelConfig config = step_config();
    Stepper full(grid, config);
    const YardstickGemm bf16(true), fp32(false);
    const auto times =
        time_in_turn({[&] { full.step(); }, [&] { bf16.run(); }, [&] { fp32.run(); }}, 7, 0.2);
    const double flops = full.flops();
    Lines lines = {
        {step_name("training step"),
         flops / median(times[0]) / 1e9,
         "GFLOP/s",
         {{flops / bf16.flops() * median_ratio(times[1], times[0]), "of bf16 GEMM", 0.50},
          {flops / fp32.flops() * median_ratio(times[2], times[0]), "of fp32 GEMM"}}}};
    for (const Line& cost : measure_costs(config, kBatch, kTokens, [&] { full.step(); }))
        lines.push_back(cost);
    return lines;
}

Lines measure_recompute() {
    const auto world = make_single_communicator();
    const ProcessGrid grid(*world, {});
    struct Mode {
        const char* name;
        Recompute recompute;
    };
    constexpr Mode kModes[] = {{"none", Recompute::kNone},
                               {"attention", Recompute::kAttention},
                               {"full", Recompute::kFull}};
    std::vector<std::unique_ptr<Stepper>> steppers;
    std::vector<Body> bodies;
    std::vector<double> peaks, flops;
    for (const Mode& mode : kModes) {
        ModelConfig config = step_config();
        config.recompute = mode.recompute;
        const std::size_t before = Buffer::live_bytes(Device::kCpu);
        steppers.push_back(std::make_unique<Stepper>(grid, config));
        Buffer::reset_peak(Device::kCpu);
        steppers.back()->step();
        peaks.push_back(static_cast<double>(Buffer::peak_bytes(Device::kCpu) - before));
        bodies.emplace_back([stepper = steppers.back().get()] { stepper->step(); });
        flops.push_back(flops_per_token(config, kTokens) +
                        recomputed_flops_per_token(config, kTokens));
    }
    const Times times = time_in_turn(bodies, 7, 0.2);
    Lines lines;
    for (std::size_t i = 0; i < std::size(kModes); ++i) {
        const std::string name = concat("recompute ", kModes[i].name);
        Line time{step_name(name.c_str()), 1e3 * median(times[i]), "ms", {}};
        Line memory{concat("  its peak of memory"), peaks[i] / (1 << 20), "MiB", {}};
        if (i > 0) {
            time.shares = {{median_ratio(times[i], times[0]), "of the time of none"},
                           {flops[i] / flops[0], "of its hardware FLOPs"}};
            memory.shares = {{peaks[i] / peaks[0], "of the memory of none"}};
        }
        lines.push_back(time);
        lines.push_back(memory);
    }
    return lines;
}

// Steps in turn: as many without a checkpoint as it takes to write one beside them, then these. Copying the state
// belongs to the first of these.
Lines measure_checkpoint() {
    constexpr int kRounds = 9;
    const auto world = make_single_communicator();
    const ProcessGrid grid(*world, {});
    Stepper stepper(grid, step_config());
    const std::string directory =
        (std::filesystem::temp_directory_path() / concat("evenkeel_bench_", ::getpid())).string();
    std::vector<double> added, ratios, copies, steps_beside;
    try {
        CheckpointWriter writer(stepper.model(), CheckpointStore(directory, 1), true);
        stepper.step();
        int beside = 1;
        for (int round = 0; round <= kRounds; ++round) {
            double without = 0.0, with = 0.0;
            for (int i = 0; i < beside; ++i) without += seconds_of_step(stepper);
            const double copy = seconds_of([&] { writer.start(round, "{}"); }, 1);
            with = copy;
            int steps = 0;
            for (; steps < beside || writer.pending(); ++steps) {
                with += seconds_of_step(stepper);
                with += seconds_of([&] { writer.poll(); }, 1);
            }
            without *= static_cast<double>(steps) / beside;
            beside = steps;
            if (round == 0) continue;  // makes the memory of the copies
            added.push_back(with - without);
            ratios.push_back(with / without - 1.0);
            copies.push_back(copy);
            steps_beside.push_back(steps);
        }
    } catch (...) {
        std::filesystem::remove_all(directory);
        throw;
    }
    std::filesystem::remove_all(directory);
    double bytes = 0.0;
    for (const StateShard& shard : stepper.model().state().shards) {
        for (const TensorPiece& piece : shard.pieces) bytes += piece.data.bytes();
    }
    return {{"checkpoint beside training steps, copying", 1e3 * median(copies), "ms", {}},
            {"its size", bytes / (1 << 20), "MiB", {}},
            {"steps beside which it is written", median(steps_beside), "steps", {}},
            {step_name("what it adds to all of these"),
             1e3 * median(added),
             "ms",
             {{median(ratios), "of these steps", 0.03, true}}}};
}

Lines measure_ranks(Communicator& world) {
    EVENKEEL_CHECK_CODE(world.size() == 2, ErrorCode::kConfig, "bench", "ranks: got ", world.size(),
                        " ranks, want 2; start: mpirun -np 2 --bind-to none evenkeel bench");
    EVENKEEL_CHECK_CODE(cores_of_this_process() >= 2, ErrorCode::kConfig, "bench",
                        "ranks: this rank may use one core only, want two; start: mpirun -np 2 "
                        "--bind-to none evenkeel bench");
    constexpr int kRounds = 4;
    constexpr int kSteps = 3;
    const bool measures = world.rank() == 0;
    const auto single = make_single_communicator();
    const ProcessGrid one_rank(*single, {});
    ParallelConfig parallel;
    parallel.tensor_parallel = 2;
    const ProcessGrid two_ranks(world, parallel);
    Stepper two(two_ranks, step_config());
    std::unique_ptr<Stepper> one;
    if (measures) one = std::make_unique<Stepper>(one_rank, step_config());

    std::vector<double> one_times, two_times;
    double one_seconds = 10.0;  // how long the other rank sleeps; a guess before the first round
    for (int round = 0; round <= kRounds; ++round) {
        const bool counts = round > 0;  // the first round warms up
        world.barrier();
        const auto start = std::chrono::steady_clock::now();
        if (measures) {
            omp_set_num_threads(2);
            std::vector<double> times;
            for (int i = 0; i < kSteps; ++i) times.push_back(seconds_of_step(*one));
            if (counts) one_times.push_back(median(times));
        } else {
            // Waiting in a barrier would take the core that rank 0's second thread needs.
            std::this_thread::sleep_for(std::chrono::duration<double>(one_seconds));
        }
        const double took =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        one_seconds = world.all_reduce_scalar(measures ? took : 0.0, ReduceOp::kMax);
        omp_set_num_threads(1);
        std::vector<double> times;
        for (int i = 0; i < kSteps; ++i) times.push_back(seconds_of_step(two));
        if (counts) two_times.push_back(median(times));
    }
    const double seconds = median(two_times);
    const Lines watching = measure_watching(two, seconds);
    const Lines cut = measure_sequence_parallel(world);
    if (!measures) return {};
    Lines lines{
        {step_name("1 rank x 2 threads, step"), 1e3 * median(one_times), "ms", {}},
        {step_name("2 ranks x 1 thread, step"),
         1e3 * seconds,
         "ms",
         {{median_ratio(one_times, two_times), "of the speed of 1 rank x 2 threads", 0.90}}}};
    lines.insert(lines.end(), watching.begin(), watching.end());
    lines.insert(lines.end(), cut.begin(), cut.end());
    return lines;
}

}  // namespace evenkeel::bench
