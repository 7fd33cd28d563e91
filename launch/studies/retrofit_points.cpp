#include "launch/studies/retrofit_points.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "framework/storage/checkpoint.h"
#include "framework/training/run_state.h"
#include "framework/training/trainer.h"
#include "model/language_model.h"
#include "model/retrofit/retrofit.h"

namespace evenkeel::study {
namespace {

namespace fs = std::filesystem;

constexpr double kBaseWarmup = 0.05;  // share of the steps

std::string model_directory(const std::string& out, const BaseModel& base) {
    return concat(out, "/models/", base.name);
}

TrainerConfig trainer_of(const RigConfig& rig, std::int64_t steps, const std::string& directory) {
    TrainerConfig trainer;
    trainer.steps = steps;
    trainer.batch_size = trainer.micro_batch_size = rig.batch;
    trainer.seq_len = rig.seq_len;
    trainer.seed = rig.seed;
    trainer.clip_norm = kRigClipNorm;
    trainer.eval_sequences = rig.eval_sequences;
    trainer.checkpoint_keep = 1;
    trainer.run_dir = directory;
    return trainer;
}

// A base model with its weights and moments, and the number of updates that these have seen.
struct Trained {
    LanguageModel model;
    std::string checkpoint;
    std::int64_t updates = 0;

