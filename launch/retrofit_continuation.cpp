#include "launch/retrofit_continuation.h"

#include <algorithm>
#include <filesystem>

#include "framework/storage/checkpoint.h"
#include "framework/training/run_state.h"
#include "launch/saved_run.h"
#include "launch/untold.h"

namespace evenkeel {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kEvaluations = 10;  // at least, so that a recovery can be seen

std::string absolute(const std::string& path) {
    return path.empty() ? path : fs::absolute(path).lexically_normal().string();
}

// Files of tokens have commas between them.
std::string absolute_files(const std::vector<std::string>& files) {
    std::string text;
    for (const std::string& file : files) text += (text.empty() ? "" : ",") + absolute(file);
    return text;
}

std::string absolute_data(const std::string& path) {
    DataConfig data;
    data.path = path;
    return data.has_tokens() ? absolute_files(data.paths()) : absolute(path);
}

bool is_set(const ContinuationPlan& plan, const std::string& key) {
    return std::any_of(
        plan.overrides.begin(), plan.overrides.end(),
        [&](const std::string& assignment) { return assignment.starts_with(key + "="); });
}

// Where the control's training data begins, and that of the retrofitted model, in words.
std::string position_of(const RunConfig& config, const ContinuationPlan& plan) {
    const std::string file = plan.from + "/trainer.json";
    const RunState saved = parse_run_state(read_file(file), file);
    const bool names_data =
        std::any_of(plan.overrides.begin(), plan.overrides.end(),
                    [](const std::string& assignment) { return assignment.starts_with("data."); });
    const char* why = "";
    if (saved.seed != config.trainer.seed) {
        why = "trainer.seed is not the run's";
    } else if (saved.seq_len != config.trainer.seq_len) {
        why = "trainer.seq_len is not the run's";
    } else {
        return concat("both go on in the data after the ", saved.sample,
                      " sequences that the run was trained on",
                      names_data ? ", if it is the run's own data" : "");
    }
    return concat("both begin with the first sequence of the data: ", why);
}

}  // namespace

Continuation continuation_of(const RunConfig& original,
                             const ModelConfig& retrofitted,
                             const ContinuationPlan& plan) {
    RunConfig common = original;
    TrainerConfig& trainer = common.trainer;
    trainer.resume = false;
    trainer.stop_at_step = 0;
    trainer.seq_len = std::min(trainer.seq_len, retrofitted.max_seq_len);
    if (common.data.path.empty()) common.data.path = plan.data;
    if (plan.ranks > 1) {
        common.parallel.tensor_parallel = plan.ranks;
        common.parallel.data_parallel = std::min<std::int64_t>(common.parallel.data_parallel, 1);
    }
    // The optimizer's first steps are the ones that hurt: warmed up again.
    common.schedule.warmup_steps =
        std::min(trainer.steps, std::max<std::int64_t>(20, trainer.steps / 100));
    for (const std::string& assignment : plan.overrides) {
        apply_override([&](ConfigVisitor& v) { common.visit_fields(v); }, assignment);
    }
    if (!is_set(plan, "trainer.eval_interval")) {
        const std::int64_t most = std::max<std::int64_t>(trainer.steps / kEvaluations, 1);
        trainer.eval_interval =
            trainer.eval_interval == 0 ? most : std::min(trainer.eval_interval, most);
    }
    common.data.path = absolute_data(common.data.path);
    common.data.validation_path = absolute_files(common.data.validation_paths());
    if (common.data.tokenizer != "bytes") common.data.tokenizer = absolute(common.data.tokenizer);
    Continuation result{common, common};
    result.control.trainer.init_from = absolute(plan.from);
    result.control.trainer.run_dir = absolute(plan.out + "/control");
    result.control.trainer.first_phase_steps = 0;  // it has no gains
    result.retrofitted.model = retrofitted;
    result.retrofitted.trainer.init_from = absolute(plan.out + "/checkpoints/step_00000000");
    result.retrofitted.trainer.run_dir = absolute(plan.out + "/continued");
    return result;
}

void check_continuation(const Continuation& continuation, RetrofitFindings& findings) {
    for (RunConfig config : {continuation.retrofitted, continuation.control}) {
        // Any tokens do: whoever trains names them.
        if (config.data.path.empty()) config.data.path = "tokens.bin";
        config.validate(static_cast<int>(config.parallel.tensor_parallel *
                                         std::max<std::int64_t>(config.parallel.data_parallel, 1)));
    }
    const std::int64_t anneal = continuation.retrofitted.model.attention.qk_norm.anneal_steps;
    const std::int64_t steps = continuation.retrofitted.trainer.steps;
    if (anneal > steps) {
        findings.notes.push_back(
            concat("the run ends before the norm has come in: --anneal ", anneal,
                   ", trainer.steps ", steps, ", lambda ",
                   format("%.3g", static_cast<double>(steps) / static_cast<double>(anneal)),
                   " at its end; want fewer steps of --anneal or a longer run"));
    }
}

void add_course(const Continuation& continuation,
                const ContinuationPlan& plan,
                RetrofitFindings& findings) {
    const RunConfig& config = continuation.control;
    const bool is_known = !is_trained_elsewhere(plan.from);
    std::string course = "both train " + course_of(config);
    if (!is_known && !is_set(plan, "schedule.peak_lr")) {
        const std::string rate = untold_rate(config);
        if (!rate.empty()) {
            course += concat("; ", rate, ", with --set schedule.peak_lr=RATE for both");
        }
    }
    findings.notes.push_back(course);
    if (is_known) findings.notes.push_back(position_of(config, plan));
}

void add_commands(const RunConfig& retrofitted, const DataSeen& seen, RetrofitFindings& findings) {
    const std::string path = retrofitted.data.path;
    std::string text;
    if (path.empty() || (!seen.reads_bytes && !retrofitted.data.has_tokens())) {
        text = seen.reads_bytes ? " --set data.path=TEXT" : " --set data.path=FILE.bin";
        findings.notes.push_back(
            seen.reads_bytes
                ? "to train on, both configurations want a text, which no run has named: data.path"
                : "to train on, both configurations want a .bin file of tokens that the model's "
                  "own tokenizer has made, which no run has named: data.path (docs/data.md)");
    } else if (!seen.path.empty()) {
        const bool is_same = absolute_data(seen.path) == path;
        findings.notes.push_back(concat(
            "both configurations train on ", path,
            is_same ? "" : ", the run's own; --data is what gains were made from and judged by"));
    }
    const std::int64_t ranks = retrofitted.parallel.tensor_parallel *
                               std::max<std::int64_t>(retrofitted.parallel.data_parallel, 1);
    const std::string start = (ranks > 1 ? concat("mpirun -np ", ranks, " ") : std::string()) +
                              "evenkeel train --config " + findings.out;
    findings.commands = {start + "/config.json" + text, start + "/control.json" + text,
                         concat("evenkeel report ", findings.out, "/continued --compare ",
                                findings.out, "/control")};
}

}  // namespace evenkeel
