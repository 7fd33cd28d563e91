// What a run needs of file systems and of its own settings.
#include <sys/statvfs.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "framework/storage/file.h"
#include "launch/doctor/doctor.h"
#include "launch/saved_run.h"
#include "model/memory_plan.h"

namespace evenkeel::doctor {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRun = "run";
constexpr double kSlowSync = 1.0;                    // seconds for one block
constexpr auto kPatience = std::chrono::seconds(3);  // file systems of a network cache names
constexpr auto kPause = std::chrono::milliseconds(20);

double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string random_token() {
    std::random_device source;
    return concat(std::hex, source(), source());
}

// Rank 0's half: a file that holds its own name, on the disk. Directories that had to be made are taken away again.
class Probe {
  public:
    Probe(const std::string& directory, const std::string& token) : path_(directory) {
        for (fs::path at = fs::absolute(directory); !fs::exists(at); at = at.parent_path())
            made_ = at;
        fs::create_directories(directory);
        file_ = directory + "/.doctor_" + token;
        File file = File::create(file_);
        file.write(token.data(), token.size());
        file.sync();
        file.close();
        sync_directory(directory);
    }
    ~Probe() {
        std::error_code ignored;
        fs::remove(file_, ignored);
        // Only while empty: somebody else may have begun to use them.
        for (fs::path at = fs::absolute(path_); !made_.empty(); at = at.parent_path()) {
            if (!fs::remove(at, ignored) || at == made_) break;
        }
    }
    Probe(const Probe&) = delete;
    Probe& operator=(const Probe&) = delete;

  private:
    std::string path_, file_;
    fs::path made_;  // the topmost directory that was not there
};

bool holds(const std::string& file, const std::string& token) {
    std::ifstream in(file);
    std::string text;
    return static_cast<bool>(in >> text) && text == token;
}

Check check_directory(const Survey& survey) {
    const DirectoryFacts& directory = *survey.run_dir;
    Check check{kRun, "run_dir", Verdict::kOk, "", ""};
    const RankFacts& first = survey.ranks[0];
    if (!directory.problem.empty()) {
        check.verdict = Verdict::kWrong;
        check.fact = directory.problem;
        check.remedy = "a directory that rank 0 may write in: --set trainer.run_dir=DIR";
        return check;
    }
    if (!directory.unseen.empty()) {
        const auto rank = static_cast<std::size_t>(directory.unseen[0]);
        check.verdict = Verdict::kWrong;
        check.fact = concat(rank_list(directory.unseen), " on ", survey.ranks[rank].host,
                            directory.unseen.size() == 1 ? " does" : " do", " not see in ",
                            directory.path, " what rank 0 on ", first.host, " writes there");
        check.remedy =
            "trainer.run_dir must be one directory that all hosts share, such as of NFS or "
            "Lustre, under the same path";
        return check;
    }
    check.fact =
        concat(directory.path, ": ",
               survey.ranks.size() == 1 ? "can be written in" : "one directory for all ranks");
    return check;
}

Check check_sync(const Survey& survey) {
    const DirectoryFacts& directory = *survey.run_dir;
    Check check{kRun, "fsync", Verdict::kOk,
                concat(format("%.1f", 1e3 * directory.sync_seconds), " ms for a small file",
                       survey.ranks.size() == 1
                           ? ""
                           : concat(", seen by all ranks ",
                                    format("%.1f", 1e3 * directory.visible_seconds), " ms later")),
                ""};
    if (directory.sync_seconds <= kSlowSync) return check;
    check.verdict = Verdict::kWarning;
    check.remedy = "a checkpoint syncs each of its files: run_dir on a faster or less busy disk";
    return check;
}

Check check_disk(const Survey& survey) {
    Check check{kRun, "disk", Verdict::kOk, bytes_text(survey.run_dir->free_bytes) + " free", ""};
    const RunConfig& config = *survey.config;
    // fp32 weights at most, and two fp32 moments of each.
    const auto one = static_cast<std::uint64_t>(parameter_count(config.model)) * 12;
    const std::int64_t keep = config.trainer.checkpoint_keep;
    if (keep == 0) {
        check.fact += concat("; every checkpoint is kept, ", bytes_text(one), " each at most");
    }
    const std::uint64_t want = one * static_cast<std::uint64_t>(keep + 1);
    if (keep > 0) {
        check.fact += concat("; ", keep, keep == 1 ? " checkpoint" : " checkpoints",
                             " and the one being written take ", bytes_text(want), " at most");
    }
    if (want <= survey.run_dir->free_bytes) return check;
    check.verdict = one > survey.run_dir->free_bytes ? Verdict::kWrong : Verdict::kWarning;
    check.remedy = "make room, or lower trainer.checkpoint_keep";
    return check;
}

Check check_data(const Survey& survey) {
    const std::string& path = survey.config->data.path;
    Check check{kRun, "data", Verdict::kOk,
                path.empty()
                    ? std::string("none is named yet: data.path")
                    : concat(path, ": there", survey.ranks.size() == 1 ? "" : " on all ranks"),
                ""};
    const auto groups =
        groups_of(survey.ranks, [](const RankFacts& rank) { return rank.data_problem; });
    for (const Group& group : groups) {
        if (group.text.empty()) continue;
        const RankFacts& rank = survey.ranks[static_cast<std::size_t>(group.ranks[0])];
        check.verdict = Verdict::kWrong;
        const bool all = group.ranks.size() == survey.ranks.size();
        check.fact = concat(group.text, ", ",
                            all ? "all ranks" : rank_list(group.ranks) + " on " + rank.host);
        check.remedy = all ? "what the message asks for, or other data: --set data.path=PATH"
                           : "what the message asks for; the same path on every host: "
                             "--set data.path=PATH";
        break;
    }
    return check;
}

Check check_timeout(const Survey& survey) {
    const double seconds = survey.config->parallel.timeout_seconds;
    Check check{kRun, "time-out", Verdict::kOk,
                concat(format("%.6g", seconds), " s for any wait of a rank for others"), ""};
    if (seconds < 10.0) {
        check.verdict = Verdict::kWarning;
        check.fact += ": a slow disk or a long evaluation ends the run";
        check.remedy = "--set parallel.timeout_seconds=300";
    } else if (seconds > 3600.0) {
        check.verdict = Verdict::kWarning;
        check.fact += ": a rank that hangs is noticed only then";
        check.remedy = "--set parallel.timeout_seconds=600, more than the slowest step takes";
    }
    return check;
}

// Open MPI 4 ends a job by SIGCONT, then SIGTERM after so many seconds, then SIGKILL after as many again.
Check check_signals(const Survey& survey) {
    const RankFacts& first = survey.ranks[0];
    Check check{kRun, "signals", Verdict::kOk, "", ""};
    const auto at = first.mca.find("odls_base_sigkill_timeout");
    const int seconds = at == first.mca.end() ? 1 : std::atoi(at->second.c_str());
    if (first.launcher.find("Open MPI") == std::string::npos) {
        check.fact = "SIGUSR1 and SIGTERM end a run after a checkpoint";
        return check;
    }
    check.fact =
        concat("SIGUSR1 to mpirun ends a run after a checkpoint; SIGTERM kills ranks within ",
               2 * seconds, " seconds");
    if (seconds <= 30) return check;
    check.verdict = Verdict::kWarning;
    check.fact = concat("odls_base_sigkill_timeout=", seconds,
                        ": when a rank is lost, mpirun keeps the "
                        "others for up to ",
                        2 * seconds, " seconds");
    check.remedy =
        "leave it out, and send SIGUSR1 where a checkpoint is wanted, as launch/mpirun.sh does";
    return check;
}

}  // namespace

