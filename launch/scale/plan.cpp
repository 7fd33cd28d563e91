// evenkeel scale plan: a configuration on a cluster.
#include <cstdio>
#include <iostream>

#include "framework/error.h"
#include "framework/json.h"
#include "launch/memory_advice.h"
#include "launch/saved_run.h"
#include "launch/scale/text.h"

namespace evenkeel {
namespace {

using namespace scale;
using Json = nlohmann::ordered_json;

struct Plan {
    RunConfig config;
    Cluster cluster;
    scaling::Hardware hardware;
    scaling::Candidate candidate;
    MemoryPlan memory;
    std::size_t usable = 0;
    Budget budget;
    Gap gap;
    double utilisation = 0.0;

    std::int64_t gpus() const { return candidate.plan.layout.gpus(); }
    bool fits() const { return memory.total() <= usable; }
};

Plan make_plan(const ScaleCommand& command) {
    Plan plan;
    plan.cluster = cluster_of(command);
    plan.hardware = plan.cluster.hardware;
    plan.config = configuration(command);
    const std::int64_t gpus = gpus_of(command, plan.config);
    const std::int64_t P = plan.config.parallel.tensor_parallel;
    EVENKEEL_CHECK_CODE(P > 0 && gpus % P == 0, ErrorCode::kConfig, "scale", "--gpus: got ", gpus,
                        ", want a multiple of parallel.tensor_parallel, ", P);
    if (command.gpus) plan.config.parallel.data_parallel = gpus / P;
    const std::int64_t micro_batch = plan.config.trainer.micro_batch_size;
    constexpr std::int64_t kLargest = 1 << 30;  // so that the product fits
    EVENKEEL_CHECK_CODE(!command.batch || micro_batch < 1 || micro_batch > kLargest ||
                            *command.batch % (micro_batch * (gpus / P)) == 0,
                        ErrorCode::kConfig, "scale", "--batch: got ", command.batch.value_or(0),
                        ", want a multiple of ", micro_batch * (gpus / P),
                        " (trainer.micro_batch_size ", micro_batch, " x ", gpus / P,
                        " data-parallel ranks)");
    plan.config.validate(static_cast<int>(gpus));
    const scaling::Shares shares;
    plan.candidate = scaling::evaluate(plan.hardware, shares, plan_of(plan.config, gpus));
    plan.memory = scaling::plan_memory(plan.candidate.plan);
    plan.usable = scaling::usable_bytes(plan.hardware);
    const double step = plan.candidate.time.total();
    const double tokens = command.tokens ? tokens_of(command)
                                         : static_cast<double>(plan.config.trainer.steps) *
                                               plan.candidate.plan.layout.tokens();
    plan.budget = budget_of(plan.hardware, plan.candidate.plan, step, tokens,
                            plan.config.trainer.checkpoint_interval);
    plan.gap = published_gap();
    plan.utilisation = scaling::utilisation(plan.hardware, plan.candidate.plan, step);
    return plan;
}

void print_json(const Plan& plan) {
    const scaling::Layout& layout = plan.candidate.plan.layout;
    const scaling::LongRun& run = plan.budget.run;
    const Json json = {
        {"hardware", plan.hardware.name},
        {"network", scale::to_json(plan.cluster)},
        {"gpus", plan.gpus()},
        {"parameters", parameter_count(plan.candidate.plan.model)},
        {"layout", scale::to_json(layout)},
        {"memory",
         {{"bytes", plan.memory.total()}, {"usable_bytes", plan.usable}, {"fits", plan.fits()}}},
        {"step", scale::to_json(plan.candidate.time)},
        {"tokens_per_second", plan.candidate.tokens_per_second()},
        {"model_flops_utilisation", plan.utilisation},
        {"run",
         {{"tokens", plan.budget.tokens},
          {"days", plan.budget.seconds / 86400.0},
          {"gpu_hours", plan.budget.seconds / 3600.0 * static_cast<double>(plan.gpus())},
          {"checkpoint_interval_seconds", run.interval},
          {"checkpoint_stop_seconds", run.checkpoint_stop},
          {"checkpoint_share", run.checkpoint_share},
          {"failure_share", run.failure_share},
          {"seconds_between_failures", run.between_failures}}},
        {"published_gap",
         {{"least", plan.gap.least}, {"median", plan.gap.median}, {"most", plan.gap.most}}}};
    std::cout << json.dump(2) << "\n";
}

// What is said of a run that cannot be.
const char* comparison_text(const Plan& plan) {
    return plan.fits() ? "" : "(does not fit; for comparison) ";
}

void print_step(const Plan& plan) {
    const scaling::StepTime& time = plan.candidate.time;
    const double total = time.total(), tokens_per_second = plan.candidate.tokens_per_second();
    std::cout << "step      " << comparison_text(plan) << seconds_text(total) << "  "
              << count_text(tokens_per_second) << " tokens/s, "
              << grouped(static_cast<std::int64_t>(tokens_per_second /
                                                   static_cast<double>(plan.gpus())))
              << " a GPU  MFU " << percent_text(plan.utilisation) << "\n";
    for (const auto& [name, seconds] : parts_of(time)) {
        char line[96];
        std::snprintf(line, sizeof line, "  %-22s %9s %8s", name.c_str(),
                      seconds_text(seconds).c_str(), percent_text(seconds / total).c_str());
        std::cout << line;
        const double hidden = name == "tensor-parallel sums" ? time.tensor_hidden
                              : name == "data-parallel sums" ? time.data_hidden
                                                             : 0.0;
        if (hidden > 0.0) std::cout << "  and " << seconds_text(hidden) << " beside computing";
        std::cout << "\n";
    }
}

// Where fewer steps between checkpoints would spare a hundredth of the time or more: half as many, as often as it takes to
// come that near to the best.
std::string interval_advice(const Plan& plan) {
    constexpr double kEnough = 0.01;
    const double step = plan.candidate.time.total(), now = plan.budget.run.useful();
    const auto useful = [&](std::int64_t steps) {
        return budget_of(plan.hardware, plan.candidate.plan, step, plan.budget.tokens, steps)
            .run.useful();
    };
    const double best = useful(0);
    if (now >= best - kEnough) return "";
    std::int64_t steps = plan.config.trainer.checkpoint_interval;
    while (steps > 1 && useful(steps) < best - kEnough) steps /= 2;
    return concat("; trainer.checkpoint_interval=", steps, " would spare ",
                  percent_text(useful(steps) - now));
}

// Where the time between checkpoints comes from.
std::string interval_text(const Plan& plan) {
    const std::int64_t steps = plan.config.trainer.checkpoint_interval;
    const scaling::LongRun& run = plan.budget.run;
    if (run.interval <= run.checkpoint_write) return "as long as storage takes for one";
    return steps > 0 ? concat("trainer.checkpoint_interval=", steps) : "Young's interval";
}

void print_run(const Plan& plan) {
    const Budget& budget = plan.budget;
    const scaling::LongRun& run = budget.run;
    const auto gpus = static_cast<double>(plan.gpus());
    const double days = budget.seconds / 86400.0, with_gap = days * (1.0 + plan.gap.median);
    if (run.useful() == 0.0) {
        std::cout << "run       never ends: a job of so many GPUs fails every "
                  << duration_text(run.between_failures)
                  << ", and that is no longer than a restart and the work done again\n";
        return;
    }
    std::cout << "run       " << comparison_text(plan) << count_text(budget.tokens) << " tokens at "
              << count_text(budget.tokens / days) << " a day: " << duration_text(budget.seconds)
              << ", " << grouped(static_cast<std::int64_t>(days * 24.0 * gpus)) << " GPU-hours\n"
              << "  checkpoints            every " << duration_text(run.interval) << " ("
              << interval_text(plan) << "), " << seconds_text(run.checkpoint_stop)
              << " each: " << percent_text(run.checkpoint_share) << " of the time"
              << interval_advice(plan) << "\n"
              << "  failures               every " << duration_text(run.between_failures) << ": "
              << percent_text(run.failure_share) << " of the time, restarts and work done again\n"
              << "  as published runs go   " << duration_text(with_gap * 86400.0) << ", "
              << grouped(static_cast<std::int64_t>(with_gap * 24.0 * gpus)) << " GPU-hours; "
              << to_text(plan.gap) << "\n";
}

void print_text(const Plan& plan) {
    const scaling::Layout& layout = plan.candidate.plan.layout;
    const std::int64_t nodes =
        (plan.gpus() + plan.hardware.gpus_per_node - 1) / plan.hardware.gpus_per_node;
    std::cout << "model     " << grouped(parameter_count(plan.config.model)) << " parameters, "
              << plan.config.model.num_layers << " layers, width " << plan.config.model.width
              << ", vocabulary " << plan.config.model.vocab_size << "\n"
              << "cluster   " << grouped(plan.gpus()) << " GPUs on " << grouped(nodes)
              << (nodes == 1 ? " node, " : " nodes, ") << plan.hardware.name << ": "
              << plan.hardware.title << "\n"
              << network_text(plan.cluster) << "layout    " << layout_text(layout) << ", "
              << settings_text(layout) << " x " << layout.seq_len << " tokens; "
              << count_text(layout.tokens()) << " tokens a step\n\n";
    const std::size_t total = plan.memory.total();
    std::cout << "memory    " << bytes_text(total) << " a GPU, "
              << (plan.fits() ? concat("fits: ", bytes_text(plan.usable - total), " left of ",
                                       bytes_text(plan.usable))
                              : concat("does not fit: ", bytes_text(total - plan.usable),
                                       " more than the ", bytes_text(plan.usable)))
              << " that a plan may use\n"
              << to_text(plan.memory);
    if (!plan.fits()) {
        std::cout << "  " << what_fits(plan.config, static_cast<int>(plan.gpus()), plan.usable)
                  << "\n";
    }
    std::cout << "\n";
    print_step(plan);
    std::cout << "\n";
    print_run(plan);
    std::cout
        << "\nMFU: operations of the model, "
        << number("%.4g", flops_per_token(plan.config.model, layout.seq_len))
        << " a token (6 a matrix element, causal attention counted once, nothing made again), "
           "over "
        << number("%.0f", plan.hardware.peak_teraflops)
        << " TFLOP/s a GPU. docs/scaling.md says what is modelled and what is not.\n";
}

}  // namespace

int run_scale_plan(const ScaleCommand& command) {
    const Plan plan = make_plan(command);
    if (command.json) {
        print_json(plan);
    } else {
        print_text(plan);
    }
    return plan.fits() ? 0 : 1;
}

}  // namespace evenkeel
