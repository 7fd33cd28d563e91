// Cores: how many ranks and threads want how many of them.
#include <algorithm>
#include <set>

#include "launch/doctor/doctor.h"
#include "launch/saved_run.h"

namespace evenkeel::doctor {
namespace {

constexpr const char* kProcessors = "processors";

std::string cores(std::size_t count) { return concat(count, count == 1 ? " core" : " cores"); }
std::string threads(int count) { return concat(count, count == 1 ? " thread" : " threads"); }

const RankFacts& rank_of(const Survey& survey, int rank) {
    return survey.ranks[static_cast<std::size_t>(rank)];
}

// More ranks than cores.
Check check_slots(const Survey& survey) {
    Check check{kProcessors, "slots", Verdict::kOk, "", ""};
    for (const Group& host : hosts_of(survey)) {
        const RankFacts& rank = rank_of(survey, host.ranks[0]);
        const auto ranks = static_cast<int>(host.ranks.size());
        const std::string fact =
            concat(ranks, ranks == 1 ? " rank on " : " ranks on ",
                   cores(static_cast<std::size_t>(rank.cores_of_host)), " of ", rank.host);
        if (check.verdict == Verdict::kOk && ranks > rank.cores_of_host) {
            check.verdict = Verdict::kWarning;
            check.fact = fact + ": they take turns";
            check.remedy = "at most one rank a core: fewer slots in the host file (HOST slots=N)";
        } else if (check.fact.empty()) {
            check.fact = fact;
        }
    }
    return check;
}

// Threads of a rank on the cores that it is bound to.
Check check_binding(const Survey& survey) {
    Check check{kProcessors, "binding", Verdict::kOk, "", ""};
    const auto bound = groups_of(survey.ranks, [](const RankFacts& rank) {
        const bool is_free = static_cast<int>(rank.cores.size()) >= rank.cores_of_host;
        return is_free ? std::string("none, every rank may use all cores")
                       : concat(cores(rank.cores.size()), " of ", rank.cores_of_host, " each");
    });
    check.fact = text_of(bound);
    for (const Group& host : hosts_of(survey)) {
        std::set<int> taken;
        for (const int r : host.ranks) {
            const RankFacts& rank = rank_of(survey, r);
            if (static_cast<int>(rank.cores.size()) >= rank.cores_of_host) continue;
            const std::size_t before = taken.size();
            taken.insert(rank.cores.begin(), rank.cores.end());
            const bool shares = taken.size() < before + rank.cores.size();
            const int share = rank.cores_of_host / static_cast<int>(host.ranks.size());
            const bool one_of_many = rank.cores.size() == 1 && share > 1;
            if (!shares && !one_of_many && rank.threads <= static_cast<int>(rank.cores.size())) {
                continue;
            }
            check.verdict = Verdict::kWarning;
            check.remedy =
                "--bind-to none, or --map-by slot:PE=N with N cores a rank; Slurm: "
                "--cpus-per-task=N and srun --cpu-bind=cores";
            if (shares) {
                check.fact =
                    concat("rank ", r, " is bound to cores of another rank on ", rank.host);
            } else if (one_of_many) {
                check.fact = concat("rank ", r, " is bound to one of the ", rank.cores_of_host,
                                    " cores of ", rank.host, ", where ", host.ranks.size(),
                                    host.ranks.size() == 1 ? " rank runs" : " ranks run");
            } else {
                check.fact = concat("rank ", r, " has ", threads(rank.threads), " on ",
                                    cores(rank.cores.size()), " of ", rank.host);
            }
            return check;
        }
    }
    return check;
}

// Threads of all ranks of a host together.
Check check_threads(const Survey& survey) {
    Check check{kProcessors, "threads", Verdict::kOk, "", ""};
    for (const Group& host : hosts_of(survey)) {
        const RankFacts& first = rank_of(survey, host.ranks[0]);
        const auto ranks = static_cast<int>(host.ranks.size());
        int total = 0;
        for (const int r : host.ranks) total += rank_of(survey, r).threads;
        const double quota = first.core_quota;
        const bool has_quota = quota > 0.0 && quota < first.cores_of_host;
        const double there = has_quota ? quota : first.cores_of_host;
        const std::string fact = concat(
            threads(first.threads), " a rank",
            first.environment.count("OMP_NUM_THREADS") > 0 ? "" : " (OMP_NUM_THREADS is not set)",
            ", ", total, " on ", has_quota ? concat(format("%.3g", quota), " allowed of ") : "",
            cores(static_cast<std::size_t>(first.cores_of_host)), " of ", first.host);
        if (check.fact.empty()) check.fact = fact;
        // More ranks than cores is said by the slots.
        if (total <= there || (first.threads == 1 && ranks > first.cores_of_host)) continue;
        check.verdict = Verdict::kWarning;
        check.fact = fact + ": they get into each other's way";
        check.remedy = concat("OMP_NUM_THREADS=", std::max(1, static_cast<int>(there) / ranks),
                              ", with -x OMP_NUM_THREADS for other hosts");
        return check;
    }
    return check;
}

}  // namespace

std::vector<Check> check_processors(const Survey& survey) {
    return {check_slots(survey), check_binding(survey), check_threads(survey)};
}

}  // namespace evenkeel::doctor
