#include "framework/training/run_start.h"

#include <algorithm>
#include <filesystem>

#include "framework/log.h"
#include "framework/storage/manifest.h"
#include "framework/training/rewind.h"

namespace evenkeel {
namespace {

RunState read_run_state(const std::string& checkpoint) {
    const std::string file = checkpoint + "/trainer.json";
    RunState state = parse_run_state(read_file(file), file);
    const std::int64_t step = step_of_directory(checkpoint);
    EVENKEEL_CHECK_CODE(step < 0 || step == state.step, ErrorCode::kIo, "resume", file,
                        ": is that of step ", state.step,
                        "; want that of the step which the "
                        "directory has the name of");
    return state;
}

// What the run goes on from: throws where it is another run's.
RunState read_resumable(const std::string& checkpoint,
                        const TrainableModel& model,
                        const RunState& state) {
    RunState saved = read_run_state(checkpoint);
    saved.model = model.restated(saved.model);
    check_resumable(saved, state, checkpoint);
    return saved;
}

void resume_from(const std::string& checkpoint,
                 const TrainerConfig& config,
                 TrainableModel& model,
                 RunState& state,
                 AlarmBoard& board) {
    const RunState saved = read_resumable(checkpoint, model, state);
    const std::string changed = json_changes(saved.settings, state.settings);
    if (!changed.empty() && model.is_main_rank()) {
        log_warning("resuming with other settings than " + checkpoint +
                    " was trained with: " + changed);
    }
    const std::int64_t before = batch_size_of(saved.settings);
    if (!config.skip_batches.empty() && before != config.batch_size && model.is_main_rank()) {
        log_warning(concat("trainer.skip_batches counts batches of ", config.batch_size,
                           " sequences now, those of the records before step ", saved.step,
                           " have ", before));
    }
    model.load_state(checkpoint);
    state.step = saved.step;
    state.updates = saved.updates;
    state.updates_before = saved.updates_before;
    state.sample = saved.sample;
    state.recent = saved.recent;
    board.restore(saved.alarms);
    if (!model.is_main_rank()) return;
    log_info(concat("resuming from ", checkpoint,
                    config.init_from.empty()
                        ? ""
                        : "; trainer.init_from was for the start of the run, and is not read"));
}

// Why the data begins with its first sequence although the weights are of a run; "" where it goes on.
std::string other_data(const RunState& saved, const RunState& now) {
    if (saved.seed != now.seed) {
        return concat("trainer.seed is ", now.seed, ", and was ", saved.seed);
    }
    if (saved.seq_len != now.seq_len) {
        return concat("trainer.seq_len is ", now.seq_len, ", and was ", saved.seq_len);
    }
    return saved.fingerprint == now.fingerprint ? "" : "it is other data than that run's";
}

// The moments that are taken along are means over the updates before: dividing them as if they had just
// begun would make the first steps many times too long.
void start_from(const std::string& checkpoint,
                bool with_moments,
                TrainableModel& model,
                RunState& state) {
    const bool has_moments = model.load_initial(checkpoint, with_moments);
    std::string place = "the data begins with its first sequence";
    if (has_moments || std::filesystem::exists(checkpoint + "/trainer.json")) {
        const RunState saved = read_run_state(checkpoint);
        if (has_moments) state.updates_before = saved.updates_before + saved.updates;
        const std::string why = other_data(saved, state);
        if (why.empty()) state.sample = saved.sample;
        if (!why.empty()) place += ": " + why;
        if (state.sample > 0) {
            place = concat("the data goes on after the ", state.sample,
                           " sequences that were trained on (another trainer.seed gives another "
                           "order, from its first)");
        }
    }
    if (!model.is_main_rank()) return;
    log_info(concat("starting from ", checkpoint,
                    has_moments ? concat(", with moments of ", state.updates_before, " updates")
                                : ", without moments",
                    "; ", place));
}

// A run that does not go on has its directory to itself.
void check_unused(const CheckpointStore& store,
                  const TrainerConfig& config,
                  TrainableModel& model) {
    std::string found;
    if (model.is_main_rank()) {
        found = store.latest();
        const std::vector<std::string> aside = store.kept_aside();
        if (found.empty() && !aside.empty()) found = store.directory() + "/" + aside.back();
    }
    EVENKEEL_CHECK_CODE(model.max_over_ranks(found.empty() ? 0.0 : 1.0) == 0.0, ErrorCode::kConfig,
                        "train", "trainer.run_dir: got ", config.run_dir,
                        ", which holds checkpoints of an earlier run", found.empty() ? "" : " (",
                        found, found.empty() ? "" : ")",
                        ", want an empty one; or set trainer.resume to continue that run");
}

}  // namespace

std::string settings_json(const TrainerConfig& trainer,
                          ScheduleConfig schedule,
                          AdamWConfig optimizer) {
    TrainerConfig t = trainer;
    return to_json([&](ConfigVisitor& v) {
        v.field("steps", t.steps, "");
        v.field("batch_size", t.batch_size, "");
        v.field("micro_batch_size", t.micro_batch_size, "");
        v.field("clip_norm", t.clip_norm, "");
        if (t.first_phase_steps > 0) v.field("first_phase_steps", t.first_phase_steps, "");
        if (t.skip_outliers_sigma > 0.0) v.field("skip_outliers_sigma", t.skip_outliers_sigma, "");
        if (!t.skip_batches.empty()) v.field("skip_batches", t.skip_batches, "");
        v.section("schedule", schedule, "");
        v.section("optimizer", optimizer, "");
    });
}

void start_or_resume(TrainableModel& model,
                     const TrainerConfig& config,
                     const CheckpointStore& store,
                     std::optional<std::int64_t> rewind_to,
                     RunState& state,
                     AlarmBoard& board) {
    const ParameterList& parameters = model.parameters();
    const bool has_first_phase =
        std::any_of(parameters.begin(), parameters.end(),
                    [](const Parameter* parameter) { return parameter->first_phase; });
    EVENKEEL_CHECK_CODE(config.first_phase_steps == 0 || has_first_phase, ErrorCode::kConfig,
                        "train", "trainer.first_phase_steps: got ", config.first_phase_steps,
                        ", want 0: the model has no gains of queries and keys to train alone");
    const CheckpointReaders readers = {model.rank(), model.ranks(), [&model](double value) {
                                           return model.max_over_ranks(value);
                                       }};
    const bool goes_on = config.resume || rewind_to.has_value();
    if (!goes_on) check_unused(store, config, model);
    std::string checkpoint;
    if (rewind_to.has_value()) {
        // Nothing is renamed before it is known that the run can go on from there.
        if (model.is_main_rank()) check_can_rewind(store, config.run_dir, *rewind_to);
        checkpoint = newest_verified(store, readers, false, *rewind_to);
        const std::int64_t step = read_resumable(checkpoint, model, state).step;
        model.barrier();
        if (model.is_main_rank()) rewind_run(store, config.run_dir, step);
        model.barrier();
    } else if (goes_on) {
        checkpoint = newest_verified(store, readers, true);
    }
    if (!checkpoint.empty()) {
        resume_from(checkpoint, config, model, state, board);
    } else if (!config.init_from.empty()) {
        start_from(newest_checkpoint(config.init_from, readers), config.init_moments, model, state);
    }
    model.barrier();  // all have looked before the main rank writes
}

}  // namespace evenkeel
