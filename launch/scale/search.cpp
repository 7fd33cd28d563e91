// evenkeel scale search: the layout that trains a model fastest on a number of GPUs.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>

#include "framework/error.h"
#include "framework/json.h"
#include "launch/saved_run.h"
#include "launch/scale/text.h"

namespace evenkeel {
namespace {

using namespace scale;
using Json = nlohmann::ordered_json;
using scaling::Candidate;

// What makes a layout slower than the best one: the part of a step that grew most, for the same tokens.
std::string because(const Candidate& best, const Candidate& other) {
    const double tokens = best.plan.layout.tokens() / other.plan.layout.tokens();
    const auto parts = parts_of(best.time);
    std::string name;
    double most = 0.0;
    for (const auto& [part, seconds] : parts_of(other.time)) {
        double before = 0.0;
        for (const auto& [known, value] : parts) {
            if (known == part) before = value;
        }
        const double more = seconds * tokens - before;
        if (more > most) most = more, name = part;
    }
    return name.empty() ? "" : concat("+", seconds_text(most), " ", name);
}

std::string slower_text(const Candidate& best, const Candidate& other) {
    const double ratio = best.tokens_per_second() / other.tokens_per_second();
    if (ratio >= 2.0) return number("%.1f times slower", ratio);
    return percent_text(std::abs(ratio - 1.0)) + (ratio >= 1.0 ? " slower" : " faster");
}

Json to_json(const scaling::Hardware& hardware, const Candidate& candidate) {
    return {{"layout", scale::to_json(candidate.plan.layout)},
            {"step", scale::to_json(candidate.time)},
            {"memory_bytes", candidate.memory},
            {"tokens_per_second", candidate.tokens_per_second()},
            {"model_flops_utilisation",
             scaling::utilisation(hardware, candidate.plan, candidate.time.total())}};
}

void print_changes(const scaling::Hardware& hardware, const Candidate& best, std::size_t usable) {
    std::cout << "why       the same with one setting changed\n";
    for (const scaling::Change& change : scaling::changes_of(hardware, {}, best)) {
        char start[64];
        std::snprintf(start, sizeof start, "  %-34s", change.setting.c_str());
        std::cout << start;
        if (!change.candidate) {
            std::cout << "does not divide the batch\n";
        } else if (!change.fits) {
            std::cout << "does not fit: " << bytes_text(change.candidate->memory) << " of "
                      << bytes_text(usable) << "\n";
        } else {
            std::cout << slower_text(best, *change.candidate) << ", "
                      << bytes_text(change.candidate->memory) << "\n";
        }
    }
}

void print_text(const ScaleCommand& command,
                const Cluster& cluster,
                const RunConfig& config,
                const scaling::Space& space,
                const scaling::Found& found) {
    const scaling::Hardware& hardware = cluster.hardware;
    const std::size_t usable = scaling::usable_bytes(hardware);
    const Candidate& best = found.best.front();
    const scaling::Layout& layout = best.plan.layout;
    std::cout << "search    " << grouped(parameter_count(space.model)) << " parameters on "
              << grouped(space.gpus) << " GPUs, " << hardware.name << ": " << grouped(found.tried)
              << " layouts, of which " << grouped(found.too_large) << " do not fit in "
              << bytes_text(usable)
              << (space.pipeline ? "; with pipelines, which evenkeel does not run\n" : "\n");
    std::cout << network_text(cluster) << "best      " << layout_text(layout) << ", "
              << settings_text(layout) << " x " << layout.seq_len << " tokens\n"
              << "          " << seconds_text(best.time.total()) << " a step of "
              << count_text(layout.tokens()) << " tokens, " << count_text(best.tokens_per_second())
              << " tokens/s, MFU "
              << percent_text(scaling::utilisation(hardware, best.plan, best.time.total())) << ", "
              << bytes_text(best.memory) << " a GPU\n";
    if (layout.pipeline_parallel == 1) {
        std::cout << "          evenkeel scale plan --config " << command.config << " --hardware "
                  << command.hardware
                  << (command.network.empty() ? "" : " --network " + command.network) << " "
                  << set_options(layout) << "\n";
    }
    std::cout << "\n";
    print_changes(hardware, best, usable);

    std::cout << "\nothers    the fastest of each number of tensor-parallel ranks"
              << (space.pipeline ? " and stages" : "") << "\n";
    const std::size_t shown =
        std::min(found.best.size(), 1 + static_cast<std::size_t>(command.top));
    for (std::size_t i = 1; i < shown; ++i) {
        const Candidate& other = found.best[i];
        char start[96];
        std::snprintf(start, sizeof start, "  %14s  %9s  ", slower_text(best, other).c_str(),
                      bytes_text(other.memory).c_str());
        std::cout << start << layout_text(other.plan.layout) << ", "
                  << settings_text(other.plan.layout) << ": " << because(best, other) << "\n";
    }
    for (const auto& [P, bytes] : found.smallest_of) {
        std::cout << "  tensor parallel " << P << ": none fits, the smallest takes "
                  << bytes_text(bytes) << " of " << bytes_text(usable) << "\n";
    }
    for (const auto& [P, why] : found.refused) {
        std::cout << "  tensor parallel " << P << ": " << why << "\n";
    }
    if (found.best.size() == 1 && found.smallest_of.empty() && found.refused.empty()) {
        std::cout << "  none: no other number divides " << grouped(space.gpus)
                  << " GPUs and those of a node\n";
    }
    const double tokens = tokens_of(command);
    if (tokens > 0.0) {
        const Budget budget = budget_of(hardware, best.plan, best.time.total(), tokens,
                                        config.trainer.checkpoint_interval);
        const Gap gap = published_gap();
        std::cout << "\nrun       " << count_text(tokens)
                  << " tokens: " << duration_text(budget.seconds)
                  << " with checkpoints and failures, "
                  << grouped(static_cast<std::int64_t>(budget.seconds / 3600.0 *
                                                       static_cast<double>(space.gpus)))
                  << " GPU-hours; " << duration_text(budget.seconds * (1.0 + gap.median))
                  << " as published runs go\n          " << to_text(gap) << "\n";
    }
}

}  // namespace

int run_scale_search(const ScaleCommand& command) {
    const Cluster cluster = cluster_of(command);
    const scaling::Hardware& hardware = cluster.hardware;
    const RunConfig config = configuration(command);
    scaling::Space space;
    space.model = config.model;
    space.packed =
        config.data.has_tokens() && config.data.packing == DataConfig::Packing::kDocuments;
    space.async_checkpoints = config.trainer.checkpoint_async;
    space.gpus = gpus_of(command, config);
    tokens_of(command);
    space.batch = config.trainer.batch_size;
    space.seq_len = config.trainer.seq_len;
    space.pipeline = command.pipeline;
    space.across_nodes = command.across_nodes;
    EVENKEEL_CHECK_CODE(space.seq_len <= config.model.max_seq_len, ErrorCode::kConfig, "scale",
                        "trainer.seq_len: got ", space.seq_len,
                        ", want at most model.max_seq_len=", config.model.max_seq_len);
    const scaling::Found found = scaling::search(hardware, {}, space);
    if (found.best.empty()) {
        const Candidate& smallest = *found.smallest;
        std::cerr << concat("[scale] search: none of ", grouped(found.tried),
                            " layouts fits in the ", bytes_text(scaling::usable_bytes(hardware)),
                            " that a plan may use of a GPU; the smallest, ",
                            layout_text(smallest.plan.layout), ", ",
                            settings_text(smallest.plan.layout), ", takes ",
                            bytes_text(smallest.memory), "; want more GPUs, a smaller model",
                            space.across_nodes ? "" : ", --across-nodes",
                            space.pipeline
                                ? ""
                                : ", or a pipeline, which --pipeline models and evenkeel does "
                                  "not run")
                  << "\n";
        return 1;
    }
    if (!command.json) {
        print_text(command, cluster, config, space, found);
        return 0;
    }
    Json json = {{"hardware", hardware.name},    {"network", scale::to_json(cluster)},
                 {"gpus", space.gpus},           {"tried", found.tried},
                 {"too_large", found.too_large}, {"layouts", Json::array()},
                 {"refused", Json::object()}};
    for (const Candidate& candidate : found.best) {
        json["layouts"].push_back(to_json(hardware, candidate));
    }
    for (const auto& [P, why] : found.refused) json["refused"][std::to_string(P)] = why;
    std::cout << json.dump(2) << "\n";
    return 0;
}

}  // namespace evenkeel
