// What an asynchronous checkpoint adds to the steps beside which it is written. Rounds of a window of steps without a
// checkpoint and one with, in alternating order. The second begins with the copy of the state, for which its first step
// waits, and ends with the step at whose end the checkpoint is there.
//
// A thread of the lowest priority writes: it gets what the steps leave of the cores, so that on a machine whose cores are
// all taken a checkpoint takes long, and each step loses little. What it takes is in proportion to the parameters, what
// a step takes to parameters times tokens: the more tokens a step has, the smaller the share.
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "framework/training/checkpoint_writer.h"
#include "launch/bench_stepper.h"

namespace evenkeel::bench {
namespace {

class ScratchDirectory {
  public:
    ScratchDirectory()
        : path_((std::filesystem::temp_directory_path() / concat("evenkeel_bench_", ::getpid()))
                    .string()) {}
    ~ScratchDirectory() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    const std::string& path() const { return path_; }

  private:
    const std::string path_;
};

double total(const std::vector<double>& values) {
    double sum = 0.0;
    for (const double value : values) sum += value;
    return sum;
}

// The steps beside which one checkpoint is written.
struct Window {
    double copy = 0.0;  // seconds
    std::vector<double> steps;
    bool is_whole = true;  // it was written in these steps
};

Window steps_beside_checkpoint(Stepper& stepper, CheckpointWriter& writer, int number) {
    constexpr std::size_t kMost = 12;
    Window window;
    window.copy = seconds_of([&] { writer.start(number, "{}"); }, 1);
    while (writer.pending() && window.steps.size() < kMost) {
        window.steps.push_back(seconds_of(
            [&] {
                stepper.step();
                writer.poll();
            },
            1));
    }
    window.is_whole = !writer.pending();
    writer.finish();
    EVENKEEL_CHECK_CODE(writer.failure().empty(), ErrorCode::kIo, "bench",
                        "checkpoint: ", writer.failure());
    return window;
}

double bytes_of(const ModelState& state) {
    double bytes = 0.0;
    for (const StateShard& shard : state.shards) {
        for (const TensorPiece& piece : shard.pieces) {
            bytes += static_cast<double>(piece.data.bytes());
        }
    }
    return bytes;
}

}  // namespace

Lines measure_checkpoint(const StepBench& size) {
    const auto world = make_single_communicator();
    const ProcessGrid grid(*world, {});
    Stepper stepper(grid, size);
    const ScratchDirectory directory;
    CheckpointWriter at_once(stepper.model(), CheckpointStore(directory.path() + "/a", 1), false);
    CheckpointWriter writer(stepper.model(), CheckpointStore(directory.path() + "/b", 1), true);
    Rounds rounds("checkpoint", size.rounds, size.seconds);
    stepper.step();
    // Makes the memory of the copies, and is a first guess of the steps that a window needs.
    std::size_t count = steps_beside_checkpoint(stepper, writer, 0).steps.size();

    std::vector<double> copies, alone, plain_steps, counts, added, ratios, firsts;
    int unfinished = 0;
    while (rounds.next()) {
        const int round = rounds.number();
        std::vector<double> without;
        Window with;
        for (const bool second : {false, true}) {
            if (second == (round % 2 == 0)) {
                without.clear();
                for (std::size_t i = 0; i < std::max<std::size_t>(count, 2); ++i) {
                    without.push_back(stepper.seconds_of_step());
                }
            } else {
                with = steps_beside_checkpoint(stepper, writer, round);
            }
        }
        count = with.steps.size();
        alone.push_back(seconds_of([&] { at_once.start(round, "{}"); }, 1));
        const double plain = total(without) / static_cast<double>(without.size());
        const auto steps = static_cast<double>(with.steps.size());
        const double seconds = with.copy + total(with.steps);
        copies.push_back(with.copy);
        plain_steps.push_back(plain);
        counts.push_back(steps);
        added.push_back(seconds - steps * plain);
        ratios.push_back(seconds / (steps * plain) - 1.0);
        firsts.push_back((with.copy + with.steps.front()) / plain - 1.0);
        unfinished += with.is_whole ? 0 : 1;
    }
    const double step = median(plain_steps);
    constexpr double kInterval = 100.0;  // steps between checkpoints, for the share of them all
    std::vector<double> of_interval;
    for (std::size_t i = 0; i < added.size(); ++i) {
        of_interval.push_back(added[i] / (kInterval * plain_steps[i]));
    }
    Lines lines = {
        {name_of(size, "step without a checkpoint"), 1e3 * step, "ms", {}},
        {"checkpoint, its size", bytes_of(stepper.model().state()) / (1 << 20), "MiB", {}},
        {"  copying, for which a step waits",
         1e3 * median(copies),
         "ms",
         {share_of_rounds(ratios_of(copies, plain_steps), "of that step")}},
        {"  writing with nothing beside",
         1e3 * median(alone),
         "ms",
         {share_of_rounds(ratios_of(alone, plain_steps), "of that step")}},
        {"steps beside which it is written", median(counts), "steps", {}},
        {"what it adds to each of these",
         1e3 * step * median(ratios),
         "ms",
         {share_of_rounds(ratios, "of the step", 0.03, true)}},
        {"what it adds to the first of these",
         1e3 * step * median(firsts),
         "ms",
         {share_of_rounds(firsts, "of the step")}},
        {"what it adds to all of these",
         1e3 * median(added),
         "ms",
         {share_of_rounds(of_interval, "of 100 steps")}}};
    if (unfinished > 0) {
        lines.push_back(
            {"rounds in which it took more steps", static_cast<double>(unfinished), "rounds", {}});
    }
    return lines;
}

}  // namespace evenkeel::bench
