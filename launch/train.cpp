// evenkeel train: from a configuration file to a trained model, its numbers and its report.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <optional>

#include "framework/data/byte_dataset.h"
#include "framework/data/token_dataset.h"
#include "framework/json.h"
#include "framework/log.h"
#include "framework/memory_scope.h"
#include "framework/storage/checkpoint.h"
#include "framework/stream.h"
#include "launch/commands.h"
#include "launch/doctor/doctor.h"
#include "launch/memory_advice.h"
#include "launch/report.h"
#include "launch/run_text.h"
#include "launch/saved_run.h"
#include "launch/untold.h"
#include "model/usable_memory.h"
#include "parallel/watchdog.h"

namespace evenkeel {
namespace {

// What each rank computes with.
std::string processors(const ProcessGrid& grid) {
    if (grid.device() == Device::kCuda) return concat("one ", describe_gpu().name, " each");
    return concat(omp_get_max_threads(), " thread(s) each, cpu");
}

bool cuts_optimizer(const RunConfig& config, std::int64_t data_parallel) {
    return config.parallel.zero_stage == 1 && data_parallel > 1;
}

std::string recompute_of(const ModelConfig& model) {
    return model.recompute == Recompute::kNone ? ""
                                               : concat(", recompute ", name_of(model.recompute));
}

// A line for each file of tokens.
std::string files_of(const Dataset& data) {
    const auto* const tokens = dynamic_cast<const TokenDataset*>(&data);
    return tokens == nullptr ? "" : "\n" + tokens->describe();
}

std::string describe(const RunConfig& config, const ProcessGrid& grid, const Dataset& data) {
    const AttentionConfig& attention = config.model.attention;
    return concat("model   ", grouped(parameter_count(config.model)), " parameters, ",
                  config.model.num_layers, " layers, ", attention.num_heads, " query and ",
                  attention.num_kv_heads, " key/value heads of ", attention.head_dim, ", ",
                  name_of(to_dtype(config.model.type)), "\nranks   ", grid.world().size(),
                  " (tensor parallel ", grid.tp_size(), " x data parallel ", grid.dp_size(),
                  grid.sequence_parallel() ? ", sequence parallel" : "",
                  cuts_optimizer(config, grid.dp_size()) ? ", optimizer cut" : "",
                  recompute_of(config.model), "), ", processors(grid), "\ntext    ",
                  grouped(data.train_tokens()), " ", unit_of(config), "s to train on, ",
                  grouped(data.validation_tokens()), " held out", files_of(data));
}

// What the first step took, against what was planned.
void report_memory(const MemoryPlan& plan, Device device) {
    const std::size_t peak = Buffer::peak_bytes(device);
    const double planned = static_cast<double>(plan.peak());
    const double ratio = static_cast<double>(peak) / planned;
    const std::string text = concat(
        "memory  ", bytes_text(peak), " a rank at the peak of the first step, ",
        bytes_text(plan.peak()), " planned",
        plan.snapshot == 0 || plan.snapshot_is_apart ? "" : " (without the checkpoint's copy)");
    constexpr double kSmall = 1 << 20;  // bytes: of a model for trying things out, a few tables
    if (std::abs(ratio - 1.0) <= 0.05 || std::abs(static_cast<double>(peak) - planned) <= kSmall) {
        return log_info(text);
    }
    log_warning(text + ": more than 5 % apart");
}

// The entropies of a text; of tokens there are none.
struct Entropies {
    double unigram = std::nan(""), bigram = std::nan("");
};

Entropies entropies_of(const Dataset& data) {
    const auto* const bytes = dynamic_cast<const ByteDataset*>(&data);
    if (bytes == nullptr) return {};
    return {bytes->unigram_entropy(), bytes->bigram_entropy()};
}

void print_outcome(const RunConfig& config,
                   const TrainResult& result,
                   const Entropies& entropies,
                   const std::string& sample) {
    std::string text = concat("\nvalidation loss  ", format("%.4f", result.validation_loss),
                              " nats/", unit_of(config));
    if (!std::isnan(entropies.unigram)) {
        text += concat("\nbigram entropy   ", format("%.4f", entropies.bigram),
                       " nats/byte of the same text\nunigram entropy  ",
                       format("%.4f", entropies.unigram), " nats/byte");
    }
    if (!sample.empty()) text += concat("\n\nsample\n", sample, "\n");
    log_info(text);
}

constexpr const char* kEndedBy = "ended_by";  // in the summary of a run with steps left

// Whether a run has left the summary of one that came to its end.
bool has_ended(const std::string& run) {
    const std::string path = run + "/summary.json";
    if (!std::filesystem::exists(path)) return false;
    const auto summary = nlohmann::json::parse(read_file(path), nullptr, false);
    return summary.is_object() && !summary.contains(kEndedBy);
}

// What report, and people, want to know of a run beyond its metrics. ended_by: what ended it before its last step.
void write_summary(const RunConfig& config,
                   const ProcessGrid& grid,
                   const TrainResult& result,
                   const Dataset& data,
                   const Entropies& entropies,
                   const std::string& sample,  // printable
                   const std::string& ended_by = "") {
    nlohmann::ordered_json summary;
    if (!ended_by.empty()) summary[kEndedBy] = ended_by;
    summary["steps"] = config.trainer.steps;
    summary["parameters"] = parameter_count(config.model);
    summary["ranks"] = grid.world().size();
    summary["threads_per_rank"] = omp_get_max_threads();
    summary["tokens_per_second"] = result.tokens_per_second;
    summary["tflops_per_rank"] = result.tflops_per_rank;
    summary[concat("train_", unit_of(config), "s")] = data.train_tokens();
    summary[concat("validation_", unit_of(config), "s")] = data.validation_tokens();
    summary["validation_loss"] = result.validation_loss;
    summary["unigram_entropy"] = entropies.unigram;
    summary["bigram_entropy"] = entropies.bigram;
    summary["sample"] = sample;
    write_file_atomically(config.trainer.run_dir + "/summary.json", summary.dump(2) + "\n");
}

std::string how_to_go_on(const TrainResult& result, const TrainerConfig& trainer) {
    const std::string by = concat("stopped at step ", result.last_step, " of ", trainer.steps,
                                  ", ended by ", result.stopped.name());
    if (result.checkpoint.empty()) return by + " before the first step; start it again";
    return concat(by, "; checkpoint  ", result.checkpoint,
                  "; the same command with --set trainer.resume=true goes on",
                  trainer.stop_at_step > 0 ? " (up to trainer.stop_at_step)" : "");
}

void write_run_report(const std::string& run) {
    if (find_vega().empty()) {
        log_warning(concat("no report: ", kVegaMissing));
        return;
    }
    log_info("report      " + std::filesystem::absolute(write_report({run, "", ""})).string());
}

// For a run that ends with steps left to do, all ranks at one step. Whatever ended it is what the caller has to say.
void leave_report(const RunConfig& config,
                  const ProcessGrid& grid,
                  TrainResult result,
                  const Dataset& data,
                  const std::string& ended_by) {
    for (double TrainResult::*number :
         {&TrainResult::validation_loss, &TrainResult::tokens_per_second}) {
        if (result.*number == 0.0) result.*number = std::nan("");  // not measured
    }
    if (grid.world().rank() == 0) {
        try {
            write_summary(config, grid, result, data, entropies_of(data), "", ended_by);
            write_run_report(config.trainer.run_dir);
        } catch (const std::exception& error) {
            log_warning(concat("no report: ", error.what()));
        }
    }
    // A rank that left would have this one stopped at its work.
    grid.world().barrier();
}

int train_model(RunConfig& config,
                const std::optional<std::int64_t>& rewind,
                const ProcessGrid& grid,
                const MemoryPlan& plan,
                const DeviceMemory& memory,
                StopSignals& signals) {
    // Not the default stream: its work can't be recorded as a graph.
    std::optional<Stream> stream;
    std::optional<StreamScope> scope;
    if (config.device == Device::kCuda) scope.emplace(stream.emplace());
    const auto opened = open_dataset(config.data, config.trainer.seq_len, config.model.vocab_size);
    const Dataset& data = *opened;
    const auto tokenizer = tokenizer_of_run(config);
    log_info(describe(config, grid, data) + "\nmemory  planned for each rank\n" + to_text(plan));
    const bool graphs = records_graphs(config, grid, memory);
    LanguageModel model(grid, config.model, static_cast<std::uint64_t>(config.trainer.seed));
    model.set_graphs(graphs);

    const RunControl control{[&] { return signals.request(); }, rewind, remove_old_watchdog_files,
                             [&] { log_info(compact_text(config)); }};
    const auto after_step = [&](std::int64_t steps) {
        if (steps == 1 && model.is_main_rank()) report_memory(plan, grid.device());
    };
    const auto run = [&] {
        try {
            return train(model, data, config.trainer, config.schedule, config.optimizer,
                         to_json(config), after_step, alarm_rules(config.alarms, config.model),
                         control);
        } catch (const AlarmError& error) {
            leave_report(config, grid, {}, data, error.what());
            throw;
        } catch (const NonFiniteStep& error) {
            leave_report(config, grid, {}, data, error.what());
            throw;
        }
    };
    const TrainResult result = run();
    if (result.stopped.asks_to_end()) {
        if (result.steps > 0) leave_report(config, grid, result, data, result.stopped.name());
        log_info(how_to_go_on(result, config.trainer));
        return kExitStopped;
    }
    // The training is over and saved; nothing of what follows asks for signals.
    signals.end_at_once(kExitStopped,
                        "ended by a signal after the last checkpoint; the same command with --set "
                        "trainer.resume=true writes what was left, the sample and the report\n");
    log_info("checkpoint  " + result.checkpoint);
    const std::int64_t stop = config.trainer.stop_at_step;
    if (stop > 0 && stop < config.trainer.steps) {
        if (result.steps > 0) leave_report(config, grid, result, data, "trainer.stop_at_step");
        log_info(concat("stopped at step ", result.last_step, " of ", config.trainer.steps,
                        "; go on with --set trainer.resume=true --set trainer.stop_at_step=0"));
        return 0;
    }

    if (result.steps == 0 && has_ended(config.trainer.run_dir)) {
        log_info("the run had reached its last step; nothing was left to train");
        return 0;
    }

    // Without a tokenizer nobody can read what the model writes.
    const bool readable = tokenizer != nullptr || !config.data.has_tokens();
    const std::string sample =
        readable ? generate_text(model, tokenizer.get(), "", {.tokens = 300}) : "";
    if (!model.is_main_rank()) return 0;
    const Entropies entropies = entropies_of(data);
    const double garbage = unprintable_share(sample);
    const bool is_text = garbage <= kMostUnprintable;
    const std::string shown = is_text ? printable(sample) : "";
    print_outcome(config, result, entropies, shown);
    if (!is_text) {
        log_info(concat("sample      left out: ", format("%.0f", 100.0 * garbage),
                        " % of it cannot be printed, as of a model that has learned little; "
                        "evenkeel sample ",
                        config.trainer.run_dir, " shows one"));
    }
    write_summary(config, grid, result, data, entropies, shown);
    write_run_report(config.trainer.run_dir);
    return 0;
}

// What cutting the optimizer's state saves each rank, and what other settings would, a line each.
std::string savings_lines(const RunConfig& config, int ranks) {
    const std::size_t now = plan_memory(config, ranks).total();
    std::string text;
    if (config.parallel.zero_stage == 1) {
        RunConfig changed = config;
        changed.parallel.zero_stage = 0;
        const std::size_t whole = plan_memory(changed, ranks).total();
        if (whole > now) {
            text += concat("parallel.zero_stage=1, in use, saves ", bytes_text(whole - now), " of ",
                           bytes_text(whole), "\n");
        }
    }
    for (const Saving& saving : savings(config, ranks)) {
        text += concat(saving.setting, " would save ", bytes_text(saving.bytes), " of ",
                       bytes_text(now), "\n");
    }
    return text;
}

// What a token takes, and with what backward makes again what the hardware does for it.
std::string flops_text(const RunConfig& config) {
    const double model = flops_per_token(config.model, config.trainer.seq_len);
    const double again = recomputed_flops_per_token(config.model, config.trainer.seq_len);
    char text[160];
    std::snprintf(text, sizeof text, "%.4g FLOPs a token", model);
    std::string line = text;
    if (again > 0.0) {
        std::snprintf(text, sizeof text,
                      "; %.4g hardware FLOPs with what backward makes again (%.1f %% more)",
                      model + again, 100.0 * again / model);
        line += text;
    }
    return line + "\n";
}

// For the ranks that the configuration asks for; one copy of the model where it leaves their number open.
void print_plan(const RunConfig& config) {
    const ParallelConfig& parallel = config.parallel;
    const auto ranks = static_cast<int>(parallel.tensor_parallel *
                                        std::max<std::int64_t>(parallel.data_parallel, 1));
    config.validate(ranks);
    std::cout << grouped(parameter_count(config.model)) << " parameters on " << ranks
              << (ranks == 1 ? " rank" : " ranks") << ", tensor parallel "
              << parallel.tensor_parallel << "; memory of each rank, " << name_of(config.device)
              << "\n"
              << to_text(plan_memory(config, ranks)) << savings_lines(config, ranks)
              << flops_text(config) << "\n";
}

}  // namespace

int run_train(const TrainCommand& command, Communicator& world) {
    RunConfig config = load_run_config(command.config, command.overrides);
    if (command.plan) {
        if (world.rank() == 0) print_plan(config);
        return 0;
    }
    config.validate(world.size());
    StopSignals signals;  // before what may take minutes
    if (world.rank() == 0) {
        for (const std::string& text : config.model.warnings()) log_warning(text);
        const std::int64_t copies = world.size() / config.parallel.tensor_parallel;
        if (config.parallel.zero_stage == 1 && !cuts_optimizer(config, copies)) {
            log_warning(
                "parallel.zero_stage: got 1 with one data-parallel rank, among which there is "
                "nothing to cut: as 0");
        }
        const std::int64_t anneal = config.model.attention.qk_norm.anneal_steps;
        if (anneal > config.trainer.steps) {
            log_warning(concat("model.attention.qk_norm.anneal_steps: got ", anneal,
                               ", more than trainer.steps (", config.trainer.steps,
                               "): the run ends before the norm has come in"));
        }
        const std::string replaced = replaced_by_method(command.config, command.overrides);
        if (!replaced.empty()) {
            log_warning(concat("model.method=", config.model.method, " replaces what ",
                               command.config, " sets: ", replaced,
                               "; give them by --set after it to keep them"));
        }
        const std::string undone = undone_by_method(command.config, command.overrides);
        if (!undone.empty()) {
            log_warning(concat("--set ", undone,
                               " comes before --set model.method=", config.model.method,
                               ", which sets it otherwise, and has no effect; give it after that"));
        }
        if (config.schedule.warmup_steps > config.trainer.steps) {
            log_warning(concat("schedule.warmup_steps: got ", config.schedule.warmup_steps,
                               ", more than trainer.steps (", config.trainer.steps,
                               "): the run ends before the learning rate has reached "
                               "schedule.peak_lr"));
        }
        const bool names_rate = std::any_of(
            command.overrides.begin(), command.overrides.end(),
            [](const std::string& text) { return text.starts_with("schedule.peak_lr="); });
        if (!names_rate && is_trained_elsewhere(config.trainer.init_from)) {
            const std::string rate = untold_rate(config);
            if (!rate.empty()) log_warning(rate + ", with --set schedule.peak_lr=RATE");
        }
        if (!config.model.telemetry) {
            log_warning(
                "model.telemetry: got false, so that no alarm about heads can be raised, only "
                "alarms.gradient_norm");
        }
    }

    start_watchdog(world, {.timeout_seconds = config.parallel.timeout_seconds,
                           .directory = config.trainer.run_dir + "/watchdog"});
    doctor::refuse_bad_start(world, config);
    const ProcessGrid grid(world, config.parallel, config.device);
    Communicator& kv_replicas = grid.kv_replicas(config.model.attention.num_kv_heads);
    for (Communicator* group : {&grid.tensor(), &grid.data(), &kv_replicas}) {
        group->set_timing(true);
    }
    const DeviceMemory memory = share_of_memory(config.device, world);
    check_memory(config, world.size(), memory);
    const MemoryPlan plan = plan_memory(config, world.size());
    try {
        return train_model(config, command.rewind, grid, plan, memory, signals);
    } catch (const OutOfMemory& error) {
        // Something else needs what the plan has left free: advise what takes less than the plan.
        std::size_t less = std::min(memory.free, plan.total()) - 1;
        if (config.device == Device::kCuda && memory.total > 0) {
            less = std::min(less, usable_memory(memory.total));
        }
        throw OutOfMemory(error.code(),
                          concat(error.what(), "; ", what_fits(config, world.size(), less)));
    }
}

}  // namespace evenkeel
