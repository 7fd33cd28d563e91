#include "parallel/watchdog.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <random>
#include <sstream>
#include <thread>

#include "framework/json.h"
#include "parallel/collective_log.h"
#include "parallel/watchdog_report.h"

namespace evenkeel {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;
using Place = RankAnswer::Place;

// What ranks that have answered wait beyond the grace for whoever asked, which may have died meanwhile.
constexpr double kPatience = 10.0;
// A host that is silent so many time-outs while its GPU has work with others: it is stuck in a driver's call,
// where nobody counts its wait.
constexpr double kSilent = 2.0;
constexpr int kMostAnswered = 256;  // operations in an answer

double seconds_between(std::int64_t from, std::int64_t to) {
    return 1e-9 * static_cast<double>(to - from);
}

// What all ranks know of one, from the start.
struct Process {
    char host[64] = {};
    std::int32_t pid = 0;
    std::int32_t padding = 0;
};
static_assert(sizeof(Process) % sizeof(std::int32_t) == 0);

std::string time_text() {
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    gmtime_r(&now, &parts);
    char text[32];
    std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
    return text;
}

// The path from the folder of the source on, whatever directory it was compiled in.
std::string site_text(const CallSite& site) {
    const std::string file = site.file_name();
    std::size_t cut = file.rfind('/');
    if (cut != std::string::npos && cut > 0) cut = file.rfind('/', cut - 1);
    std::string function = site.function_name();
    // Its name alone, of "type evenkeel::Class::name(arguments)".
    function = function.substr(0, function.find('('));
    if (const std::size_t space = function.rfind(' '); space != std::string::npos) {
        function = function.substr(space + 1);
    }
    constexpr const char* kSpace = "evenkeel::";
    if (function.rfind(kSpace, 0) == 0) function = function.substr(std::strlen(kSpace));
    return concat(cut == std::string::npos ? file : file.substr(cut + 1), ":", site.line(), " (",
                  function, ")");
}

std::string what_text(const CollectiveRecord& record) {
    if (record.bytes == 0) return record.op;
    return concat(record.op, " of ", record.bytes, " bytes of ", name_of(record.dtype));
}

std::vector<LoggedOperation> logged_operations() {
    const CollectiveLog& log = CollectiveLog::instance();
    const std::vector<CollectiveRecord> records = log.records();
    const std::vector<CollectiveGroup> groups = log.groups();
    std::vector<std::string> names;
    for (std::size_t i = 0; i < groups.size(); ++i) {
        const auto same = std::count_if(groups.begin(), groups.begin() + static_cast<long>(i),
                                        [&](const CollectiveGroup& before) {
                                            return before.name == groups[i].name &&
                                                   before.ranks == groups[i].ranks;
                                        });
        names.push_back(same == 0 ? groups[i].name : concat(groups[i].name, "#", same + 1));
    }
    std::vector<LoggedOperation> operations;
    const std::size_t first = records.size() > kMostAnswered ? records.size() - kMostAnswered : 0;
    for (std::size_t i = first; i < records.size(); ++i) {
        const CollectiveRecord& record = records[i];
        const auto group = static_cast<std::size_t>(record.group);
        operations.push_back({names[group], groups[group].ranks, record.sequence, what_text(record),
                              record.peer, site_text(record.site), record.done != 0});
    }
    return operations;
}

RankAnswer place_of_this_rank(int rank, const std::string& why) {
    const HostPosition position = CollectiveLog::instance().position();
    RankAnswer answer;
    answer.rank = rank;
    answer.place = position.in_operation ? Place::kOperation
                   : position.waits_for_gpu || (!why.empty() && position.since != 0)
                       ? Place::kGpu
                       : Place::kOutside;
    if (position.since != 0) {
        answer.since_seconds = seconds_between(position.since, CollectiveLog::now());
    }
    answer.why = why;
    answer.operations = logged_operations();
    return answer;
}

Json to_json(const RankAnswer& answer) {
    Json operations = Json::array();
    for (const LoggedOperation& operation : answer.operations) {
        operations.push_back({{"group", operation.group},
                              {"ranks", operation.ranks},
                              {"sequence", operation.sequence},
                              {"what", operation.what},
                              {"peer", operation.peer},
                              {"site", operation.site},
                              {"done", operation.done}});
    }
    return {{"rank", answer.rank},
            {"place", static_cast<int>(answer.place)},
            {"text", describe_place(answer)},
            {"since_seconds", answer.since_seconds},
            {"error", answer.why},
            {"operations", operations}};
}

RankAnswer from_json(const Json& json) {
    RankAnswer answer;
    answer.rank = json.at("rank").get<int>();
    answer.place = static_cast<Place>(json.at("place").get<int>());
    answer.since_seconds = json.at("since_seconds").get<double>();
    answer.why = json.at("error").get<std::string>();
    for (const Json& entry : json.at("operations")) {
        answer.operations.push_back(
            {entry.at("group").get<std::string>(), entry.at("ranks").get<std::vector<int>>(),
             entry.at("sequence").get<std::int64_t>(), entry.at("what").get<std::string>(),
             entry.at("peer").get<int>(), entry.at("site").get<std::string>(),
             entry.at("done").get<bool>()});
    }
    return answer;
}

// Whole or not at all, for readers on this and other machines.
bool write_whole(const std::string& path, const std::string& text) {
    const std::string beside = path + ".part";
    {
        std::ofstream out(beside, std::ios::binary);
        out << text;
        out.flush();
        if (!out) return false;
    }
    return std::rename(beside.c_str(), path.c_str()) == 0;
}

void say(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stderr);
    std::fflush(stderr);
}

