// The command lines of `evenkeel bench`.
#include "framework/error.h"
#include "launch/cli.h"

namespace evenkeel {
namespace {

constexpr const char* kResult = "JSON: {seconds, fastest, calls, peak_bytes";

void add_count(CLI::App& app, const char* name, std::int64_t& count) {
    app.add_option(name, count, "Measure so many, whatever time they take")
        ->default_str("")
        ->type_name("N")
        ->check(CLI::Range(1, 1 << 20));
}

void add_seconds(CLI::App& app, double& seconds) {
    app.add_option("--seconds", seconds, "How long to measure, one call at least")
        ->capture_default_str()
        ->check(CLI::Range(0.0, 3600.0));
}

void add_attention(CLI::App& bench, BenchCommands& commands, Choice& choice) {
    BenchAttentionCommand& command = commands.attention;
    CLI::App& app = *bench.add_subcommand(
        "attention", "Time and memory of QK-norm, rotation and causal attention of one shape");
    const auto size = [&](const char* name, std::int64_t& value, const char* what) {
        app.add_option(name, value, what)
            ->capture_default_str()
            ->type_name("N")
            ->check(CLI::Range(1, 1 << 20));
    };
    size("--batch", command.batch, "Sequences");
    size("--tokens", command.tokens, "Of each sequence");
    size("--heads", command.heads, "Query heads");
    size("--kv-heads", command.kv_heads, "Key/value heads");
    size("--head-dim", command.head_dim, "Width of a head");
    app.add_option("--type", commands.type, "Of queries, keys and values")
        ->capture_default_str()
        ->check(CLI::IsMember({"fp32", "bf16"}));
    app.add_flag("--forward", commands.forward, "Without the backward pass");
    add_count(app, "--calls", command.calls);
    add_seconds(app, command.seconds);
    app.add_option("--inputs", command.inputs,
                   "A safetensors file: q and dout [B, T, H, D], k and v [B, T, K, D], q_gain [H, "
                   "D], k_gain [K, D]; default: random, gains 1")
        ->type_name("FILE");
    app.add_option("--outputs", command.outputs,
                   "Where to write out, dq, dk, dv, dq_gain and dk_gain")
        ->type_name("FILE");
    app.add_flag("--json", command.json, "Print JSON");
    app.footer(
        concat("Examples:\n"
               "  evenkeel bench attention\n"
               "  evenkeel bench attention --tokens 8192 --head-dim 128 --heads 4 --kv-heads 4 "
               "--type fp32 "
               "--json\n\n",
               kResult,
               "}. Calls follow one warm-up; seconds is their median, of the clock on the wall.\n"
               "peak_bytes is what resident memory grew by, inputs included."));
    app.callback([&] {
        command.type = commands.type == "fp32" ? ComputeType::kFp32 : ComputeType::kBf16;
        command.backward = !commands.forward;
        choice.run = [&](Communicator& world) { run_bench_attention(command, world); };
    });
}

void add_step(CLI::App& bench, BenchCommands& commands, Choice& choice) {
    BenchStepCommand& command = commands.step;
    CLI::App& app =
        *bench.add_subcommand("step", "Time and memory of whole training steps of a configuration");
    app.add_option("--config", command.config, "JSON configuration")->required()->type_name("FILE");
    add_overrides(app, command.overrides);
    app.add_option("--tokens", command.tokens,
                   "A safetensors file with tokens [sequences of a step, trainer.seq_len + 1]; "
                   "default: random ones")
        ->type_name("FILE");
    add_count(app, "--steps", command.steps);
    add_seconds(app, command.seconds);
    app.add_flag("--json", command.json, "Print JSON");
    app.footer(concat(
        "Examples:\n"
        "  evenkeel bench step --config configs/quickstart.json --set parallel.tensor_parallel=1\n"
        "  mpirun -np 2 --bind-to none evenkeel bench step --config configs/quickstart.json "
        "--json\n"
        "  evenkeel bench step --config configs/1b.json --set device=cuda --set "
        "parallel.tensor_parallel=1 --set model.num_layers=8\n\n"
        "Each step takes the same tokens at the rate schedule.peak_lr, from the weights of "
        "trainer.init_from where there is one.\nThe data of the configuration is not read.\n",
        kResult,
        ", tokens_per_second,\ntflops_per_rank, losses}. Steps follow three that warm up, on a GPU "
        "five, with --steps one, which losses count too;\nseconds is the median, of the clock on "
        "the wall. peak_bytes is of the rank where it is most: what resident memory\ngrew by, "
        "model included, or with --set device=cuda what tensors held on the GPU."));
    app.callback(
        [&] { choice.run = [&](Communicator& world) { run_bench_step(command, world); }; });
}

}  // namespace

void add_bench(CLI::App& program, BenchCommands& commands, Choice& choice) {
    BenchCommand& command = commands.all;
    std::string& device = commands.device;
    CLI::App& app = *program.add_subcommand(
        "bench", "Measure this machine and the kernels, as ratios taken in one run");
    CLI::Option* const only =
        app.add_option("--only", command.only, "Measure only this (repeatable)")
            ->check(CLI::IsMember(bench_names()))
            ->allow_extra_args(false);
    CLI::Option* const where =
        app.add_option("--device", device,
                       "Where to measure: cpu or cuda (norm and attention only)")
            ->capture_default_str()
            ->check(CLI::IsMember({name_of(Device::kCpu), name_of(Device::kCuda)}));
    CLI::Option* const json = app.add_flag("--json", command.json, "Print JSON");
    app.footer(
        "Examples:\n"
        "  evenkeel bench\n"
        "  evenkeel bench --only gemm --only attention --json\n"
        "  evenkeel bench --device cuda --json\n"
        "  mpirun -np 2 --bind-to none evenkeel bench --only ranks\n"
        "  evenkeel bench attention --tokens 4096 --head-dim 128 --heads 4\n\n"
        "Measurements; without --only all of them but ranks:\n"
        "  gemm        matrix products in fp32 and bf16: the yardstick of the others\n"
        "  attention   the kernel both ways, as shares of the bf16 product\n"
        "  norm        QK-norm with rotation, as shares of a copy\n"
        "  memory      of a step, up to 131072 tokens\n"
        "  growth      time of a step by batch, of attention by length\n"
        "  step        a training step, and what telemetry and QK-norm add to it\n"
        "  ops         each operation's part of a step\n"
        "  recompute   time and memory of a step for each model.recompute\n"
        "  checkpoint  what writing beside the training adds\n"
        "  ranks       two tensor-parallel ranks against two threads; under mpirun -np 2\n\n"
        "The commands attention and step measure one computation, for comparisons with other "
        "programs (benchmarks/).\n"
        "JSON: {MEASUREMENT: [{name, value, unit, best, shares: [{ratio, of, low, high, rounds, "
        "goal, "
        "goal_at_most}]}]}.\n"
        "low and high hold the middle half of the rounds' ratios. A long part says on standard "
        "error how far it is, and\nbegins no further round after 10 to 25 seconds.\n"
        "value is of the median round, best of the fastest one (GPU only); shares are fractions of "
        "what \"of\"\n"
        "says; a share has goal, goal_at_most or neither. With --device cuda there is also device: "
        "{name, driver, multiprocessors}.");
    app.require_subcommand(0, 1);
    add_attention(app, commands, choice);
    add_step(app, commands, choice);
    for (CLI::App* single : app.get_subcommands(nullptr))
        single->excludes(only)->excludes(where)->excludes(json);
    app.callback([&] {
        if (!app.get_subcommands().empty()) return;
        command.device = device == name_of(Device::kCuda) ? Device::kCuda : Device::kCpu;
        choice.run = [&](Communicator& world) { run_bench(command, world); };
    });
}

}  // namespace evenkeel
