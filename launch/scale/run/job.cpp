#include "launch/scale/run/job.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <thread>

#include "framework/error.h"
#include "framework/storage/checkpoint.h"

namespace evenkeel::scale {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int kNoProgram = 127;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

void append(std::vector<std::string>& words, const std::vector<std::string>& more) {
    words.insert(words.end(), more.begin(), more.end());
}

std::string own_program() {
    std::error_code error;
    const fs::path path = fs::read_symlink("/proc/self/exe", error);
    return error ? "evenkeel" : path.string();
}

// A process that writes to `out` and `errors` and ends when this one does.
pid_t start_process(const std::vector<std::string>& words,
                    const std::vector<std::string>& environment,
                    int out,
                    int errors) {
    std::vector<char*> argv;
    for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    std::vector<char*> variables;
    for (const std::string& variable : environment) {
        variables.push_back(const_cast<char*>(variable.c_str()));
    }
    for (char** variable = environ; *variable != nullptr; ++variable) {
        const std::string_view text = *variable;
        const std::string_view name = text.substr(0, text.find('=') + 1);
        const bool replaced =
            std::any_of(environment.begin(), environment.end(),
                        [&](const std::string& own) { return own.starts_with(name); });
        if (!replaced) variables.push_back(*variable);
    }
    variables.push_back(nullptr);
    const pid_t parent = ::getpid();
    const pid_t process = ::fork();
    EVENKEEL_CHECK_CODE(process >= 0, ErrorCode::kIo, "scale run", words[0],
                        ": cannot start: ", std::strerror(errno));
    if (process > 0) return process;
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != parent) ::_exit(1);
    const int nothing = ::open("/dev/null", O_RDONLY);
    ::dup2(nothing, 0);
    ::dup2(out, 1);
    ::dup2(errors, 2);
    std::signal(SIGPIPE, SIG_DFL);
    ::execvpe(argv[0], argv.data(), variables.data());
    ::_exit(kNoProgram);
}

std::string how_it_ended(int status, const std::string& program) {
    if (WIFSIGNALED(status)) return concat("ended by signal ", WTERMSIG(status));
    if (WEXITSTATUS(status) == kNoProgram) {
        return concat("exit status 127: is there a program ", program, "?");
    }
    return concat("exit status ", WEXITSTATUS(status));
}

std::string with_last_words(const std::string& how, const std::string& log) {
    const std::string said = last_words(log);
    return said.empty() ? how : concat(how, ": ", said);
}

void remove_result(const Task& task) {
    std::error_code ignored;
    fs::remove(task.result, ignored);
}

class MpirunJob final : public Job {
  public:
    MpirunJob(const RunPlan& plan, const Task& task) : log_(task.log) {
        std::vector<std::string> words = words_of(plan.mpirun);
        program_ = words[0];
        append(words, {"-np", std::to_string(task.ranks), "-x", "OMP_NUM_THREADS", own_program()});
        append(words, task.arguments);
        remove_result(task);
        const int out = ::open(task.log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        EVENKEEL_CHECK_CODE(out >= 0, ErrorCode::kIo, "scale run", task.log,
                            ": cannot write: ", std::strerror(errno));
        process_ = start_process(words, {concat("OMP_NUM_THREADS=", plan.threads)}, out, out);
        ::close(out);
    }
    ~MpirunJob() override { cancel(); }
    MpirunJob(const MpirunJob&) = delete;
    MpirunJob& operator=(const MpirunJob&) = delete;

    std::optional<std::string> poll() override {
        if (process_ < 0) return "ended";
        int status = 0;
        if (::waitpid(process_, &status, WNOHANG) != process_) return std::nullopt;
        process_ = -1;
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return "";
        return with_last_words(how_it_ended(status, program_), log_);
    }
    double seconds() const override { return seconds_since(begin_); }
    // mpirun ends its ranks when it is asked to end, and cannot when it is killed.
    void cancel() override {
        if (process_ < 0) return;
        constexpr int kPatience = 100;  // tenths of a second
        ::kill(process_, SIGTERM);
        for (int i = 0; i < kPatience; ++i) {
            if (::waitpid(process_, nullptr, WNOHANG) == process_) {
                process_ = -1;
                return;
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
        }
        ::kill(process_, SIGKILL);
        ::waitpid(process_, nullptr, 0);
        process_ = -1;
    }

  private:
    std::string log_, program_;
    pid_t process_ = -1;
    Clock::time_point begin_ = Clock::now();
};

// The first line with something in it, without blanks at its ends.
std::string first_line(const std::string& text) {
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) {
        const std::size_t begin = line.find_first_not_of(" \t\r");
        if (begin != std::string::npos) {
            return line.substr(begin, line.find_last_not_of(" \t\r") + 1 - begin);
        }
    }
    return "";
}

// Its lines with semicolons between.
std::string in_one_line(const std::string& text) {
    std::string line;
    for (const char c : text) line += c == '\n' ? "; " : std::string(1, c);
    while (line.ends_with("; ")) line.resize(line.size() - 2);
    return line;
}

class SlurmJob final : public Job {
  public:
    SlurmJob(const RunPlan& plan, const Task& task) : task_(task) {
        if (!take_over()) submit(plan);
    }