class Watchdog {
  public:
    Watchdog(Communicator& world, const WatchdogOptions& options)
        : options_(options), rank_(world.rank()), size_(world.size()) {
        if (options_.grace_seconds <= 0.0) {
            options_.grace_seconds = std::clamp(options_.timeout_seconds / 10.0, 5.0, 60.0);
        }
        agree_on_job(world);
        if (options_.directory.empty()) choose_directory();
        world.barrier();
        // Signals are the main thread's.
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, &before);
        thread_ = std::thread([this] { watch(); });
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

    ~Watchdog() {
        {
            const std::lock_guard lock(mutex_);
            stopping_ = true;
        }
        changed_.notify_all();
        thread_.join();
    }
    Watchdog(const Watchdog&) = delete;
    Watchdog& operator=(const Watchdog&) = delete;

    // Not of this job: it may have been asked for a report already.
    void remove_old_files() const {
        std::error_code ignored;
        for (const auto& entry : std::filesystem::directory_iterator(options_.directory, ignored)) {
            const std::string name = entry.path().filename().string();
            if (entry.path() == request_file() || entry.path().extension() == ".part") continue;
            const bool is_answer = name.rfind("rank_", 0) == 0 && answer_in(entry.path()).is_null();
            if (is_answer || name.rfind("request_", 0) == 0) {
                std::filesystem::remove(entry.path(), ignored);
            }
        }
    }

    [[noreturn]] void lost(const std::string& why) {
        {
            const std::lock_guard lock(mutex_);
            why_ = why;
        }
        changed_.notify_all();
        for (;;) pause();  // the thread ends the process
    }

  private:
    std::string file(const std::string& name) const { return options_.directory + "/" + name; }
    std::string request_file() const { return file("request_" + job_); }
    std::string rank_file(int rank) const { return file(concat("rank_", rank, ".json")); }

    // A number that no other job in the directory has, and where the processes are.
    void agree_on_job(Communicator& world) {
        const Tensor number = Tensor::zeros({2}, DType::kInt32);
        if (rank_ == 0) {
            std::random_device random;
            for (int i = 0; i < 2; ++i) {
                number.data<std::int32_t>()[i] = static_cast<std::int32_t>(random());
            }
        }
        world.broadcast(number, 0);
        char text[20];
        std::snprintf(text, sizeof text, "%08x%08x",
                      static_cast<unsigned>(number.data<std::int32_t>()[0]),
                      static_cast<unsigned>(number.data<std::int32_t>()[1]));
        job_ = text;

        Process mine;
        gethostname(mine.host, sizeof mine.host - 1);
        mine.pid = static_cast<std::int32_t>(getpid());
        constexpr auto kWords = static_cast<std::int64_t>(sizeof(Process) / sizeof(std::int32_t));
        const Tensor one = Tensor::zeros({kWords}, DType::kInt32);
        const Tensor all = Tensor::zeros({size_, kWords}, DType::kInt32);
        std::memcpy(one.raw(), &mine, sizeof mine);
        world.all_gather(one, all);
        processes_.resize(static_cast<std::size_t>(size_));
        std::memcpy(processes_.data(), all.raw(), all.bytes());
    }

