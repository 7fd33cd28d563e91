// evenkeel scale point: steps of training that are timed, on the ranks that scale run starts.
#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include "framework/buffer.h"
#include "framework/json.h"
#include "framework/log.h"
#include "framework/storage/checkpoint.h"
#include "framework/stream.h"
#include "framework/training/training_step.h"
#include "launch/memory_advice.h"
#include "launch/scale/command.h"
#include "launch/scale/run/energy.h"
#include "launch/scale/run/rates.h"
#include "parallel/cores.h"
#include "parallel/watchdog.h"

namespace evenkeel {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kGroups[] = {"tensor", "data", "kv_replicas"};
constexpr std::size_t kParts = 3 * kCollectives;

struct Quartiles {
    double low = 0.0, median = 0.0, high = 0.0;
};
Quartiles quartiles_of(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const auto at = [&](double share) {
        const double place = share * static_cast<double>(values.size() - 1);
        const auto below = static_cast<std::size_t>(place);
        const std::size_t above = std::min(below + 1, values.size() - 1);
        return values[below] +
               (place - static_cast<double>(below)) * (values[above] - values[below]);
    };
    return {at(0.25), at(0.5), at(0.75)};
}

// What a step took: seconds of the slowest rank, and exposed and hidden seconds of each group's operations, means over the
// ranks.
struct StepNumbers {
    double loss = 0.0, seconds = 0.0;
    std::vector<double> parts;  // exposed and hidden, [group][collective][2]
};

StepNumbers over_ranks(const StepOutcome& outcome, Communicator& world) {
    StepNumbers numbers;
    numbers.loss = outcome.loss;
    numbers.seconds = world.all_reduce_scalar(outcome.seconds, ReduceOp::kMax);
    const Tensor parts = Tensor::zeros({2 * kParts}, DType::kFloat64);
    auto* const data = parts.data<double>();
    for (const CommunicationPart& part : outcome.communication) {
        for (std::size_t group = 0; group < std::size(kGroups); ++group) {
            if (part.group != kGroups[group]) continue;
            for (std::size_t i = 0; i < kCollectives; ++i) {
                if (part.operation != name_of(static_cast<Collective>(i))) continue;
                data[2 * (group * kCollectives + i)] += part.exposed;
                data[2 * (group * kCollectives + i) + 1] += part.hidden;
            }
        }
    }
    world.all_reduce(parts, ReduceOp::kMean);
    numbers.parts.assign(data, data + 2 * kParts);
    return numbers;
}

double median_of(const std::vector<StepNumbers>& steps, std::size_t part) {
    std::vector<double> values;
    for (const StepNumbers& step : steps) values.push_back(step.parts[part]);
    return quartiles_of(values).median;
}

Json communication_of(const std::vector<StepNumbers>& timed) {
    Json all = Json::array();
    for (std::size_t group = 0; group < std::size(kGroups); ++group) {
        for (std::size_t i = 0; i < kCollectives; ++i) {
            const std::size_t part = group * kCollectives + i;
            const double exposed = median_of(timed, 2 * part),
                         hidden = median_of(timed, 2 * part + 1);
            if (exposed == 0.0 && hidden == 0.0) continue;
            all.push_back({{"group", kGroups[group]},
                           {"operation", name_of(static_cast<Collective>(i))},
                           {"exposed_seconds", exposed},
                           {"hidden_seconds", hidden}});
        }
    }
    return all;
}

Json rates_json(const scale::Rates& rates) {
    return {{"yardstick_flops", rates.yardstick_flops},
            {"product_flops", rates.product_flops},
            {"attention_forward_flops", rates.attention_forward_flops},
            {"attention_backward_flops", rates.attention_backward_flops},
            {"memory_bytes", rates.memory_bytes}};
}

// Where the ranks are.
struct Place {
    int nodes = 1, on_node = 1;
    bool first_of_node = true, oversubscribed = false;
};
Place place_of(Communicator& world) {
    const Communicator::OnNode node = world.on_node();
    Place place;
    place.first_of_node = node.rank == 0;
    place.on_node = node.size;
    place.nodes =
        static_cast<int>(world.all_reduce_scalar(place.first_of_node ? 1.0 : 0.0, ReduceOp::kSum));
    const bool crowded = node.size * omp_get_max_threads() > cores_of_ranks(world);
    place.oversubscribed = world.all_reduce_scalar(crowded ? 1.0 : 0.0, ReduceOp::kMax) > 0.0;
    return place;
}

// Joules over all machines; nothing unless each tells them.
std::optional<double> joules_of(const scale::EnergyMeter* meter, Communicator& world) {
    const std::optional<double> own = meter == nullptr ? 0.0 : meter->joules();
    const double missing = world.all_reduce_scalar(own ? 0.0 : 1.0, ReduceOp::kMax);
    const double sum = world.all_reduce_scalar(own.value_or(0.0), ReduceOp::kSum);
    if (missing > 0.0) return std::nullopt;
    return sum;
}

}  // namespace

