// The evenkeel program: what is typed, turned into the commands of commands.h; errors, turned into one
// message and an exit status.
#include "launch/cli.h"

#include <malloc.h>
#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <exception>
#include <iostream>
#include <limits>
#include <new>

#include "framework/error.h"
#include "framework/log.h"
#include "framework/subnormals.h"
#include "launch/cli_scale.h"
#include "launch/commands.h"
#include "launch/doctor/command.h"
#include "parallel/mpi_session.h"
#include "parallel/watchdog.h"

namespace {

using namespace evenkeel;

constexpr int kUsage = 2;
constexpr double kTimeout = 300.0;  // seconds, until a configuration says otherwise

// CLI11's own checks of a range print its limits with 300 digits.
CLI::Validator not_negative() {
    return CLI::Validator(
        [](std::string& text) -> std::string {
            double value = 0.0;
            const bool is_number = CLI::detail::lexical_cast(text, value);
            const bool fits = is_number && value >= 0.0 && value < 0x1p63;
            return fits ? "" : "got " + text + ", want a number from 0, below 2^63";
        },
        "");
}

// CLI11's "Could not convert: --gpus = 8k" as other errors are told; any other text as it is.
std::string conversion_text(const std::string& text) {
    const std::string start = "Could not convert: ", between = " = ";
    const std::size_t at = text.find(between);
    if (!text.starts_with(start) || at == std::string::npos) return text;
    return concat(text.substr(start.size(), at - start.size()), ": got ",
                  text.substr(at + between.size()), ", want a number without a unit");
}

void add_train(CLI::App& program, TrainCommand& command, Choice& choice, bool& table) {
    CLI::App& app = *program.add_subcommand("train", "Train a model from a configuration file");
    app.add_option("--config", command.config, "JSON configuration")->type_name("FILE");
    add_overrides(app, command.overrides);
    app.add_option("--rewind", command.rewind,
                   "Go on from the newest checkpoint of at most STEP steps; later ones are kept "
                   "under other names")
        ->type_name("STEP")
        ->check(not_negative());
    app.add_flag("--plan", command.plan,
                 "Print what memory each rank will take and end; needs no ranks, GPUs or text");
    app.add_flag("--print-config-table", table, "Print every setting as a Markdown table and end");
    app.footer(
        "Examples:\n"
        "  evenkeel train --config configs/tiny.json\n"
        "  mpirun -np 2 --bind-to none evenkeel train --config configs/quickstart.json\n"
        "  evenkeel train --config configs/tiny.json --set trainer.steps=50 "
        "--set trainer.run_dir=runs/a\n"
        "  evenkeel train --config configs/tiny.json --set trainer.resume=true\n"
        "  evenkeel train --config configs/tiny.json --rewind 1100 "
        "--set trainer.skip_batches=1150-1350\n"
        "  mpirun -np 8 --bind-to none evenkeel train --config configs/8b_8gpu.json "
        "--set data.path=TOKENS.bin\n"
        "  evenkeel train --config configs/8b_8gpu.json --plan --set trainer.micro_batch_size=4\n\n"
        "The run directory (trainer.run_dir) gets config.json, metrics.jsonl, TensorBoard event "
        "files,\n"
        "checkpoints/, summary.json and report.html. SIGUSR1 or SIGTERM end the run after a "
        "checkpoint, with\n"
        "status 4; SIGUSR2 writes one and goes on: docs/long_runs.md.\n\n"
        "Training runs on the CPU, or with device=cuda on one GPU a rank: "
        "docs/training_on_gpus.md.");
    app.callback([&] {
        if (!table && command.config.empty()) throw CLI::RequiredError("--config");
        choice.run = [&](Communicator& world) {
            if (!table) {
                choice.status = run_train(command, world);
                return;
            }
            if (world.rank() == 0) std::cout << config_table();
        };
    });
}

void add_eval(CLI::App& program, EvalCommand& command, Choice& choice) {
    CLI::App& app = *program.add_subcommand(
        "eval", "Loss of a saved model on held-out text or given tokens, or its logits for these");
    // Required, by the callback: the help would call both of the names so.
    app.add_option("run,--model", command.run,
                   "A run directory, one of its checkpoints or a Hugging Face folder: by its place "
                   "or by the name")
        ->type_name("RUN");
    CLI::Option* tokens =
        app.add_option("--tokens", command.tokens,
                       "Sequences instead of text: tensor tokens [N, T], int32 or int64, of a "
                       "safetensors file; prints the loss of next tokens")
            ->type_name("FILE");
    CLI::Option* logits =
        app.add_option("--logits", command.logits,
                       "Write their logits instead: tensor logits [N, T, vocabulary], fp32")
            ->type_name("FILE");
    logits->needs(tokens);
    add_overrides(app, command.overrides);
    app.add_flag("--json", command.json, "Print JSON");
    app.footer(
        "Examples:\n"
        "  evenkeel eval runs/tiny\n"
        "  evenkeel eval runs/tiny/checkpoints/step_00000150 --json\n"
        "  evenkeel eval runs/quickstart --set trainer.eval_sequences=0\n"
        "  mpirun -np 2 --bind-to none evenkeel eval runs/quickstart\n"
        "  evenkeel eval models/bytes --set data.path=TEXT\n"
        "  evenkeel eval models/llama --tokens tokens.safetensors\n"
        "  evenkeel eval --model models/llama --tokens tokens.safetensors --logits "
        "logits.safetensors\n\n"
        "A checkpoint loads at any number of ranks, whatever number it was trained on.");
    app.callback([&] {
        if (command.run.empty()) {
            throw CLI::RequiredError("A run, a checkpoint or a Hugging Face folder");
        }
        choice.run = [&](Communicator& world) { run_eval(command, world); };
    });
}

void add_sample(CLI::App& program, SampleCommand& command, Choice& choice) {
    CLI::App& app = *program.add_subcommand("sample", "Generate text from a saved model");
    app.add_option("run", command.run,
                   "A run directory, one of its checkpoints or a Hugging Face folder")
        ->required();
    app.add_option("--prompt", command.prompt, "Text to continue")->type_name("TEXT");
    app.add_option("--tokens", command.tokens,
                   "Tokens to generate (bytes, unless the model has a tokenizer)")
        ->capture_default_str()
        ->check(not_negative());
    app.add_option("--temperature", command.temperature, "0: always the likeliest token")
        ->capture_default_str()
        ->check(not_negative());
    app.add_option("--seed", command.seed, "Of the random choices")
        ->capture_default_str()
        ->check(not_negative());
    add_overrides(app, command.overrides);
    app.footer(
        "Examples:\n"
        "  evenkeel sample runs/tiny --prompt 'The best way'\n"
        "  evenkeel sample runs/tiny --tokens 500 --temperature 0\n"
        "  mpirun -np 2 --bind-to none evenkeel sample runs/quickstart");
    app.callback([&] { choice.run = [&](Communicator& world) { run_sample(command, world); }; });
}

void add_inspect(CLI::App& program, InspectCommand& command, Choice& choice) {
    CLI::App& app = *program.add_subcommand(
        "inspect", "What a checkpoint or safetensors file holds, without loading it");
    app.add_option(
           "path", command.path,
           "A run (its newest checkpoint), a checkpoint, a Hugging Face folder, a directory "
           "of safetensors files or one such file")
        ->required();
    app.add_flag("--json", command.json, "Print JSON");
    app.add_flag("--verify", command.verify,
                 "Compare every file with what its checkpoint's manifest says; exit code 1 and the "
                 "faults where they differ");
    app.add_flag("--accept", command.accept,
                 "Take a checkpoint's files as they are for what was written: says what has "
                 "changed and writes its manifest anew")
        ->excludes("--verify");
    app.footer(
        "Examples:\n"
        "  evenkeel inspect runs/tiny\n"
        "  evenkeel inspect runs/tiny/checkpoints/step_00000020 --verify\n"
        "  evenkeel inspect models/llama\n"
        "  evenkeel inspect model.safetensors --json");
    app.callback([&] {
        choice.run = [&](Communicator& world) {
            if (world.rank() == 0) run_inspect(command);
        };
    });
}

void add_import(CLI::App& program, ImportCommand& command, Choice& choice) {
    CLI::App& app = *program.add_subcommand(
        "import", "Make a run of a Hugging Face folder, to train, retrofit or export again");
    app.add_option("folder", command.folder, "config.json and safetensors files")->required();
    app.add_option("out", command.out, "The run directory to make")->required();
    app.add_flag("--json", command.json, "Print JSON");
    app.footer(
        "Examples:\n"
        "  evenkeel import models/llama runs/llama\n"
        "  evenkeel eval runs/llama --set data.path=TEXT\n\n"
        "Weights keep their type; config.json and the tokenizer's files are kept for export. "
        "docs/import_export.md\n"
        "lists the kinds of models and what is refused.");
    app.callback([&] {
        choice.run = [&](Communicator& world) {
            if (world.rank() == 0) run_import(command);
        };
    });
}

void add_export(CLI::App& program, ExportCommand& command, Choice& choice) {
    CLI::App& app =
        *program.add_subcommand("export", "Write a saved model as a Hugging Face folder");
    app.add_option("run", command.run, "A run directory or one of its checkpoints")->required();
    app.add_option("out", command.out, "The folder to make")->required();
    app.add_option("--family", command.family,
                   "Kind of model (model_type); default: what it came from, or the first that can "
                   "hold it")
        ->type_name("NAME");
    app.add_option("--dtype", command.dtype, "Of all tensors; default: as in the checkpoint")
        ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
    app.add_option("--shard-size", command.shard_bytes, "Most bytes of tensors in a file")
        ->type_name("BYTES")
        ->capture_default_str()
        ->check(not_negative());
    app.add_flag(
        "--remote-code", command.remote_code,
        "Write a kind of model that the transformers package does not know, with its code");
    app.add_flag("--json", command.json, "Print JSON");
    app.footer(
        "Examples:\n"
        "  evenkeel export runs/llama models/llama_again\n"
        "  evenkeel export runs/retrofitted models/retrofitted --remote-code --dtype bf16\n"
        "  evenkeel export runs/a/checkpoints/step_00000150 models/a --family qwen3");
    app.callback([&] {
        choice.run = [&](Communicator& world) {
            if (world.rank() == 0) run_export(command);
        };
    });
}

void add_report(CLI::App& program, ReportCommand& command, Choice& choice) {
    CLI::App& app = *program.add_subcommand("report", "Write a run's plots as one HTML page");
    app.add_option("run", command.run, "A run directory that has been trained, RUN below")
        ->required();
    app.add_option("--compare", command.compare,
                   "Another run: also print and draw how far the loss curves are apart, and where "
                   "RUN's validation loss has come back to OTHER's")
        ->type_name("OTHER");
    app.add_option("--output", command.output, "Where to write; default RUN/report.html")
        ->type_name("FILE");
    app.add_flag("--json", command.json,
                 "Print JSON: with --compare also the step of the recovery");
    app.footer(
        "Examples:\n"
        "  evenkeel report runs/quickstart\n"
        "  evenkeel report runs/quickstart --compare runs/quickstart_one_rank");
    app.callback([&] {
        choice.run = [&](Communicator& world) {
            if (world.rank() == 0) run_report(command);
        };
    });
}

void add_methods(CLI::App& program, MethodsCommand& command, Choice& choice) {
    CLI::App& app = *program.add_subcommand(
        "methods", "The ways to keep attention logits bounded, by the names of model.method");
    app.add_flag("--json", command.json, "Print JSON, with the settings that each stands for");
    app.footer(
        "Examples:\n"
        "  evenkeel methods\n"
        "  evenkeel methods --json\n"
        "  evenkeel train --config configs/tiny.json --set model.method=henry\n\n"
        "JSON: [{name, summary, source, settings: {PATH: VALUE}}], settings where they differ from "
        "the defaults\n"
        "and for the default sizes. docs/qk_norm.md tells what each does.");
    app.callback([&] {
        choice.run = [&](Communicator& world) {
            if (world.rank() == 0) run_methods(command);
        };
    });
}

void add_study(CLI::App& program, StudyCommand& command, Choice& choice) {
    CLI::App& app = *program.add_subcommand(
        "study", "Measure what keeps attention logits bounded, and what does not");
    app.require_subcommand(1);
    app.footer(
        "Examples:\n"
        "  evenkeel study drift\n"
        "  evenkeel study half --json\n"
        "  evenkeel study dilution --set gains=10,20 --out runs/dilution\n"
        "  evenkeel study lr-sweep --set methods=plain,rms --set rates=1e-3,3e-2\n\n"
        "Each writes results.json and report.html into its directory. evenkeel study NAME --help "
        "lists its settings.");
    for (const StudyHelp& help : study_helps()) {
        CLI::App& study = *app.add_subcommand(help.name, help.summary);
        study.add_option("--out", command.out, "Where its files go; default runs/studies/NAME")
            ->type_name("DIR");
        if (!help.settings.empty()) {
            study
                .add_option("--set", command.overrides,
                            "Override one setting: key=value (repeatable)")
                ->type_name("KEY=VALUE")
                ->allow_extra_args(false);
        }
        study.add_flag("--json", command.json, "Print JSON");
        if (help.has_points) {
            study
                .add_option("--point", command.point,
                            "Compute this point only, and keep its result")
                ->type_name("POINT");
        }
        study.footer(concat(help.settings, "\nExamples:\n  evenkeel study ", help.name,
                            "\n  evenkeel study ", help.name, " --json --out runs/", help.name));
        study.callback([&, name = help.name] {
            command.name = name;
            choice.run = [&](Communicator& world) {
                EVENKEEL_CHECK_CODE(world.size() == 1, ErrorCode::kConfig, "study", "got ",
                                    world.size(), " ranks, want 1; start it without mpirun");
                run_study(command);
            };
        });
    }
}

// `study`, `data` or `scale` without the name of one of theirs.
bool is_group_without_name(const CLI::App& program) {
    const std::vector<CLI::App*> chosen = program.get_subcommands();
    if (chosen.empty() || !chosen[0]->get_subcommands().empty()) return false;
    const std::string name = chosen[0]->get_name();
    return name == "study" || name == "data" || name == "scale";
}

std::string names_of_commands(const CLI::App& group) {
    std::string names;
    for (const CLI::App* command : group.get_subcommands([](const CLI::App*) { return true; })) {
        names += concat(names.empty() ? "" : ", ", command->get_name());
    }
    return names;
}

// A training step frees and takes the same memory over and over. By default the C library gives blocks from
// 128 KiB on back to the system each time, and a few percent of a step go into page faults. (Tensors from 1 MiB on are
// not the C library's: large_blocks.h.)
void keep_freed_memory() {
    mallopt(M_MMAP_MAX, 0);
    mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
}

// Whether nobody is left to read what goes into a pipe.
bool pipe_is_closed(int descriptor) {
    pollfd asked{descriptor, POLLOUT, 0};
    return ::poll(&asked, 1, 0) == 1 && (asked.revents & POLLERR) != 0;
}

int run_program(int argc, char** argv, MpiSession& session) {
    CLI::App program{
        "Evenkeel: tensor-parallel attention with QK normalisation, trained under mpirun.",
        "evenkeel"};
    program.require_subcommand(1);
    program.set_version_flag("--version", EVENKEEL_VERSION);
    program.footer(
        "Each command has --help with examples. Exit status: 0 done, 1 failed, 2 bad usage or "
        "configuration, 3 a rank was lost or hung, 4 a signal and 5 an alarm ended training after "
        "a "
        "checkpoint.");

    Choice choice;
    TrainCommand train;
    EvalCommand eval;
    SampleCommand sample;
    DataBuildCommand data_build;
    DataInspectCommand data_inspect;
    RetrofitCommand retrofit;
    InspectCommand inspect;
    ImportCommand import_folder;
    ExportCommand export_run;
    ReportCommand report;
    BenchCommands bench;
    MethodsCommand methods;
    ScaleCommands scale;
    DoctorCommand doctor;
    StudyCommand study;
    bool table = false;
    add_train(program, train, choice, table);
    add_eval(program, eval, choice);
    add_sample(program, sample, choice);
    add_data(program, data_build, data_inspect, choice);
    add_retrofit(program, retrofit, choice);
    add_inspect(program, inspect, choice);
    add_import(program, import_folder, choice);
    add_export(program, export_run, choice);
    add_report(program, report, choice);
    add_bench(program, bench, choice);
    add_methods(program, methods, choice);
    add_study(program, study, choice);
    add_scale(program, scale, choice);
    add_doctor(program, doctor, choice);

    const bool speaks = session.world().rank() == 0;
    try {
        program.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        const std::vector<std::string> extra = program.remaining(true);
        const bool wants_name = program.get_subcommands().empty() || is_group_without_name(program);
        const bool is_unknown = wants_name && !extra.empty();
        if (error.get_exit_code() == 0 && !is_unknown) {
            if (speaks) program.exit(error);  // --help, --version
            return 0;
        }
        if (speaks && is_unknown) {
            std::cerr << extra.front() << ": no such command\nRun with --help for a list.\n";
        } else if (speaks && wants_name && error.get_name() == "RequiredError") {
            const CLI::App& group =
                program.get_subcommands().empty() ? program : *program.get_subcommands()[0];
            std::cerr << "a subcommand is required: " << names_of_commands(group)
                      << "\nRun with --help for more information.\n";
        } else if (speaks && error.get_name() == "ConversionError") {
            std::cerr << conversion_text(error.what())
                      << "\nRun with --help for more information.\n";
        } else if (speaks) {
            program.exit(error, std::cerr, std::cerr);
        }
        return kUsage;
    }
    start_watchdog(session.world(), {});  // until the command gives it a time-out and a directory
    choice.run(session.world());
    std::cout.flush();
    // Whoever reads has read enough: evenkeel inspect | head.
    const bool closed = !std::cout.good() && pipe_is_closed(STDOUT_FILENO);
    EVENKEEL_CHECK_CODE(std::cout.good() || closed, ErrorCode::kIo, "output",
                        "standard output: cannot write all of the result");
    // What rank 0 does last, writing files, may fail. While other ranks are finalising MPI, Open MPI crashes
    // or hangs when one aborts, so they wait here.
    session.world().barrier();
    return choice.status;
}

constexpr const char* kNoMemory = "out of memory";

}  // namespace