    std::optional<std::string> poll() override {
        if (Clock::now() < next_) return std::nullopt;
        pause_ = std::min(2.0 * pause_, kLongest);
        next_ = Clock::now() +
                std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(pause_));
        const Captured queue = capture({"squeue", "-h", "-j", id_, "-o", "%T"});
        // A controller that does not answer says nothing of the job.
        const bool answers =
            queue.status == 0 || queue.errors.find("nvalid job id") != std::string::npos;
        if (!answers) return std::nullopt;
        const std::string state = queue.status == 0 ? first_line(queue.output) : "";
        if (state == "RUNNING" && !runs_) begin_ = Clock::now(), runs_ = true;
        if (!state.empty() && !is_end(state)) {
            unknown_ = 0;
            return std::nullopt;
        }
        return ended(state);
    }
    double seconds() const override { return runs_ ? seconds_since(begin_) : 0.0; }
    void cancel() override {
        capture({"scancel", id_});
        forget();
    }

  private:
    static constexpr double kLongest = 10.0;  // seconds between questions
    static constexpr int kUnknown = 5;        // answers in a row in which nobody knows of the job

    static bool is_end(const std::string& state) {
        for (const char* end : {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL",
                                "OUT_OF_MEMORY", "PREEMPTED", "BOOT_FAIL", "DEADLINE"}) {
            if (state.starts_with(end)) return true;
        }
        return false;
    }

    // The queue does not know it any more: accounting does, where there is any.
    std::optional<std::string> ended(std::string state) {
        const Captured account = capture({"sacct", "-n", "-X", "-P", "-j", id_, "-o", "State"});
        if (account.status == 0 && !first_line(account.output).empty()) {
            state = first_line(account.output);
            if (!is_end(state)) return std::nullopt;
        } else if (state.empty() && ++unknown_ < kUnknown) {
            return std::nullopt;
        }
        if (state.empty()) capture({"scancel", id_});
        forget();
        // Whether there is a result is seen by whoever asked for it.
        if (state.empty() || state.starts_with("COMPLETED")) return "";
        return with_last_words(concat("Slurm job ", id_, ": ", state), task_.log);
    }

    // A job that an earlier process has submitted.
    bool take_over() {
        if (task_.mark.empty() || !fs::exists(task_.mark)) return false;
        const std::vector<std::string> words = words_of(read_file(task_.mark));
        if (words.size() != 2 || words[1] != task_.settings_hash) return false;
        id_ = words[0];
        return true;
    }
    void forget() {
        std::error_code ignored;
        if (!task_.mark.empty()) fs::remove(task_.mark, ignored);
    }

