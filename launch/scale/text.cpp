#include "launch/scale/text.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "framework/error.h"
#include "framework/json.h"
#include "scaling/published.h"

namespace evenkeel::scale {

using scaling::Again;
using scaling::Cut;
using scaling::Layout;
using scaling::StepTime;

RunConfig configuration(const ScaleCommand& command) {
    RunConfig config = load_run_config(command.config, command.overrides);
    config.device = Device::kCuda;
    if (command.batch) {
        EVENKEEL_CHECK_CODE(*command.batch > 0, ErrorCode::kConfig, "scale", "--batch: got ",
                            *command.batch, ", want 1 or more sequences a step");
        config.trainer.batch_size = *command.batch;
    }
    constexpr std::int64_t kMost = std::int64_t{1} << 40;
    EVENKEEL_CHECK_CODE(config.trainer.batch_size <= kMost, ErrorCode::kConfig, "scale",
                        command.batch ? "--batch" : "trainer.batch_size", ": got ",
                        config.trainer.batch_size, ", want at most 2^40 sequences a step");
    return config;
}

std::int64_t gpus_of(const ScaleCommand& command, const RunConfig& config) {
    const ParallelConfig& parallel = config.parallel;
    const std::int64_t asked = parallel.tensor_parallel * parallel.data_parallel;
    const std::int64_t gpus = command.gpus.value_or(asked);
    EVENKEEL_CHECK_CODE(command.gpus || asked > 0, ErrorCode::kConfig, "scale",
                        "--gpus: got none, and parallel.data_parallel leaves it open; want the "
                        "number of GPUs");
    constexpr std::int64_t kMost = 10'000'000;
    EVENKEEL_CHECK_CODE(gpus > 0 && gpus <= kMost, ErrorCode::kConfig, "scale", "--gpus: got ",
                        gpus, ", want a number of GPUs from 1 to ", kMost);
    return gpus;
}

double tokens_of(const ScaleCommand& command) {
    if (!command.tokens) return 0.0;
    constexpr double kMost = 1e18;
    EVENKEEL_CHECK_CODE(*command.tokens > 0.0 && *command.tokens <= kMost, ErrorCode::kConfig,
                        "scale", "--tokens: got ", *command.tokens,
                        ", want a positive number up to ", kMost);
    return *command.tokens;
}

Cluster cluster_of(const ScaleCommand& command) {
    Cluster cluster{scaling::load_hardware(command.hardware), command.network, {}};
    if (!command.network.empty()) {
        cluster.network = scaling::load_measured_network(command.network);
        scaling::use_network(cluster.network, {}, cluster.hardware);
    }
    return cluster;
}

std::string network_text(const Cluster& cluster) {
    if (cluster.network_file.empty()) return "";
    const scaling::MeasuredNetwork& network = cluster.network;
    const auto link = [](double gigabytes) {
        return gigabytes > 0.0 ? number("%.4g GB/s", gigabytes) : "as described";
    };
    std::string text = concat("network   ", cluster.network_file, ": ",
                              network.source.empty() ? "" : network.source + "; ", "within a node ",
                              link(network.node_gigabytes_per_second), ", between nodes ",
                              link(network.network_gigabytes_per_second), "\n");
    for (const std::string& doubt : scaling::doubts_of(network)) {
        text += concat("  warning: ", doubt, "\n");
    }
    return text;
}

nlohmann::ordered_json to_json(const Cluster& cluster) {
    if (cluster.network_file.empty()) return nullptr;
    return {{"file", cluster.network_file},
            {"source", cluster.network.source},
            {"doubts", scaling::doubts_of(cluster.network)}};
}

scaling::StepPlan plan_of(const RunConfig& config, std::int64_t gpus) {
    scaling::StepPlan plan;
    plan.model = config.model;
    plan.packed =
        config.data.has_tokens() && config.data.packing == DataConfig::Packing::kDocuments;
    plan.async_checkpoints = config.trainer.checkpoint_async;
    Layout& l = plan.layout;
    l.tensor_parallel = config.parallel.tensor_parallel;
    l.data_parallel = gpus / l.tensor_parallel;
    l.sequence_parallel = config.parallel.sequence_parallel && l.tensor_parallel > 1;
    l.cut =
        config.parallel.zero_stage == 1 && l.data_parallel > 1 ? Cut::kOptimizer : Cut::kNothing;
    l.again = scaling::kOwnAgain[static_cast<int>(config.model.recompute)];
    l.micro_batch = config.trainer.micro_batch_size;
    l.batch = config.trainer.batch_size;
    l.seq_len = config.trainer.seq_len;
    return plan;
}

std::string number(const char* format, double value) {
    char text[64];
    std::snprintf(text, sizeof text, format, value);
    return text;
}

std::string layout_text(const Layout& l) {
    return concat("tensor parallel ", l.tensor_parallel,
                  l.pipeline_parallel > 1
                      ? concat(" x pipeline ", l.pipeline_parallel,
                               l.pipeline_chunks > 1 ? concat(" (", l.pipeline_chunks, " parts)")
                                                     : std::string())
                      : std::string(),
                  " x data parallel ", l.data_parallel);
}

std::string settings_text(const Layout& l) {
    std::string text;
    const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
    if (l.sequence_parallel) add("sequence parallel");
    if (l.cut == Cut::kOptimizer) add("optimizer cut");
    if (l.again != Again::kNone) add(concat("recompute ", name_of(l.again)));
    add(concat(l.micro_batches(),
               l.micro_batches() == 1 ? " micro-batch of " : " micro-batches of ", l.micro_batch));
    return text;
}

std::string set_options(const Layout& l) {
    return concat("--set parallel.tensor_parallel=", l.tensor_parallel,
                  " --set parallel.data_parallel=", l.data_parallel,
                  " --set parallel.sequence_parallel=", l.sequence_parallel ? "true" : "false",
                  " --set parallel.zero_stage=", l.cut == Cut::kOptimizer ? 1 : 0,
                  " --set model.recompute=", name_of(l.again),
                  " --set trainer.micro_batch_size=", l.micro_batch,
                  " --set trainer.batch_size=", l.batch);
}

std::string seconds_text(double seconds) {
    if (seconds < 1e-3) return number("%.3g us", seconds * 1e6);
    if (seconds < 1.0) return number("%.3g ms", seconds * 1e3);
    return number(seconds < 100.0 ? "%.2f s" : "%.0f s", seconds);
}

std::string duration_text(double seconds) {
    constexpr double kMinute = 60.0, kHour = 3600.0, kDay = 86400.0;
    if (!std::isfinite(seconds)) return "for ever";
    if (seconds < kMinute) return number("%.0f s", seconds);
    if (seconds < 2.0 * kHour) return number("%.0f min", seconds / kMinute);
    if (seconds < 2.0 * kDay) return number("%.1f hours", seconds / kHour);
    return number(seconds < 100.0 * kDay ? "%.1f days" : "%.0f days", seconds / kDay);
}

std::string count_text(double count) {
    static constexpr const char* kUnits[] = {"", " thousand", " million", " billion", " trillion"};
    int unit = 0;
    for (; count >= 1000.0 && unit < 4; ++unit) count /= 1000.0;
    return number(unit == 0 ? "%.0f" : count < 100.0 ? "%.3g" : "%.4g", count) + kUnits[unit];
}

std::string percent_text(double share) {
    const double percent = 100.0 * share;
    return number(percent != 0.0 && std::abs(percent) < 0.1 ? "%.2f %%" : "%.1f %%", percent);
}

std::vector<std::pair<std::string, double>> parts_of(const StepTime& time) {
    const std::vector<std::pair<std::string, double>> all = {
        {"products", time.products},        {"attention", time.attention},
        {"norms, sums, loss", time.memory}, {"made again", time.again},
        {"optimizer", time.optimizer},      {"tensor-parallel sums", time.tensor},
        {"data-parallel sums", time.data},  {"between stages", time.pipeline},
        {"lost to overlap", time.overlap},  {"pipeline bubble", time.bubble}};
    std::vector<std::pair<std::string, double>> parts;
    for (const auto& part : all) {
        if (part.second > 0.0) parts.push_back(part);
    }
    return parts;
}

nlohmann::ordered_json to_json(const StepTime& time) {
    return {{"seconds", time.total()},
            {"products", time.products},
            {"attention", time.attention},
            {"memory", time.memory},
            {"again", time.again},
            {"optimizer", time.optimizer},
            {"tensor_parallel_exposed", time.tensor},
            {"tensor_parallel_hidden", time.tensor_hidden},
            {"data_parallel_exposed", time.data},
            {"data_parallel_hidden", time.data_hidden},
            {"pipeline_exposed", time.pipeline},
            {"pipeline_hidden", time.pipeline_hidden},
            {"lost_to_overlap", time.overlap},
            {"bubble", time.bubble}};
}

nlohmann::ordered_json to_json(const Layout& layout) {
    Layout copy = layout;
    return nlohmann::ordered_json::parse(
        evenkeel::to_json([&](ConfigVisitor& v) { copy.visit_fields(v); }));
}

Gap published_gap() {
    std::vector<double> gaps;
    for (const scaling::Comparison& comparison : scaling::compare_published({})) {
        gaps.push_back(comparison.published / comparison.predicted.total() - 1.0);
    }
    std::sort(gaps.begin(), gaps.end());
    const std::size_t half = gaps.size() / 2;
    const double median = gaps.size() % 2 == 1 ? gaps[half] : (gaps[half - 1] + gaps[half]) / 2.0;
    return {gaps.front(), median, gaps.back()};
}

std::string to_text(const Gap& gap) {
    return concat("published runs took ", number("%.0f", 100.0 * std::max(0.0, gap.least)), " to ",
                  number("%.0f", 100.0 * gap.most), " % longer than this model says, ",
                  number("%.0f", 100.0 * gap.median), " % in the median (evenkeel scale validate)");
}

Budget budget_of(const scaling::Hardware& hardware,
                 const scaling::StepPlan& plan,
                 double step_seconds,
                 double tokens,
                 std::int64_t checkpoint_interval) {
    Budget budget;
    budget.tokens = tokens;
    budget.run =
        scaling::plan_long_run(hardware, plan.layout.gpus(),
                               {.state = scaling::checkpoint_bytes(plan.model),
                                .copy = static_cast<double>(scaling::plan_memory(plan).snapshot)},
                               step_seconds * static_cast<double>(checkpoint_interval));
    budget.seconds = tokens / plan.layout.tokens() * step_seconds / budget.run.useful();
    return budget;
}

}  // namespace evenkeel::scale