void run_scale_point(const ScalePointCommand& command, Communicator& world) {
    RunConfig config = load_run_config(command.config, command.overrides);
    config.validate(world.size());
    const std::int64_t steps = config.trainer.steps;
    EVENKEEL_CHECK_CODE(command.warmup_steps >= 0 && command.warmup_steps < steps,
                        ErrorCode::kConfig, "scale point", "--warmup: got ", command.warmup_steps,
                        ", want 0 or more and less than trainer.steps, ", steps);
    start_watchdog(world, {.timeout_seconds = config.parallel.timeout_seconds});
    const ProcessGrid grid(world, config.parallel, config.device);
    for (Communicator* group :
         {&grid.tensor(), &grid.data(), &grid.kv_replicas(config.model.attention.num_kv_heads)}) {
        group->set_timing(true);
    }
    check_memory(config, world.size(), share_of_memory(config.device, world));
    const Place place = place_of(world);
    scale::Rates rates;
    if (config.device == Device::kCpu) rates = scale::measure_rates(config, world);

    std::optional<Stream> stream;
    std::optional<StreamScope> scope;
    if (config.device == Device::kCuda) scope.emplace(stream.emplace());
    const auto data = open_dataset(config.data, config.trainer.seq_len, config.model.vocab_size);
    Buffer::reset_peak(config.device);
    LanguageModel model(grid, config.model, static_cast<std::uint64_t>(config.trainer.seed));
    const bool graphs = config.device == Device::kCuda && config.cuda_graphs &&
                        grid.tensor().fits_graphs() && grid.data().fits_graphs();
    model.set_graphs(graphs);
    TrainingStep step(model, *data, config.trainer, config.schedule, config.optimizer);
    RunState state;
    std::optional<scale::EnergyMeter> meter;
    if (place.first_of_node) meter.emplace(config.device);
    std::vector<StepNumbers> all;
    auto began = std::chrono::steady_clock::now();
    for (std::int64_t i = 0; i < steps; ++i) {
        if (i == command.warmup_steps) {
            world.barrier();
            if (meter) meter->start();
            began = std::chrono::steady_clock::now();
        }
        const StepOutcome outcome = step.take(state);
        EVENKEEL_CHECK_CODE(std::isfinite(outcome.loss) && std::isfinite(outcome.grad_norm),
                            ErrorCode::kNonFinite, "scale point", "step ", i + 1, ": got loss ",
                            outcome.loss, " and gradient norm ", outcome.grad_norm,
                            ", want numbers");
        ++state.step;
        state.sample += config.trainer.batch_size;
        model.head_metrics();
        all.push_back(over_ranks(outcome, world));
    }
    world.barrier();
    const double timed_seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    const std::optional<double> joules = joules_of(meter ? &*meter : nullptr, world);
    const double peak = world.all_reduce_scalar(
        static_cast<double>(Buffer::peak_bytes(config.device)), ReduceOp::kMax);
    if (world.rank() != 0) return;

    const std::vector<StepNumbers> timed(all.begin() + command.warmup_steps, all.end());
    std::vector<double> seconds, losses;
    for (const StepNumbers& one : timed) seconds.push_back(one.seconds);
    for (const StepNumbers& one : all) losses.push_back(one.loss);
    const Quartiles quartiles = quartiles_of(seconds);
    const auto tokens = static_cast<double>(config.trainer.batch_size * config.trainer.seq_len);
    Json result = {{"device", config.device == Device::kCuda ? describe_gpu().name : "cpu"},
                   {"nodes", place.nodes},
                   {"threads", omp_get_max_threads()},
                   {"oversubscribed", place.oversubscribed && config.device == Device::kCpu},
                   {"losses", losses},
                   {"tokens", tokens},
                   {"step_seconds",
                    {{"median", quartiles.median},
                     {"first_quartile", quartiles.low},
                     {"third_quartile", quartiles.high}}},
                   {"tokens_per_second", tokens / quartiles.median},
                   {"communication", nullptr},
                   {"computing_seconds", nullptr},
                   {"peak_memory_bytes", static_cast<std::int64_t>(peak)},
                   {"energy", nullptr},
                   {"rates", nullptr}};
    if (!graphs) {
        const Json parts = communication_of(timed);
        double exposed = 0.0;
        for (const Json& part : parts) exposed += part["exposed_seconds"].get<double>();
        result["communication"] = parts;
        result["computing_seconds"] = std::max(0.0, quartiles.median - exposed);
    }
    if (joules) {
        result["energy"] = {
            {"joules", *joules},
            {"seconds", timed_seconds},
            {"of", meter->sources()},
            {"joules_per_token", *joules / tokens / static_cast<double>(timed.size())}};
    }
    if (config.device == Device::kCpu) result["rates"] = rates_json(rates);
    write_file_atomically(command.output, result.dump(2) + "\n");
    log_info(concat("point  ", command.output));
}

}  // namespace evenkeel
