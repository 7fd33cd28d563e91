// evenkeel scale run: the points of a plan, each measured by ranks of its own.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <list>
#include <thread>

#include "framework/cores.h"
#include "framework/error.h"
#include "framework/json.h"
#include "framework/log.h"
#include "framework/storage/checkpoint.h"
#include "framework/storage/hash.h"
#include "framework/training/run_lock.h"
#include "framework/training/run_state.h"
#include "launch/memory_advice.h"
#include "launch/saved_run.h"
#include "launch/scale/run/job.h"
#include "launch/scale/run/report.h"
#include "launch/scale/run/results.h"
#include "launch/scale/text.h"
#include "parallel/launch_environment.h"
#include "scaling/memory.h"

namespace evenkeel {
namespace {

using namespace scale;
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

std::string directory_of(const ScaleRunCommand& command) {
    return command.out.empty() ? "runs/" + fs::path(command.plan).stem().string() : command.out;
}

Result empty_result(const RunPlan& plan, const RunPoint& point) {
    Result result;
    result.key = point.key;
    result.settings = settings_of(plan, point);
    result.config = point.config;
    result.ranks = point.ranks;
    return result;
}

std::string plan_json(RunPlan plan) {
    return to_json([&](ConfigVisitor& v) { plan.visit_fields(v); });
}

// Whether the hardware has room for the point; "" where nothing is known of it.
std::string why_too_large(const RunPlan& plan, const RunPoint& point) {
    if (plan.hardware.empty() || point.config.device != Device::kCuda) return "";
    const scaling::Hardware hardware = scaling::load_hardware(plan.hardware);
    const std::size_t usable = scaling::usable_bytes(hardware);
    const auto ranks = static_cast<int>(point.ranks);
    const std::size_t planned = plan_memory(point.config, ranks).total();
    if (planned <= usable) return "";
    return concat("does not fit: ", bytes_text(planned), " a rank of the ", bytes_text(usable),
                  " that a plan may use of ", plan.hardware, "; ",
                  what_fits(point.config, ranks, usable));
}

class Study {
  public:
    Study(const RunPlan& plan, std::string directory)
        : plan_(plan), directory_(std::move(directory)), points_(points_of(plan)) {}

    const std::vector<RunPoint>& points() const { return points_; }

    // What is there, and what is left. Throws kConfig for a point of other settings.
    void open();
    void measure_network();
    void run();

  private:
    struct Running {
        const RunPoint* point;
        Result result;
        std::unique_ptr<Job> job;
    };

    std::string file(const std::string& name) const { return directory_ + "/points/" + name; }
    std::string measured_file(const std::string& key) const { return file(key + ".measured"); }
    std::string network_file() const { return directory_ + "/network.json"; }
    Task task_of(const RunPoint& point);
    void begin(const RunPoint& point, Result result);
    bool is_last_attempt(const Result& result) const;
    // Looks after one; whether it is over.
    bool look(Running& running);
    void take(Running& running, const std::string& failure);
    void keep(const Result& result, const std::string& measured);