DirectoryFacts look_at_directory(Communicator& world, const std::string& path) {
    DirectoryFacts facts;
    facts.path = path;
    std::optional<Probe> probe;
    std::string token, problem;
    auto start = std::chrono::steady_clock::now();
    if (world.rank() == 0) {
        token = random_token();
        try {
            probe.emplace(path, token);
        } catch (const std::exception& error) {
            problem = error.what();
        }
        facts.sync_seconds = seconds_since(start);
        struct statvfs disk {};
        if (::statvfs(path.c_str(), &disk) == 0) {
            facts.free_bytes = std::uint64_t{disk.f_bavail} * disk.f_frsize;
        }
    }
    // All ranks judge by the same facts: the others have zeros.
    facts.sync_seconds = world.all_reduce_scalar(facts.sync_seconds, ReduceOp::kMax);
    facts.free_bytes = static_cast<std::uint64_t>(
        world.all_reduce_scalar(static_cast<double>(facts.free_bytes), ReduceOp::kMax));
    token = gather_texts(world, token)[0];
    facts.problem = gather_texts(world, problem)[0];
    if (!facts.problem.empty()) return facts;
    start = std::chrono::steady_clock::now();
    bool seen = false;
    while (!(seen = holds(path + "/.doctor_" + token, token)) &&
           std::chrono::steady_clock::now() - start < kPatience) {
        std::this_thread::sleep_for(kPause);
    }
    const std::vector<std::string> answers = gather_texts(world, seen ? "seen" : "");
    facts.visible_seconds = world.all_reduce_scalar(seconds_since(start), ReduceOp::kMax);
    for (int r = 0; r < world.size(); ++r) {
        if (answers[static_cast<std::size_t>(r)].empty()) facts.unseen.push_back(r);
    }
    return facts;
}

std::vector<Check> check_run(const Survey& survey) {
    if (!survey.config.has_value()) {
        return {
            {kRun, "run_dir", Verdict::kOk, "not looked at: --config FILE tells where it is", ""},
            check_signals(survey)};
    }
    std::vector<Check> checks{check_directory(survey)};
    if (survey.run_dir->problem.empty()) {
        checks.push_back(check_sync(survey));
        checks.push_back(check_disk(survey));
    }
    checks.push_back(check_data(survey));
    checks.push_back(check_timeout(survey));
    checks.push_back(check_signals(survey));
    return checks;
}

}  // namespace evenkeel::doctor
