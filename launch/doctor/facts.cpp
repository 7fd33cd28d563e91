// What a rank finds out about itself, and how all ranks learn it.
#include <omp.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "framework/cores.h"
#include "framework/data/dataset.h"
#include "framework/device_memory.h"
#include "framework/json.h"
#include "framework/storage/file.h"
#include "launch/doctor/doctor.h"
#include "parallel/launch_environment.h"
#include "parallel/mpi_session.h"

extern char** environ;

namespace evenkeel::doctor {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Interface, name, address, prefix)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankFacts,
                                   launcher,
                                   launched,
                                   slurm_tasks,
                                   mpi_size,
                                   has_mpi,
                                   mpi_library,
                                   program,
                                   config,
                                   environment,
                                   mca,
                                   host,
                                   host_key,
                                   ranks_on_node,
                                   clock_ahead,
                                   round_trip,
                                   interfaces,
                                   used,
                                   cores,
                                   cores_of_host,
                                   core_quota,
                                   threads,
                                   open_files,
                                   stack,
                                   shm_free,
                                   shm_total,
                                   memory_free,
                                   memory_total,
                                   data_problem)

namespace {

std::uint64_t hash_of(const std::string& bytes, std::uint64_t hash = 0xcbf29ce484222325u) {
    for (const char byte : bytes) {
        hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3u;  // FNV-1a
    }
    return hash;
}

// Of the file that runs, in steps of eight bytes: it may be large.
std::uint64_t hash_of_program() {
    const File file = File::open_for_reading("/proc/self/exe");
    std::vector<std::uint64_t> block(std::size_t{1} << 17);
    const std::uint64_t size = file.size();
    std::uint64_t hash = size;
    for (std::uint64_t at = 0; at < size; at += block.size() * 8) {
        std::fill(block.begin(), block.end(), 0);
        file.read_at(block.data(), std::min<std::uint64_t>(block.size() * 8, size - at), at);
        for (const std::uint64_t word : block) hash = (hash ^ word) * 0x100000001b3u + (hash >> 47);
    }
    return hash;
}

std::string first_line(const std::string& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

std::string link_of(const char* path) {
    char target[256] = {};
    const ssize_t length = ::readlink(path, target, sizeof target - 1);
    return length > 0 ? target : "";
}

std::string host_name() {
    char name[256] = {};
    ::gethostname(name, sizeof name - 1);
    return name;
}

// Open MPI's daemons put their own folder in front, though it may be there already.
std::string without_repeats(const std::string& path) {
    std::istringstream in(path);
    std::string all;
    std::set<std::string> seen;
    for (std::string folder; std::getline(in, folder, ':');) {
        if (seen.insert(folder).second) all += (all.empty() ? "" : ":") + folder;
    }
    return all;
}

void read_environment(RankFacts& facts) {
    constexpr const char *kMca = "OMPI_MCA_", *kLibraries = "LD_LIBRARY_PATH";
    for (char** entry = environ; *entry != nullptr; ++entry) {
        const std::string text = *entry;
        const std::size_t equals = text.find('=');
        if (equals == std::string::npos) continue;
        const std::string name = text.substr(0, equals), value = text.substr(equals + 1);
        if (name.starts_with(kMca)) facts.mca[name.substr(std::strlen(kMca))] = value;
        const bool alike = name.starts_with("OMP_") || name.starts_with("NCCL_") ||
                           name.starts_with("EVENKEEL_") || name == kLibraries;
        if (alike) facts.environment[name] = name == kLibraries ? without_repeats(value) : value;
    }
    if (const char* tasks = std::getenv("SLURM_NTASKS")) facts.slurm_tasks = std::atoi(tasks);
}

// Of the control group: "MAX PERIOD" in version 2, two files in version 1.
double core_quota() {
    double most = 0.0, period = 0.0;
    std::istringstream(first_line("/sys/fs/cgroup/cpu.max")) >> most >> period;
    if (period == 0.0) {
        std::istringstream(first_line("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")) >> most;
        std::istringstream(first_line("/sys/fs/cgroup/cpu/cpu.cfs_period_us")) >> period;
    }
    return most > 0.0 && period > 0.0 ? most / period : 0.0;
}

void read_memory(RankFacts& facts) {
    const DeviceMemory memory = memory_of(Device::kCpu);
    facts.memory_free = memory.free;
    facts.memory_total = memory.total;
    for (const auto& [limit, used] :
         {std::pair{"memory.max", "memory.current"},
          std::pair{"memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"}}) {
        std::uint64_t most = 0, taken = 0;
        const std::string folder = "/sys/fs/cgroup/";
        std::istringstream(first_line(folder + limit)) >> most;  // "max" leaves 0
        std::istringstream(first_line(folder + used)) >> taken;
        if (most == 0 || most >= facts.memory_total) continue;
        facts.memory_total = most;
        facts.memory_free =
            std::min<std::uint64_t>(facts.memory_free, most - std::min(most, taken));
    }
}

std::int64_t soft_limit(int resource) {
    rlimit limit{};
    ::getrlimit(resource, &limit);
    return limit.rlim_cur == RLIM_INFINITY ? -1 : static_cast<std::int64_t>(limit.rlim_cur);
}

void read_limits(RankFacts& facts) {
    facts.open_files = soft_limit(RLIMIT_NOFILE);
    facts.stack = soft_limit(RLIMIT_STACK);
    struct statvfs shm {};
    if (::statvfs("/dev/shm", &shm) == 0) {
        facts.shm_free = std::uint64_t{shm.f_bavail} * shm.f_frsize;
        facts.shm_total = std::uint64_t{shm.f_blocks} * shm.f_frsize;
    }
    read_memory(facts);
}

}  // namespace

RankFacts look_around(Communicator& world, RunConfig* config) {
    RankFacts facts;
    const Launch launch = launch_of_this_process();
    facts.launcher = launch.launcher;
    facts.launched = launch.processes;
    facts.mpi_size = world.size();
    facts.has_mpi = mpi_is_available();
    facts.mpi_library = mpi_library_version();
    facts.program = hash_of_program();
    read_environment(facts);
    facts.host = host_name();
    facts.host_key = concat(facts.host, " ", first_line("/proc/sys/kernel/random/boot_id"), " ",
                            link_of("/proc/self/ns/net"));
    facts.ranks_on_node = world.on_node().size;
    facts.interfaces = interfaces_of_host();
    facts.cores = allowed_cores();
    facts.cores_of_host = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
    facts.core_quota = core_quota();
    facts.threads = omp_get_max_threads();
    read_limits(facts);
    if (config != nullptr) facts.config = hash_of(to_json(*config));
    return facts;
}

std::string problem_of_data(const RunConfig& config) {
    if (config.data.path.empty()) return "";
    try {
        open_dataset(config.data, config.trainer.seq_len, config.model.vocab_size);
    } catch (const std::exception& error) {
        return error.what();
    }
    return "";
}

std::vector<std::string> gather_texts(Communicator& world, const std::string& text) {
    const auto ranks = static_cast<std::size_t>(world.size());
    const Tensor one = Tensor::zeros({1}, DType::kInt32);
    const Tensor sizes = Tensor::zeros({world.size(), 1}, DType::kInt32);
    *one.data<std::int32_t>() = static_cast<std::int32_t>(text.size());
    world.all_gather(one, sizes);
    const std::int32_t* size = sizes.data<std::int32_t>();
    const std::int64_t words = *std::max_element(size, size + ranks) / 4 + 1;
    const Tensor mine = Tensor::zeros({words}, DType::kInt32);
    const Tensor all = Tensor::zeros({world.size(), words}, DType::kInt32);
    text.copy(reinterpret_cast<char*>(mine.raw()), text.size());
    world.all_gather(mine, all);
    std::vector<std::string> texts;
    for (std::size_t r = 0; r < ranks; ++r) {
        const std::byte* start = all.raw() + r * static_cast<std::size_t>(words) * 4;
        texts.emplace_back(reinterpret_cast<const char*>(start), static_cast<std::size_t>(size[r]));
    }
    return texts;
}

std::vector<RankFacts> gather_facts(Communicator& world, const RankFacts& facts) {
    // Names and values of the environment may be of any bytes: what is no UTF-8 is replaced.
    const nlohmann::json json = facts;
    const std::string text = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    std::vector<RankFacts> all;
    for (const std::string& one : gather_texts(world, text)) {
        all.push_back(nlohmann::json::parse(one).get<RankFacts>());
    }
    return all;
}

}  // namespace evenkeel::doctor
