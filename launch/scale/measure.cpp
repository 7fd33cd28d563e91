// evenkeel scale measure: collectives between the ranks.
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "framework/error.h"
#include "framework/json.h"
#include "framework/storage/checkpoint.h"
#include "launch/saved_run.h"
#include "launch/scale/text.h"
#include "parallel/cores.h"
#include "parallel/process_grid.h"
#include "scaling/measured_network.h"

namespace evenkeel {
namespace {

using namespace scale;
using Json = nlohmann::ordered_json;
using scaling::AlphaBeta;
using scaling::FitError;
using scaling::Measurement;
using scaling::NetworkFit;
using scaling::Series;
using scaling::TimedCollective;

// What makes a fit better.
constexpr const char* kWanted =
    "sizes farther apart (--from, --to), whose times grow, and more or longer series (--rounds, "
    "--seconds)";
constexpr double kGiga = 1e9, kMicro = 1e6;

struct Fitted {
    Series series;
    std::optional<AlphaBeta> fit;
    FitError held_out;
};

struct Result {
    int ranks = 0, ranks_on_node = 0;
    std::string through;  // "MPI between CPUs"
    bool oversubscribed = false;
    std::vector<Fitted> all;
    std::optional<NetworkFit> network;
    FitError network_held_out;
    std::int64_t network_held_out_points = 0;
    scaling::MeasuredNetwork file;

