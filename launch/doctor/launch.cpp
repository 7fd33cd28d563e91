// Who started the ranks, and whether they are alike.
#include <set>

#include "launch/doctor/doctor.h"

namespace evenkeel::doctor {
namespace {

constexpr const char* kLaunch = "launch";

std::string processes(int count) { return concat(count, count == 1 ? " process" : " processes"); }

Check check_ranks(const RankFacts& rank) {
    Check check{kLaunch, "ranks", Verdict::kOk, "", ""};
    const std::string library = rank.has_mpi ? rank.mpi_library : "this build has no MPI";
    if (rank.launched == 0) {
        check.fact = concat("one process, started by no launcher (", library, ")");
        if (rank.slurm_tasks <= 1) return check;
        check.verdict = Verdict::kWarning;
        check.fact = concat("one process, where Slurm has set aside ", rank.slurm_tasks, " tasks");
        check.remedy = "srun --mpi=pmix evenkeel .., or mpirun evenkeel ..";
        return check;
    }
    check.fact = concat(rank.launcher, " started ", processes(rank.launched), ", MPI sees ",
                        rank.mpi_size, " (", library, ")");
    if (rank.launched == rank.mpi_size) return check;
    check.verdict = Verdict::kWrong;
    check.fact += ": each believes to be alone";
    if (!rank.has_mpi) {
        check.remedy = "configure the build with -DEVENKEEL_MPI=ON";
    } else if (rank.launcher == "srun") {
        check.remedy = "srun --mpi=pmix evenkeel ..; srun --mpi=list shows what there is";
    } else {
        check.remedy =
            concat("start it with the mpirun of the MPI that it is built with, ", rank.mpi_library);
    }
    return check;
}

// Whether something is the same on all ranks.
Check check_alike(const Survey& survey,
                  const char* name,
                  const char* what,
                  const char* remedy,
                  std::uint64_t RankFacts::*field) {
    Check check{kLaunch, name, Verdict::kOk, concat("the same on all ranks"), ""};
    const auto groups =
        groups_of(survey.ranks, [&](const RankFacts& rank) { return concat(rank.*field); });
    if (groups.size() == 1) return check;
    const auto host = [&](int r) { return survey.ranks[static_cast<std::size_t>(r)].host; };
    const int other = groups[1].ranks[0];
    check.verdict = Verdict::kWrong;
    check.fact = concat(rank_list(groups[1].ranks), " on ", host(other), " ",
                        groups[1].ranks.size() == 1 ? "has " : "have ", what,
                        " other than rank 0 on ", host(0));
    check.remedy = remedy;
    return check;
}

Check check_environment(const Survey& survey) {
    Check check{kLaunch, "environment", Verdict::kOk, "the same on all ranks", ""};
    std::set<std::string> names;
    for (const RankFacts& rank : survey.ranks) {
        for (const auto& [name, value] : rank.environment) names.insert(name);
    }
    std::string others;
    for (const std::string& name : names) {
        const auto groups = groups_of(survey.ranks, [&](const RankFacts& rank) {
            const auto at = rank.environment.find(name);
            return at == rank.environment.end() ? std::string("not set") : at->second;
        });
        if (groups.size() == 1) continue;
        if (check.verdict == Verdict::kOk) {
            check.verdict = Verdict::kWarning;
            check.fact = concat(name, " differs: ", text_of(groups));
            check.remedy = concat("mpirun hands on what is named only: -x ", name);
        } else {
            others += concat(others.empty() ? "; so do " : ", ", name);
        }
    }
    check.fact += others;
    return check;
}

Check check_sizes(const Survey& survey) {
    const RunConfig& config = *survey.config;
    const auto ranks = static_cast<int>(survey.ranks.size());
    const std::int64_t tp = config.parallel.tensor_parallel;
    Check check{kLaunch, "configuration", Verdict::kOk, "", ""};
    try {
        config.validate(ranks);
        check.fact = concat(ranks, ranks == 1 ? " rank" : " ranks", ": tensor parallel ", tp,
                            " x data parallel ", ranks / tp);
    } catch (const Error& error) {
        check.verdict = Verdict::kWrong;
        check.fact = error.what();
        check.remedy = "the message names what to change";
    }
    return check;
}

}  // namespace

std::vector<Check> check_launch(const Survey& survey) {
    std::vector<Check> checks{check_ranks(survey.ranks[0])};
    if (survey.ranks.size() > 1) {
        checks.push_back(check_alike(survey, "program", "a program",
                                     "copy the same build to every host, or start it from a file "
                                     "system that they share",
                                     &RankFacts::program));
        if (survey.config.has_value()) {
            checks.push_back(check_alike(survey, "settings", "settings",
                                         "copy the same configuration file to every host",
                                         &RankFacts::config));
        }
        checks.push_back(check_environment(survey));
    }
    if (survey.config.has_value()) checks.push_back(check_sizes(survey));
    return checks;
}

}  // namespace evenkeel::doctor
