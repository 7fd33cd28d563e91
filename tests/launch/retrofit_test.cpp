// Retrofit from the command line: what it leaves, that training goes on from it, what it refuses.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "framework/json.h"
#include "framework/storage/checkpoint.h"
#include "framework/storage/safetensors.h"
#include "framework/training/metrics.h"
#include "launch/retrofit_findings.h"
#include "tests/launch/command_line.h"

namespace evenkeel::testing {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// Verdicts -------------------------------------------------------------------------------------------

LayerFinding quiet_layer() {
    LayerFinding layer;
    layer.heads.resize(3);
    for (HeadFinding& head : layer.heads) {
        head.q_variation = 0.08;
        head.k_variation = 0.05;
        head.max_logit_before = 12.0;
        head.kl_mean = head.kl_mean_rms = 0.02;
        head.kl_p99 = 0.1;
    }
    return layer;
}

void expect_verdict(const LayerFinding& layer,
                    double loss_jump,
                    Verdict verdict,
                    const std::string& words,
                    bool annealed = false) {
    const LayerVerdict got = judge(layer, loss_jump, annealed);
    EXPECT_EQ(got.verdict, verdict) << got.text;
    EXPECT_NE(got.text.find(words), std::string::npos) << got.text;
}

TEST(RetrofitVerdict, SaysWhichNumberDecided) {
    expect_verdict(quiet_layer(), 0.2, Verdict::kFine, "KL at most 0.020");
    LayerFinding layer = quiet_layer();
    layer.heads[1].k_variation = 0.31;
    expect_verdict(layer, 0.2, Verdict::kRefine, "norms of head 1 vary by 0.31, above 0.15");
    layer.heads[1].estimator = GainEstimator::kKlTied;
    expect_verdict(layer, 0.2, Verdict::kRefined, "fitted gains: mean KL 0.020 -> 0.020");
    layer = quiet_layer();
    layer.heads[2].max_logit_before = 288.0;
    expect_verdict(layer, 0.2, Verdict::kRefine, "head 2 has had logits of 288 on held-out");
    layer = quiet_layer();
    layer.heads[0].kl_mean = 0.2;
    expect_verdict(layer, 0.2, Verdict::kRefine, "KL of head 0 is 0.200");
    layer.heads[0].kl_mean = 1.2;
    expect_verdict(layer, 0.2, Verdict::kRefine, "KL 1.200 nats, above 1.0");
    layer.heads[0].estimator = GainEstimator::kKlTied;
    expect_verdict(layer, 0.2, Verdict::kLeave, "even with fitted gains");
    expect_verdict(layer, NAN, Verdict::kLeave, "even with fitted gains");
    expect_verdict(layer, 0.03, Verdict::kRefined, "jumps by +0.0300 nats only");
    expect_verdict(layer, 0.2, Verdict::kAnneal, "comes in over --anneal's steps", true);
    layer.normed = false;
    expect_verdict(layer, 0.2, Verdict::kNotAsked, "--layers");
}

TEST(RetrofitVerdict, AsksForNothingWhereTheLossHardlyMoves) {
    LayerFinding layer = quiet_layer();
    layer.heads[0].kl_mean = 1.2;
    for (const bool annealed : {false, true}) {
        expect_verdict(layer, 0.0001, Verdict::kFine, "loss moves by +0.0001 nats", annealed);
    }
    layer.heads[1].estimator = GainEstimator::kKlTied;
    expect_verdict(layer, 0.0001, Verdict::kRefined, "loss moves by +0.0001 nats");
    layer = quiet_layer();
    layer.heads[1].k_variation = 0.31;
    expect_verdict(layer, -0.002, Verdict::kFine, "loss moves by -0.0020 nats");
}

TEST(RetrofitVerdict, DoesWithoutDivergencesWhereLogitsAreCapped) {
    LayerFinding layer = quiet_layer();
    for (HeadFinding& head : layer.heads) head.kl_mean = NAN;
    expect_verdict(layer, 0.2, Verdict::kFine, "norms vary by 0.08 at most");
}

TEST(RetrofitAdvice, NamesALowerBoundWhereTheBoundIsLoose) {
    RetrofitFindings findings;
    findings.seq_len = 128;
    findings.layers = {quiet_layer(), quiet_layer()};
    findings.layers[1].normed = false;
    findings.layers[1].heads[0].bound = INFINITY;
    const auto advice = [&](double bound) {
        findings.notes.clear();
        findings.layers[0].heads[2].bound = bound;
        add_advice(findings);
        return findings.notes.empty() ? std::string() : findings.notes.front();
    };
    EXPECT_EQ(advice(11.0), "");
    EXPECT_NE(advice(20.0).find("--bound 12 "), std::string::npos) << advice(20.0);
    EXPECT_NE(advice(150.0).find("150.0, is above 100"), std::string::npos) << advice(150.0);
    EXPECT_NE(advice(150.0).find("--bound 64 "), std::string::npos) << advice(150.0);
    findings.layers[0].heads[0].max_logit_before = 288.0;
    EXPECT_EQ(advice(90.0), "") << "far below what logits were";
    EXPECT_NE(advice(200.0), "") << "below what logits were, but with alarms";
    findings.gain_bound = 200.0;
    EXPECT_EQ(advice(200.0), "") << "asked for";
}

// The command ----------------------------------------------------------------------------------------

constexpr const char* kPlain =
    "--set model.method=plain --set model.type=fp32 --set data.validation_fraction=0.4 "
    "--set trainer.steps=30 --set schedule.peak_lr=2e-2 --set schedule.warmup_steps=5 ";

// A model trained without a norm, once for all tests.
class RetrofitCommandTest : public ::testing::Test {
  protected:
    static void SetUpTestSuite() {
        tiny_ = new TinyRun();
        const Outcome outcome = run_evenkeel(tiny_->train(kPlain));
        ASSERT_EQ(outcome.status, 0) << outcome.output;
    }
    static void TearDownTestSuite() {
        delete tiny_;
        tiny_ = nullptr;
    }

