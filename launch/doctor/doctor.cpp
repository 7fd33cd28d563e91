// evenkeel doctor: everything that the ranks of this launch can find out about it before a run.
#include "launch/doctor/doctor.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "launch/doctor/command.h"
#include "parallel/gpu_survey.h"
#include "parallel/launch_environment.h"

namespace evenkeel {
namespace doctor {
namespace {

constexpr int kColumns = 100, kFewest = 60, kMost = 120;

Survey take_survey(const DoctorCommand& command, Communicator& world) {
    Survey survey;
    if (!command.config.empty()) survey.config = load_run_config(command.config, command.overrides);
    RunConfig* config = survey.config.has_value() ? &*survey.config : nullptr;
    RankFacts facts = look_around(world, config);
    if (config != nullptr) facts.data_problem = problem_of_data(*config);
    measure_network(world, facts);
    survey.ranks = gather_facts(world, facts);
    if (config != nullptr) survey.run_dir = look_at_directory(world, config->trainer.run_dir);

    const bool wanted = config != nullptr && config->device == Device::kCuda;
    const double seen = device_count(Device::kCuda);
    if (wanted || world.all_reduce_scalar(seen, ReduceOp::kMax) > 0.0) {
        GpuAssignment mine;
        survey.gpus = survey_gpus(
            world, wanted ? config->parallel.communication : Communication::kNccl, mine);
        survey.drivers = gather_texts(world, mine.driver);
    } else {
        survey.no_gpu = concat("none: ", why_no_cuda());
    }
    return survey;
}

struct Terminal {
    bool is_one = false;
    int columns = kColumns;
};

// What standard output ends on. mpirun hands its processes pipes or pseudo-terminals: its own is what counts.
Terminal terminal() {
    Terminal terminal;
    const bool launched = std::getenv("OMPI_COMM_WORLD_RANK") != nullptr;
    int file = STDOUT_FILENO;
    if (launched) {
        const std::string parent = concat("/proc/", ::getppid(), "/fd/", STDOUT_FILENO);
        file = ::open(parent.c_str(), O_WRONLY | O_NOCTTY | O_NONBLOCK);
    }
    winsize size{};
    if (file >= 0 && ::isatty(file) == 1 && ::ioctl(file, TIOCGWINSZ, &size) == 0) {
        const char* type = std::getenv("TERM");
        terminal.is_one = type != nullptr && std::strcmp(type, "dumb") != 0;
        if (size.ws_col > 0) terminal.columns = std::clamp<int>(size.ws_col, kFewest, kMost);
    }
    if (launched && file >= 0) ::close(file);
    return terminal;
}

}  // namespace

std::vector<Check> all_checks(const Survey& survey) {
    std::vector<Check> checks;
    for (const auto& group : {check_launch, check_hosts, check_processors, check_network,
                              check_gpus, check_limits, check_run}) {
        for (Check& check : group(survey)) checks.push_back(std::move(check));
    }
    return checks;
}

void refuse_bad_start(Communicator& world, RunConfig& config) {
    if (world.size() == 1) return;
    Survey survey;
    survey.config = config;
    survey.ranks = gather_facts(world, look_around(world, &config));
    survey.run_dir = look_at_directory(world, config.trainer.run_dir);
    for (const auto& group : {check_launch(survey), check_run(survey)}) {
        for (const Check& check : group) {
            const bool ends = check.name == "program" || check.name == "settings" ||
                              (check.name == "run_dir" && survey.run_dir->problem.empty());
            EVENKEEL_CHECK_CODE(!ends || check.verdict != Verdict::kWrong, ErrorCode::kConfig,
                                "train", check.fact, ": ", check.remedy);
        }
    }
}

}  // namespace doctor

bool run_doctor(const DoctorCommand& command, Communicator& world) {
    const doctor::Survey survey = doctor::take_survey(command, world);
    const std::vector<doctor::Check> checks = doctor::all_checks(survey);
    // Where each process believes to be alone, the launcher's first one speaks.
    if (world.rank() == 0 && launch_of_this_process().rank == 0) {
        const doctor::Terminal terminal = doctor::terminal();
        const bool colour = terminal.is_one && std::getenv("NO_COLOR") == nullptr;
        std::cout << (command.json ? doctor::to_json(survey, checks)
                                   : doctor::to_table(survey, checks, terminal.columns, colour));
    }
    return std::none_of(checks.begin(), checks.end(), [](const doctor::Check& check) {
        return check.verdict == doctor::Verdict::kWrong;
    });
}

}  // namespace evenkeel
