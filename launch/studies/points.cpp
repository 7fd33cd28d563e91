#include "launch/studies/points.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <thread>

#include "framework/cores.h"
#include "framework/json.h"
#include "framework/log.h"
#include "framework/storage/checkpoint.h"

namespace evenkeel::study {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

Json number_json(double value) {
    if (std::isfinite(value)) return value;
    return std::isnan(value) ? "nan" : value > 0.0 ? "inf" : "-inf";
}

double number_from(const Json& json) {
    if (json.is_number()) return json.get<double>();
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    if (json == "inf") return kInfinity;
    return json == "-inf" ? -kInfinity : std::numeric_limits<double>::quiet_NaN();
}

std::string point_file(const StudyCommand& command, const std::string& key) {
    return command.out + "/points/" + key + ".json";
}

void write_point(const std::string& path, const std::string& settings, const PointResult& result) {
    Json json = {{"settings", Json::parse(settings)}};
    if (!result.failure.empty()) json["failure"] = result.failure;
    json["numbers"] = Json::object();
    for (const auto& [name, value] : result.numbers) json["numbers"][name] = number_json(value);
    json["curves"] = Json::object();
    for (const auto& [name, points] : result.curves) {
        Json& curve = json["curves"][name] = Json::array();
        for (const Point& p : points) curve.push_back({number_json(p.x), number_json(p.y)});
    }
    write_file_atomically(path, json.dump() + "\n");
}

PointResult read_point(const std::string& path, const std::string& settings) {
    const Json json = Json::parse(read_file(path), nullptr, false);
    EVENKEEL_CHECK_CODE(json.is_object() && json.contains("settings") && json.contains("numbers") &&
                            json.contains("curves"),
                        ErrorCode::kIo, "study", path, ": is not a point; remove it");
    const Json want = Json::parse(settings);
    for (const auto& [key, value] : want.items()) {
        // Points of earlier versions do not say what their text was; failed ones are made anew.
        if (key == kTextFingerprint &&
            (!json["settings"].contains(key) || json.contains("failure"))) {
            continue;
        }
        const Json had = json["settings"].value(key, Json());
        EVENKEEL_CHECK_CODE(had == value, ErrorCode::kConfig, "study", path, ": ", key, ": got ",
                            had.dump(), ", want ", value.dump(),
                            "; name another directory with --out, or remove this one");
    }
    PointResult result;
    result.failure = json.value("failure", "");
    for (const auto& [name, value] : json["numbers"].items())
        result.numbers[name] = number_from(value);
    for (const auto& [name, points] : json["curves"].items()) {
        for (const Json& p : points) {
            result.curves[name].push_back({number_from(p[0]), number_from(p[1])});
        }
    }
    return result;
}

std::string duration(double seconds) {
    const auto whole = static_cast<std::int64_t>(std::ceil(seconds));
    if (whole < 60) return concat(whole, " s");
    if (whole < 3600) return concat(whole / 60, " min");
    return concat(whole / 3600, " h ", whole % 3600 / 60, " min");
}

// The last line with something in it.
std::string last_line(const std::string& path) {
    std::string text = read_file(path);
    const std::size_t end = text.find_last_not_of("\n\r ");
    if (end == std::string::npos) return "";
    text.resize(end + 1);
    return text.substr(text.find_last_of("\n\r") + 1);
}

// A process with the arguments, one thread, and its messages in a file.
pid_t start(const std::vector<std::string>& arguments, const std::string& log) {
    std::vector<char*> argv;
    for (const std::string& argument : arguments)
        argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    std::string threads = "OMP_NUM_THREADS=1";
    std::vector<char*> environment = {threads.data()};
    for (char** variable = environ; *variable != nullptr; ++variable) {
        if (std::strncmp(*variable, "OMP_NUM_THREADS=", 16) != 0) environment.push_back(*variable);
    }
    environment.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    pid_t process = -1;
    const int error =
        posix_spawn(&process, argv[0], &actions, nullptr, argv.data(), environment.data());
    posix_spawn_file_actions_destroy(&actions);
    EVENKEEL_CHECK_CODE(error == 0, ErrorCode::kIo, "study", arguments[0],
                        ": cannot start: ", std::strerror(error));
    return process;
}

// The processes that run; those left are ended with this object.
class Pool {
  public:
    Pool(const StudyCommand& command, const PointPlan& plan) : command_(command), plan_(plan) {}
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;
    ~Pool() {
        for (const auto& [process, key] : running_) {
            ::kill(process, SIGTERM);
            ::waitpid(process, nullptr, 0);
        }
    }

