// What the system lets a process have: shared memory, open files, memory.
#include <algorithm>

#include "launch/doctor/doctor.h"
#include "launch/memory_advice.h"

namespace evenkeel::doctor {
namespace {

constexpr const char* kLimits = "limits";
constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::int64_t kOpenFiles = 1024;

// The host whose ranks have least of something.
template <typename Value>
const RankFacts& least(const Survey& survey, const Value& value) {
    return *std::min_element(
        survey.ranks.begin(), survey.ranks.end(),
        [&](const RankFacts& a, const RankFacts& b) { return value(a) < value(b); });
}

// Open MPI keeps 4 MiB or more a rank there; NCCL's documentation wants a GB in containers.
Check check_shm(const Survey& survey) {
    const RankFacts& rank = least(survey, [](const RankFacts& r) { return r.shm_free; });
    const std::uint64_t want = survey.gpus.empty()
                                   ? 16 * kMiB * static_cast<std::uint64_t>(rank.ranks_on_node)
                                   : 1024 * kMiB;
    Check check{kLimits, "/dev/shm", Verdict::kOk,
                concat(bytes_text(rank.shm_free), " free of ", bytes_text(rank.shm_total), " on ",
                       rank.host),
                ""};
    if (rank.ranks_on_node == 1 || rank.shm_free >= want) return check;
    check.verdict = Verdict::kWarning;
    check.fact += concat(", for ", rank.ranks_on_node, " ranks");
    check.remedy = concat("want ", bytes_text(want),
                          ": docker run --shm-size=2g or --ipc=host; mount "
                          "-o remount,size=2g /dev/shm; or remove what dead jobs left there");
    return check;
}

Check check_open_files(const Survey& survey) {
    const auto files = [](const RankFacts& r) {
        return r.open_files < 0 ? std::int64_t{1} << 40 : r.open_files;
    };
    const RankFacts& rank = least(survey, files);
    // A connection to every other rank, and what the program has open.
    const std::int64_t want = std::max<std::int64_t>(
        kOpenFiles, 4 * static_cast<std::int64_t>(survey.ranks.size()) + 256);
    Check check{kLimits, "open files", Verdict::kOk,
                rank.open_files < 0 ? "unlimited" : concat("up to ", rank.open_files), ""};
    if (files(rank) >= want) return check;
    check.verdict = Verdict::kWarning;
    check.fact += concat(" on ", rank.host, ", for ", survey.ranks.size(), " ranks");
    check.remedy = concat("ulimit -n ", want,
                          " before the start, or LimitNOFILE of the service that "
                          "starts ranks there (sshd, slurmd)");
    return check;
}

Check check_memory(const Survey& survey) {
    const RankFacts& rank = least(survey, [](const RankFacts& r) { return r.memory_free; });
    Check check{kLimits, "memory", Verdict::kOk,
                concat(bytes_text(rank.memory_free), " free of ", bytes_text(rank.memory_total),
                       " on ", rank.host),
                ""};
    const auto ranks = static_cast<int>(survey.ranks.size());
    if (!survey.config.has_value() || survey.config->device != Device::kCpu) return check;
    std::uint64_t planned = 0;
    try {
        survey.config->validate(ranks);
        planned = plan_memory(*survey.config, ranks).total() *
                  static_cast<std::uint64_t>(rank.ranks_on_node);
    } catch (const Error&) {
        return check;  // said by the configuration's check
    }
    check.fact += concat("; training takes ", bytes_text(planned), " of a host");
    if (planned <= rank.memory_free) return check;
    check.verdict = planned > rank.memory_total ? Verdict::kWrong : Verdict::kWarning;
    check.remedy = what_fits(*survey.config, ranks,
                             rank.memory_free / static_cast<std::uint64_t>(rank.ranks_on_node));
    return check;
}

}  // namespace

std::vector<Check> check_limits(const Survey& survey) {
    return {check_shm(survey), check_open_files(survey), check_memory(survey)};
}

}  // namespace evenkeel::doctor
