// How time and memory grow with the number of sequences and with their length.
#include <malloc.h>

#include <fstream>

#include "framework/buffer.h"
#include "launch/bench_attention.h"
#include "launch/bench_stepper.h"

namespace evenkeel::bench {

double peak_resident_bytes() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
        if (line.starts_with("VmHWM:")) return 1024.0 * std::stod(line.substr(6));
    }
    return 0.0;
}

void reset_peak_resident() {
    Buffer::release_unused(Device::kCpu);
    malloc_trim(0);
    std::ofstream("/proc/self/clear_refs") << "5";
}

namespace {

// Memory of attention forward and backward, its inputs and outputs among it, over that of the first length, over what it
// would be in proportion to it.
Lines memory_of(const std::string& name,
                const AttentionOptions& options,
                std::initializer_list<std::int64_t> lengths) {
    Lines lines;
    double first = 0.0;
    for (const std::int64_t tokens : lengths) {
        reset_peak_resident();
        const double before = peak_resident_bytes();
        {
            AttentionTensors t({64, tokens, 4, 2, options}, true);
            t.forward();
            t.backward();
        }
        const double used = peak_resident_bytes() - before;
        if (first == 0.0) first = used;
        const auto growth = static_cast<double>(tokens) / static_cast<double>(*lengths.begin());
        lines.push_back({concat(name, ", inputs and outputs, T=", tokens),
                         used / (1 << 20),
                         "MiB",
                         {{used / first / growth, "of growth in proportion to T"}}});
    }
    return lines;
}

}  // namespace

Lines measure_memory() {
    Lines lines = memory_of("attention", {}, {4096, 8192, 16384});
    // All pairs of 131072 take minutes; a window has all of the tensors.
    AttentionOptions window;
    window.mask.window = 1024;
    for (const Line& line : memory_of("attention, window 1024", window, {4096, 32768, 131072})) {
        lines.push_back(line);
    }
    return lines;
}

Lines measure_growth(const StepBench& size) {
    Lines lines;
    const auto world = make_single_communicator();
    const ProcessGrid grid(*world, {});
    constexpr std::int64_t kBatches[] = {1, 2, 4, 8};
    std::vector<std::unique_ptr<Stepper>> steppers;
    std::vector<Body> bodies;
    for (const std::int64_t batch : kBatches) {
        StepBench of_batch = size;
        of_batch.batch = batch;
        steppers.push_back(std::make_unique<Stepper>(grid, of_batch));
        bodies.emplace_back([stepper = steppers.back().get()] { stepper->step(); });
    }
    const Times steps = time_in_turn("growth", bodies, size.rounds, 0.1);
    for (std::size_t i = 0; i < std::size(kBatches); ++i) {
        const auto batch = static_cast<double>(kBatches[i]);
        const double tokens = batch * static_cast<double>(size.tokens);
        lines.push_back(
            {concat("training step, B=", kBatches[i]),
             1e6 * median(steps[i]) / tokens,
             "us/token",
             {share_of_rounds(ratios_of(steps[i], steps[0]), "of B=1", 0.0, false, 1.0 / batch)}});
    }

    constexpr std::int64_t kLengths[] = {1024, 2048, 4096, 8192, 16384};
    std::vector<AttentionTensors> tensors;
    for (const std::int64_t tokens : kLengths) {
        tensors.emplace_back(AttentionCase{64, tokens, 4, 2}, false);
    }
    bodies.clear();
    for (AttentionTensors& t : tensors) bodies.emplace_back([&t] { t.forward(); });
    const Times calls = time_in_turn("growth", bodies, size.rounds, 0.03);
    for (std::size_t i = 0; i < std::size(kLengths); ++i) {
        const auto growth = static_cast<double>(kLengths[i]) / static_cast<double>(kLengths[0]);
        lines.push_back(
            {concat("attention forward, T=", kLengths[i]),
             1e6 * median(calls[i]) / static_cast<double>(kLengths[i]),
             "us/token",
             {share_of_rounds(ratios_of(calls[i], calls[0]), "of growth in proportion to T", 0.0,
                              false, 1.0 / (growth * growth))}});
    }
    return lines;
}

}  // namespace evenkeel::bench
