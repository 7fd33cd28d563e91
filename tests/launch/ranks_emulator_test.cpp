// The program under mpirun, a GPU a rank, against the same runs on CPUs.
#include <gtest/gtest.h>

#include <algorithm>

#include "framework/json.h"
#include "framework/training/metrics.h"
#include "tests/launch/command_line.h"

namespace evenkeel::testing {
namespace {

Outcome run_ranks(int ranks, int gpus, const std::string& arguments) {
    return run_command(
        concat("OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
               "OMPI_MCA_rmaps_base_oversubscribe=1 EVENKEEL_EMULATED_GPUS=",
               gpus, " " EVENKEEL_MPIEXEC " -np ", ranks, " " EVENKEEL_PROGRAM " ", arguments));
}

// What GPUs take, and two tensor-parallel ranks. Stopped early, a run writes no sample, which takes an emulated
// GPU long.
constexpr const char* kModel =
    "--set model.type=bf16 --set model.attention.head_dim=64 --set model.num_layers=1 "
    "--set trainer.steps=6 --set trainer.stop_at_step=5 "
    "--set trainer.batch_size=4 --set trainer.micro_batch_size=2 ";

double scalar(const MetricRecord& record, const std::string& name) {
    for (const auto& [key, value] : record.scalars) {
        if (key == name) return value;
    }
    ADD_FAILURE() << "step " << record.step << " has no " << name;
    return 0.0;
}

// Each loss of one run within a rounding of bf16 of the other's.
void expect_same_losses(const std::string& run, const std::string& other) {
    const auto a = read_metrics(run + "/metrics.jsonl"), b = read_metrics(other + "/metrics.jsonl");
    ASSERT_EQ(a.size(), 5u);
    ASSERT_EQ(b.size(), 5u);
    for (std::size_t i = 0; i < a.size(); ++i) {
        const double want = scalar(b[i], "loss");
        EXPECT_NEAR(scalar(a[i], "loss"), want, want / 256.0) << "step " << i + 1;
    }
}

// evenkeel bench step, timed as it is on a GPU: five steps that warm up, the last of them by graphs, and one more.
TEST(BenchStepOnGpus, TakesTheStepsThatTheCpuTakes) {
    const TinyRun tiny;
    const auto losses = [&](const std::string& more) {
        const Outcome outcome =
            run_ranks(1, 1, concat("bench step --json --config ", tiny.config, " ", kModel, more));
        EXPECT_EQ(outcome.status, 0) << outcome.output;
        const auto result = nlohmann::json::parse(
            outcome.output.substr(std::min(outcome.output.find('{'), outcome.output.size())),
            nullptr, false);
        EXPECT_GT(result.value("peak_bytes", 0.0), 0.0);
        EXPECT_GT(result.value("tflops_per_rank", 0.0), 0.0);
        return result.value("losses", std::vector<double>());
    };
    const std::vector<double> gpu = losses("--set device=cuda --seconds 0"),
                              cpu = losses("--steps 5");
    ASSERT_EQ(gpu.size(), 6u);
    ASSERT_EQ(cpu.size(), 6u);
    for (std::size_t i = 0; i < cpu.size(); ++i) EXPECT_NEAR(gpu[i], cpu[i], cpu[i] / 256.0) << i;
}

class RanksOnGpus : public ::testing::TestWithParam<int> {};

TEST_P(RanksOnGpus, TrainAsCpusDoAndShareTheirCheckpoints) {
    const int tensor_parallel = GetParam();
    const TinyRun tiny;
    const std::string settings =
        concat(kModel, "--set parallel.tensor_parallel=", tensor_parallel, " ");
    const auto train = [&](const std::string& run, const std::string& more) {
        const Outcome outcome =
            run_ranks(2, 2, tiny.train(settings + "--set trainer.run_dir=" + run + " " + more));
        EXPECT_EQ(outcome.status, 0) << outcome.output;
        return outcome.output;
    };
    const std::string cpu = tiny.directory.file("cpu"), gpu = tiny.directory.file("gpu");
    train(cpu, "--set trainer.checkpoint_interval=3");
    const std::string output = train(gpu, "--set device=cuda --set trainer.checkpoint_interval=3");
    EXPECT_NE(output.find("memory  planned for each rank"), std::string::npos) << output;
    EXPECT_NE(output.find("  waits "), std::string::npos) << "no exposed communication: " << output;
    expect_same_losses(gpu, cpu);

    // Each goes on from the other's third step, on one rank.
    for (const auto& [from, device] : {std::pair{cpu, "cuda"}, std::pair{gpu, "cpu"}}) {
        ASSERT_EQ(run_command("rm -r " + from + "/checkpoints/step_00000005").status, 0);
        const Outcome resumed =
            run_ranks(1, 1,
                      tiny.train(concat(kModel, "--set trainer.resume=true --set device=", device,
                                        " --set trainer.run_dir=", from)));
        EXPECT_EQ(resumed.status, 0) << resumed.output;
        EXPECT_NE(resumed.output.find("resuming from"), std::string::npos) << resumed.output;
    }
    expect_same_losses(cpu, gpu);
    const Outcome eval = run_ranks(1, 1, "eval " + gpu + " --set device=cuda");
    EXPECT_EQ(eval.status, 0) << eval.output;
}

INSTANTIATE_TEST_SUITE_P(, RanksOnGpus, ::testing::Values(2, 1), [](const auto& info) {
    return info.param == 2 ? "TensorParallel" : "DataParallel";
});

// What two ranks train in fp32 is what CPUs train, is evaluated on GPUs, gets a norm, and goes on with it on GPUs.
TEST(RanksOnGpusInFp32, TrainEvaluateAndGoOnWithARetrofit) {
    const TinyRun tiny;
    const std::string settings = concat(
        kModel, "--set model.type=fp32 --set model.method=plain --set trainer.stop_at_step=2 ",
        "--set trainer.batch_size=2 --set trainer.micro_batch_size=1 ",
        "--set parallel.tensor_parallel=2 ");
    const auto run = [](const std::string& arguments) {
        const Outcome outcome = run_ranks(2, 2, arguments);
        EXPECT_EQ(outcome.status, 0) << outcome.output;
        return outcome.output;
    };
    const std::string cpu = tiny.directory.file("cpu"), gpu = tiny.directory.file("gpu");
    run(tiny.train(settings + "--set trainer.run_dir=" + cpu));
    run(tiny.train(settings + "--set device=cuda --set trainer.run_dir=" + gpu));
    const auto want = read_metrics(cpu + "/metrics.jsonl"),
               got = read_metrics(gpu + "/metrics.jsonl");
    ASSERT_EQ(want.size(), 2u);
    ASSERT_EQ(got.size(), 2u);
    for (std::size_t i = 0; i < want.size(); ++i) {
        const double loss = scalar(want[i], "loss");
        EXPECT_NEAR(scalar(got[i], "loss"), loss, (i == 0 ? 1e-6 : 1e-4) * loss) << i + 1;
    }

    const auto evaluated = [&](const std::string& device) {
        const std::string words = run("eval " + gpu + " --set device=" + device);
        const std::size_t at = words.find("validation loss  ");
        EXPECT_NE(at, std::string::npos) << words;
        return at == std::string::npos ? 0.0 : std::stod(words.substr(at + 17));
    };
    const double on_cpus = evaluated("cpu");
    EXPECT_GT(on_cpus, 1.0);
    EXPECT_NEAR(evaluated("cuda"), on_cpus, 1.5e-4) << "printed with four digits";

    const std::string normed = tiny.directory.file("normed");
    run("retrofit --tokens 64 --anneal 2 --model " + gpu + " --out " + normed);
    const std::string output = run("train --config " + normed +
                                   "/config.json --set trainer.steps=3 "
                                   "--set trainer.stop_at_step=1");
    EXPECT_NE(output.find("(tensor parallel 2 x data parallel 1), one Emulated GPU each"),
              std::string::npos)
        << output;
    EXPECT_NE(output.find("step 1/3  loss "), std::string::npos) << output;
}

TEST(RanksOnOneGpu, AreToldToStageOrTakeFewer) {
    const TinyRun tiny;
    const std::string settings =
        concat(kModel, "--set device=cuda --set parallel.tensor_parallel=2 ");
    const Outcome refused = run_ranks(2, 1, tiny.train(settings));
    EXPECT_EQ(refused.status, 1) << refused.output;
    EXPECT_NE(
        refused.output.find("NCCL needs one GPU for each rank; parallel.communication=staged"),
        std::string::npos)
        << refused.output;
    const Outcome staged = run_ranks(
        2, 1,
        tiny.train(settings + "--set parallel.communication=staged --set trainer.stop_at_step=2"));
    EXPECT_EQ(staged.status, 0) << staged.output;
}

}  // namespace
}  // namespace evenkeel::testing