    Trained(const ProcessGrid& grid,
            const RetrofitRig& rig,
            const BaseModel& base,
            const std::string& out)
        : model(grid, rig.rig.model("plain"), static_cast<std::uint64_t>(rig.rig.seed)),
          checkpoint(newest_checkpoint(model_directory(out, base))) {
        model.load_initial(checkpoint, true);
        const std::string file = checkpoint + "/trainer.json";
        updates = parse_run_state(read_file(file), file).updates;
    }
};

// Training text that the base model has not begun with.
std::vector<Batch> calibration_batches(const RetrofitRig& rig, const ByteDataset& data) {
    std::vector<Batch> batches;
    for (std::int64_t first = 0; first < rig.calibration; first += rig.rig.batch) {
        std::vector<std::int64_t> samples(
            static_cast<std::size_t>(std::min(rig.calibration - first, rig.rig.batch)));
        std::iota(samples.begin(), samples.end(), first);
        batches.push_back(data.train_batch(static_cast<std::uint64_t>(rig.rig.seed) + 2, samples));
    }
    return batches;
}

std::vector<GainFit> fit_layers(const ModelCalibration& calibration,
                                GainEstimator estimator,
                                double bound = 0.0) {
    GainFitOptions options;
    options.estimator = estimator;
    options.refine = false;
    options.bound = bound;
    std::vector<GainFit> fits;
    for (const HeadCalibration& layer : calibration.layers) {
        fits.push_back(fit_gains(layer, options));
    }
    return fits;
}

void give_gains(LanguageModel& from, LanguageModel& to, const std::vector<GainFit>& fits) {
    std::vector<LayerGains> gains;
    for (const GainFit& fit : fits) gains.push_back({fit.q_gain, fit.k_gain});
    retrofit_weights(from, to, gains);
}

double largest_of(const std::vector<float>& values) {
    return *std::max_element(values.begin(), values.end());
}

double mean_of(const std::vector<double>& values) {
    double sum = 0.0;
    for (const double value : values) sum += value;
    return sum / static_cast<double>(values.size());
}

// Writes the model as the checkpoint of a run that has not begun.
void write_start(LanguageModel& model,
                 const Trained& from,
                 const ByteDataset& data,
                 const TrainerConfig& trainer,
                 const std::string& directory) {
    const CheckpointStore store(directory + "/checkpoints", 0);
    const std::string unfinished = store.begin(0);
    model.save_state(unfinished);
    RunState state;
    state.updates_before = from.updates;
    state.seed = trainer.seed;
    state.seq_len = trainer.seq_len;
    state.fingerprint = data.fingerprint();
    state.data = data.description();
    state.model = model.description();
    state.settings = "{}";
    write_file_atomically(unfinished + "/trainer.json", evenkeel::to_json(state));
    store.commit(0);
}

// The curves of a run, and what is largest in them.
void read_run(const std::string& directory, PointResult& result) {
    double& highest = result.numbers["max_logit"] = -INFINITY;
    for (const MetricRecord& record : read_metrics(directory + "/metrics.jsonl")) {
        const auto step = static_cast<double>(record.step);
        for (const auto& [name, value] : record.scalars) {
            if (name == "validation_loss") result.curves["validation"].push_back({step, value});
            if (name == "grad_norm") result.numbers.emplace("grad_norm", value);  // of the first
            if (name != "max_logit_max") continue;
            result.curves["max_logit"].push_back({step, value});
            result.numbers["last_max_logit"] = value;
            highest = std::max(highest, value);
        }
        for (const MetricTable& table : record.tables) {
            if (table.name != "logit_bound" || table.values.empty()) continue;
            const double bound = largest_of(table.values);
            result.numbers["bound"] = bound;
            if (std::isfinite(bound)) result.curves["bound"].push_back({step, bound});
        }
    }
}

}  // namespace

void RetrofitRig::visit_fields(ConfigVisitor& v) {
    v.field("text", rig.text, "what is learned: a file, or a directory of files");
    v.field("cool_rate", cool_rate, "peak learning rate of the calm model");
    v.field("cool_steps", cool_steps, "its training");
    v.field("hot_rate", hot_rate, "peak learning rate of the model with large logits");
    v.field("hot_steps", hot_steps, "its training");
    v.field("calibration", calibration, "sequences that gains are made from");
    v.field("fine_rate", fine_rate, "peak learning rate of training that goes on");
    v.field("fine_steps", fine_steps, "of training that goes on");
    v.field("rewarm", rewarm, "steps in which its learning rate rises");
    v.field("anneal", anneal, "steps in which an annealed norm comes in");
    v.field("eval_interval", eval_interval, "steps between its evaluations");
    v.field("gains_rate", gains_rate, "peak learning rate of gains that are trained alone");
    v.field("gains_steps", gains_steps, "of training gains alone");
    v.field("bound", bound, "what logits of the hot model are held to in the end");
    v.field("long_steps", long_steps, "of training the hot model with that bound");
    rig.visit_sizes(v);
}

void RetrofitRig::validate() const {
    rig.validate();
    for (const auto& [name, value] : {std::pair{"cool_rate", cool_rate},
                                      {"hot_rate", hot_rate},
                                      {"fine_rate", fine_rate},
                                      {"gains_rate", gains_rate}}) {
        check_rate(name, value);
    }
    check_range("bound", bound, 1e-6, 1e6);
    for (const auto& [name, value] : {std::pair{"cool_steps", cool_steps},
                                      {"hot_steps", hot_steps},
                                      {"fine_steps", fine_steps},
                                      {"anneal", anneal},
                                      {"eval_interval", eval_interval},
                                      {"gains_steps", gains_steps},
                                      {"long_steps", long_steps}}) {
        check_range(name, static_cast<double>(value), 1, 1e7);
    }
    check_range("rewarm", static_cast<double>(rewarm), 0, 1e7);
    check_range("calibration", static_cast<double>(calibration), 2, 1e6);
}

std::vector<BaseModel> base_models(const RetrofitRig& rig) {
    return {{"cool", rig.cool_rate, rig.cool_steps}, {"hot", rig.hot_rate, rig.hot_steps}};
}

bool continues(const Continuation& continuation, const BaseModel& base) {
    return !continuation.far || std::string_view(base.name) == "hot";
}

PointResult train_base(const RetrofitRig& rig, const BaseModel& base, const std::string& out) {
    const OneRank one;
    const ByteDataset data = rig.rig.open_text();
    LanguageModel model(one.grid, rig.rig.model("plain"), static_cast<std::uint64_t>(rig.rig.seed));
    TrainerConfig trainer = trainer_of(rig.rig, base.steps, model_directory(out, base));
    trainer.log_interval = 10;
    trainer.checkpoint_interval = 100;
    trainer.resume = true;
    const auto warmup = std::llround(kBaseWarmup * static_cast<double>(base.steps));
    const TrainResult trained = train(model, data, trainer, RigConfig::schedule(base.rate, warmup),
                                      RigConfig::optimizer(base.rate), "{}\n");
    PointResult result;
    read_run(trainer.run_dir, result);
    result.numbers["loss"] = trained.validation_loss;
    return result;
}

PointResult measure_gains(const RetrofitRig& rig, const BaseModel& base, const std::string& out) {
    const OneRank one;
    const ByteDataset data = rig.rig.open_text();
    Trained trained(one.grid, rig, base, out);
    LanguageModel& plain = trained.model;
    const std::vector<Batch> batches = calibration_batches(rig, data);
    const ModelCalibration calibration = calibrate(one.grid, plain, batches);
    LanguageModel normed(one.grid, retrofitted_config(plain.config(), {}), 1);
    const auto loss_of = [&](LanguageModel& model) {
        return evaluate(model, data, rig.rig.eval_sequences, rig.rig.batch);
    };

    PointResult result;
    auto& numbers = result.numbers;
    numbers["loss"] = loss_of(plain);
    numbers["max_logit"] = largest_of(calibration.measured.max_logit.values);
    numbers["grad_norm"] = gradient_norm_of(plain, batches);
    for (const Estimator& estimator : kEstimators) {
        const std::vector<GainFit> fits = fit_layers(calibration, estimator.gains);
        give_gains(plain, normed, fits);
        std::vector<double> divergences, bounds, q_variations, k_variations;
        for (const GainFit& fit : fits) {
            for (const HeadFit& head : fit.heads) {
                divergences.push_back(head.chosen.held_out.mean);
                bounds.push_back(head.chosen.bound);
                q_variations.push_back(head.q_variation);
                k_variations.push_back(head.k_variation);
            }
        }
        const auto largest = [](const std::vector<double>& values) {
            return *std::max_element(values.begin(), values.end());
        };
        numbers["cv_q"] = mean_of(q_variations);
        numbers["cv_k"] = mean_of(k_variations);
        numbers["cv_q_max"] = largest(q_variations);
        numbers["cv_k_max"] = largest(k_variations);
        const auto set = [&](const char* what, double value) {
            numbers[concat(estimator.name, ".", what)] = value;
        };
        set("loss", loss_of(normed));
        set("kl", mean_of(divergences));
        set("kl_worst", largest(divergences));
        set("bound", largest(bounds));
        set("max_logit", largest_of(measure_heads(one.grid, normed, batches).max_logit.values));
        set("grad_norm", gradient_norm_of(normed, batches));
    }
    return result;
}

PointResult continue_training(const RetrofitRig& rig,
                              const BaseModel& base,
                              const Continuation& how,
                              const std::string& out) {
    const OneRank one;
    const ByteDataset data = rig.rig.open_text();
    const std::string directory = concat(out, "/runs/", base.name, "_", how.name);
    fs::remove_all(directory);  // of an attempt that was interrupted
    const std::int64_t steps = how.far           ? rig.long_steps
                               : how.gains_alone ? rig.gains_steps
                                                 : rig.fine_steps;
    TrainerConfig trainer = trainer_of(rig.rig, steps, directory + "/run");
    trainer.seed = rig.rig.seed + 1;  // other text than the base model has begun with
    trainer.eval_interval = how.far ? 10 * rig.eval_interval : rig.eval_interval;
    if (how.gains_alone) {
        trainer.eval_interval = 0;
        trainer.first_phase_steps = steps;
    }

    ModelConfig config = rig.rig.model("plain");
    trainer.init_from = model_directory(out, base);
    if (how.gains.has_value()) {
        Trained trained(one.grid, rig, base, out);
        const double bound = how.far ? rig.bound : 0.0;
        RetrofitOptions options;
        options.anneal_steps = how.annealed ? rig.anneal : 0;
        options.gain_bound = bound;
        config = retrofitted_config(config, options);
        LanguageModel normed(one.grid, config, 1);
        const ModelCalibration calibration =
            calibrate(one.grid, trained.model, calibration_batches(rig, data));
        give_gains(trained.model, normed, fit_layers(calibration, *how.gains, bound));
        trainer.init_from = directory + "/start";
        write_start(normed, trained, data, trainer, trainer.init_from);
    }
    LanguageModel model(one.grid, config, 1);
    const double rate = how.gains_alone ? rig.gains_rate : rig.fine_rate;
    const TrainResult trained =
        train(model, data, trainer, RigConfig::schedule(rate, std::min(rig.rewarm, steps)),
              RigConfig::optimizer(rate), "{}\n");
    PointResult result;
    read_run(trainer.run_dir, result);
    result.numbers["loss"] = trained.validation_loss;
    fs::remove_all(directory);
    return result;
}

}  // namespace evenkeel::study
