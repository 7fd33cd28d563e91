// GPUs that ranks see, and the versions of what stands between.
#include <cstdlib>

#include "launch/doctor/doctor.h"
#include "parallel/nccl_communicator.h"

namespace evenkeel::doctor {
namespace {

constexpr const char* kGpus = "gpus";

std::string gpus_of(const RankOnGpu& rank) {
    return rank.problem.empty()
               ? concat(rank.name, ", ", rank.gpus_seen, " seen by ", rank.ranks_on_node,
                        rank.ranks_on_node == 1 ? " rank" : " ranks", " of a host")
               : rank.problem;
}

Check check_assignment(const Survey& survey) {
    Check check{kGpus, "one a rank", Verdict::kOk, gpus_of(survey.gpus[0]), ""};
    const bool wanted = survey.config.has_value() && survey.config->device == Device::kCuda;
    const auto communication =
        wanted ? survey.config->parallel.communication : Communication::kNccl;
    const AssignmentProblem problem = find_problem(survey.gpus, communication);
    if (problem.text.empty()) return check;
    // Without a configuration it is not known whether GPUs will be used, and how.
    check.verdict = wanted ? Verdict::kWrong : Verdict::kWarning;
    check.fact = problem.text;
    check.remedy =
        "nvidia-smi -L on each host; CUDA_VISIBLE_DEVICES and --gpus-per-node (not "
        "--gpus-per-task) decide what a rank sees; docs/training_on_gpus.md has the messages";
    return check;
}

// A rank that sees one GPU where it has neighbours: their memory is out of reach.
Check check_visibility(const Survey& survey) {
    Check check{kGpus, "visible", Verdict::kOk, "", ""};
    const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
    check.fact = concat(survey.gpus[0].gpus_seen, " a rank",
                        visible == nullptr ? "" : concat(" (CUDA_VISIBLE_DEVICES=", visible, ")"));
    for (std::size_t r = 0; r < survey.gpus.size(); ++r) {
        const RankOnGpu& gpu = survey.gpus[r];
        if (gpu.gpus_seen != 1 || gpu.ranks_on_node == 1 || !gpu.problem.empty()) continue;
        if (!find_problem(survey.gpus, Communication::kNccl).text.empty()) continue;
        check.verdict = Verdict::kWarning;
        check.fact = concat("rank ", r, " on ", gpu.host, " sees only its own GPU, of ",
                            gpu.ranks_on_node, ": NCCL then goes through the memory of the host");
        check.remedy =
            "--gpus-per-node instead of --gpus-per-task; every rank takes its own by "
            "its number on the host";
        return check;
    }
    return check;
}

Check check_versions(const Survey& survey) {
    const int nccl = survey.gpus[0].nccl_version;
    Check check{kGpus, "versions", Verdict::kOk, "", ""};
    const std::string& driver = survey.drivers[0];
    check.fact = concat("driver ", driver.empty() ? "not known" : driver, ", NCCL ",
                        nccl == 0 ? "not used" : nccl_version_text(nccl));
    for (std::size_t r = 1; r < survey.gpus.size(); ++r) {
        if (survey.drivers[r] == driver) continue;
        check.verdict = Verdict::kWarning;
        check.fact = concat("driver ", driver, " on ", survey.gpus[0].host, ", ", survey.drivers[r],
                            " on ", survey.gpus[r].host);
        check.remedy = "the same driver on every host";
        return check;
    }
    if (nccl >= 22803 && nccl <= 22808) {
        check.verdict = Verdict::kWarning;
        check.fact += ": 2.28.3 to 2.28.8 are known to crash when groups are aborted and made anew";
        check.remedy = "NCCL 2.28.9 or later, or 2.27";
    } else if (nccl / 100 == 229) {
        check.verdict = Verdict::kWarning;
        check.fact += ": 2.29 is reported to be slower with small messages";
        check.remedy = "compare with another version: evenkeel bench --device cuda";
    } else if (nccl > 0 && nccl < 22800) {
        for (std::size_t r = 0; r < survey.ranks.size(); ++r) {
            if (survey.ranks[r].stack != -1) continue;
            check.verdict = Verdict::kWarning;
            check.fact +=
                concat(": its threads may not start under the unlimited stack of rank ", r);
            check.remedy = "ulimit -Ss 8192 before the start, or NCCL 2.28 and later";
            break;
        }
    }
    return check;
}

}  // namespace

std::vector<Check> check_gpus(const Survey& survey) {
    if (survey.gpus.empty()) {
        return {{kGpus, "one a rank", Verdict::kOk, survey.no_gpu, ""}};
    }
    std::vector<Check> checks{check_assignment(survey)};
    if (survey.gpus[0].problem.empty()) {
        checks.push_back(check_visibility(survey));
        checks.push_back(check_versions(survey));
    }
    return checks;
}

}  // namespace evenkeel::doctor
