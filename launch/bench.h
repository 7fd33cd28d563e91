// What the measurements of `evenkeel bench` share. A machine's speed drifts, so everything that is
// divided by one another is timed in turn, round by round, and the median of the rounds' ratios is
// shown.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "framework/tensor.h"
#include "model/model_config.h"
#include "parallel/communicator.h"

namespace evenkeel::bench {

struct Share {
    double ratio = 0.0;
    std::string of;     // "of bf16 GEMM"
    double goal = 0.0;  // 0: none
    bool at_most = false;
    // The middle half of so many rounds' ratios; rounds 0: not told.
    double low = 0.0, high = 0.0;
    int rounds = 0;
};

struct Line {
    std::string name;
    double value = 0.0;
    std::string unit;  // "GFLOP/s", "GB/s", "ms", "MiB"
    std::vector<Share> shares;
    // The fastest round's value, where `value` is the median round's; 0: not told.
    double best = 0.0;
};
using Lines = std::vector<Line>;

using Body = std::function<void()>;
using Times = std::vector<std::vector<double>>;  // seconds of one call, [body][round]

// Counts rounds: so many, but no more once `seconds` have gone by and there are three, or one after twice the time.
// Every two seconds next() says how far it is, on standard error unless told otherwise.
class Rounds {
  public:
    // With `world`, its rank 0 decides for all, and next() is collective.
    Rounds(std::string what,
           int wanted,
           double seconds,
           Communicator* world = nullptr,
           std::ostream* progress = nullptr);
    bool next();
    int number() const { return done_; }  // of the round under way, from 1

  private:
    const std::string what_;
    const int wanted_;
    const double seconds_;
    Communicator* const world_;
    std::ostream* const progress_;
    const double start_;
    double last_line_;
    int done_ = 0;
};

// Seconds of one of `calls` calls in a row, by the clock on the wall.
double seconds_of(const Body& body, int calls);
// Each body runs once unmeasured, then in every round as often as fills `seconds` by that timer. Fewer rounds than
// wanted where these take longer than some seconds: see Rounds.
Times time_in_turn(const std::string& what,
                   const std::vector<Body>& bodies,
                   int wanted,
                   double seconds = 0.05,
                   double (*timer)(const Body&, int) = seconds_of);
double median(std::vector<double> values);
// a / b of each round.
std::vector<double> ratios_of(const std::vector<double>& a, const std::vector<double>& b);
// Median over rounds of a / b.
double median_ratio(const std::vector<double>& a, const std::vector<double>& b);
// The median of the rounds' ratios and their middle half, all times `factor`.
Share share_of_rounds(std::vector<double> ratios,
                      const std::string& of,
                      double goal = 0.0,
                      bool at_most = false,
                      double factor = 1.0);

// While it lives each OpenMP thread of this one stays on one core, unless OMP_PROC_BIND says something or there are more
// threads than cores.
class PinnedThreads {
  public:
    PinnedThreads();
    ~PinnedThreads();
    PinnedThreads(const PinnedThreads&) = delete;
    PinnedThreads& operator=(const PinnedThreads&) = delete;

  private:
    std::vector<int> cores_;  // empty: nothing is pinned
};

// Peak resident memory of this process in bytes, since the last reset, which also gives unused memory back.
double peak_resident_bytes();
void reset_peak_resident();

// Normal numbers, the first thousand repeated: only the time counts.
Tensor random_tensor(const Shape& shape, DType dtype, std::string_view name);

// `from` to `to`, of equal size, by all threads.
void copy_bytes(const Tensor& from, const Tensor& to);

// A square product of the machine's matrix library, the yardstick: oneDNN called directly, bf16 or
// fp32.
class YardstickGemm {
  public:
    explicit YardstickGemm(bool bf16);
    ~YardstickGemm();
    void run() const;
    double flops() const;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

// Whole steps of a model.
struct StepBench {
    std::int64_t width = 512, layers = 8, tokens = 1024, batch = 2;
    int rounds = 7;
    double seconds = 12.0;  // after which no round begins: see Rounds
};
// A few milliseconds of copying, a fraction of a second of writing: some steps.
constexpr StepBench kCheckpointBench{256, 2, 512, 8, 9, 25.0};
constexpr StepBench kRanksBench{512, 4, 1024, 1, 7, 10.0};
constexpr StepBench kRecomputeBench{512, 4, 1024, 1, 7, 12.0};

constexpr StepBench kOpsBench{512, 8, 1024, 2, 9, 20.0};
constexpr StepBench kGrowthBench{256, 2, 512, 1, 7, 12.0};

Lines measure_gemm();
Lines measure_attention();
Lines measure_norm();
Lines measure_memory();
Lines measure_step(const StepBench& size = {});
// Each operation of that step: its part of the step's time, and how near it is to the machine's products or copies.
Lines measure_ops(const StepBench& size = kOpsBench);
// Time of a step by the number of sequences, and of attention by their length.
Lines measure_growth(const StepBench& size = kGrowthBench);
// Time and memory of a step with each ModelConfig::recompute.
Lines measure_recompute(const StepBench& size = kRecomputeBench);
// What writing checkpoints beside training costs the steps. Writes below the directory for temporary files.
Lines measure_checkpoint(const StepBench& size = kCheckpointBench);
// What telemetry and QK-norm add to a step of training that model; `step` does one.
Lines measure_costs(const ModelConfig& config,
                    std::int64_t batch,
                    std::int64_t tokens,
                    const Body& step);
// What is measured on a GPU.
struct GpuBench {
    std::int64_t tokens = 16384, heads = 32, kv_heads = 8;
    std::vector<std::int64_t> head_dims = {64, 128, 96, 256};
    std::vector<std::int64_t> lengths = {2048, 4096, 8192, 16384};  // of sequences; divide tokens
    int rounds = 15;
    double seconds = 0.01;  // of one body in one round
};
Lines measure_gpu_norm(const GpuBench& size);
Lines measure_gpu_attention(const GpuBench& size);
// `evenkeel bench --device cuda`: measures "norm" and "attention", or only those named.
void run_gpu_bench(const std::vector<std::string>& only,
                   bool json,
                   const GpuBench& size,
                   std::ostream& out);
// Two ranks against one rank with two threads; what the watchdog and the comparison of copies cost; sequence parallelism
// and a cut optimizer against neither, in time and in memory. Collective over two ranks; rank 0 has the result.
Lines measure_ranks(Communicator& world, const StepBench& size = kRanksBench);

}  // namespace evenkeel::bench
