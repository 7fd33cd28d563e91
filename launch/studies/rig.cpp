#include "launch/studies/rig.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <numeric>

#include "framework/rng.h"
#include "framework/storage/checkpoint.h"
#include "framework/training/trainer.h"
#include "launch/bench.h"
#include "model/language_model.h"
#include "model/method.h"
#include "parallel/process_grid.h"

namespace evenkeel::study {
namespace {

constexpr double kFinalLr = 1e-5, kWeightDecay = 1e-4;

Batch batch_of(const RigConfig& rig, const ByteDataset& data, std::int64_t step) {
    std::vector<std::int64_t> samples(static_cast<std::size_t>(rig.batch));
    std::iota(samples.begin(), samples.end(), step * rig.batch);
    return data.train_batch(static_cast<std::uint64_t>(rig.seed), samples);
}

// Weights and moments of one model into another of the same shape.
void copy_state(LanguageModel& from_model, LanguageModel& to_model) {
    const ParameterBuckets& from = from_model.buckets();
    const ParameterBuckets& to = to_model.buckets();
    for (std::size_t i = 0; i < from.list().size(); ++i) {
        const ParameterBucket &a = from.list()[i], &b = to.list()[i];
        for (Tensor ParameterBucket::*member :
             {&ParameterBucket::value, &ParameterBucket::master, &ParameterBucket::exp_avg,
              &ParameterBucket::exp_avg_sq}) {
            (b.*member).copy_from(a.*member);
        }
    }
}

const MetricTable* table_named(const std::vector<MetricTable>& tables, const char* name) {
    for (const MetricTable& table : tables) {
        if (table.name == name && !table.values.empty()) return &table;
    }
    return nullptr;
}

double largest_of(const MetricTable& table) {
    return *std::max_element(table.values.begin(), table.values.end());
}

double seconds_of_thread() {
    timespec now{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// One step's passes and update; returns the loss.
double take_step(LanguageModel& model,
                 const Batch& batch,
                 const AdamWConfig& optimizer,
                 double lr,
                 std::int64_t number,
                 const Tensor& numbers) {
    compute_gradients(model, {&batch, 1}, numbers);
    adamw_step(model.buckets(), optimizer, lr, kRigClipNorm, numbers, number);
    model.finish_update();
    return numbers.data<double>()[kLossIndex];
}

}  // namespace

void RigConfig::visit_fields(ConfigVisitor& v) {
    v.field("text", text, "what is learned: a file, or a directory of files");
    v.field("steps", steps, "of training, for which the schedule is made");
    v.field("stop", stop, "end after so many of these steps; 0: at their end");
    v.field("warmup", warmup, "share of the steps in which the learning rate rises");
    visit_sizes(v);
}

void RigConfig::visit_sizes(ConfigVisitor& v) {
    v.field("batch", batch, "sequences a step");
    v.field("seq_len", seq_len, "tokens of a sequence");
    v.field("width", width, "channels of the residual stream");
    v.field("layers", layers, "decoder blocks");
    v.field("heads", heads, "query heads");
    v.field("kv_heads", kv_heads, "key/value heads");
    v.field("head_dim", head_dim, "width of a head");
    v.field("eval_sequences", eval_sequences, "held-out sequences that losses are of");
    v.field("seed", seed, "of weights and data");
    v.field("jobs", jobs, "points computed at a time, one thread each; 0: one a core");
}

void RigConfig::validate() const {
    EVENKEEL_CHECK_CODE(std::filesystem::exists(text), ErrorCode::kConfig, "study", "text: got ",
                        text, ", which does not exist; want a text file, as launch/fortunes.sh ",
                        "makes of the package fortunes");
    const auto whole = [](const char* name, std::int64_t value, double least, double most) {
        check_range(name, static_cast<double>(value), least, most);
    };
    whole("steps", steps, 1, 1e7);
    whole("batch", batch, 1, 4096);
    whole("seq_len", seq_len, 1, 65536);
    whole("width", width, 1, 16384);
    whole("layers", layers, 1, 1024);
    whole("heads", heads, 1, 1024);
    whole("kv_heads", kv_heads, 1, 1024);
    whole("eval_sequences", eval_sequences, 1, 1e7);
    whole("jobs", jobs, 0, 4096);
    whole("stop", stop, 0, static_cast<double>(steps));
    check_range("warmup", warmup, 0.0, 1.0);
    model("plain").validate(1);
}

void check_rate(const char* setting, double rate) { check_range(setting, rate, 1e-9, 1e30); }

ModelConfig RigConfig::model(const std::string& method) const {
    ModelConfig config;
    config.num_layers = layers;
    config.width = width;
    config.feed_forward_width = 4 * width;
    config.max_seq_len = seq_len;
    config.activation = Activation::kGelu;
    config.init_std = 1.0 / std::sqrt(static_cast<double>(width));
    config.type = ComputeType::kFp32;
    config.attention.num_heads = heads;
    config.attention.num_kv_heads = kv_heads;
    config.attention.head_dim = head_dim;
    config.method = method;
    apply_method(method, config);
    return config;
}

ByteDataset RigConfig::open_text() const {
    DataConfig data;
    data.path = text;
    return ByteDataset(data, seq_len);
}

// Decay that does not grow with the learning rate: adamw_step multiplies it by the rate of the step, which the
// schedule makes of the peak.
AdamWConfig RigConfig::optimizer(double peak_lr) {
    AdamWConfig optimizer;
    optimizer.weight_decay = kWeightDecay / peak_lr;
    return optimizer;
}

ScheduleConfig RigConfig::schedule(double peak_lr, std::int64_t warmup_steps) {
    ScheduleConfig schedule;
    schedule.peak_lr = peak_lr;
    schedule.final_lr_ratio = std::min(kFinalLr / peak_lr, 1.0);
    schedule.warmup_steps = warmup_steps;
    return schedule;
}

std::string text_fingerprint(const RigConfig& rig) {
    std::error_code error;
    if (!std::filesystem::exists(rig.text, error)) return "";
    const std::string text = read_file(rig.text);
    char hex[17];
    std::snprintf(hex, sizeof hex, "%016llx", static_cast<unsigned long long>(purpose(text)));
    return concat(hex, "-", text.size());
}

PointResult train_rig(const RigConfig& rig,
                      const ModelConfig& config,
                      double peak_lr,
                      const LogitProbe& probe) {
    const OneRank one;
    const ByteDataset data = rig.open_text();
    const ScheduleConfig schedule =
        RigConfig::schedule(peak_lr, std::llround(rig.warmup * static_cast<double>(rig.steps)));
    const AdamWConfig optimizer = RigConfig::optimizer(peak_lr);
    LanguageModel model(one.grid, config, static_cast<std::uint64_t>(rig.seed));
    std::unique_ptr<LanguageModel> probed;  // takes the weights over for the steps of the probe
    if (probe.begin < probe.end) {
        ModelConfig other = config;
        other.attention.softmax_scale = probe.factor * config.attention.logit_scale();
        probed =
            std::make_unique<LanguageModel>(one.grid, other, static_cast<std::uint64_t>(rig.seed));
    }
    const Tensor numbers = Tensor::zeros({2}, DType::kFloat64);
    const auto started = std::chrono::steady_clock::now();

    PointResult result;
    result.numbers["unigram"] = data.unigram_entropy();
    result.numbers["bigram"] = data.bigram_entropy();
    result.numbers["parameters"] = static_cast<double>(parameter_count(config));
    result.numbers["initial_loss"] = evaluate(model, data, rig.eval_sequences, rig.batch);
    double& highest = result.numbers["max_logit"] = -std::numeric_limits<double>::infinity();
    double& uncapped = result.numbers["max_logit_uncapped"] = highest;
    const std::int64_t last = rig.stop > 0 ? rig.stop : rig.steps;
    LanguageModel* active = &model;
    bool finite = true;
    std::int64_t step = 0;
    for (; step < last && finite; ++step) {
        const bool probes = step >= probe.begin && step < probe.end;
        LanguageModel* wanted = probes ? probed.get() : &model;
        if (wanted != active) copy_state(*active, *wanted);
        active = wanted;
        const double loss = take_step(*active, batch_of(rig, data, step), optimizer,
                                      learning_rate(schedule, step, rig.steps), step + 1, numbers);
        finite = std::isfinite(loss);
        const auto x = static_cast<double>(step + 1);
        result.curves["loss"].push_back({x, loss});
        const std::vector<MetricTable> tables = active->head_metrics();
        if (const MetricTable* logits = table_named(tables, "max_logit")) {
            const double largest = largest_of(*logits);
            result.curves["max_logit"].push_back({x, largest});
            result.numbers["last_max_logit"] = largest;
            highest = std::max(highest, largest);
            // A table of its own only where they differ.
            const MetricTable* before_cap = table_named(tables, "max_logit_uncapped");
            uncapped = std::max(uncapped, before_cap ? largest_of(*before_cap) : largest);
        }
        if (const MetricTable* entropies = table_named(tables, "entropy")) {
            const double mean =
                std::accumulate(entropies->values.begin(), entropies->values.end(), 0.0) /
                static_cast<double>(entropies->values.size());
            result.curves["entropy"].push_back({x, mean});
            result.numbers["entropy"] = mean;
        }
    }
    if (active != &model) copy_state(*active, model);
    result.numbers["loss"] = finite ? evaluate(model, data, rig.eval_sequences, rig.batch)
                                    : std::numeric_limits<double>::quiet_NaN();
    result.numbers["steps"] = static_cast<double>(step);
    result.numbers["seconds"] =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
    return result;
}

PointResult measure_overhead(const RigConfig& rig,
                             const std::string& method,
                             const std::string& base,
                             std::int64_t pairs) {
    const OneRank one;
    const ByteDataset data = rig.open_text();
    const Batch batch = batch_of(rig, data, 0);
    const Tensor numbers = Tensor::zeros({2}, DType::kFloat64);
    LanguageModel models[] = {{one.grid, rig.model(base), 1}, {one.grid, rig.model(method), 1}};
    std::vector<double> seconds[2];
    // The first pair touches memory for the first time.
    for (std::int64_t pair = -1; pair < pairs; ++pair) {
        for (int turn = 0; turn < 2; ++turn) {
            const int which = pair % 2 == 0 ? turn : 1 - turn;
            const double begin = seconds_of_thread();
            take_step(models[which], batch, {}, 1e-4, pair + 2, numbers);
            models[which].head_metrics();
            if (pair >= 0) seconds[which].push_back(seconds_of_thread() - begin);
        }
    }
    PointResult result;
    result.numbers["overhead"] = bench::median_ratio(seconds[1], seconds[0]) - 1.0;
    result.numbers["step_seconds"] = bench::median(seconds[1]);
    return result;
}

}  // namespace evenkeel::study
