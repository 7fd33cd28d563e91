#include "scaling/measure_collectives.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "framework/error.h"
#include "framework/stream.h"

namespace evenkeel::scaling {
namespace {

constexpr const char* kOp = "scale measure";
constexpr std::int64_t kElement = 4;  // bytes of fp32
constexpr int kWarmUps = 3;

// Small whole numbers: sums over up to a million ranks are exact in fp32.
float value_of(int rank, std::int64_t index) {
    return static_cast<float>((index * 7 + rank * 5 + index / 1024) % 17);
}

// One operation on tensors of its own: of `count` elements a rank, `whole` of the vector.
class Collective {
  public:
    Collective(Communicator& group, Operation operation, std::int64_t count)
        : group_(group), operation_(operation), count_(count) {
        const std::int64_t p = group.size();
        const bool scatters = operation == Operation::kReduceScatter;
        const bool gathers = operation == Operation::kAllGather;
        const Shape part = {count}, all = {p, count};
        input_ = Tensor::zeros(gathers ? part : all, DType::kFloat32, group.device());
        if (scatters || gathers) {
            output_ = Tensor::zeros(scatters ? part : all, DType::kFloat32, group.device());
        }
        want_ = Tensor::zeros(scatters ? part : all, DType::kFloat32);
        set_want();
    }

    void run() const {
        switch (operation_) {
            case Operation::kAllReduce:
                return group_.all_reduce(input_, ReduceOp::kSum);
            case Operation::kReduceScatter:
                return group_.reduce_scatter(input_, output_);
            case Operation::kAllGather:
                return group_.all_gather(input_, output_);
            case Operation::kBroadcast:
                return group_.broadcast(input_, kRoot);
        }
    }

    // Runs it once on known numbers; elements of this rank that are not what they should be.
    std::int64_t wrong() const {
        const Tensor start = Tensor::zeros(input_.shape(), DType::kFloat32);
        const bool empty = operation_ == Operation::kBroadcast && group_.rank() != kRoot;
        float* x = start.data<float>();
        for (std::int64_t i = 0; i < start.numel(); ++i) {
            x[i] = empty ? -1.0f : value_of(group_.rank(), i);
        }
        input_.copy_from(start);
        if (output_.defined()) output_.fill(-1.0f);
        run();
        const Tensor result = (output_.defined() ? output_ : input_).to(Device::kCpu);
        const float *got = result.data<float>(), *want = want_.data<float>();
        std::int64_t count = 0;
        for (std::int64_t i = 0; i < result.numel(); ++i) count += !(got[i] == want[i]);
        input_.zero();  // sums of sums would grow without end
        return count;
    }

    // Seconds of one of `calls` calls in a row, on this rank.
    double seconds_of(std::int64_t calls) const {
        using Clock = std::chrono::steady_clock;
        const bool on_gpu = group_.device() == Device::kCuda;
        if (on_gpu) Stream::current().synchronize();
        group_.barrier();
        const Clock::time_point start = Clock::now();
        for (std::int64_t i = 0; i < calls; ++i) run();
        if (on_gpu) Stream::current().synchronize();
        const std::chrono::duration<double> taken = Clock::now() - start;
        return taken.count() / static_cast<double>(calls);
    }

  private:
    static constexpr int kRoot = 0;

    void set_want() const {
        const int p = group_.size();
        const std::int64_t first =
            operation_ == Operation::kReduceScatter ? group_.rank() * count_ : 0;
        float* want = want_.data<float>();
        for (std::int64_t i = 0; i < want_.numel(); ++i) {
            if (operation_ == Operation::kAllGather) {
                want[i] = value_of(static_cast<int>(i / count_), i % count_);
            } else if (operation_ == Operation::kBroadcast) {
                want[i] = value_of(kRoot, i);
            } else {
                for (int r = 0; r < p; ++r) want[i] += value_of(r, first + i);
            }
        }
    }