    std::int64_t wrong() const {
        std::int64_t sum = 0;
        for (const Fitted& fitted : all) {
            for (const Measurement& m : fitted.series.sizes) sum += m.wrong;
        }
        return sum;
    }
};

void append(std::vector<TimedCollective>& all, const std::vector<TimedCollective>& more) {
    all.insert(all.end(), more.begin(), more.end());
}

std::vector<Series> measure_groups(const ScaleMeasureCommand& command, Communicator& world) {
    ParallelConfig config;
    config.tensor_parallel = command.tensor_parallel;
    config.communication =
        command.communication == "staged" ? Communication::kStaged : Communication::kNccl;
    const Device device = command.device == "cuda" ? Device::kCuda : Device::kCpu;
    std::vector<Series> all;
    const auto measure = [&](Communicator& group, const char* name) {
        for (Series& series : scaling::measure_collectives(group, name, world, command.settings)) {
            all.push_back(std::move(series));
        }
    };
    {
        const ProcessGrid grid(world, config, device);
        if (grid.tp_size() < world.size() && grid.dp_size() < world.size()) {
            measure(grid.tensor(), "tensor");
            measure(grid.data(), "data");
        }
    }
    // All ranks on that device: the one group of a grid without copies.
    config.tensor_parallel = world.size();
    const ProcessGrid whole(world, config, device);
    measure(whole.tensor(), "world");
    return all;
}

void fit_all(Result& result, std::vector<Series> all, const std::string& device) {
    std::vector<TimedCollective> fitted_points, held_out_points;
    for (Series& series : all) {
        Fitted fitted;
        const std::vector<TimedCollective> points = series.points(false),
                                           held_out = series.points(true);
        fitted.fit = scaling::fit_link(points);
        if (fitted.fit) fitted.held_out = scaling::error_of(*fitted.fit, held_out);
        const bool models = series.even && (series.place.nodes == 1 || series.place.per_node == 1);
        if (models && series.sizes[0].operation != scaling::Operation::kBroadcast) {
            append(fitted_points, points);
            append(held_out_points, held_out);
        }
        fitted.series = std::move(series);
        result.all.push_back(std::move(fitted));
    }
    result.network = scaling::fit_network(fitted_points);
    if (!result.network) return;
    result.network_held_out = scaling::error_of(result.network->network, held_out_points);
    result.network_held_out_points = static_cast<std::int64_t>(held_out_points.size());
    result.file = scaling::to_file(
        *result.network,
        concat("evenkeel scale measure: ", result.ranks, " ranks, ", result.ranks_on_node,
               " a node, ", result.through, result.oversubscribed ? ", oversubscribed" : ""));
    result.file.device = device;
    result.file.error =
        held_out_points.empty() ? result.network->error : result.network_held_out.median;
}

Json to_json(const FitError& error) {
    return {{"median", error.median}, {"largest", error.largest}};
}

Json to_json(const Fitted& fitted) {
    const Series& series = fitted.series;
    Json sizes = Json::array();
    for (const Measurement& m : series.sizes) {
        Json size = {{"bytes", m.bytes},
                     {"seconds", m.seconds},
                     {"first_quartile", m.low},
                     {"third_quartile", m.high},
                     {"algorithm_bytes_per_second", m.algorithm_bandwidth},
                     {"bus_bytes_per_second", m.bus_bandwidth},
                     {"wrong", m.wrong},
                     {"held_out", m.held_out}};
        if (fitted.fit) {
            size["predicted_seconds"] = scaling::predicted_seconds(
                *fitted.fit, m.operation, series.place, static_cast<double>(m.bytes));
        }
        sizes.push_back(std::move(size));
    }
    Json json = {{"group", series.group},
                 {"operation", scaling::name_of(series.sizes[0].operation)},
                 {"ranks", series.place.size()},
                 {"ranks_per_node", series.place.per_node},
                 {"even", series.even},
                 {"sizes", sizes},
                 {"fit", nullptr}};
    if (fitted.fit) {
        json["fit"] = {{"latency_seconds", fitted.fit->link.latency},
                       {"bytes_per_second", fitted.fit->link.bandwidth},
                       {"median_error", fitted.fit->error},
                       {"left_out", fitted.fit->left_out},
                       {"held_out_error", to_json(fitted.held_out)}};
    }
    return json;
}

std::string network_json(scaling::MeasuredNetwork network) {
    return evenkeel::to_json([&](ConfigVisitor& v) { network.visit_fields(v); });
}

void print_json(const Result& result) {
    Json series = Json::array();
    for (const Fitted& fitted : result.all) series.push_back(to_json(fitted));
    Json json = {{"ranks", result.ranks},     {"ranks_on_node", result.ranks_on_node},
                 {"through", result.through}, {"oversubscribed", result.oversubscribed},
                 {"wrong", result.wrong()},   {"series", series},
                 {"network", nullptr}};
    if (result.network) {
        json["network"] = {{"description", Json::parse(network_json(result.file))},
                           {"points", result.network->points},
                           {"median_error", result.network->error},
                           {"left_out", result.network->left_out},
                           {"held_out_error", to_json(result.network_held_out)}};
    }
    std::cout << json.dump(2) << "\n";
}

std::string held_out_text(const FitError& error, bool any) {
    if (!any) return "no size held out: want 5 sizes or more";
    return concat("held-out sizes by ", percent_text(error.median), ", at most ",
                  percent_text(error.largest));
}

void print_series(const Fitted& fitted) {
    const Series& series = fitted.series;
    const scaling::Operation operation = series.sizes[0].operation;
    std::printf(
        "\n%s, %s: %lld ranks, %s\n", series.group.c_str(), scaling::name_of(operation),
        static_cast<long long>(series.place.size()),
        series.even ? concat(series.place.per_node, " a node").c_str() : "not evenly on nodes");
    std::printf("%12s %11s %21s %9s %9s %7s %22s\n", "bytes", "us", "quartiles", "alg GB/s",
                "bus GB/s", "wrong", "fit us");
    for (const Measurement& m : series.sizes) {
        std::string predicted;
        if (fitted.fit) {
            const double seconds = scaling::predicted_seconds(*fitted.fit, operation, series.place,
                                                              static_cast<double>(m.bytes));
            predicted = concat(number("%11.2f", kMicro * seconds),
                               number(" %+7.1f %%", 100.0 * (seconds / m.seconds - 1.0)),
                               m.held_out ? " held out" : "");
        }
        std::printf("%12lld %11.2f %10.2f %10.2f %9.3f %9.3f %7lld %s\n",
                    static_cast<long long>(m.bytes), kMicro * m.seconds, kMicro * m.low,
                    kMicro * m.high, m.algorithm_bandwidth / kGiga, m.bus_bandwidth / kGiga,
                    static_cast<long long>(m.wrong), predicted.c_str());
    }
    if (!fitted.fit) {
        std::printf(
            "fit: none; want 3 sizes or more beside those held out, the largest of which "
            "take longer: %s\n",
            kWanted);
        return;
    }
    std::printf("fit: alpha %s, %.3f GB/s, off by %s in the median, %s\n",
                seconds_text(fitted.fit->link.latency).c_str(), fitted.fit->link.bandwidth / kGiga,
                percent_text(fitted.fit->error).c_str(),
                held_out_text(fitted.held_out, !series.points(true).empty()).c_str());
}

void print_network(const Result& result) {
    std::printf("\nnetwork of the step model, one for all-reduce, reduce-scatter and all-gather\n");
    if (!result.network) {
        std::printf("  none: want groups within a node or of one rank a node, and %s\n", kWanted);
        return;
    }
    const scaling::MeasuredNetwork& file = result.file;
    if (file.error > scaling::kMostFitError) {
        std::printf("  NOT USABLE: off by %s in the median; want a quiet machine, %s\n",
                    percent_text(file.error).c_str(), kWanted);
    }
    const auto link = [](const char* where, double gigabytes, double microseconds) {
        if (gigabytes == 0.0) {
            std::printf("  %-15s not measured\n", where);
        } else {
            std::printf("  %-15s alpha %.3f us, %.4g GB/s%s\n", where, microseconds, gigabytes,
                        microseconds > 0.0 ? "" : "; no latency seen: want smaller sizes (--from)");
        }
    };
    link("within a node", file.node_gigabytes_per_second, file.node_latency_microseconds);
    link("between nodes", file.network_gigabytes_per_second, file.network_latency_microseconds);
    std::printf("  %-15s %.3f us once\n", "a collective", file.collective_latency_microseconds);
    std::printf("  off by %s in the median, %s\n", percent_text(result.network->error).c_str(),
                held_out_text(result.network_held_out, result.network_held_out_points > 0).c_str());
}

void print_text(const Result& result) {
    std::printf("collectives of %d ranks, %d on this node, %s; fp32, times of the slowest rank\n",
                result.ranks, result.ranks_on_node, result.through.c_str());
    if (result.oversubscribed) {
        std::printf("More ranks than cores take turns: results are checked, times mean nothing.\n");
    }
    for (const Fitted& fitted : result.all) print_series(fitted);
    print_network(result);
    std::fflush(stdout);
}

// Before time is spent on what could not be kept.
void check_output(const std::string& path) {
    const bool was_there = std::filesystem::exists(path);
    const bool can_be_written = std::ofstream(path, std::ios::app).good();
    EVENKEEL_CHECK_CODE(can_be_written, ErrorCode::kConfig, "scale measure", "--output: got ", path,
                        ", want a file that can be written");
    std::error_code ignored;
    if (!was_there) std::filesystem::remove(path, ignored);
}

void write_network(const Result& result, const std::string& path) {
    EVENKEEL_CHECK(result.network && (result.file.node_gigabytes_per_second > 0.0 ||
                                      result.file.network_gigabytes_per_second > 0.0),
                   "scale measure", "--output ", path, ": got no network from these sizes, want ",
                   kWanted);
    write_file_atomically(path, network_json(result.file) + "\n");
}

}  // namespace

void run_scale_measure(const ScaleMeasureCommand& command, Communicator& world) {
    EVENKEEL_CHECK_CODE(world.size() > 1, ErrorCode::kConfig, "scale measure",
                        "got 1 rank, want 2 or more: mpirun -np 2 evenkeel scale measure");
    command.settings.validate();
    if (world.rank() == 0 && !command.output.empty()) check_output(command.output);
    Result result;
    result.ranks = world.size();
    result.ranks_on_node = world.on_node().size;
    result.through = command.device == "cpu"             ? "MPI between CPUs"
                     : command.communication == "staged" ? "staged between GPUs"
                                                         : "NCCL between GPUs";
    const bool crowded = result.ranks_on_node > cores_of_ranks(world);
    result.oversubscribed = world.all_reduce_scalar(crowded ? 1.0 : 0.0, ReduceOp::kMax) > 0.0;
    fit_all(result, measure_groups(command, world), command.device);
    if (world.rank() == 0) {
        command.json ? print_json(result) : print_text(result);
        if (!command.output.empty() && result.wrong() == 0) write_network(result, command.output);
    }
    EVENKEEL_CHECK(result.wrong() == 0, "scale measure", "wrong elements: got ", result.wrong(),
                   ", want 0");
}

}  // namespace evenkeel
