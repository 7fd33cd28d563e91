// evenkeel retrofit: QK-norm for a trained model, gains made from what its heads do.
#include "model/retrofit/retrofit.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>

#include "framework/json.h"
#include "framework/log.h"
#include "framework/storage/checkpoint.h"
#include "framework/storage/staged_directory.h"
#include "launch/commands.h"
#include "launch/report.h"
#include "launch/retrofit_continuation.h"
#include "launch/retrofit_data.h"
#include "launch/retrofit_findings.h"
#include "launch/saved_run.h"
#include "model/telemetry/head_tables.h"
#include "parallel/watchdog.h"

namespace evenkeel {
namespace {

namespace fs = std::filesystem;

constexpr double kRefinedBound =
    2.0;  // of a refined head, at most, over that of the layer's mean rms
constexpr const char* kNormPrefix = "model.attention.qk_norm.";

template <typename... Parts>
void check_usage(bool right, const Parts&... parts) {
    EVENKEEL_CHECK_CODE(right, ErrorCode::kConfig, kRetrofit, concat(parts...));
}

// The command line, checked as far as it can be without the model.
struct Plan {
    RetrofitOptions options;
    GainFitOptions fit;
    std::vector<std::string> overrides;       // of the model's run
    std::vector<std::string> norm_overrides;  // of the norm that it gets
    std::string out;
};

bool sets(const std::string& assignment, const std::string& key) {
    return assignment.starts_with(key + "=");
}

Plan plan_of(const RetrofitCommand& command) {
    Plan plan;
    plan.fit.estimator = estimator_of(command.gains);
    plan.fit.refine = command.refine;
    plan.options.layers = command.layers;
    check_usage(!command.anneal || *command.anneal > 0, "--anneal: got ",
                command.anneal.value_or(0),
                ", want 1 or more steps; without --anneal the norm is there at once");
    plan.options.anneal_steps = command.anneal.value_or(0);
    check_usage(!command.bound || (*command.bound > 0.0 && std::isfinite(*command.bound)),
                "--bound: got ", command.bound.value_or(0.0), ", want a positive number");
    check_usage(!command.bound || plan.fit.estimator != GainEstimator::kOnes, "--bound: got ",
                command.bound.value_or(0.0),
                " with --gains ones, which have the bound sqrt(head_dim) and no other; want ",
                "--gains mean_rms, matched_std, kl_tied or kl_untied, or no --bound");
    plan.options.gain_bound = plan.fit.bound = command.bound.value_or(0.0);
    check_usage(command.tokens > 0 && command.tokens <= kMostTokens, "--tokens: got ",
                command.tokens, ", want 1 to ", kMostTokens);
    for (const std::string& assignment : command.overrides) {
        check_usage(!sets(assignment, "trainer.run_dir") && !sets(assignment, "trainer.init_from"),
                    "--set ", assignment, ": each of the two configurations has its own; want ",
                    "another --out, or that with evenkeel train --config OUT/config.json");
        if (!assignment.starts_with(kNormPrefix)) {
            plan.overrides.push_back(assignment);
            continue;
        }
        bool known = false;
        for (const char* key : {"eps", "gain_pull", "gain_weight_decay"}) {
            known = known || sets(assignment, std::string(kNormPrefix) + key);
        }
        check_usage(known, "--set ", assignment, ": of the norm eps, gain_pull and ",
                    "gain_weight_decay can be set; the rest is what a retrofit is");
        plan.norm_overrides.push_back(assignment);
    }
    plan.out = fs::path(command.out).lexically_normal().string();
    while (plan.out.size() > 1 && plan.out.back() == '/') plan.out.pop_back();
    check_usage(!fs::exists(fs::symlink_status(plan.out)), "--out: ", plan.out,
                " is there already, want a new directory");
    return plan;
}

// What is wrong with the layers, by the name that the command line has for them.
void refuse_layers(const std::string& layers, const Error& error) {
    const std::string text = error.what(), key = "model.qk_norm_layers";
    const std::size_t at = text.find(key);
    if (layers.empty() || at == std::string::npos) return;
    throw_error(ErrorCode::kConfig, kRetrofit, "--layers" + text.substr(at + key.size()));
}

// A row sees T keys; under this bound none could get half of its attention from all others.
void check_bound(const Plan& plan, std::int64_t seq_len) {
    if (plan.options.gain_bound == 0.0) return;
    const double least = std::log(static_cast<double>(std::max<std::int64_t>(seq_len - 1, 2))) / 2;
    check_usage(plan.options.gain_bound >= least, "--bound: got ", plan.options.gain_bound,
                ", want ", format("%.2f", std::ceil(100.0 * least) / 100.0),
                " or more: with logits so near together none of ", seq_len,
                " keys could have half of a query's attention");
}

// The model as it is measured: in fp32 on the CPU, all ranks sharing its layers.
RunConfig measured_config(const SavedRun& run, const Plan& plan, int world_size) {
    RunConfig config = run.config;
    config.device = Device::kCpu;
    config.model.type = ComputeType::kFp32;
    config.model.telemetry = false;
    const bool chosen = std::any_of(
        plan.overrides.begin(), plan.overrides.end(),
        [](const std::string& text) { return text.starts_with("parallel.tensor_parallel="); });
    if (!chosen) config.parallel.tensor_parallel = world_size;
    config.parallel.data_parallel = 1;
    try {
        config.model.validate(config.parallel.tensor_parallel);
    } catch (const Error& error) {
        if (chosen || world_size == 1) throw;
        throw_error(ErrorCode::kConfig, kRetrofit,
                    concat(world_size,
                           " ranks cannot share the layers of this model; want another "
                           "number after -np: ",
                           error.what()));
    }
    check_usage(config.parallel.tensor_parallel == world_size, "parallel.tensor_parallel: got ",
                config.parallel.tensor_parallel, " with ", world_size,
                " ranks, want as many: a retrofit shares layers, not data");
    return config;
}

// The configuration that the run had, for what follows it: nothing fitted to the ranks that there are now.
RunConfig original_config(const SavedRun& run, const Plan& plan) {
    const std::string file = run.directory + "/config.json";
    return run.family.empty() && fs::exists(file) ? load_run_config(file, plan.overrides)
                                                  : run.config;
}

// Into how many parts row-parallel sums are cut, so that gains are the same to the bit at any number of ranks that
// divides it; 0 where this number does not.
std::int64_t shards_of(const ModelConfig& model, std::int64_t ranks) {
    const std::int64_t common = std::gcd(model.attention.num_heads, model.feed_forward_width);
    for (std::int64_t shards : {8, 6, 4, 3, 2}) {
        if (common % shards == 0) return shards % ranks == 0 ? shards : 0;
    }
    return 0;
}

// This rank's numbers of every head and layer, put together over ranks.
std::vector<LayerFinding> gather_findings(const ProcessGrid& grid,
                                          const ModelConfig& model,
                                          const std::vector<GainFit>& fits) {
    struct Field {
        double HeadFinding::*member;
        double (*of)(const HeadFit&);
    };
    static constexpr Field kFields[] = {
        {&HeadFinding::q_mean, [](const HeadFit& h) { return h.q_mean; }},
        {&HeadFinding::k_mean, [](const HeadFit& h) { return h.k_mean; }},
        {&HeadFinding::q_variation, [](const HeadFit& h) { return h.q_variation; }},
        {&HeadFinding::k_variation, [](const HeadFit& h) { return h.k_variation; }},
        {&HeadFinding::kl_mean_rms, [](const HeadFit& h) { return h.mean_rms.held_out.mean; }},
        {&HeadFinding::kl_mean, [](const HeadFit& h) { return h.chosen.held_out.mean; }},
        {&HeadFinding::kl_p99, [](const HeadFit& h) { return h.chosen.held_out.p99; }},
        {&HeadFinding::bound, [](const HeadFit& h) { return h.chosen.bound; }},
    };
    constexpr auto kCount = static_cast<std::int64_t>(std::size(kFields));
    const auto layers = static_cast<std::int64_t>(fits.size());
    const auto heads = static_cast<std::int64_t>(fits.front().heads.size());
    const Tensor local = Tensor::uninitialized({kCount + 1, layers, heads}, DType::kFloat32);
    float* out = local.data<float>();
    for (const Field& field : kFields) {
        for (const GainFit& fit : fits) {
            for (const HeadFit& head : fit.heads) *out++ = static_cast<float>(field.of(head));
        }
    }
    for (const GainFit& fit : fits) {
        for (const HeadFit& head : fit.heads) *out++ = static_cast<float>(head.estimator);
    }
    const std::vector<std::string> names(static_cast<std::size_t>(kCount) + 1, "number");
    const std::vector<MetricTable> tables = gather_heads(grid, names, local);
    std::vector<LayerFinding> findings(fits.size());
    for (std::size_t layer = 0; layer < findings.size(); ++layer) {
        LayerFinding& finding = findings[layer];
        finding.normed = model.layer_attention(static_cast<std::int64_t>(layer)).qk_norm.kind !=
                         QkNormKind::kNone;
        finding.heads.resize(static_cast<std::size_t>(tables.front().columns));
        for (std::size_t head = 0; head < finding.heads.size(); ++head) {
            const std::size_t at = layer * finding.heads.size() + head;
            for (std::size_t i = 0; i < std::size(kFields); ++i) {
                finding.heads[head].*kFields[i].member = static_cast<double>(tables[i].values[at]);
            }
            finding.heads[head].estimator =
                static_cast<GainEstimator>(std::lround(tables.back().values[at]));
        }
    }
    return findings;
}

// Texts of this rank's heads, [L][H/P], put together over ranks: a byte a number.
void gather_reasons(const ProcessGrid& grid,
                    const std::vector<GainFit>& fits,
                    std::vector<LayerFinding>& findings) {
    std::size_t longest = 0;
    for (const GainFit& fit : fits) {
        for (const HeadFit& head : fit.heads) longest = std::max(longest, head.reason.size());
    }
    longest = static_cast<std::size_t>(
        grid.tensor().host().all_reduce_scalar(static_cast<double>(longest), ReduceOp::kMax));
    const auto heads = static_cast<std::int64_t>(fits.front().heads.size());
    const Tensor local = Tensor::zeros(
        {static_cast<std::int64_t>(longest) + 1, static_cast<std::int64_t>(fits.size()), heads},
        DType::kFloat32);
    for (std::size_t layer = 0; layer < fits.size(); ++layer) {
        for (std::size_t head = 0; head < fits[layer].heads.size(); ++head) {
            const std::string& reason = fits[layer].heads[head].reason;
            for (std::size_t i = 0; i < reason.size(); ++i) {
                const std::size_t at = (i * fits.size() + layer) * fits[layer].heads.size() + head;
                local.data<float>()[at] = static_cast<unsigned char>(reason[i]);
            }
        }
    }
    const std::vector<std::string> names(longest + 1, "letter");
    const std::vector<MetricTable> letters = gather_heads(grid, names, local);
    for (std::size_t layer = 0; layer < findings.size(); ++layer) {
        for (std::size_t head = 0; head < findings[layer].heads.size(); ++head) {
            for (const MetricTable& letter : letters) {
                const float value = letter.values[layer * findings[layer].heads.size() + head];
                if (value == 0.0f) break;
                findings[layer].heads[head].reason +=
                    static_cast<char>(static_cast<unsigned char>(value));
            }
        }
    }
}

void put_measurements(const HeadMeasurements& before,
                      const HeadMeasurements& after,
                      std::vector<LayerFinding>& findings) {
    std::size_t at = 0;
    for (LayerFinding& layer : findings) {
        for (HeadFinding& head : layer.heads) {
            head.max_logit_before = static_cast<double>(before.max_logit.values[at]);
            head.max_logit_after = static_cast<double>(after.max_logit.values[at]);
            head.entropy_before = static_cast<double>(before.entropy.values[at]);
            head.entropy_after = static_cast<double>(after.entropy.values[at]);
            ++at;
        }
    }
}

// What the mean rms of a layer's heads bounds their logits by, the largest of all ranks' heads.
double bound_of_mean_rms(const ProcessGrid& grid,
                         const HeadCalibration& layer,
                         const AttentionConfig& attention) {
    double most = 0.0;
    const std::int64_t group = layer.heads() / layer.kv_heads();
    for (std::int64_t head = 0; head < layer.heads(); ++head) {
        most = std::max(most, layer.q_rms(head).mean() * layer.k_rms(head / group).mean());
    }
    most = grid.tensor().host().all_reduce_scalar(most, ReduceOp::kMax);
    const double magnitude = rope_magnitude(attention.rope);
    return attention.logit_scale() * static_cast<double>(attention.head_dim) * magnitude *
           magnitude * most;
}

// A fit a layer; where the layer gets no norm its statistics alone.
std::vector<GainFit> fit_layers(const ProcessGrid& grid,
                                const ModelCalibration& calibration,
                                const ModelConfig& retrofitted,
                                GainFitOptions options) {
    std::vector<GainFit> fits;
    for (std::size_t layer = 0; layer < calibration.layers.size(); ++layer) {
        const auto number = static_cast<std::int64_t>(layer);
        const bool normed = retrofitted.layer_attention(number).qk_norm.kind != QkNormKind::kNone;
        GainFitOptions of_layer = options;
        if (!normed) of_layer.estimator = GainEstimator::kMeanRms;
        if (!normed) of_layer.refine = false;
        // Pairs of channels that hardly matter to attention as it is may be given any gain by a fit. Where nobody
        // has asked for one, it keeps the bound within reach of what it was, whatever --bound lets pass.
        if (of_layer.estimator == GainEstimator::kMeanRms && of_layer.refine) {
            const double most =
                kRefinedBound * bound_of_mean_rms(grid, calibration.layers[layer],
                                                  calibration.layers[layer].config());
            of_layer.bound = of_layer.bound == 0.0 ? most : std::min(of_layer.bound, most);
        }
        fits.push_back(fit_gains(calibration.layers[layer], of_layer));
        log_progress(concat("gains: layer ", layer + 1, " of ", calibration.layers.size()),
                     layer + 1 == calibration.layers.size());
        if (normed) continue;
        // Nothing changes there.
        for (HeadFit& head : fits.back().heads) {
            head.chosen = {};
            head.chosen.bound = std::numeric_limits<double>::infinity();
            head.mean_rms = {};
        }
    }
    return fits;
}

std::vector<LayerGains> gains_of(const std::vector<GainFit>& fits, const ModelConfig& retrofitted) {
    std::vector<LayerGains> gains(fits.size());
    for (std::size_t layer = 0; layer < fits.size(); ++layer) {
        const AttentionConfig attention =
            retrofitted.layer_attention(static_cast<std::int64_t>(layer));
        if (attention.qk_norm.kind == QkNormKind::kNone) continue;
        gains[layer] = {fits[layer].q_gain, fits[layer].k_gain};
    }
    return gains;
}

void write_files(const RetrofitFindings& findings,
                 Continuation& continuation,
                 const std::string& directory) {
    write_file_atomically(directory + "/config.json", to_json(continuation.retrofitted));
    write_file_atomically(directory + "/control.json", to_json(continuation.control));
    write_file_atomically(directory + "/retrofit.json", to_json(findings).dump(2) + "\n");
    const std::string vega = find_vega();
    if (vega.empty()) return log_warning(concat("no retrofit.html: ", kVegaMissing));
    write_file_atomically(directory + "/retrofit.html", to_page(findings, vega));
}

}  // namespace

void run_retrofit(const RetrofitCommand& command, Communicator& world) {
    Plan plan = plan_of(command);
    const SavedRun run = open_saved_run(command.model, plan.overrides, readers_of(world));
    const RunConfig measured = measured_config(run, plan, world.size());
    const auto with_norm = [&](const ModelConfig& model, RetrofitOptions options) {
        try {
            RunConfig config;
            config.model = retrofitted_config(model, options);
            for (const std::string& assignment : plan.norm_overrides) {
                apply_override([&](ConfigVisitor& v) { config.visit_fields(v); }, assignment);
            }
            config.model.validate(measured.parallel.tensor_parallel);
            return config.model;
        } catch (const Error& error) {
            refuse_layers(command.layers, error);
            throw;
        }
    };
    const ModelConfig retrofitted = with_norm(measured.model, plan.options);
    RetrofitFindings findings;
    if (measured.model.attention.softcap > 0.0) {
        check_usage(plan.fit.estimator != GainEstimator::kKlTied &&
                        plan.fit.estimator != GainEstimator::kKlUntied,
                    "--gains: got ", command.gains,
                    ", want mean_rms or matched_std: the model's "
                    "logits are capped (model.attention.softcap), and behind a cap they are no "
                    "longer linear in the gains");
        plan.fit.refine = false;
        findings.notes.push_back(
            "logits are capped (model.attention.softcap): divergences are not known, and no gains "
            "are fitted");
    }
    if (measured.model.attention.qk_clip_threshold > 0.0) {
        findings.notes.push_back(
            "model.attention.qk_clip_threshold stays: from now on it is gains that it scales down");
    }
    // Whether OUT can be written is found before anything that takes long.
    if (world.rank() == 0) StagedDirectory probe(plan.out);
    DataConfig text = measured.data;
    if (!command.data.empty()) {
        // What else the run says of its data is of that.
        if (!text.path.empty()) text.validation_path = text.weights = "";
        text.path = command.data;
    }
    const RetrofitData data =
        load_retrofit_data(text, measured.model.vocab_size, reads_bytes(run),
                           measured.trainer.seq_len, measured.model.max_seq_len, command.tokens);
    check_bound(plan, data.seq_len);
    RunConfig original = original_config(run, plan);
    const ContinuationPlan to_come{run.checkpoint, plan.out, data.is_trainable ? command.data : "",
                                   plan.overrides, world.size()};
    Continuation continuation =
        continuation_of(original, with_norm(original.model, plan.options), to_come);
    check_continuation(continuation, findings);
    add_course(continuation, to_come, findings);

    ParallelConfig parallel = measured.parallel;
    parallel.virtual_shards = shards_of(measured.model, parallel.tensor_parallel);
    parallel.sequence_parallel =
        false;  // any number of tokens, and rows as virtual shards have them
    start_watchdog(world, {.timeout_seconds = parallel.timeout_seconds});
    const ProcessGrid grid(world, parallel, Device::kCpu);
    const auto seed = static_cast<std::uint64_t>(measured.trainer.seed);
    LanguageModel before(grid, measured.model, seed);
    before.load_weights(*run.weights);
    check_finite_weights(grid, before);
    log_info(concat("calibrating on ", data.calibration_sequences, " sequences of ", data.seq_len,
                    " tokens"));
    const std::vector<GainFit> fits =
        fit_layers(grid, calibrate(grid, before, data.calibration), retrofitted, plan.fit);
    const std::vector<LayerGains> gains = gains_of(fits, retrofitted);
    findings.layers = gather_findings(grid, retrofitted, fits);
    gather_reasons(grid, fits, findings.layers);
    if (measured.model.attention.softcap > 0.0) {
        for (LayerFinding& layer : findings.layers) {
            for (HeadFinding& head : layer.heads) {
                head.kl_mean = head.kl_p99 = head.kl_mean_rms =
                    std::numeric_limits<double>::quiet_NaN();
            }
        }
    }

    const HeadMeasurements as_it_was = measure_heads(grid, before, data.held_out);
    findings.loss_before = as_it_was.loss;
    findings.gradient_norm_before = gradient_norm_of(before, {data.held_out.data(), 1});
    {
        RetrofitOptions at_once = plan.options;
        at_once.anneal_steps = 0;
        LanguageModel after(grid, with_norm(measured.model, at_once), seed);
        retrofit_weights(before, after, gains);
        const HeadMeasurements with = measure_heads(grid, after, data.held_out);
        findings.loss_after = findings.loss_at_start = with.loss;
        findings.gradient_norm_after = gradient_norm_of(after, {data.held_out.data(), 1});
        put_measurements(as_it_was, with, findings.layers);
    }

    std::unique_ptr<StagedDirectory> staged;  // the main rank's
    if (before.is_main_rank()) staged = std::make_unique<StagedDirectory>(plan.out);
    const std::string directory = staged ? staged->path() : plan.out;
    world.barrier();
    {
        ModelConfig in_fp32 = continuation.retrofitted.model;
        in_fp32.type = ComputeType::kFp32;
        LanguageModel result(grid, in_fp32, seed);
        retrofit_weights(before, result, gains);
        if (plan.options.anneal_steps > 0) {
            findings.loss_at_start = measure_heads(grid, result, data.held_out).loss;
        }
        write_retrofitted(grid, result, *run.weights, run.checkpoint, directory);
    }

    findings.model = command.model;
    findings.out = plan.out;
    findings.data = text.path;
    findings.estimator = plan.fit.estimator;
    findings.anneal_steps = plan.options.anneal_steps;
    findings.gain_bound = plan.options.gain_bound;
    findings.seq_len = data.seq_len;
    findings.calibration_sequences = data.calibration_sequences;
    findings.held_out_sequences = data.held_out_sequences;
    add_advice(findings);
    add_commands(continuation.retrofitted, {command.data, reads_bytes(run)}, findings);
    if (before.is_main_rank()) {
        const std::string files = hugging_face_files(run);
        if (!files.empty()) {
            const std::string checkpoint = directory + "/checkpoints/step_00000000";
            const Manifest manifest = read_manifest(checkpoint).value();
            keep_hugging_face_files(files, checkpoint);
            write_manifest(checkpoint, manifest, manifest.files);
        }
        write_files(findings, continuation, directory);
    }
    if (staged) staged->commit();
    world.barrier();
    if (!before.is_main_rank()) return;
    std::cout << (command.json ? to_json(findings).dump(2) + "\n" : to_text(findings));
}

}  // namespace evenkeel
