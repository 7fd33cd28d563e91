#include "parallel/gpu_assignment.h"

#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <type_traits>

#include "parallel/gpu_survey.h"
#include "parallel/nccl_communicator.h"

namespace evenkeel {
namespace {

constexpr const char* kOp = "assign_gpu";

// A rank's facts as they travel.
struct Record {
    char host[64] = {}, uuid[40] = {}, name[128] = {}, problem[256] = {};
    std::int32_t gpus_seen = 0, ranks_on_node = 1, nccl_version = 0;
};
static_assert(sizeof(Record) % sizeof(std::int32_t) == 0 && std::is_trivially_copyable_v<Record>);
constexpr std::int64_t kWords = sizeof(Record) / sizeof(std::int32_t);

// Cut to fit, and ended by a zero.
template <std::size_t kSize>
void put(char (&to)[kSize], const std::string& from) {
    from.copy(to, kSize - 1);
}

std::vector<RankOnGpu> gather(Communicator& world, const Record& mine) {
    const Tensor one = Tensor::uninitialized({kWords}, DType::kInt32);
    const Tensor all = Tensor::uninitialized({world.size(), kWords}, DType::kInt32);
    std::memcpy(one.raw(), &mine, sizeof mine);
    world.all_gather(one, all);
    std::vector<RankOnGpu> ranks;
    for (int r = 0; r < world.size(); ++r) {
        Record record;
        std::memcpy(&record, all.raw() + sizeof record * static_cast<std::size_t>(r),
                    sizeof record);
        ranks.push_back({record.host, record.uuid, record.name, record.problem, record.gpus_seen,
                         record.ranks_on_node, record.nccl_version});
    }
    return ranks;
}

std::string plural(int count, const char* noun) {
    return concat(count, " ", noun, count == 1 ? "" : "s");
}

constexpr const char* kAdvice =
    "NCCL needs one GPU for each rank; parallel.communication=staged lets ranks share one";

std::string find_shared_gpu(const std::vector<RankOnGpu>& ranks) {
    std::map<std::string, int> users;
    for (int r = 0; r < static_cast<int>(ranks.size()); ++r) {
        const RankOnGpu& mine = ranks[static_cast<std::size_t>(r)];
        const auto [user, is_new] = users.insert({mine.host + " " + mine.uuid, r});
        if (is_new) continue;
        if (mine.gpus_seen > 1) {
            return concat(plural(mine.ranks_on_node, "rank"), " on ", mine.host,
                          ", which has only ", plural(mine.gpus_seen, "GPU"), ": ", kAdvice);
        }
        return concat("ranks ", user->second, " and ", r, " on ", mine.host,
                      " see the same GPU only, ", mine.name, " ", mine.uuid, ": ", kAdvice);
    }
    return "";
}

}  // namespace

AssignmentProblem find_problem(const std::vector<RankOnGpu>& ranks, Communication communication) {
    const bool with_nccl = communication == Communication::kNccl && ranks.size() > 1;
    const auto named = [&](std::size_t r) { return concat("rank ", r, " on ", ranks[r].host); };
    for (std::size_t r = 0; r < ranks.size(); ++r) {
        if (!ranks[r].problem.empty()) {
            return {ErrorCode::kCuda, concat(named(r), ": ", ranks[r].problem)};
        }
    }
    for (std::size_t r = 1; r < ranks.size(); ++r) {
        if (ranks[r].name != ranks[0].name) {
            return {ErrorCode::kCuda, concat("GPUs of different types: ", ranks[0].name, " for ",
                                             named(0), ", ", ranks[r].name, " for ", named(r),
                                             ": the slower ones would hold up all others")};
        }
    }
    if (!with_nccl) return {};
    for (std::size_t r = 0; r < ranks.size(); ++r) {
        const std::string why_not = why_not_nccl(ranks[r].nccl_version);
        if (!why_not.empty()) {
            return {ErrorCode::kNccl, concat(named(r), ": ", why_not,
                                             "; parallel.communication=staged does without NCCL")};
        }
        if (ranks[r].nccl_version != ranks[0].nccl_version) {
            return {ErrorCode::kNccl,
                    concat("different versions of NCCL: ", nccl_version_text(ranks[0].nccl_version),
                           " for ", named(0), ", ", nccl_version_text(ranks[r].nccl_version),
                           " for ", named(r))};
        }
    }
    return {ErrorCode::kNccl, find_shared_gpu(ranks)};
}

std::vector<RankOnGpu> survey_gpus(Communicator& world,
                                   Communication communication,
                                   GpuAssignment& result) {
    const Communicator::OnNode place = world.on_node();
    result.rank_on_node = place.rank;
    result.ranks_on_node = place.size;
    const bool with_nccl = communication == Communication::kNccl && world.size() > 1;

    Record mine;
    char host[sizeof mine.host] = {};
    gethostname(host, sizeof host - 1);
    put(mine.host, host);
    mine.ranks_on_node = place.size;
    // Whatever goes wrong on one rank, all must learn of it.
    try {
        mine.gpus_seen = device_count(Device::kCuda);
        EVENKEEL_CHECK_CODE(mine.gpus_seen > 0, ErrorCode::kCuda, kOp,
                            "no usable GPU: ", why_no_cuda());
        result.index = place.rank % mine.gpus_seen;
        use_gpu(result.index);
        const GpuDescription gpu = describe_gpu();
        result.name = gpu.name;
        result.uuid = gpu.uuid;
        result.driver = gpu.driver;
        put(mine.uuid, gpu.uuid);
        put(mine.name, gpu.name);
        if (with_nccl) result.nccl_version = mine.nccl_version = nccl_version();
    } catch (const Error& error) {
        // Without "[operation] ": the message of all ranks begins with one.
        const std::string text = error.what();
        const std::size_t name_end = text.find("] ");
        put(mine.problem, name_end == std::string::npos ? text : text.substr(name_end + 2));
    }
    return gather(world, mine);
}

GpuAssignment assign_gpu(Communicator& world, Communication communication) {
    GpuAssignment result;
    const std::vector<RankOnGpu> ranks = survey_gpus(world, communication, result);
    const AssignmentProblem problem = find_problem(ranks, communication);
    EVENKEEL_CHECK_CODE(problem.text.empty(), problem.code, kOp, problem.text);
    return result;
}

}  // namespace evenkeel