    std::size_t size() const { return running_.size(); }

    void add(const std::string& key) {
        std::vector<std::string> arguments = {plan_.program, "study", command_.name, "--out",
                                              command_.out};
        for (const std::string& assignment : command_.overrides) {
            arguments.insert(arguments.end(), {"--set", assignment});
        }
        arguments.insert(arguments.end(), {"--point", key});
        running_[start(arguments, log_of(key))] = key;
    }

    // Waits until one ends; returns its key and, when it failed, why.
    std::pair<std::string, std::string> take() {
        for (;;) {
            for (const auto& [process, key] : running_) {
                int status = 0;
                if (::waitpid(process, &status, WNOHANG) != process) continue;
                const std::pair ended{key, why(status, key)};
                running_.erase(process);
                return ended;
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
        }
    }

  private:
    std::string log_of(const std::string& key) const {
        return command_.out + "/points/" + key + ".log";
    }
    std::string why(int status, const std::string& key) const {
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
            return fs::exists(point_file(command_, key)) ? "" : "its process left no result";
        }
        const std::string how = WIFSIGNALED(status) ? concat("ended by signal ", WTERMSIG(status))
                                                    : concat("exit status ", WEXITSTATUS(status));
        const std::string said = last_line(log_of(key));
        return said.empty() ? how : concat(how, ": ", said);
    }

    const StudyCommand& command_;
    const PointPlan& plan_;
    std::map<pid_t, std::string> running_;
};

}  // namespace

double PointResult::number(const std::string& name) const {
    const auto found = numbers.find(name);
    return found == numbers.end() ? std::numeric_limits<double>::quiet_NaN() : found->second;
}

std::map<std::string, PointResult> run_points(const StudyCommand& command, const PointPlan& plan) {
    std::error_code error;
    fs::create_directories(command.out + "/points", error);
    EVENKEEL_CHECK_CODE(!error, ErrorCode::kIo, "study", "--out: cannot create ", command.out,
                        "/points: ", error.message());
    std::map<std::string, PointResult> results;
    std::vector<std::string> left;
    for (const std::string& key : plan.keys) {
        const std::string file = point_file(command, key);
        if (fs::exists(file)) results[key] = read_point(file, plan.settings);
        if (fs::exists(file) && results[key].failure.empty()) continue;
        left.push_back(key);
    }
    const std::size_t count = left.size();
    if (count < plan.keys.size()) {
        log_info(concat(plan.keys.size() - count, " of ", plan.keys.size(),
                        " points were there already in ", command.out, "/points"));
    }
    const auto jobs = plan.jobs > 0 ? static_cast<std::size_t>(plan.jobs)
                                    : std::max<std::size_t>(allowed_cores().size(), 1);
    const auto begin = Clock::now();
    std::size_t done = 0, failed = 0;
    Pool pool(command, plan);
    for (std::size_t next = 0; done < count; ++done) {
        while (next < count && pool.size() < jobs) pool.add(left[next++]);
        const auto [key, failure] = pool.take();
        const std::string file = point_file(command, key);
        if (failure.empty()) {
            results[key] = read_point(file, plan.settings);
        } else {
            results[key] = PointResult{{}, {}, failure};
            write_point(file, plan.settings, results[key]);
            log_warning(concat("point ", key, " failed: ", failure));
            ++failed;
        }
        const double passed = std::chrono::duration<double>(Clock::now() - begin).count();
        const double each = passed / static_cast<double>(done + 1);
        log_progress(concat(command.name, " ", done + 1, "/", count, "  ", key,
                            failed > 0 ? concat("  ", failed, " failed") : "", "  left ",
                            duration(each * static_cast<double>(count - done - 1))),
                     done + 1 == count);
    }
    return results;
}

void count_points(const std::map<std::string, PointResult>& results, Outcome& outcome) {
    outcome.points = results.size();
    for (const auto& [key, result] : results) outcome.failed += result.failure.empty() ? 0 : 1;
}

void begin_point() { ::prctl(PR_SET_PDEATHSIG, SIGTERM); }

void keep_point(const StudyCommand& command,
                const std::string& settings,
                const PointResult& result) {
    std::error_code error;
    fs::create_directories(command.out + "/points", error);
    write_point(point_file(command, command.point), settings, result);
}

}  // namespace evenkeel::study
