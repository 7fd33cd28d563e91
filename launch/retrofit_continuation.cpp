#include "launch/retrofit_continuation.h"

#include <algorithm>
#include <filesystem>

#include "launch/saved_run.h"

namespace evenkeel {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kEvaluations = 10;  // at least, so that a recovery can be seen

std::string absolute(const std::string& path) {
    return path.empty() ? path : fs::absolute(path).lexically_normal().string();
}

bool is_set(const ContinuationPlan& plan, const std::string& key) {
    return std::any_of(
        plan.overrides.begin(), plan.overrides.end(),
        [&](const std::string& assignment) { return assignment.starts_with(key + "="); });
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
    if (!plan.data.empty()) common.data.path = plan.data;
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
    common.data.path = absolute(common.data.path);
    Continuation result{common, common};
    result.control.trainer.init_from = absolute(plan.from);
    result.control.trainer.run_dir = absolute(plan.out + "/control");
    result.control.trainer.first_phase_steps = 0;  // it has no gains
    result.retrofitted.model = retrofitted;
    result.retrofitted.trainer.init_from = absolute(plan.out + "/checkpoints/step_00000000");
    result.retrofitted.trainer.run_dir = absolute(plan.out + "/continued");
    return result;
}

void add_commands(const RunConfig& retrofitted, bool reads_bytes, RetrofitFindings& findings) {
    if (!reads_bytes) {
        findings.notes.push_back(concat(
            "evenkeel train reads bytes, which are not this model's tokens: ", findings.out,
            " can be evaluated and exported (evenkeel export --remote-code), not trained here"));
        return;
    }
    std::string text;
    if (retrofitted.data.path.empty()) {
        text = " --set data.path=TEXT";
        findings.notes.push_back(
            "to train on, both configurations want a text, which no run has named: data.path");
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