    void choose_directory() {
        const Process& first = processes_.front();
        std::error_code failed;
        const std::filesystem::path parent = std::filesystem::temp_directory_path(failed);
        const bool one_host = std::all_of(
            processes_.begin(), processes_.end(),
            [&](const Process& other) { return std::strcmp(other.host, first.host) == 0; });
        if (failed || !one_host) return;
        options_.directory = parent / ("evenkeel_watchdog_" + job_);
        is_temporary_ = true;
    }

    void watch() {
        std::unique_lock lock(mutex_);
        for (;;) {
            changed_.wait_for(lock, std::chrono::duration<double>(options_.poll_seconds),
                              [this] { return stopping_ || !why_.empty(); });
            if (stopping_) return;
            if (!why_.empty() || wait_has_run_out()) ask(why_);
            if (is_asked()) answer_and_end(why_);
        }
    }

    bool wait_has_run_out() const {
        const HostPosition position = CollectiveLog::instance().position();
        const std::int64_t now = CollectiveLog::now();
        const double timeout = options_.timeout_seconds;
        if (position.in_operation) return seconds_between(position.since, now) > timeout;
        const std::int64_t progress = std::max(position.since, position.progress);
        // A long wait for the GPU is no failure while its operations with others are done one by one.
        if (position.waits_for_gpu) return seconds_between(progress, now) > timeout;
        return position.oldest_on_gpu != 0 && seconds_between(progress, now) > kSilent * timeout;
    }

    bool is_asked() const {
        std::error_code ignored;
        return !options_.directory.empty() && std::filesystem::exists(request_file(), ignored);
    }

    // Does not return if the report is this rank's to make, or nobody's.
    void ask(const std::string& why) {
        const RankAnswer mine = place_of_this_rank(rank_, why);
        if (options_.directory.empty()) end_alone(mine);
        std::error_code ignored;
        std::filesystem::create_directories(options_.directory, ignored);
        std::FILE* const request =
            std::fopen(request_file().c_str(), "wx");  // the first one makes it
        if (request == nullptr) {
            if (errno == EEXIST) return;
            end_alone(mine);
        }
        std::fprintf(request, "rank %d at %s\n", rank_, time_text().c_str());
        std::fclose(request);
        report(mine);
    }

    std::string opening(const RankAnswer& mine) const {
        const std::string reason =
            mine.why.empty() ? concat("has waited longer than parallel.timeout_seconds = ",
                                      options_.timeout_seconds, " for other ranks")
                             : "has failed in an operation with other ranks";
        return concat("[watchdog] rank ", mine.rank, " ", reason, " (", time_text(),
                      "); all ranks end with exit status ", kExitRankLost);
    }

    void write_answer(const RankAnswer& answer) const {
        Json json = to_json(answer);
        json["job"] = job_;
        json["time"] = time_text();
        const Process& process = processes_[static_cast<std::size_t>(rank_)];
        json["host"] = process.host;
        json["pid"] = process.pid;
        write_whole(rank_file(rank_), json.dump(1) + "\n");
    }

    // Null where there is none of this job.
    Json answer_in(const std::string& path) const {
        std::ifstream in(path, std::ios::binary);
        if (!in) return nullptr;
        Json json = Json::parse(in, nullptr, false);
        const bool mine = json.is_object() && json.contains("job") && json["job"] == job_;
        return mine ? json : Json(nullptr);
    }

    bool read_answer(int rank, RankAnswer& answer) const {
        const Json json = answer_in(rank_file(rank));
        if (json.is_null()) return false;
        try {
            answer = from_json(json);
        } catch (const Json::exception&) {
            return false;
        }
        return true;
    }