int main(int argc, char** argv) {
    flush_subnormals();
    keep_freed_memory();
    std::signal(SIGPIPE, SIG_IGN);  // that nobody reads what is said is no reason to end
    std::signal(SIGXFSZ, SIG_IGN);  // a file at its limit is an error of writing, as a full disk is
    try {
        // The doctor tells what is wrong with ranks that MPI does not see; all else would run wrongly.
        const bool is_doctor = argc > 1 && std::string(argv[1]) == "doctor";
        MpiSession session(&argc, &argv, kTimeout,
                           is_doctor ? Mismatch::kAccept : Mismatch::kThrow);
        set_log_rank(session.world().rank(), session.world().size());
        // A launcher may end this process before it has ended by itself.
        try {
            const int status = run_program(argc, argv, session);
            if (status != 0) note_exit_status(status);
            return status;
        } catch (const Error& error) {
            note_exit_status(error.exit_status());
            session.abort(error.what(), error.exit_status());
        } catch (const std::bad_alloc&) {
            note_exit_status(1);
            session.abort(kNoMemory, 1);
        } catch (const std::exception& error) {
            note_exit_status(1);
            session.abort(error.what(), 1);
        }
    } catch (const std::bad_alloc&) {
        note_exit_status(1);
        std::fprintf(stderr, "evenkeel: %s\n", kNoMemory);
        return 1;
    } catch (const std::exception& error) {
        note_exit_status(1);
        std::fprintf(stderr, "evenkeel: %s\n", error.what());
        return 1;
    }
}