    Communicator& group_;
    Operation operation_;
    std::int64_t count_;
    Tensor input_, output_, want_;
};

double quantile(const std::vector<double>& sorted, double share) {
    const double at = share * static_cast<double>(sorted.size() - 1);
    const auto low = static_cast<std::size_t>(at);
    const std::size_t high = std::min(low + 1, sorted.size() - 1);
    const double part = at - static_cast<double>(low);
    return (1.0 - part) * sorted[low] + part * sorted[high];
}

Measurement measure(Communicator& group,
                    Operation operation,
                    std::int64_t bytes,
                    Communicator& world,
                    const MeasureSettings& settings) {
    const std::int64_t p = group.size();
    const std::int64_t count = (bytes + kElement * p - 1) / (kElement * p);
    const Collective collective(group, operation, count);
    Measurement result;
    result.operation = operation;
    result.bytes = count * p * kElement;
    const auto slowest = [&](std::int64_t calls) {
        return world.all_reduce_scalar(collective.seconds_of(calls), ReduceOp::kMax);
    };
    auto wrong = static_cast<double>(collective.wrong());
    double once = slowest(kWarmUps);
    once = std::min(once, slowest(kWarmUps));
    constexpr double kMostCalls = 1000.0;
    const auto calls =
        static_cast<std::int64_t>(std::clamp(settings.seconds / once, 1.0, kMostCalls));
    std::vector<double> rounds;
    for (int round = 0; round < settings.rounds; ++round) rounds.push_back(slowest(calls));
    wrong += static_cast<double>(collective.wrong());
    result.wrong = static_cast<std::int64_t>(world.all_reduce_scalar(wrong, ReduceOp::kSum));
    std::sort(rounds.begin(), rounds.end());
    result.seconds = quantile(rounds, 0.5);
    result.low = quantile(rounds, 0.25), result.high = quantile(rounds, 0.75);
    result.algorithm_bandwidth = static_cast<double>(result.bytes) / result.seconds;
    result.bus_bandwidth = result.algorithm_bandwidth * bus_factor(operation, p);
    return result;
}

// Where it lies; nothing if its ranks, or the groups, are not alike.
std::optional<Group> place_of(Communicator& group, Communicator& world) {
    Communicator& host = group.host();
    const int here = host.on_node().size, size = group.size();
    // The same on all ranks, or uneven.
    const auto most = static_cast<std::int64_t>(world.all_reduce_scalar(here, ReduceOp::kMax));
    const auto least = -static_cast<std::int64_t>(world.all_reduce_scalar(-here, ReduceOp::kMax));
    if (most != least || size % most != 0) return std::nullopt;
    return Group{most, size / most};
}

template <typename Predict>
FitError error_of_points(const std::vector<TimedCollective>& points, const Predict& predict) {
    if (points.empty()) return {};
    std::vector<double> errors;
    for (const TimedCollective& point : points) {
        errors.push_back(std::abs(predict(point) / point.seconds - 1.0));
    }
    std::sort(errors.begin(), errors.end());
    return {quantile(errors, 0.5), errors.back()};
}

}  // namespace

void MeasureSettings::validate() const {
    const auto want = [](bool good, const char* option, const auto& got, const char* wanted) {
        EVENKEEL_CHECK_CODE(good, ErrorCode::kConfig, kOp, option, ": got ", got, ", want ",
                            wanted);
    };
    constexpr std::int64_t kMost = std::int64_t{1} << 34;
    want(from >= kElement && from <= kMost, "--from", from, "4 to 2^34 bytes");
    want(to >= from && to <= kMost, "--to", to, "--from or more, up to 2^34 bytes");
    want(rounds >= 1 && rounds <= 100000, "--rounds", rounds, "1 to 100000");
    want(seconds > 0.0 && seconds <= 60.0, "--seconds", seconds, "more than 0, up to 60");
}

double bus_factor(Operation operation, std::int64_t ranks) {
    const auto p = static_cast<double>(ranks);
    switch (operation) {
        case Operation::kAllReduce:
            return 2.0 * (p - 1.0) / p;
        case Operation::kReduceScatter:
        case Operation::kAllGather:
            return (p - 1.0) / p;
        case Operation::kBroadcast:
            return 1.0;
    }
    return 1.0;
}

std::vector<TimedCollective> Series::points(bool held_out) const {
    std::vector<TimedCollective> result;
    for (const Measurement& m : sizes) {
        if (m.held_out != held_out) continue;
        result.push_back({m.operation, place, static_cast<double>(m.bytes), m.seconds});
    }
    return result;
}

std::vector<Series> measure_collectives(Communicator& group,
                                        const std::string& name,
                                        Communicator& world,
                                        const MeasureSettings& settings) {
    settings.validate();
    std::vector<Series> result;
    if (group.size() < 2) return result;
    const std::optional<Group> place = place_of(group, world);
    for (const Operation operation : kOperations) {
        Series series{name, place.value_or(Group{group.size(), 1}), place.has_value(), {}};
        for (std::int64_t bytes = settings.from; bytes <= settings.to; bytes *= 2) {
            series.sizes.push_back(measure(group, operation, bytes, world, settings));
        }
        constexpr std::size_t kEvery = 3, kFirst = 2, kEnd = 2;
        for (std::size_t i = kFirst; i + kEnd < series.sizes.size(); i += kEvery) {
            series.sizes[i].held_out = true;
        }
        result.push_back(std::move(series));
    }
    return result;
}

FitError error_of(const AlphaBeta& fit, const std::vector<TimedCollective>& points) {
    return error_of_points(points, [&](const TimedCollective& p) {
        return predicted_seconds(fit, p.operation, p.group, p.bytes);
    });
}

FitError error_of(const Network& network, const std::vector<TimedCollective>& points) {
    return error_of_points(points, [&](const TimedCollective& p) {
        return collective_seconds(network, p.operation, p.group, p.bytes);
    });
}

}  // namespace evenkeel::scaling