    const RunPlan& plan_;
    std::string directory_;
    std::vector<RunPoint> points_;
    std::vector<const RunPoint*> left_;
    std::optional<RunLock> lock_;
    std::list<Running> running_;
    std::size_t next_ = 0, done_ = 0, failed_ = 0;
    Clock::time_point begin_ = Clock::now();
};

void Study::open() {
    std::error_code error;
    fs::create_directories(directory_ + "/points", error);
    EVENKEEL_CHECK_CODE(!error && fs::is_directory(directory_ + "/points"), ErrorCode::kIo,
                        "scale run", "--out: cannot create ", directory_,
                        "/points: ", error.message());
    lock_.emplace(directory_, "scale run", "--out");
    std::size_t there = 0;
    for (RunPoint& point : points_) {
        const std::string path = point_file(directory_, point.key);
        if (fs::exists(path)) {
            const Result kept = read_result(path);
            const std::string differs = json_difference(settings_of(plan_, point), kept.settings);
            EVENKEEL_CHECK_CODE(differs.empty(), ErrorCode::kConfig, "scale run", path,
                                " was measured with other settings: ", differs,
                                "; name another directory with --out, or remove this one");
            if (kept.failure.empty()) {
                ++there;
                continue;
            }
        }
        if (point.refused.empty()) point.refused = why_too_large(plan_, point);
        if (point.refused.empty()) {
            left_.push_back(&point);
            continue;
        }
        Result result = empty_result(plan_, point);
        result.failure = point.refused;
        write_result(directory_, result, "");
        log_warning(concat("point ", point.key, " cannot be run: ", point.refused));
    }
    write_file_atomically(directory_ + "/plan.json", plan_json(plan_));
    if (there > 0) {
        log_info(concat(there, " of ", points_.size(), " points were there already in ", directory_,
                        "/points"));
    }
}

// Between as many ranks as the largest point has that is not oversubscribed, with a node's ranks as tensor-parallel groups
// where there are several nodes, so that both links are measured.
void Study::measure_network() {
    if (!plan_.measure_network || fs::exists(network_file())) return;
    std::int64_t ranks = 1;
    const RunPoint* model = nullptr;
    const std::int64_t cores =
        std::max<std::int64_t>(1, static_cast<std::int64_t>(allowed_cores().size()));
    for (const RunPoint& point : points_) {
        const bool local =
            plan_.launcher == Launcher::kMpirun && plan_.mpirun.find("host") == std::string::npos;
        if (local && point.config.device == Device::kCpu && point.ranks * plan_.threads > cores) {
            continue;
        }
        if (point.refused.empty() && point.ranks > ranks) ranks = point.ranks, model = &point;
    }
    if (model == nullptr) return;
    const std::int64_t P = ranks > plan_.ranks_per_node && ranks % plan_.ranks_per_node == 0
                               ? plan_.ranks_per_node
                               : 1;
    Task task = task_of(*model);
    task.name = "network";
    task.log = file("network.log");
    task.mark = file("network.job");
    task.result = network_file();
    const bool gpus = model->config.device == Device::kCuda;
    task.arguments = {
        "scale", "measure", "--tensor-parallel", std::to_string(P),     "--from",   "4K",
        "--to",  "16M",     "--device",          gpus ? "cuda" : "cpu", "--output", network_file()};
    if (gpus && model->config.parallel.communication == Communication::kStaged) {
        task.arguments.insert(task.arguments.end(), {"--communication", "staged"});
    }
    log_info(concat("network between ", ranks, " ranks"));
    std::string failure;
    try {
        const auto job = start_job(plan_, task);
        std::optional<std::string> end;
        while (!(end = job->poll())) {
            if (job->seconds() > 60.0 * plan_.timeout_minutes) {
                job->cancel();
                end = concat("not done within ", plan_.timeout_minutes, " min");
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
        }
        failure = *end;
        if (failure.empty() && !fs::exists(network_file())) failure = "it left no result";
    } catch (const Error& error) {
        failure = error.what();
    }
    if (failure.empty()) return;
    log_warning(concat("the network could not be measured: ", failure));
}

Task Study::task_of(const RunPoint& point) {
    Task task;
    task.name = point.key;
    task.ranks = point.ranks;
    task.config = file(point.key + ".config.json");
    task.log = file(point.key + ".log");
    task.mark = file(point.key + ".job");
    task.settings_hash = hash_text(hash_of(settings_of(plan_, point)));
    task.gpus = point.config.device == Device::kCuda;
    task.result = measured_file(point.key);
    task.arguments = {"scale",     "point",    "--config",
                      task.config, "--warmup", std::to_string(plan_.warmup_steps),
                      "--output",  task.result};
    RunConfig config = point.config;
    write_file_atomically(task.config, to_json(config));
    return task;
}

void Study::begin(const RunPoint& point, Result result) {
    for (;;) {
        ++result.attempts;
        try {
            std::unique_ptr<Job> job = start_job(plan_, task_of(point));
            running_.push_back({&point, std::move(result), std::move(job)});
            return;
        } catch (const Error& error) {
            result.failure = error.what();
        }
        if (is_last_attempt(result)) return keep(result, "");
        result.failure.clear();
    }
}

// Says why there is another one, if there is.
bool Study::is_last_attempt(const Result& result) const {
    if (result.attempts >= plan_.attempts) return true;
    log_warning(concat("point ", result.key, ", attempt ", result.attempts, " of ", plan_.attempts,
                       ": ", result.failure));
    return false;
}

bool Study::look(Running& running) {
    std::optional<std::string> end = running.job->poll();
    if (!end && running.job->seconds() > 60.0 * plan_.timeout_minutes) {
        running.job->cancel();
        const std::string said = last_words(file(running.point->key + ".log"));
        end = concat("not done within timeout_minutes = ", plan_.timeout_minutes,
                     said.empty() ? "" : ": ", said);
    }
    if (!end) return false;
    take(running, *end);
    return true;
}

// Of a point that is over: kept, or begun once more.
void Study::take(Running& running, const std::string& failure) {
    Result result = std::move(running.result);
    const std::string measured = measured_file(result.key);
    result.failure = failure;
    if (failure.empty()) {
        const std::string said = last_words(file(result.key + ".log"));
        try {
            if (!fs::exists(measured)) {
                result.failure = concat("it left no result", said.empty() ? "" : ": ", said);
            } else {
                result.measured = read_measured(measured);
            }
        } catch (const Error& error) {
            result.failure = error.what();
        }
    }
    if (!result.failure.empty() && !is_last_attempt(result)) {
        result.failure.clear();
        return begin(*running.point, std::move(result));
    }
    keep(result, result.failure.empty() ? measured : "");
}

void Study::keep(const Result& result, const std::string& measured) {
    write_result(directory_, result, measured);
    std::error_code ignored;
    fs::remove(measured_file(result.key), ignored);
    ++done_;
    if (!result.failure.empty()) {
        ++failed_;
        log_warning(concat("point ", result.key, " failed: ", result.failure));
    }
    const double passed = std::chrono::duration<double>(Clock::now() - begin_).count();
    const double rest =
        passed / static_cast<double>(done_) * static_cast<double>(left_.size() - done_);
    const std::string numbers =
        result.measured ? concat("  ", number("%.0f", result.measured->tokens_per_second()),
                                 " tokens/s  loss ", number("%.4f", result.measured->losses.back()))
                        : "";
    log_progress(
        concat("point ", done_, "/", left_.size(), "  ", result.key, numbers,
               failed_ > 0 ? concat("  ", failed_, " failed") : "", "  left ", duration_text(rest)),
        true);
}

void Study::run() {
    begin_ = Clock::now();
    while (next_ < left_.size() || !running_.empty()) {
        while (next_ < left_.size() && running_.size() < static_cast<std::size_t>(plan_.jobs)) {
            const RunPoint& point = *left_[next_++];
            begin(point, empty_result(plan_, point));
        }
        for (auto at = running_.begin(); at != running_.end();) {
            at = look(*at) ? running_.erase(at) : std::next(at);
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
}

void print_points(const std::vector<RunPoint>& points) {
    std::size_t width = 8;
    for (const RunPoint& point : points) width = std::max(width, point.key.size());
    for (const RunPoint& point : points) {
        const TrainerConfig& trainer = point.config.trainer;
        if (!point.refused.empty()) {
            std::cout << point.key << std::string(width - point.key.size() + 2, ' ')
                      << "cannot be run: " << point.refused << "\n";
            continue;
        }
        std::cout << point.key << std::string(width - point.key.size() + 2, ' ')
                  << "tensor parallel " << point.tensor_parallel() << " x data parallel "
                  << point.data_parallel() << ", "
                  << trainer.batch_size / point.data_parallel() / trainer.micro_batch_size << " x "
                  << trainer.micro_batch_size << " sequences of " << trainer.seq_len << " a rank, "
                  << trainer.batch_size << " in all\n";
    }
}

}  // namespace

int run_scale_run(const ScaleRunCommand& command) {
    const Launch launch = launch_of_this_process();
    EVENKEEL_CHECK_CODE(launch.launcher.empty(), ErrorCode::kConfig, "scale run", "started by ",
                        launch.launcher, "; want no launcher: it starts ranks itself");
    const RunPlan plan = load_run_plan(command.plan, command.overrides);
    Study study(plan, directory_of(command));
    if (command.list) {
        print_points(study.points());
        return 0;
    }
    study.open();
    study.measure_network();
    study.run();
    return run_scale_report({directory_of(command)});
}

}  // namespace evenkeel
