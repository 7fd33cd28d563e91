#include "launch/scale/run/run_plan.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <set>
#include <sstream>

#include "framework/error.h"
#include "framework/json.h"
#include "scaling/hardware.h"

namespace evenkeel::scale {
namespace {

constexpr std::int64_t kMostRanks = 1'000'000, kMostPoints = 10'000;

template <typename... Words>
[[noreturn]] void refuse(Words&&... words) {
    throw_error(ErrorCode::kConfig, "scale run", concat(words...));
}

std::vector<std::string> list_of(const std::string& text) {
    std::vector<std::string> words;
    std::string word;
    std::istringstream stream(text);
    while (std::getline(stream, word, ',')) {
        const std::size_t begin = word.find_first_not_of(" \t\n");
        if (begin == std::string::npos) continue;
        words.push_back(word.substr(begin, word.find_last_not_of(" \t\n") + 1 - begin));
    }
    return words;
}

std::vector<std::int64_t> numbers_of(const char* key, const std::string& text) {
    std::vector<std::int64_t> numbers;
    for (const std::string& word : list_of(text)) {
        std::int64_t number = 0;
        const char* const end = word.data() + word.size();
        const auto [at, error] = std::from_chars(word.data(), end, number);
        if (error != std::errc() || at != end || number < 1 || number > kMostRanks) {
            refuse(key, ": got \"", word, "\", want whole numbers from 1 to ", kMostRanks,
                   " with commas between");
        }
        if (std::find(numbers.begin(), numbers.end(), number) == numbers.end()) {
            numbers.push_back(number);
        }
    }
    return numbers;
}

void check_range(const char* key, double value, double least, double most) {
    if (value >= least && value <= most) return;
    refuse(key, ": got ", value, ", want ", least, " to ", most);
}

// The largest divisor of `count` up to `most`.
std::int64_t divisor_up_to(std::int64_t count, std::int64_t most) {
    for (std::int64_t size = std::min(count, most); size > 1; --size) {
        if (count % size == 0) return size;
    }
    return 1;
}

// What the plan itself decides would be set without effect.
void check_settings(const RunPlan& plan, const std::vector<std::string>& settings) {
    const std::pair<const char*, bool> decided[] = {{"trainer.steps", true},
                                                    {"parallel.tensor_parallel", true},
                                                    {"parallel.data_parallel", true},
                                                    {"trainer.seq_len", !plan.seq_len.empty()},
                                                    {"trainer.batch_size", plan.batch > 0}};
    for (const std::string& setting : settings) {
        for (const auto& [path, is_decided] : decided) {
            if (!is_decided || !setting.starts_with(concat(path, "="))) continue;
            refuse("settings: got ", setting, ", which the plan decides: want its own key for it");
        }
    }
}

RunPoint make_point(const RunPlan& plan,
                    const RunConfig& base,
                    std::int64_t ranks,
                    std::int64_t P) {
    RunPoint point{"", base, ranks, ""};
    RunConfig& config = point.config;
    const std::int64_t copies = ranks / P;
    config.parallel.tensor_parallel = P;
    config.parallel.data_parallel = copies;
    if (plan.batch > 0) {
        config.trainer.batch_size =
            plan.scaling == Scaling::kWeak ? plan.batch * ranks : plan.batch;
    } else if (plan.scaling == Scaling::kWeak) {
        config.trainer.batch_size = base.trainer.batch_size * ranks;
    }
    config.trainer.micro_batch_size = std::max<std::int64_t>(1, config.trainer.micro_batch_size);
    const std::int64_t batch = config.trainer.batch_size;
    if (batch % copies != 0) {
        point.refused =
            concat(batch, " sequences a step cannot be shared by ", copies, " data-parallel ranks");
        return point;
    }
    config.trainer.micro_batch_size =
        divisor_up_to(batch / copies, config.trainer.micro_batch_size);
    try {
        config.validate(static_cast<int>(ranks));
    } catch (const Error& error) {
        point.refused = error.what();
    }
    return point;
}

}  // namespace

std::vector<std::string> words_of(const std::string& text) {
    std::istringstream stream(text);
    std::vector<std::string> words;
    for (std::string word; stream >> word;) words.push_back(word);
    return words;
}

void RunPlan::visit_fields(ConfigVisitor& v) {
    static constexpr const char* kScaling[] = {"strong", "weak"};
    static constexpr const char* kLauncher[] = {"mpirun", "slurm"};
    v.field("title", title, "for people");
    v.field("config", config, "configurations of runs, with commas between");
    v.field("settings", settings, "of all of them, PATH=VALUE with blanks between");
    v.choice("scaling", scaling, kScaling,
             "strong: the same batch for any number of ranks; weak: the same for each rank");
    v.field("ranks", ranks, "numbers of ranks, with commas between");
    v.field("tensor_parallel", tensor_parallel, "sizes of tensor-parallel groups");
    v.field("seq_len", seq_len, "tokens of a sequence; empty: the configuration's");
    v.field("batch", batch,
            "sequences: strong, of a step; weak, of a rank; 0: the configuration's batch_size");
    v.field("steps", steps, "of a point");
    v.field("warmup_steps", warmup_steps, "of these, not timed");
    v.field("threads", threads, "of a rank");
    v.field("loss_tolerance", loss_tolerance,
            "relative difference of losses of one batch; 0: 1e-4 in fp32, 5e-3 in bf16");
    v.field("hardware", hardware, "name or file, for MFU and the model; empty: measured on CPUs");
    v.field("measure_network", measure_network, "for the model: scale measure before the points");
    v.choice("launcher", launcher, kLauncher, "mpirun on this machine or a host file, or slurm");
    v.field("mpirun", mpirun, "the command, with its options");
    v.field("sbatch", sbatch, "options of sbatch");
    v.field("script", script, "that sbatch is given");
    v.field("ranks_per_node", ranks_per_node, "GPUs of a node");
    v.field("timeout_minutes", timeout_minutes, "of a point, from its start");
    v.field("attempts", attempts, "for each point");
    v.field("jobs", jobs, "points at a time");
}

void RunPlan::validate() const {
    check_range("batch", static_cast<double>(batch), 0, 1e9);
    check_range("steps", static_cast<double>(steps), 1, 1e6);
    check_range("warmup_steps", static_cast<double>(warmup_steps), 0,
                static_cast<double>(steps - 1));
    check_range("threads", static_cast<double>(threads), 1, 1024);
    check_range("loss_tolerance", loss_tolerance, 0, 1);
    check_range("ranks_per_node", static_cast<double>(ranks_per_node), 1, 1024);
    check_range("timeout_minutes", timeout_minutes, 1e-3, 1e5);
    check_range("attempts", static_cast<double>(attempts), 1, 100);
    check_range("jobs", static_cast<double>(jobs), 1, 1000);
    if (list_of(config).empty()) refuse("config: got none, want the configuration of a run");
    if (words_of(mpirun).empty()) refuse("mpirun: got \"\", want a command");
    if (numbers_of("ranks", ranks).empty()) refuse("ranks: got none, want at least one number");
    if (numbers_of("tensor_parallel", tensor_parallel).empty()) {
        refuse("tensor_parallel: got none, want at least one number");
    }
    numbers_of("seq_len", seq_len);
    if (!hardware.empty()) scaling::load_hardware(hardware);
}

RunPlan load_run_plan(const std::string& file, const std::vector<std::string>& overrides) {
    RunPlan plan;
    load_config([&](ConfigVisitor& v) { plan.visit_fields(v); }, file, overrides);
    plan.validate();
    return plan;
}

std::vector<RunPoint> points_of(const RunPlan& plan) {
    std::vector<RunPoint> points;
    std::set<std::string> keys;
    for (const std::string& file : list_of(plan.config)) {
        const std::vector<std::string> settings = words_of(plan.settings);
        check_settings(plan, settings);
        const RunConfig base = load_run_config(file, settings);
        std::vector<std::int64_t> lengths = numbers_of("seq_len", plan.seq_len);
        if (lengths.empty()) lengths = {base.trainer.seq_len};
        for (const std::int64_t length : lengths) {
            RunConfig config = base;
            config.trainer.seq_len = length;
            config.trainer.steps = plan.steps;
            for (const std::int64_t P : numbers_of("tensor_parallel", plan.tensor_parallel)) {
                for (const std::int64_t ranks : numbers_of("ranks", plan.ranks)) {
                    if (ranks % P != 0) continue;
                    RunPoint point = make_point(plan, config, ranks, P);
                    point.key = concat(std::filesystem::path(file).stem().string(), "_s", length,
                                       "_tp", P, "_r", ranks);
                    if (!keys.insert(point.key).second) {
                        refuse("config: got two files of the name ", file);
                    }
                    points.push_back(std::move(point));
                    if (points.size() > kMostPoints) {
                        refuse("got more than ", kMostPoints, " points, want fewer");
                    }
                }
            }
        }
    }
    if (points.empty()) {
        refuse("ranks: got ", plan.ranks, ", want at least one multiple of a tensor_parallel of ",
               plan.tensor_parallel);
    }
    const auto runs = [](const RunPoint& point) { return point.refused.empty(); };
    if (std::none_of(points.begin(), points.end(), runs)) {
        refuse("none of ", points.size(), " points can be run; ", points[0].key, ": ",
               points[0].refused);
    }
    return points;
}

std::string settings_of(const RunPlan& plan, const RunPoint& point) {
    using Json = nlohmann::ordered_json;
    RunConfig config = point.config;
    Json json = Json::parse(to_json(config));
    json["trainer"].erase("run_dir");
    return Json({{"ranks", point.ranks},
                 {"warmup_steps", plan.warmup_steps},
                 {"threads", plan.threads},
                 {"config", json}})
        .dump();
}

}  // namespace evenkeel::scale
