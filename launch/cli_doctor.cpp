#include "launch/cli.h"

namespace evenkeel {

void add_doctor(CLI::App& program, DoctorCommand& command, Choice& choice) {
    CLI::App& app = *program.add_subcommand(
        "doctor", "Check how ranks were started: launcher, hosts, cores, network, GPUs, files");
    app.add_option("--config", command.config,
                   "The run that is to be started, with its ranks, files and limits")
        ->type_name("FILE");
    add_overrides(app, command.overrides);
    app.add_flag("--json", command.json, "Print JSON");
    app.footer(
        "Examples:\n"
        "  evenkeel doctor\n"
        "  mpirun -np 8 --hostfile hosts --bind-to none evenkeel doctor --config "
        "configs/8b_8gpu.json\n"
        "  srun --mpi=pmix evenkeel doctor --config configs/8b_4nodes.json --json\n\n"
        "Start it as the run is to be started, with evenkeel train replaced. Exit status 1 when "
        "something\nis wrong, 0 with warnings alone. JSON: {ranks, hosts: [{name, ranks}], wrong, "
        "warnings,\nchecks: [{group, name, verdict, fact, remedy}]}. docs/launching.md tells of "
        "each "
        "check.");
    app.callback([&] {
        if (command.config.empty() && !command.overrides.empty()) {
            throw CLI::RequiresError("--set", "--config");
        }
        choice.run = [&](Communicator& world) {
            choice.status = run_doctor(command, world) ? 0 : 1;
        };
    });
}

}  // namespace evenkeel