    void submit(const RunPlan& plan) {
        const std::int64_t per_node = std::min(task_.ranks, plan.ranks_per_node);
        EVENKEEL_CHECK_CODE(task_.ranks % per_node == 0, ErrorCode::kConfig, "scale run",
                            task_.ranks, " ranks: want a multiple of ranks_per_node, ", per_node);
        std::string arguments;
        for (const std::string& argument : task_.arguments) arguments += argument + "\n";
        const std::string file = task_.log + ".arguments";
        write_file_atomically(file, arguments);
        remove_result(task_);
        std::error_code ignored;
        fs::remove(task_.log, ignored);   // slurm.sbatch has it appended to
        constexpr double kMargin = 10.0;  // minutes: slurm.sbatch has a signal sent before the end
        std::vector<std::string> words = {
            "sbatch",
            "--parsable",
            "--no-requeue",
            concat("--job-name=", task_.name),
            concat("--nodes=", task_.ranks / per_node),
            concat("--ntasks-per-node=", per_node),
            concat("--gpus-per-node=", task_.gpus ? per_node : 0),
            concat("--cpus-per-task=", plan.threads),
            concat("--time=", static_cast<std::int64_t>(plan.timeout_minutes + kMargin)),
            concat("--output=", fs::absolute(task_.log).string())};
        append(words, words_of(plan.sbatch));
        append(words, {plan.script, task_.config});
        // What is in the environment goes with a job.
        const Captured answer =
            capture(words, {concat("EVENKEEL_ARGUMENTS=", fs::absolute(file).string()),
                            concat("EVENKEEL=", own_program())});
        EVENKEEL_CHECK(answer.status != kNoProgram, "scale run",
                       "sbatch: there is no such program; want launcher mpirun, or a machine from "
                       "which jobs can be submitted");
        EVENKEEL_CHECK(answer.status == 0, "scale run",
                       "sbatch refused the job: ", in_one_line(answer.errors + answer.output));
        // "12345" or "12345;cluster".
        const std::string said = first_line(answer.output);
        id_ = said.substr(0, said.find(';'));
        const bool is_number = !id_.empty() && std::all_of(id_.begin(), id_.end(), [](char c) {
            return std::isdigit(static_cast<unsigned char>(c)) != 0;
        });
        EVENKEEL_CHECK(is_number, "scale run", "sbatch: got \"", said, "\", want a job's number");
        if (!task_.mark.empty()) {
            write_file_atomically(task_.mark, concat(id_, " ", task_.settings_hash, "\n"));
        }
    }

    Task task_;
    std::string id_;
    bool runs_ = false;
    int unknown_ = 0;
    double pause_ = 0.1;
    Clock::time_point begin_ = Clock::now(), next_ = Clock::now();
};

}  // namespace

std::unique_ptr<Job> start_job(const RunPlan& plan, const Task& task) {
    if (plan.launcher == Launcher::kSlurm) return std::make_unique<SlurmJob>(plan, task);
    return std::make_unique<MpirunJob>(plan, task);
}

Captured capture(const std::vector<std::string>& words,
                 const std::vector<std::string>& environment) {
    int ends[2];
    EVENKEEL_CHECK_CODE(::pipe2(ends, O_CLOEXEC) == 0, ErrorCode::kIo, "scale run",
                        "pipe: ", std::strerror(errno));
    const int errors = ::memfd_create("errors", MFD_CLOEXEC);
    EVENKEEL_CHECK_CODE(errors >= 0, ErrorCode::kIo, "scale run",
                        "memory for messages: ", std::strerror(errno));
    const pid_t process = start_process(words, environment, ends[1], errors);
    ::close(ends[1]);
    Captured captured;
    char buffer[4096];
    for (;;) {
        const ssize_t count = ::read(ends[0], buffer, sizeof buffer);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) break;
        captured.output.append(buffer, static_cast<std::size_t>(count));
    }
    ::close(ends[0]);
    int status = 0;
    while (::waitpid(process, &status, 0) < 0 && errno == EINTR) {
    }
    ::lseek(errors, 0, SEEK_SET);
    for (ssize_t count; (count = ::read(errors, buffer, sizeof buffer)) > 0;) {
        captured.errors.append(buffer, static_cast<std::size_t>(count));
    }
    ::close(errors);
    captured.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return captured;
}

std::string last_words(const std::string& log) {
    if (!fs::exists(log)) return "";
    std::istringstream stream(read_file(log));
    std::string last, own;
    for (std::string line; std::getline(stream, line);) {
        const std::size_t begin = line.find_first_not_of(" \t\r-");
        if (begin == std::string::npos) continue;
        line = line.substr(begin, line.find_last_not_of(" \t\r") + 1 - begin);
        last = line;
        // "[train] ..", and of several ranks "rank 3: [train] ..".
        std::size_t at = 0;
        if (line.starts_with("rank ")) {
            const std::size_t colon = line.find(": ");
            if (colon != std::string::npos) at = colon + 2;
        }
        const bool is_mpi = line.find("mpirun") != std::string::npos;
        // "[host:12345] .." is a launcher's.
        const std::size_t close = line.find(']', at);
        if (at < line.size() && line[at] == '[' && close != std::string::npos && !is_mpi &&
            line.substr(at, close - at).find(':') == std::string::npos && own.empty()) {
            own = line;
        }
    }
    return own.empty() ? last : own;
}

}  // namespace evenkeel::scale