    // What the one who asks can see of a process that gives no answer.
    std::string look_at(int rank) const {
        const Process& process = processes_[static_cast<std::size_t>(rank)];
        const Process& mine = processes_[static_cast<std::size_t>(rank_)];
        const std::string where = concat("process ", process.pid, " on ", process.host);
        if (std::strcmp(process.host, mine.host) != 0) {
            return where + " is dead, stopped, or cut off from this host or from the run directory";
        }
        std::ifstream in(concat("/proc/", process.pid, "/stat"));
        std::string text;
        std::getline(in, text);
        const std::size_t name_end = text.rfind(')');
        if (name_end == std::string::npos || name_end + 2 >= text.size()) {
            return where + " is dead";
        }
        switch (text[name_end + 2]) {
            case 'T':
            case 't':
                return where + " is stopped (SIGSTOP or a debugger)";
            case 'Z':
            case 'X':
                return where + " is dead";
            case 'D':
                return where + " is stuck in the kernel (state D: a file system or a driver)";
            default:
                return where + " is alive, but its watchdog does not answer";
        }
    }

    [[noreturn]] void report(const RankAnswer& mine) {
        write_answer(mine);
        const auto deadline =
            Clock::now() + std::chrono::duration_cast<Clock::duration>(
                               std::chrono::duration<double>(options_.grace_seconds));
        std::vector<RankAnswer> answers(static_cast<std::size_t>(size_));
        std::vector<bool> answered(answers.size(), false);
        answers[static_cast<std::size_t>(rank_)] = mine;
        answered[static_cast<std::size_t>(rank_)] = true;
        while (std::find(answered.begin(), answered.end(), false) != answered.end() &&
               Clock::now() < deadline) {
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
            for (std::size_t i = 0; i < answers.size(); ++i) {
                if (!answered[i]) answered[i] = read_answer(static_cast<int>(i), answers[i]);
            }
        }
        for (std::size_t i = 0; i < answers.size(); ++i) {
            if (answered[i]) continue;
            answers[i].rank = static_cast<int>(i);
            answers[i].process = look_at(static_cast<int>(i));
        }
        const std::string text = fault_report(opening(mine), answers);
        write_whole(file("report.txt"), text);
        say(text);
        std::error_code ignored;
        if (is_temporary_) std::filesystem::remove_all(options_.directory, ignored);
        _exit(kExitRankLost);
    }

    // Answers, and gives the one who asked time to report.
    [[noreturn]] void answer_and_end(const std::string& why) {
        const RankAnswer mine = place_of_this_rank(rank_, why);
        write_answer(mine);
        std::this_thread::sleep_for(
            std::chrono::duration<double>(options_.grace_seconds + kPatience));
        std::error_code no_report, no_request;
        const auto made = std::filesystem::last_write_time(file("report.txt"), no_report);
        const auto asked = std::filesystem::last_write_time(request_file(), no_request);
        if (!no_report && !no_request && made >= asked) {
            // What the rank that asked has printed is lost where its host is cut off.
            std::ostringstream text;
            if (rank_ == 0) text << std::ifstream(file("report.txt")).rdbuf();
            say(concat("[watchdog] rank ", rank_, " ends: see ", file("report.txt"), "\n",
                       text.str()));
            _exit(kExitRankLost);
        }
        say(concat("[watchdog] rank ", rank_, " was asked for a report that nobody made; it ",
                   describe_place(mine), "\n"));
        _exit(kExitRankLost);
    }

    [[noreturn]] void end_alone(const RankAnswer& mine) {
        say(opening(mine) + "\n  rank " + std::to_string(rank_) + ": " + describe_place(mine) +
            (mine.why.empty() ? "" : "\n  " + mine.why) +
            "\n  no directory is shared in which other ranks could answer\n");
        // Others whose time runs out now say where they are, too.
        std::this_thread::sleep_for(std::chrono::duration<double>(2.0 * options_.poll_seconds));
        _exit(kExitRankLost);
    }

    WatchdogOptions options_;
    int rank_, size_;
    std::string job_;
    bool is_temporary_ = false;  // the directory
    std::vector<Process> processes_;
    std::mutex mutex_;
    std::condition_variable changed_;
    bool stopping_ = false;
    std::string why_;
    std::thread thread_;
};

std::unique_ptr<Watchdog> watchdog;

}  // namespace

void start_watchdog(Communicator& world, const WatchdogOptions& options) {
    stop_watchdog();
    if (world.size() > 1) watchdog = std::make_unique<Watchdog>(world, options);
}

void stop_watchdog() { watchdog.reset(); }

void remove_old_watchdog_files() {
    if (watchdog != nullptr) watchdog->remove_old_files();
}

void rank_is_lost(const std::string& why) {
    if (watchdog != nullptr) watchdog->lost(why);
}

}  // namespace evenkeel
