#include "launch/cli_scale.h"

namespace evenkeel {
namespace {

CLI::Validator number_of_tokens() {
    return CLI::Validator(
        [](std::string& text) -> std::string {
            double value = 0.0;
            if (CLI::detail::lexical_cast(text, value)) return "";
            return "got " + text + ", want a number without a unit, such as 15e12";
        },
        "");
}

// without_tokens: what happens where --tokens is not given.
void add_cluster(CLI::App& app, ScaleCommand& command, const std::string& without_tokens) {
    app.add_option("--config", command.config, "JSON configuration of the run")
        ->required()
        ->type_name("FILE");
    app.add_option("--set", command.overrides,
                   "Override one setting: path.to.key=value (repeatable)")
        ->type_name("PATH=VALUE")
        ->allow_extra_args(false);
    app.add_option("--hardware", command.hardware,
                   "The cluster: a name that evenkeel scale hardware lists, or a JSON file")
        ->capture_default_str()
        ->type_name("NAME");
    app.add_option("--network", command.network,
                   "A measured network in place of the cluster's: scale measure --output FILE")
        ->type_name("FILE");
    app.add_option("--gpus", command.gpus, "Default: as many as the configuration asks for")
        ->default_str("")
        ->type_name("N");
    app.add_option("--batch", command.batch, "Sequences a step; default: trainer.batch_size")
        ->default_str("")
        ->type_name("N");
    app.add_option("--tokens", command.tokens, "Tokens of the whole run, 15e12; " + without_tokens)
        ->default_str("")
        ->type_name("N")
        ->check(number_of_tokens());
    app.add_flag("--json", command.json, "Print JSON");
}

void add_plan(CLI::App& scale, ScaleCommand& command, Choice& choice) {
    CLI::App& app = *scale.add_subcommand(
        "plan", "A configuration on a cluster: time of a step, memory, days and GPU-hours");
    add_cluster(app, command, "default: trainer.steps of them");
    app.footer(
        "Examples:\n"
        "  evenkeel scale plan --config configs/8b_8gpu.json --hardware h100 --tokens 15e12\n"
        "  evenkeel scale plan --config configs/70b.json --hardware h200 --gpus 1024 --json\n\n"
        "Nothing is run: the numbers are a model's, docs/scaling.md. Exit status 1 where it does "
        "not fit.");
    app.callback([&] {
        choice.run = [&](Communicator& world) {
            if (world.rank() == 0) choice.status = run_scale_plan(command);
        };
    });
}

void add_search(CLI::App& scale, ScaleCommand& command, Choice& choice) {
    CLI::App& app = *scale.add_subcommand(
        "search", "The fastest layout of a model on a number of GPUs, and why");
    add_cluster(app, command, "without it no duration is printed");
    app.add_flag("--pipeline", command.pipeline,
                 "Also layouts with pipelines, which evenkeel does not run");
    app.add_flag("--across-nodes", command.across_nodes,
                 "Also tensor-parallel groups of several nodes, which no published row has");
    app.add_option("--top", command.top, "Other layouts shown")
        ->capture_default_str()
        ->type_name("N")
        ->check(CLI::Range(0, 1000));
    app.footer(
        "Examples:\n"
        "  evenkeel scale search --config configs/8b_8gpu.json --gpus 64\n"
        "  evenkeel scale search --config configs/70b.json --hardware h100 --gpus 10000 --batch "
        "2500 --tokens 15e12\n"
        "  evenkeel scale search --config configs/405b.json --gpus 10000 --batch 2500 "
        "--pipeline\n\n"
        "Tried are tensor-parallel ranks up to a node's GPUs (--across-nodes: 64), sequence "
        "parallelism, zero_stage,\nrecompute and micro-batches up to 16; a layout whose copies do "
        "not divide the batch takes up to 5 % less of it.\n"
        "Exit status 1 where none fits.");
    app.callback([&] {
        choice.run = [&](Communicator& world) {
            if (world.rank() == 0) choice.status = run_scale_search(command);
        };
    });
}

void add_measure(CLI::App& scale, ScaleMeasureCommand& command, Choice& choice) {
    CLI::App& app = *scale.add_subcommand(
        "measure", "Collectives between the ranks: time, bandwidth, correctness, alpha and beta");
    app.add_option("--tensor-parallel", command.tensor_parallel,
                   "Neighbouring ranks of a tensor-parallel group, as parallel.tensor_parallel")
        ->capture_default_str()
        ->type_name("N");
    app.add_option("--device", command.device, "Where the tensors are: cpu or cuda")
        ->capture_default_str()
        ->check(CLI::IsMember({"cpu", "cuda"}));
    app.add_option("--communication", command.communication, "Between GPUs: nccl or staged")
        ->capture_default_str()
        ->check(CLI::IsMember({"nccl", "staged"}));
    const auto size = [&](const char* name, std::int64_t& value, const char* what) {
        app.add_option(name, value, what)
            ->capture_default_str()
            ->type_name("BYTES")
            ->transform(CLI::AsSizeValue(false).description(""));
    };
    size("--from", command.settings.from, "Smallest size; 1K is 1024");
    size("--to", command.settings.to, "Largest size; sizes are doubled");
    app.add_option("--rounds", command.settings.rounds, "Series of calls for each size")
        ->capture_default_str()
        ->type_name("N");
    app.add_option("--seconds", command.settings.seconds, "That a series of calls fills")
        ->capture_default_str()
        ->type_name("S");
    app.add_option("--output", command.output, "Write the network for --network of a plan")
        ->type_name("FILE");
    app.add_flag("--json", command.json, "Print JSON");
    app.footer(
        "Examples:\n"
        "  mpirun -np 2 evenkeel scale measure\n"
        "  mpirun -np 16 evenkeel scale measure --tensor-parallel 8 --device cuda --to 256M "
        "--output network.json\n"
        "  evenkeel scale plan --config configs/8b_8gpu.json --network network.json\n\n"
        "Sizes, algorithm and bus bandwidth are as nccl-tests counts them. Every third size, "
        "but neither the first\ntwo nor the last two, is held out of the fit and predicted by it. "
        "docs/scaling.md.");
    app.callback(
        [&] { choice.run = [&](Communicator& world) { run_scale_measure(command, world); }; });
}

void add_run(CLI::App& scale, ScaleRunCommand& command, Choice& choice) {
    CLI::App& app = *scale.add_subcommand(
        "run", "Measure a scaling study: each point of a plan, on ranks of its own");
    app.add_option("plan", command.plan, "The plan: configs/scaling_two_cores.json")
        ->required()
        ->type_name("FILE");
    app.add_option("--set", command.overrides, "Override one key of the plan (repeatable)")
        ->type_name("KEY=VALUE")
        ->allow_extra_args(false);
    app.add_option("--out", command.out, "Directory of the results; default: runs/PLAN")
        ->type_name("DIR");
    app.add_flag("--list", command.list, "Print the points and end");
    app.footer(
        "Examples:\n"
        "  evenkeel scale run configs/scaling_two_cores.json\n"
        "  evenkeel scale run configs/scaling_weak.json --list\n"
        "  evenkeel scale run configs/scaling_strong.json --set launcher=slurm --set "
        "sbatch='--partition=gpu'\n\n"
        "It starts ranks itself: no mpirun before it. The same command goes on where it was ended, "
        "and tries points\nthat failed again. Exit status 1 where a point has failed or its losses "
        "are wrong. docs/scaling.md.");
    app.callback(
        [&] { choice.run = [&](Communicator&) { choice.status = run_scale_run(command); }; });
}

void add_point(CLI::App& scale, ScalePointCommand& command, Choice& choice) {
    CLI::App& app =
        *scale.add_subcommand("point", "What run starts on its ranks: steps of training, timed");
    app.add_option("--config", command.config, "JSON configuration of a run")
        ->required()
        ->type_name("FILE");
    add_overrides(app, command.overrides);
    app.add_option("--warmup", command.warmup_steps, "Steps before those that are timed")
        ->capture_default_str()
        ->type_name("N");
    app.add_option("--output", command.output, "Write the result")->required()->type_name("FILE");
    app.footer(
        "Examples:\n"
        "  mpirun -np 2 evenkeel scale point --config configs/quickstart.json --set "
        "trainer.steps=12 --output point.json");
    app.callback(
        [&] { choice.run = [&](Communicator& world) { run_scale_point(command, world); }; });
}

void add_report(CLI::App& scale, ScaleReportCommand& command, Choice& choice) {
    CLI::App& app = *scale.add_subcommand(
        "report", "report.html and results.csv of a study, of as much as there is");
    app.add_option("directory", command.directory, "Of the study")->required()->type_name("DIR");
    app.footer("Examples:\n  evenkeel scale report runs/scaling_two_cores");
    app.callback([&] {
        choice.run = [&](Communicator& world) {
            if (world.rank() == 0) choice.status = run_scale_report(command);
        };
    });
}

}  // namespace

void add_scale(CLI::App& program, ScaleCommands& commands, Choice& choice) {
    CLI::App& app = *program.add_subcommand(
        "scale", "What a cluster would make of a run: step time, memory, the best layout");
    app.require_subcommand(1);
    app.footer(
        "Examples:\n"
        "  evenkeel scale plan --config configs/8b_8gpu.json --hardware h100 --tokens 15e12\n"
        "  evenkeel scale search --config configs/70b.json --gpus 1024\n"
        "  evenkeel scale validate");
    add_plan(app, commands.plan, choice);
    add_search(app, commands.search, choice);
    add_measure(app, commands.measure, choice);
    add_run(app, commands.run, choice);
    add_point(app, commands.point, choice);
    add_report(app, commands.report, choice);

    CLI::App& validate =
        *app.add_subcommand("validate", "The model against published results, row by row");
    validate.add_flag("--json", commands.validate.json, "Print JSON, with sources and notes");
    validate.footer("Examples:\n  evenkeel scale validate\n  evenkeel scale validate --json");
    validate.callback([&] {
        choice.run = [&](Communicator& world) {
            if (world.rank() == 0) run_scale_validate(commands.validate);
        };
    });

    CLI::App& hardware = *app.add_subcommand("hardware", "The clusters that are known");
    hardware.add_option("name", commands.hardware.name, "Show the whole description of this one");
    hardware.add_flag("--json", commands.hardware.json, "Print JSON");
    hardware.footer(
        "Examples:\n  evenkeel scale hardware\n  evenkeel scale hardware h100 > mine.json\n\n"
        "Such a file, changed, is a cluster of one's own: --hardware mine.json.");
    hardware.callback([&] {
        choice.run = [&](Communicator& world) {
            if (world.rank() == 0) run_scale_hardware(commands.hardware);
        };
    });
}

}  // namespace evenkeel
