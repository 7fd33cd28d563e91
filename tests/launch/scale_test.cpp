// evenkeel scale, as it is typed.
#include <gtest/gtest.h>

#include <fstream>

#include "framework/json.h"
#include "tests/launch/command_line.h"

namespace evenkeel::testing {
namespace {

using Json = nlohmann::json;

std::string config(const char* name) {
    return std::string(" --config " EVENKEEL_SOURCE_DIR "/configs/") + name + ".json ";
}

Json json_of(const std::string& arguments) {
    const Outcome outcome = run_evenkeel("scale " + arguments + " --json");
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    const Json json = Json::parse(outcome.output, nullptr, false);
    EXPECT_FALSE(json.is_discarded()) << outcome.output;
    return json;
}

void expect_complaint(const std::string& arguments, const std::string& text) {
    const Outcome outcome = run_evenkeel("scale " + arguments);
    EXPECT_EQ(outcome.status, 2) << arguments << "\n" << outcome.output;
    EXPECT_NE(outcome.output.find(text), std::string::npos) << outcome.output;
    EXPECT_LE(count_of("\n", outcome.output), 2) << outcome.output;
}

TEST(ScaleTest, APlanTellsTimeMemoryAndDays) {
    const Outcome plan =
        run_evenkeel("scale plan" + config("8b_8gpu") + "--hardware h100 --tokens 15e12");
    ASSERT_EQ(plan.status, 0) << plan.output;
    for (const char* part : {"8,030,425,088 parameters", "8 GPUs on 1 node, h100",
                             "tensor parallel 1 x data parallel 8", "68.8 GiB a GPU, fits",
                             "tokens/s", "MFU", "data-parallel sums", "15 trillion tokens",
                             "GPU-hours", "causal attention counted once", "989 TFLOP/s"}) {
        EXPECT_NE(plan.output.find(part), std::string::npos) << part << "\n" << plan.output;
    }
}

TEST(ScaleTest, APlansPartsAddUpToItsStepAndItsDays) {
    const Json plan = json_of("plan" + config("70b") + "--hardware h100 --tokens 1e12");
    double sum = 0.0;
    for (const char* part :
         {"products", "attention", "memory", "again", "optimizer", "tensor_parallel_exposed",
          "data_parallel_exposed", "pipeline_exposed", "lost_to_overlap", "bubble"}) {
        sum += plan["step"][part].get<double>();
    }
    const double step = plan["step"]["seconds"];
    EXPECT_NEAR(sum, step, 1e-9 * step);
    const double tokens = 512.0 * 8192.0;
    EXPECT_NEAR(plan["tokens_per_second"].get<double>(), tokens / step, 1e-6 * tokens / step);
    const double useful = 1.0 - plan["run"]["checkpoint_share"].get<double>() -
                          plan["run"]["failure_share"].get<double>();
    const double days = 1e12 / tokens * step / useful / 86400.0;
    EXPECT_NEAR(plan["run"]["days"].get<double>(), days, 1e-6 * days);
    EXPECT_NEAR(plan["run"]["gpu_hours"].get<double>(), days * 24.0 * 512.0, 1e-4 * days * 512.0);
    EXPECT_EQ(plan["gpus"], 512);
}

TEST(ScaleTest, APlansMemoryIsThatOfTheTrainingsPlan) {
    for (const char* name : {"1b", "8b_8gpu", "8b_4nodes", "70b", "405b"}) {
        const Outcome train = run_evenkeel("train --plan" + config(name) + "--set device=cuda");
        const Outcome scale = run_evenkeel("scale plan" + config(name) + "--hardware h200");
        ASSERT_EQ(train.status, 0) << train.output;
        ASSERT_EQ(scale.status, 0) << scale.output;
        const std::size_t from = train.output.find("  parameters ");
        const std::size_t to = train.output.find("\n", train.output.find("  in all "));
        const std::string table = train.output.substr(from, to - from);
        EXPECT_NE(scale.output.find(table), std::string::npos) << table << "\n" << scale.output;
        EXPECT_NE(scale.output.find("fits: "), std::string::npos) << scale.output;
    }
}

TEST(ScaleTest, APlanThatDoesNotFitTellsByHowMuchAndWhatWould) {
    const Outcome plan =
        run_evenkeel("scale plan" + config("8b_8gpu") + "--set parallel.zero_stage=0");
    ASSERT_EQ(plan.status, 1) << plan.output;
    EXPECT_NE(plan.output.find("does not fit: "), std::string::npos) << plan.output;
    for (const char* line : {"step", "run "}) {
        const std::string start = concat("\n", line);
        const std::size_t at = plan.output.find(start);
        ASSERT_NE(at, std::string::npos) << plan.output;
        EXPECT_EQ(plan.output.find("(does not fit; for comparison)", at), at + 11) << plan.output;
    }
    EXPECT_NE(plan.output.find("parallel.zero_stage=1 fits: "), std::string::npos) << plan.output;
}

TEST(ScaleTest, TheBestLayoutOfASearchIsAPlanThatFitsAsWell) {
    const Json found = json_of("search" + config("8b_8gpu") + "--gpus 64");
    ASSERT_FALSE(found["layouts"].empty());
    const Json& best = found["layouts"][0];
    const Json& layout = best["layout"];
    const std::string zero = layout["cut"] == "optimizer" ? "1" : "0";
    const auto set = [](const char* path, const Json& value) {
        return " --set " + std::string(path) + "=" +
               (value.is_string() ? value.get<std::string>() : value.dump());
    };
    const Json plan = json_of(
        "plan" + config("8b_8gpu") + set("parallel.tensor_parallel", layout["tensor_parallel"]) +
        set("parallel.data_parallel", layout["data_parallel"]) +
        set("parallel.sequence_parallel", layout["sequence_parallel"]) +
        " --set parallel.zero_stage=" + zero + set("model.recompute", layout["recompute"]) +
        set("trainer.micro_batch_size", layout["micro_batch"]) +
        set("trainer.batch_size", layout["batch"]));
    EXPECT_EQ(plan["step"], best["step"]);
    EXPECT_EQ(plan["memory"]["bytes"], best["memory_bytes"]);
    EXPECT_EQ(plan["memory"]["fits"], true);
}

TEST(ScaleTest, ConfigurationsForGpusAreWhatASearchFinds) {
    for (const char* name : {"8b_8gpu", "8b_4nodes", "70b"}) {
        const Json plan = json_of("plan" + config(name)), found = json_of("search" + config(name));
        EXPECT_EQ(plan["layout"], found["layouts"][0]["layout"]) << name;
        EXPECT_EQ(plan["memory"]["fits"], true) << name;
    }
}

TEST(ScaleTest, ASearchWithoutOtherLayoutsSaysSoAndEndsWell) {
    const Outcome seven = run_evenkeel("scale search" + config("8b_8gpu") + "--gpus 7");
    EXPECT_EQ(seven.status, 0) << seven.output;
    EXPECT_NE(seven.output.find("\n  none: no other number divides 7 GPUs and those of a node\n"),
              std::string::npos)
        << seven.output;
    const Outcome large = run_evenkeel("scale search" + config("70b") + "--gpus 512");
    EXPECT_EQ(large.status, 0) << large.output;
    EXPECT_NE(large.output.find("tensor parallel 4: none fits, the smallest takes "),
              std::string::npos)
        << large.output;
}

TEST(ScaleTest, ASearchInWhichNothingFitsFails) {
    for (const char* json : {"", " --json"}) {
        const Outcome none = run_evenkeel("scale search" + config("405b") + "--gpus 64" + json);
        EXPECT_EQ(none.status, 1) << none.output;
        EXPECT_NE(none.output.find("search: none of "), std::string::npos) << none.output;
    }
}

// Over 50 GB/s to the host: all of 12 bytes a parameter, a half of them on two tensor-parallel ranks, or an eighth.
TEST(ScaleTest, ACheckpointStopsTrainingForTheCopyOfOneGpu) {
    // A layout that does not fit is planned too, with status 1.
    const auto stop = [](const std::string& settings) {
        const Outcome plan = run_evenkeel("scale plan" + config("8b_8gpu") + settings + " --json");
        return Json::parse(plan.output)["run"]["checkpoint_stop_seconds"].get<double>();
    };
    const double all = 12.0 * 8030425088.0 / 50e9;
    const std::string whole = "--set parallel.zero_stage=0 ";
    EXPECT_NEAR(stop(whole), all, 0.01 * all);
    EXPECT_NEAR(stop(whole + "--set parallel.tensor_parallel=2 --gpus 8"), all / 2.0, 0.01 * all);
    EXPECT_NEAR(stop(""), all / 8.0, 0.01 * all);
    // Storage takes 100 GB/s, and training waits.
    EXPECT_NEAR(stop("--set trainer.checkpoint_async=false"), all / 2.0, 0.01 * all);
}

TEST(ScaleTest, APlanSaysWhereItsCheckpointsIntervalComesFrom) {
    const auto expect = [](const std::string& settings, const char* text) {
        const Outcome plan = run_evenkeel("scale plan" + config("8b_8gpu") + settings);
        EXPECT_NE(plan.output.find(text), std::string::npos) << text << "\n" << plan.output;
    };
    expect("", " (trainer.checkpoint_interval=1000), ");
    expect("--set trainer.checkpoint_interval=0", " (Young's interval), ");
}

TEST(ScaleTest, AMeasuredNetworkIsNamedAndDoubted) {
    const TemporaryDirectory directory;
    const auto written = [&](const std::string& name, const std::string& more) {
        return directory.write(
            name, R"({"source": "four ranks", "node_gigabytes_per_second": 9)" + more + "}");
    };
    const std::string good = written("good.json", R"(, "device": "cuda", "error": 0.02)");
    const std::string bad = written("bad.json", R"(, "device": "cpu", "error": 0.783)");
    for (const char* command : {"plan", "search"}) {
        const std::string start = concat("scale ", command, config("8b_8gpu"), " --network ");
        const Outcome trusted = run_evenkeel(start + good), doubted = run_evenkeel(start + bad);
        EXPECT_NE(trusted.output.find(concat("network   ", good,
                                             ": four ranks; within a node 9 GB/s, between nodes "
                                             "as described\n")),
                  std::string::npos)
            << trusted.output;
        EXPECT_EQ(count_of("warning", trusted.output), 0) << trusted.output;
        EXPECT_NE(doubted.output.find("warning: measured between processes on CPUs"),
                  std::string::npos)
            << doubted.output;
        EXPECT_NE(doubted.output.find("warning: its fit is off by 78.3 % in the median"),
                  std::string::npos)
            << doubted.output;
        const Json json = json_of(concat(command, config("8b_8gpu"), " --network ", bad));
        EXPECT_EQ(json["network"]["file"], bad);
        EXPECT_EQ(json["network"]["doubts"].size(), 2u);
        EXPECT_TRUE(json_of(command + config("8b_8gpu"))["network"].is_null());
    }
}

TEST(ScaleTest, ASearchForTenThousandGpusGivesReasonsAndRunnersUp) {
    const Outcome large = run_evenkeel(
        "scale search" + config("405b") + "--gpus 10000 --batch 2500 --pipeline --tokens 15e12",
        10);
    ASSERT_EQ(large.status, 0) << large.output;
    for (const char* part : {"best      tensor parallel", "why ", "does not fit: ", "others ",
                             " slower", "evenkeel does not run", "15 trillion tokens: "}) {
        EXPECT_NE(large.output.find(part), std::string::npos) << part << "\n" << large.output;
    }
    const Outcome medium =
        run_evenkeel("scale search" + config("70b") + "--gpus 10000 --batch 2500", 10);
    ASSERT_EQ(medium.status, 0) << medium.output;
    EXPECT_NE(medium.output.find("evenkeel scale plan --config"), std::string::npos);
}

TEST(ScaleTest, ValidationPrintsEachRowAndTheMedian) {
    const Outcome table = run_evenkeel("scale validate");
    ASSERT_EQ(table.status, 0) << table.output;
    EXPECT_NE(table.output.find("Llama 3 405B on 16384"), std::string::npos) << table.output;
    EXPECT_NE(table.output.find("rows: median error"), std::string::npos) << table.output;
    const Json json = json_of("validate");
    EXPECT_LE(json["median_error"], 0.15);
    EXPECT_GE(json["rows"].size(), 12u);
}

TEST(ScaleTest, ADescriptionThatIsPrintedCanBeReadAgain) {
    const TemporaryDirectory directory;
    const Outcome list = run_evenkeel("scale hardware");
    EXPECT_NE(list.output.find("h100_500w"), std::string::npos) << list.output;
    const Outcome one = run_evenkeel("scale hardware h100");
    ASSERT_EQ(one.status, 0) << one.output;
    const std::string file = directory.write("mine.json", one.output);
    const Json own = json_of("plan" + config("8b_8gpu") + "--hardware " + file);
    const Json built_in = json_of("plan" + config("8b_8gpu") + "--hardware h100");
    EXPECT_EQ(own["step"], built_in["step"]);
    EXPECT_EQ(own["hardware"], "mine");
}

// The examples of documents: "$ evenkeel scale ..", and what follows it up to the end of the block.
TEST(ScaleTest, TheDocumentsShowWhatTheCommandsPrint) {
    const std::string start = "$ evenkeel ";
    int examples = 0;
    for (const char* document : {"/docs/scaling.md", "/docs/training_on_gpus.md"}) {
        std::ifstream file(std::string(EVENKEEL_SOURCE_DIR) + document);
        std::string line;
        while (std::getline(file, line)) {
            if (!line.starts_with(start)) continue;
            std::string shown, next;
            while (std::getline(file, next) && next != "```") shown += next + "\n";
            const Outcome outcome = run_command(
                "cd " EVENKEEL_SOURCE_DIR " && " EVENKEEL_PROGRAM " " + line.substr(start.size()));
            EXPECT_EQ(outcome.output, shown) << line;
            ++examples;
        }
    }
    EXPECT_GE(examples, 4);
}

TEST(ScaleTest, BadInputIsToldInOneSentence) {
    expect_complaint("plan" + config("8b_8gpu") + "--hardware h10", "did you mean h100?");
    expect_complaint("plan" + config("8b_8gpu") + "--gpus 0",
                     "--gpus: got 0, want a number of GPUs from 1 to");
    expect_complaint("plan" + config("8b_8gpu") + "--gpus -1", "--gpus: got -1");
    expect_complaint("plan" + config("8b_8gpu") + "--gpus 6 --set parallel.tensor_parallel=4",
                     "want a multiple of parallel.tensor_parallel, 4");
    expect_complaint("plan" + config("8b_8gpu") + "--set parallel.tensor_parallel=3",
                     "model.feed_forward_width: got 14336");
    expect_complaint("plan" + config("8b_8gpu") + "--gpus 12", "trainer.batch_size");
    expect_complaint("plan" + config("8b_8gpu") + "--tokens 0", "--tokens: got 0, want");
    expect_complaint("search" + config("8b_8gpu") + "--tokens nan", "--tokens: got nan, want");
    expect_complaint("plan" + config("8b_8gpu") + "--batch 0", "--batch: got 0, want 1 or more");
    expect_complaint("plan" + config("8b_8gpu") + "--batch 3",
                     "--batch: got 3, want a multiple of ");
    expect_complaint("plan --config nowhere.json", "nowhere.json");
    expect_complaint("plan" + config("8b_8gpu") + "--tokens 15T",
                     "--tokens: got 15T, want a number without a unit, such as 15e12");
    expect_complaint("plan" + config("8b_8gpu") + "--gpus 8k",
                     "--gpus: got 8k, want a number without a unit");
    expect_complaint("plan" + config("8b_8gpu") + "--hardware mine.json",
                     "hardware: got \"mine.json\", which does not exist, want one of ");
    expect_complaint("search" + config("405b") + "--gpus 7777", "no layout divides 7777 GPUs");
    expect_complaint("hardware b20", "did you mean b200?");
    expect_complaint("pln", "pln: no such command");
}

}  // namespace
}  // namespace evenkeel::testing
