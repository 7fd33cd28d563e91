#include "launch/cli.h"

namespace evenkeel {

void add_retrofit(CLI::App& program, RetrofitCommand& command, Choice& choice) {
    CLI::App& app = *program.add_subcommand(
        "retrofit", "Give a trained model QK-norm without losing what it has learned");
    // Required, by the callback: the help would call both of the names so.
    app.add_option("run,--model", command.model,
                   "A run directory, one of its checkpoints or a Hugging Face folder: by its place "
                   "or by the name")
        ->type_name("RUN");
    app.add_option("--data", command.data,
                   "A text or a .bin file of tokens, whose held-out part is looked at, or a "
                   ".safetensors file with a tensor tokens [N, T]; default: the data of the "
                   "model's run")
        ->type_name("PATH");
    app.add_option("--out", command.out, "A directory that is not there yet")
        ->required()
        ->type_name("DIR");
    app.add_option("--gains", command.gains,
                   "mean_rms (fitted by kl_tied where that is not enough), matched_std, kl_tied, "
                   "kl_untied or ones")
        ->capture_default_str();
    app.add_option("--bound", command.bound,
                   "No logit may pass this, now and in training: gains are held below it")
        ->type_name("TAU");
    app.add_option("--anneal", command.anneal, "Let the norm come in over so many steps")
        ->type_name("STEPS");
    app.add_option("--layers", command.layers,
                   "Those that get the norm, such as 0,3-5; default all");
    app.add_option("--tokens", command.tokens, "Held-out tokens to make gains from")
        ->capture_default_str();
    app.add_flag_callback(
        "--no-refine", [&command] { command.refine = false; }, "Keep the mean rms everywhere");
    add_overrides(app, command.overrides);
    app.add_flag("--json", command.json, "Print JSON");
    app.footer(
        "Examples:\n"
        "  evenkeel retrofit runs/tiny --out runs/tiny_normed\n"
        "  evenkeel retrofit --model runs/tiny --out runs/tiny_normed --anneal 80 --bound 60\n"
        "  mpirun -np 2 --bind-to none evenkeel retrofit --model runs/quickstart --out runs/normed "
        "--gains "
        "kl_tied\n"
        "  evenkeel retrofit --model runs/tiny --out runs/b --layers 1 "
        "--set model.attention.qk_norm.gain_pull=0.01\n\n"
        "Then: evenkeel train --config DIR/config.json goes on from the model with its norm, and\n"
        "--config DIR/control.json from the model as it was; evenkeel report DIR/continued "
        "--compare "
        "DIR/control.\n\n"
        "DIR gets config.json, control.json, checkpoints/step_00000000, retrofit.json and "
        "retrofit.html;\nit appears when all of it is there. --set overrides settings of the run "
        "that "
        "follows.\ndocs/retrofit.md tells what the numbers mean.");
    app.callback([&] {
        if (command.model.empty()) {
            throw CLI::RequiredError("A run, a checkpoint or a Hugging Face folder");
        }
        choice.run = [&](Communicator& world) { run_retrofit(command, world); };
    });
}

}  // namespace evenkeel