    std::string out(const std::string& name) const { return scratch_.file(name); }
    Outcome retrofit(const std::string& name,
                     const std::string& settings = "",
                     const std::string& model = tiny_->run) const {
        const bool counts = settings.find("--tokens") != std::string::npos;
        return run_evenkeel(std::string("retrofit ") + (counts ? "" : "--tokens 512 ") +
                            "--model " + model + " --out " + out(name) + " " + settings);
    }
    Json findings(const std::string& name) const {
        return Json::parse(read_file(out(name) + "/retrofit.json"));
    }
    void expect_refused(const std::string& settings,
                        const std::string& words,
                        const std::string& model = tiny_->run,
                        int status = 2) const {
        const Outcome outcome = retrofit("refused", settings, model);
        EXPECT_EQ(outcome.status, status) << outcome.output;
        EXPECT_NE(outcome.output.find(words), std::string::npos) << outcome.output;
        EXPECT_FALSE(fs::exists(out("refused")));
    }

    static std::int64_t sequences_of_step() {
        return Json::parse(read_file(tiny_->run + "/config.json"))["trainer"]["batch_size"];
    }

    static TinyRun* tiny_;
    TemporaryDirectory scratch_;
};
TinyRun* RetrofitCommandTest::tiny_ = nullptr;

std::string bytes_of(const SafetensorsReader& reader, const std::string& name) {
    const Tensor tensor = reader.read(name);
    return std::string(reinterpret_cast<const char*>(tensor.raw()), tensor.bytes());
}

TEST_F(RetrofitCommandTest, KeepsWeightsAndMomentsAndSaysWhatChanges) {
    const Outcome outcome = retrofit("a");
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    for (const char* words :
         {"layer 1", "loss        ", "gradient    ", "evenkeel train --config "}) {
        EXPECT_NE(outcome.output.find(words), std::string::npos) << words << "\n" << outcome.output;
    }
    const std::string from = tiny_->run + "/checkpoints/step_00000030";
    const std::string to = out("a") + "/checkpoints/step_00000000";
    for (const char* file : {"/model.safetensors", "/optimizer.safetensors"}) {
        const SafetensorsReader before(from + file), after(to + file);
        std::size_t fresh = 0;
        for (const TensorInfo& info : after.tensors()) {
            if (before.contains(info.name)) {
                EXPECT_EQ(bytes_of(before, info.name), bytes_of(after, info.name)) << info.name;
                continue;
            }
            ++fresh;
            EXPECT_NE(info.name.find("_gain"), std::string::npos) << info.name;
            if (!info.name.ends_with("_gain")) {
                EXPECT_EQ(bytes_of(after, info.name),
                          std::string(static_cast<std::size_t>(info.end - info.begin), '\0'))
                    << info.name << ": moments of gains start at zero";
            }
        }
        EXPECT_EQ(fresh, std::string(file) == "/model.safetensors" ? 4u : 8u);
        EXPECT_EQ(after.tensors().size(), before.tensors().size() + fresh);
    }
    const Json json = findings("a");
    for (const Json& layer : json["layers"]) {
        EXPECT_EQ(layer["heads"].size(), 4u);
        for (const Json& head : layer["heads"]) {
            EXPECT_LE(head["max_logit_after"].get<double>(), head["bound"].get<double>());
            EXPECT_GT(head["q_rms"].get<double>(), 0.0);
        }
    }
    EXPECT_TRUE(fs::exists(out("a") + "/retrofit.html"));
    // The run is one like any other.
    const Outcome eval = run_evenkeel("eval --json " + out("a"));
    EXPECT_EQ(eval.status, 0) << eval.output;
    const Outcome again = retrofit("a");
    EXPECT_EQ(again.status, 2) << again.output;
    EXPECT_NE(again.output.find("is there already"), std::string::npos) << again.output;
}

TEST_F(RetrofitCommandTest, AnnealedItStartsAsTheModelThatItWas) {
    ASSERT_EQ(retrofit("a", "--anneal 3 --json").status, 0);
    const Json json = findings("a");
    EXPECT_EQ(json["loss_at_start"].get<double>(), json["loss_before"].get<double>());
    EXPECT_NE(json["loss_after"].get<double>(), json["loss_before"].get<double>());
}

// Small gains have large gradients while the norm comes in, of which clipping would leave the others nothing.
TEST_F(RetrofitCommandTest, AnnealedItsFirstStepsHaveTheControlsGradients) {
    ASSERT_EQ(retrofit("a",
                       "--anneal 10 --gains kl_untied --set trainer.steps=12 "
                       "--set schedule.peak_lr=1e-3 --set trainer.log_interval=1")
                  .status,
              0);
    const auto largest = [&](const std::string& name) {
        const Outcome outcome = run_evenkeel("train --config " + out("a") + "/" + name + ".json");
        EXPECT_EQ(outcome.status, 0) << outcome.output;
        const std::string run = name == "config" ? "continued" : name;
        double most = 0.0;
        for (const MetricRecord& record : read_metrics(out("a") + "/" + run + "/metrics.jsonl")) {
            for (const auto& [key, value] : record.scalars) {
                if (key == "grad_norm") most = std::max(most, value);
            }
        }
        return most;
    };
    const double control = largest("control");
    EXPECT_GT(control, 0.0);
    EXPECT_LT(largest("config"), 2.0 * control);
}

TEST_F(RetrofitCommandTest, TrainingGoesOnFromBothAndResumes) {
    ASSERT_EQ(retrofit("a",
                       "--anneal 3 --bound 40 --set trainer.steps=6 --set schedule.peak_lr=1e-3 "
                       "--set trainer.eval_interval=2 "
                       "--set model.attention.qk_norm.gain_pull=0.01")
                  .status,
              0);
    const std::string config = "train --config " + out("a") + "/config.json ";
    Outcome outcome = run_evenkeel(config + "--set trainer.stop_at_step=2");
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    EXPECT_NE(outcome.output.find("moments of 30 updates"), std::string::npos) << outcome.output;
    const std::string place = concat("after the ", 30 * sequences_of_step(), " sequences that");
    EXPECT_NE(outcome.output.find(place), std::string::npos) << place << "\n" << outcome.output;
    outcome = run_evenkeel(config + "--set trainer.resume=true");
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    outcome = run_evenkeel("train --config " + out("a") + "/control.json");
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    EXPECT_NE(outcome.output.find(place), std::string::npos) << place << "\n" << outcome.output;
    outcome = run_evenkeel("report " + out("a") + "/continued --compare " + out("a") + "/control");
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    EXPECT_NE(outcome.output.find("over 6 steps"), std::string::npos) << outcome.output;
}

TEST_F(RetrofitCommandTest, ConfigurationsWorkFromAnyDirectoryAndOnlyTheNormHasAFirstPhase) {
    const std::string from = concat("cd ", scratch_.path(), " && ", EVENKEEL_PROGRAM);
    const Outcome made =
        run_command(concat(from, " retrofit --tokens 512 --model ", tiny_->run,
                           " --out here/a --set trainer.first_phase_steps=2 --set trainer.steps=40"
                           " --set data.path=",
                           fs::relative(tiny_->text, scratch_.path()).string()));
    ASSERT_EQ(made.status, 0) << made.output;
    EXPECT_EQ(count_of("gains: layer 1 of 2", made.output), 1) << made.output;
    for (const char* name : {"config", "control"}) {
        const std::string file = concat(out("here/a/"), name, ".json");
        const Json config = Json::parse(read_file(file));
        EXPECT_EQ(config["data"]["path"], fs::path(tiny_->text).lexically_normal().string());
        EXPECT_TRUE(fs::exists(config["trainer"]["init_from"].get<std::string>()));
        EXPECT_LE(config["trainer"]["eval_interval"], 4);
        const Outcome trained = run_command(concat("cd / && ", EVENKEEL_PROGRAM, " train --config ",
                                                   file, " --set trainer.stop_at_step=3"));
        EXPECT_EQ(trained.status, 0) << trained.output;
    }
    EXPECT_TRUE(fs::exists(out("here/a/continued/config.json")));
    EXPECT_TRUE(fs::exists(out("here/a/control/config.json")));
}

TEST_F(RetrofitCommandTest, LayersThatAreNotNamedStayAsTheyAre) {
    ASSERT_EQ(retrofit("a", "--layers 1").status, 0);
    const Json json = findings("a");
    EXPECT_FALSE(json["layers"][0]["normed"].get<bool>());
    EXPECT_TRUE(json["layers"][1]["normed"].get<bool>());
    const SafetensorsReader model(out("a") + "/checkpoints/step_00000000/model.safetensors");
    EXPECT_FALSE(model.contains("layers.0.attention.q_gain"));
    EXPECT_TRUE(model.contains("layers.1.attention.q_gain"));
    EXPECT_EQ(run_evenkeel("eval " + out("a")).status, 0);
}

TEST_F(RetrofitCommandTest, AnInterruptedAttemptIsStartedAnew) {
    fs::create_directories(out("a") + ".tmp-1/checkpoints");
    write_file_atomically(out("a") + ".tmp-1/rubbish", "x");
    ASSERT_EQ(retrofit("a").status, 0);
    EXPECT_FALSE(fs::exists(out("a") + "/rubbish"));
    fs::remove_all(out("a") + ".tmp-1");
    for (const fs::directory_entry& entry :
         fs::directory_iterator(fs::path(out("a")).parent_path())) {
        EXPECT_EQ(entry.path().string().find(".tmp-"), std::string::npos) << entry.path();
    }
}

TEST_F(RetrofitCommandTest, AnOutputThatCannotBeWrittenIsRefusedBeforeTheWork) {
    write_file_atomically(out("file"), "x");
    const Outcome outcome = retrofit("file/below");
    EXPECT_EQ(outcome.status, 1) << outcome.output;
    EXPECT_EQ(outcome.output.find("layer 0"), std::string::npos) << outcome.output;
}

TEST_F(RetrofitCommandTest, AnUpperBoundHoldsForEveryHead) {
    ASSERT_EQ(retrofit("a", "--gains kl_tied --bound 3").status, 0);
    const Json json = findings("a");
    for (const Json& layer : json["layers"]) {
        for (const Json& head : layer["heads"]) {
            EXPECT_LE(head["bound"].get<double>(), 3.0 * (1 + 1e-6));
            EXPECT_LE(head["max_logit_after"].get<double>(), 3.0 * (1 + 1e-5));
        }
    }
}

// A model whose heads are all fitted.
TEST_F(RetrofitCommandTest, AnUpperBoundLoosensNothing) {
    const std::string hot = scratch_.file("hot");
    fs::copy(tiny_->run, hot, fs::copy_options::recursive);
    const std::string file = hot + "/checkpoints/step_00000030/model.safetensors";
    std::vector<std::pair<std::string, Tensor>> tensors;
    SafetensorsMetadata metadata;
    {
        const SafetensorsReader reader(file);
        metadata = reader.metadata();
        for (const TensorInfo& info : reader.tensors()) {
            const Tensor tensor = reader.read(info.name);
            if (info.name.ends_with(".wq") || info.name.ends_with(".wk")) {
                std::for_each(tensor.data<float>(), tensor.data<float>() + tensor.numel(),
                              [](float& w) { w *= 5.0f; });
            }
            tensors.emplace_back(info.name, tensor);
        }
    }
    write_safetensors(file, tensors, metadata);
    write_manifest(hot + "/checkpoints/step_00000030", {.step = 30});
    const auto bounds = [&](const std::string& name, const std::string& settings) {
        const Outcome outcome = retrofit(name, settings, hot);
        EXPECT_EQ(outcome.status, 0) << outcome.output;
        std::vector<double> bounds;
        std::size_t fitted = 0;
        const Json json = findings(name);
        for (const Json& layer : json["layers"]) {
            for (const Json& head : layer["heads"]) {
                bounds.push_back(head["bound"].get<double>());
                fitted += head["gains"] == "kl_tied" ? 1 : 0;
            }
        }
        EXPECT_GT(fitted, 0u) << "nothing to hold\n" << outcome.output;
        return bounds;
    };
    const std::vector<double> want = bounds("without", "");
    EXPECT_EQ(bounds("loose", "--bound 1e9"), want);
    const double most = *std::max_element(want.begin(), want.end());
    const double less = std::floor(0.7 * most);
    for (const double bound : bounds("held", concat("--bound ", less))) {
        EXPECT_LE(bound, less * (1 + 1e-6));
    }
}

// From the weights of the plain model on, by the same command as one that begins anew.
TEST_F(RetrofitCommandTest, TrainingGoesOnUnderAnotherMethodWhereItHasNoParametersOfItsOwn) {
    const auto train = [&](const std::string& settings, const std::string& name) {
        return run_evenkeel(tiny_->train(
            concat(kPlain, "--set trainer.steps=2 --set trainer.init_from=", tiny_->run,
                   " --set trainer.run_dir=", out(name), " ", settings)));
    };
    const std::pair<const char*, const char*> kTaken[] = {
        {"--set model.method=softcap", "model.attention.softcap: 0.0 before, 50.0 now"},
        {"--set model.method=qk_clip", "model.attention.qk_clip_threshold: 0.0 before, 100.0 now"},
        {"--set model.attention.sink=off_by_one",
         "model.attention.sink: \"none\" before, \"off_by_one\" now"}};
    for (const auto& [settings, words] : kTaken) {
        const Outcome outcome = train(settings, concat("taken", words[17]));
        EXPECT_EQ(outcome.status, 0) << outcome.output;
        EXPECT_NE(outcome.output.find(words), std::string::npos) << words << outcome.output;
        EXPECT_NE(outcome.output.find("sequences that were trained on"), std::string::npos)
            << outcome.output;
    }
    const Outcome normed = train("--set model.method=rms", "refused");
    EXPECT_EQ(normed.status, 2) << normed.output;
    EXPECT_NE(normed.output.find("evenkeel retrofit gives a trained model QK-norm"),
              std::string::npos)
        << normed.output;
    const Outcome sink = train("--set model.attention.sink=learned", "refused");
    EXPECT_EQ(sink.status, 2) << sink.output;
    EXPECT_NE(sink.output.find("holds another model"), std::string::npos) << sink.output;
    EXPECT_FALSE(fs::exists(out("refused")));
    // A command that only reads takes the model as it is.
    const Outcome eval = run_evenkeel("eval " + tiny_->run + " --set model.attention.softcap=30");
    EXPECT_EQ(eval.status, 2) << eval.output;
}

TEST_F(RetrofitCommandTest, TheRunMayBeNamedByItsPlace) {
    const Outcome outcome =
        run_evenkeel("retrofit --tokens 512 " + tiny_->run + " --out " + out("a"));
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    const Outcome none = run_evenkeel("retrofit --out " + out("b"));
    EXPECT_EQ(none.status, 2) << none.output;
    EXPECT_NE(none.output.find("A run, a checkpoint or a Hugging Face folder"), std::string::npos)
        << none.output;
}

TEST_F(RetrofitCommandTest, RefusesWithAReason) {
    expect_refused("--anneal 0", "--anneal: got 0, want 1 or more steps");
    expect_refused("--gains ones --bound 20", "--bound: got 20 with --gains ones");
    expect_refused("--set data.path=", "want a text (for a model of bytes), a .bin file");
    expect_refused("--bound 0.5", "want 1.72 or more");
    expect_refused("--bound 1.715", "got 1.715, want 1.72 or more");
    expect_refused("--bound -1", "--bound: got -1");
    expect_refused("--gains median", "want one of mean_rms");
    expect_refused("--gains ones --bound 20", "want --gains mean_rms, matched_std");
    expect_refused("--layers 1,7", "--layers: got \"1,7\", want layers from 0 to 1");
    expect_refused("--tokens 100000", "too little: got ");
    expect_refused("--tokens 9223372036854775807", "--tokens: got 9223372036854775807, want 1 to");
    expect_refused("--set trainer.seq_len=1", "trainer.seq_len: got 1, want 2 or more");
    expect_refused("--set trainer.steps=0", "trainer.steps: got 0");
    expect_refused("--set trainer.run_dir=/x", "each of the two configurations has its own");
    expect_refused("--set model.attention.qk_norm.kind=l2", "eps, gain_pull");
    expect_refused("--data /nowhere.txt", "/nowhere.txt");
    expect_refused("", "no such directory", "/nowhere", 1);
}

TEST_F(RetrofitCommandTest, RefusesModelsThatHaveANormAndWeightsThatAreNotFinite) {
    TinyRun normed;
    ASSERT_EQ(run_evenkeel(normed.train()).status, 0);
    expect_refused("", "has QK-norm already: model.attention.qk_norm.kind is rms", normed.run);

    const std::string copy = scratch_.file("copy");
    fs::copy(tiny_->run, copy, fs::copy_options::recursive);
    const std::string file = copy + "/checkpoints/step_00000030/model.safetensors";
    std::vector<std::pair<std::string, Tensor>> tensors;
    SafetensorsMetadata metadata;
    {
        const SafetensorsReader reader(file);
        metadata = reader.metadata();
        for (const TensorInfo& info : reader.tensors()) {
            tensors.emplace_back(info.name, reader.read(info.name));
            if (info.name == "layers.1.attention.wq") {
                tensors.back().second.data<float>()[3] = INFINITY;
            }
        }
    }
    write_safetensors(file, tensors, metadata);
    write_manifest(copy + "/checkpoints/step_00000030", {.step = 30});
    expect_refused("", "layers.1.attention.wq holds a NaN or an infinity", copy, 1);
    for (const std::string command : {"eval ", "sample --tokens 2 "}) {
        const Outcome outcome = run_evenkeel(command + copy);
        EXPECT_EQ(outcome.status, 1) << outcome.output;
        EXPECT_NE(outcome.output.find("layers.1.attention.wq holds a NaN"), std::string::npos)
            << outcome.output;
    }
}

TEST_F(RetrofitCommandTest, TakesTokensFromAFile) {
    const Tensor tokens = Tensor::uninitialized({48, 17}, DType::kInt32);
    for (std::int64_t i = 0; i < tokens.numel(); ++i) {
        tokens.data<std::int32_t>()[i] = static_cast<std::int32_t>(97 + i * i % 26);
    }
    const std::string file = scratch_.file("tokens.safetensors");
    write_safetensors(file, {{"tokens", tokens}});
    const Outcome outcome = retrofit("a", "--data " + file);
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    EXPECT_EQ(findings("a")["sequence_length"], 16);
    EXPECT_NE(outcome.output.find("evenkeel train --config"), std::string::npos)
        << "its own text is there to train on\n"
        << outcome.output;
    tokens.data<std::int32_t>()[20] = 256;
    write_safetensors(file, {{"tokens", tokens}});
    expect_refused("--data " + file, "256", tiny_->run, 1);
}

}  // namespace
}  // namespace evenkeel::testing
