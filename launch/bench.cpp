// evenkeel bench: chooses the measurements and prints them.
#include "launch/bench.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <iostream>
#include <optional>

#include "framework/json.h"
#include "framework/log.h"
#include "launch/commands.h"
#include "launch/saved_run.h"

namespace evenkeel {
namespace {

using bench::Lines;
using Json = nlohmann::ordered_json;

constexpr struct {
    const char* name;
    Lines (*measure)();
    bool pinned = true;
} kSingleRank[] = {
    {"gemm", bench::measure_gemm},
    {"attention", bench::measure_attention},
    {"norm", bench::measure_norm},
    {"memory", bench::measure_memory},
    {"growth", [] { return bench::measure_growth(); }},
    {"step", [] { return bench::measure_step(); }},
    {"ops", [] { return bench::measure_ops(); }},
    {"recompute", [] { return bench::measure_recompute(); }},
    // A thread that writes would have to stay on the core of the one that starts it.
    {"checkpoint", [] { return bench::measure_checkpoint(); }, false},
};
constexpr const char* kRanks = "ranks";

constexpr struct {
    const char* name;
    Lines (*measure)(const bench::GpuBench&);
} kGpu[] = {{"norm", bench::measure_gpu_norm}, {"attention", bench::measure_gpu_attention}};

std::string percent(double ratio) {
    return format(std::abs(ratio) < 0.01 ? "%.2f %%" : "%.1f %%", 100.0 * ratio);
}

void print(const Lines& lines, std::ostream& out) {
    for (const bench::Line& line : lines) {
        out << "  " << std::left << std::setw(54) << line.name << std::right << std::setw(9)
            << format(std::abs(line.value) < 10.0 ? "%.2f" : "%.1f", line.value) << " " << std::left
            << std::setw(8) << line.unit << std::right;
        if (line.best > 0.0) out << format("best %8.1f", line.best);
        for (const bench::Share& share : line.shares) {
            out << std::setw(9) << percent(share.ratio) << " " << share.of;
            if (share.rounds > 1) {
                out << " [" << percent(share.low) << " to " << percent(share.high) << "]";
            }
            if (share.goal > 0.0) {
                out << " (goal: " << (share.at_most ? "at most " : "")
                    << format("%.0f %%", 100.0 * share.goal) << ")";
            }
        }
        out << std::endl;
    }
}

Json to_json(const Lines& lines) {
    Json out = Json::array();
    for (const bench::Line& line : lines) {
        Json shares = Json::array();
        for (const bench::Share& share : line.shares) {
            Json item = {{"ratio", share.ratio}, {"of", share.of}};
            if (share.rounds > 0) {
                item["low"] = share.low, item["high"] = share.high;
                item["rounds"] = share.rounds;
            }
            if (share.goal > 0.0) item[share.at_most ? "goal_at_most" : "goal"] = share.goal;
            shares.push_back(item);
        }
        Json item = {{"name", line.name}, {"value", line.value}, {"unit", line.unit}};
        if (line.best > 0.0) item["best"] = line.best;
        item["shares"] = shares;
        out.push_back(item);
    }
    return out;
}

std::vector<std::string> chosen_names(const BenchCommand& command, int ranks) {
    if (ranks == 1) {
        EVENKEEL_CHECK_CODE(
            std::find(command.only.begin(), command.only.end(), kRanks) == command.only.end(),
            ErrorCode::kConfig, "bench",
            "ranks: got 1 rank, want 2; start: mpirun -np 2 --bind-to none evenkeel bench");
        if (!command.only.empty()) return command.only;
        std::vector<std::string> names = bench_names();
        names.pop_back();
        return names;
    }
    for (const std::string& name : command.only) {
        EVENKEEL_CHECK_CODE(name == kRanks, ErrorCode::kConfig, "bench", name, ": got ", ranks,
                            " ranks, want 1; start it without mpirun");
    }
    return {kRanks};
}

void run_bench_on_gpu(const BenchCommand& command, const Communicator& world) {
    EVENKEEL_CHECK_CODE(world.size() == 1, ErrorCode::kConfig, "bench", "--device cuda: got ",
                        world.size(), " ranks, want 1; start it without mpirun");
    for (const std::string& name : command.only) {
        EVENKEEL_CHECK_CODE(
            std::any_of(std::begin(kGpu), std::end(kGpu),
                        [&](const auto& entry) { return name == entry.name; }),
            ErrorCode::kConfig, "bench", "--only ", name,
            ": measured with --device cpu only; want norm or attention (whole steps: "
            "evenkeel bench step --set device=cuda)");
    }
    const std::string why = why_no_cuda();
    EVENKEEL_CHECK_CODE(why.empty(), ErrorCode::kCuda, "bench", "--device cuda: ", why);
    bench::run_gpu_bench(command.only, command.json, {}, std::cout);
}

}  // namespace

void bench::run_gpu_bench(const std::vector<std::string>& only,
                          bool json,
                          const GpuBench& size,
                          std::ostream& out) {
    const GpuDescription gpu = describe_gpu();
    Json results = {
        {"device",
         {{"name", gpu.name}, {"driver", gpu.driver}, {"multiprocessors", gpu.multiprocessors}}}};
    if (!json) {
        out << gpu.name << ", " << gpu.multiprocessors << " multiprocessors, driver " << gpu.driver
            << "\n";
    }
    for (const auto& entry : kGpu) {
        if (!only.empty() && std::find(only.begin(), only.end(), entry.name) == only.end())
            continue;
        if (!json) out << entry.name << std::endl;
        const Lines lines = entry.measure(size);
        if (json) {
            results[entry.name] = to_json(lines);
        } else {
            print(lines, out);
        }
    }
    if (json) out << results.dump(2) << "\n";
}

std::vector<std::string> bench_names() {
    std::vector<std::string> names;
    for (const auto& entry : kSingleRank) names.emplace_back(entry.name);
    names.emplace_back(kRanks);
    return names;
}

void run_bench(const BenchCommand& command, Communicator& world) {
    if (command.device == Device::kCuda) return run_bench_on_gpu(command, world);
    const bool speaks = world.rank() == 0;
    Json results = Json::object();
    const std::vector<std::string> names = chosen_names(command, world.size());
    if (speaks && !command.json) {
        std::cout << world.size() << " rank(s), " << omp_get_max_threads() << " thread(s) each\n";
    }
    for (const std::string& name : names) {
        const auto entry = std::find_if(std::begin(kSingleRank), std::end(kSingleRank),
                                        [&](const auto& e) { return name == e.name; });
        if (speaks && !command.json) std::cout << name << std::endl;
        std::optional<bench::PinnedThreads> pinned;
        if (entry != std::end(kSingleRank) && entry->pinned) pinned.emplace();
        const Lines lines =
            entry == std::end(kSingleRank) ? bench::measure_ranks(world) : entry->measure();
        pinned.reset();
        if (!speaks) continue;
        if (command.json) {
            results[name] = to_json(lines);
        } else {
            print(lines, std::cout);
        }
    }
    if (!speaks) return;
    if (command.json) std::cout << results.dump(2) << "\n";
    if (!command.json && world.size() == 1 && command.only.empty()) {
        std::cout << "ranks\n  two ranks against one: mpirun -np 2 --bind-to none evenkeel bench\n";
    }
}

}  // namespace evenkeel
