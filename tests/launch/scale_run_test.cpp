// evenkeel scale run: points of a plan, on ranks of mpirun or through a stand-in for Slurm.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "framework/json.h"
#include "framework/storage/checkpoint.h"
#include "launch/report.h"
#include "tests/launch/command_line.h"

namespace evenkeel::testing {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class ScaleRunTest : public ::testing::Test {
  protected:
    std::string plan(const std::string& more) {
        return tiny_.directory.write("plan.json",
                                     R"({"config": ")" + tiny_.config +
                                         R"(", "batch": 4, "steps": 3,
            "warmup_steps": 1, "measure_network": false, "mpirun": ")" EVENKEEL_MPIEXEC
                                         R"( --oversubscribe --bind-to none", "attempts": 1)" +
                                         more + "}");
    }
    Outcome run(const std::string& more, const std::string& arguments = "") {
        return run_command("PATH=" + tiny_.directory.file("bin") +
                               ":$PATH OMPI_ALLOW_RUN_AS_ROOT=1 "
                               "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 " EVENKEEL_PROGRAM " scale run " +
                               plan(more) + " --out " + out_ + " " + arguments,
                           110);
    }
    Json point(const std::string& key) const {
        return Json::parse(read_file(out_ + "/points/config_s32_" + key + ".json"));
    }
    // In the order that it was written in, of which there is a hash.
    void change(const std::string& key,
                const std::function<void(nlohmann::ordered_json&)>& edit) const {
        auto json =
            nlohmann::ordered_json::parse(read_file(out_ + "/points/config_s32_" + key + ".json"));
        edit(json);
        std::ofstream(out_ + "/points/config_s32_" + key + ".json") << json.dump();
    }
    // A program on the PATH.
    void stand_in(const std::string& name, const std::string& script) const {
        fs::create_directories(tiny_.directory.file("bin"));
        const std::string file = tiny_.directory.file("bin") + "/" + name;
        std::ofstream(file) << "#!/usr/bin/env bash\n" << script;
        fs::permissions(file, fs::perms::owner_all);
    }
    void expect_refused(const std::string& more,
                        const std::string& text,
                        const std::string& arguments = "") {
        const Outcome outcome = run(more, arguments);
        EXPECT_EQ(outcome.status, 2) << more << "\n" << outcome.output;
        EXPECT_EQ(count_of(text, outcome.output), 1) << text << "\n" << outcome.output;
        EXPECT_EQ(count_of("\n", outcome.output), 1) << outcome.output;
        EXPECT_FALSE(fs::exists(out_)) << more;
    }

    TinyRun tiny_;
    std::string out_ = tiny_.directory.file("study");
};

TEST_F(ScaleRunTest, MeasuresOneAndTwoRanksAndGoesOnWhereItWas) {
    const std::string plan = R"(, "ranks": "1,2", "tensor_parallel": "1,2")";
    const Outcome first = run(plan);
    ASSERT_EQ(first.status, 0) << first.output;
    const Json one = point("tp1_r1")["result"];
    for (const char* key : {"tp1_r1", "tp1_r2", "tp2_r2"}) {
        const Json json = point(key);
        ASSERT_TRUE(json["failure"].is_null()) << json;
        const Json& result = json["result"];
        EXPECT_EQ(result["tokens"], 128) << key;
        ASSERT_EQ(result["losses"].size(), 3u);
        for (std::size_t i = 0; i < 3; ++i) {
            const double loss = one["losses"][i];
            EXPECT_NEAR(result["losses"][i].get<double>(), loss, 5e-3 * loss) << key << " " << i;
        }
        const double seconds = result["step_seconds"]["median"];
        EXPECT_NEAR(result["tokens_per_second"].get<double>() * seconds, 128.0, 1e-6);
        double exposed = 0.0;
        for (const Json& part : result["communication"]) {
            EXPECT_EQ(part["group"], std::string(key) == "tp1_r2" ? "data" : "tensor") << part;
            exposed += part["exposed_seconds"].get<double>();
        }
        EXPECT_EQ(exposed > 0.0, std::string(key) != "tp1_r1") << key;
        EXPECT_NEAR(result["computing_seconds"].get<double>() + exposed, seconds, 1e-9) << key;
        EXPECT_GT(result["peak_memory_bytes"], 0);
        EXPECT_GT(result["rates"]["yardstick_flops"], 0.0);
    }
    const std::string csv = read_file(out_ + "/results.csv");
    EXPECT_EQ(count_of("\n", csv), 4) << csv;
    EXPECT_EQ(count_of(",ok,", csv), 3) << csv;

    fs::remove(out_ + "/points/config_s32_tp2_r2.json");
    const Outcome second = run(plan);
    EXPECT_EQ(second.status, 0) << second.output;
    EXPECT_NE(second.output.find("2 of 3 points were there already"), std::string::npos)
        << second.output;
    EXPECT_EQ(point("tp1_r1")["result"], one) << "measured again";

    const Outcome other = run(plan + R"(, "settings": "trainer.seed=9")");
    EXPECT_EQ(other.status, 2) << other.output;
    EXPECT_NE(other.output.find("was measured with other settings: config.trainer.seed: got 9"),
              std::string::npos)
        << other.output;
}

TEST_F(ScaleRunTest, APointThatFailsIsKeptAndOthersGoOn) {
    // One rank finds its text; two look for another one.
    stand_in("half",
             "case \" $* \" in *\" -np 2 \"*) echo \"[train] no text for two\"; exit 1 ;; "
             "esac\nexec " EVENKEEL_MPIEXEC " --oversubscribe --bind-to none \"$@\"\n");
    const std::string file =
        tiny_.directory.write("half.json", R"({"config": ")" + tiny_.config + R"(", "batch": 4,
        "steps": 3, "measure_network": false, "ranks": "2,1", "mpirun": "half", "attempts": 2})");
    const auto again = [&] {
        return run_command("PATH=" + tiny_.directory.file("bin") +
                               ":$PATH OMPI_ALLOW_RUN_AS_ROOT=1 "
                               "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 " EVENKEEL_PROGRAM " scale run " +
                               file + " --out " + out_,
                           110);
    };
    const Outcome outcome = again();
    EXPECT_EQ(outcome.status, 1) << outcome.output;
    const Json failed = point("tp1_r2");
    EXPECT_EQ(failed["failure"], "exit status 1: [train] no text for two") << failed;
    EXPECT_EQ(failed["attempts"], 2);
    EXPECT_TRUE(failed["result"].is_null());
    EXPECT_TRUE(point("tp1_r1")["failure"].is_null());
    const std::string csv = read_file(out_ + "/results.csv");
    EXPECT_NE(csv.find("config_s32_tp1_r2,failed,2,1,2,"), std::string::npos) << csv;

    // Failed points are tried again.
    stand_in("half", "exec " EVENKEEL_MPIEXEC " --oversubscribe --bind-to none \"$@\"\n");
    const Outcome second = again();
    EXPECT_EQ(second.status, 0) << second.output;
    EXPECT_TRUE(point("tp1_r2")["failure"].is_null());
}

TEST_F(ScaleRunTest, APointThatTakesTooLongIsEnded) {
    stand_in("slow", "trap 'echo \"[slow] was ended\"; exit 1' TERM\nsleep 60 &\nwait\n");
    const Outcome outcome =
        run(R"(, "ranks": "1")", "--set mpirun=slow --set timeout_minutes=0.01");
    EXPECT_EQ(outcome.status, 1) << outcome.output;
    EXPECT_EQ(point("tp1_r1")["failure"],
              "not done within timeout_minutes = 0.01: [slow] was ended");
}

TEST_F(ScaleRunTest, LossesThatDifferAreFlagged) {
    const std::string plan = R"(, "ranks": "1,2")";
    ASSERT_EQ(run(plan).status, 0);
    change("tp1_r2", [](auto& json) {
        json["result"]["losses"][1] = 1.02 * json["result"]["losses"][1].template get<double>();
    });
    const Outcome report = run_evenkeel("scale report " + out_);
    EXPECT_EQ(report.status, 1) << report.output;
    EXPECT_NE(report.output.find("point config_s32_tp1_r2 is wrong: its losses differ from those "
                                 "of config_s32_tp1_r1 by 0.02"),
              std::string::npos)
        << report.output;
    EXPECT_NE(read_file(out_ + "/results.csv").find("config_s32_tp1_r2,wrong,"), std::string::npos);
}

TEST_F(ScaleRunTest, ResultsThatNoPointHasWrittenAreRefused) {
    ASSERT_EQ(run(R"(, "ranks": "1")").status, 0);
    nlohmann::ordered_json right;
    change("tp1_r1", [&](auto& json) { right = json; });
    const auto refused = [&](const std::function<void(nlohmann::ordered_json&)>& edit,
                             const std::string& words) {
        change("tp1_r1", edit);
        const Outcome outcome = run_evenkeel("scale report " + out_);
        EXPECT_EQ(outcome.status, 1) << outcome.output;
        EXPECT_NE(outcome.output.find(words), std::string::npos) << words << outcome.output;
        change("tp1_r1", [&](auto& json) { json = right; });
    };
    refused([](auto& json) { json["result"]["losses"] = nlohmann::ordered_json::array(); },
            "not what a point");
    refused([](auto& json) { json["result"]["losses"].push_back(1.0); }, "not what a point");
    refused([](auto& json) { json["result"]["nodes"] = 0; }, "not what a point");
    refused([](auto& json) { json["result"]["step_seconds"]["median"] = 0; }, "not what a point");
    refused([](auto& json) { json["settings"]["config"]["parallel"]["tensor_parallel"] = 0; },
            "settings are not those that were measured");
    refused([](auto& json) { json["key"] = "../../evil"; }, "another point's");
    EXPECT_EQ(run_evenkeel("scale report " + out_).status, 0);
}

// sbatch writes down how it is called and runs the script as a job of a queue in which nothing waits.
constexpr const char* kSbatch = R"(
here=$(dirname "$0")
echo "sbatch $*" >>"$here/calls"
echo "sbatch: info: a note of the site" >&2
[ ! -e "$here/refuse" ] || { echo "sbatch: error: invalid account" >&2; exit 1; }
for word in "$@"; do case $word in --output=*) log=${word#--output=} ;; --ntasks-per-node=*) ranks=${word#*=} ;; esac; done
while [[ $1 == --* ]]; do shift; done
id=$((100 + $(grep -c '^sbatch' "$here/calls")))
echo RUNNING >"$here/$id"
(
    export SLURM_JOB_ID=$id RANKS=$ranks
    if bash "$@" >"$log" 2>&1; then echo COMPLETED >"$here/$id"; else echo FAILED >"$here/$id"; fi
) >/dev/null 2>&1 &
echo "$id"
)";

TEST_F(ScaleRunTest, SubmitsPointsThroughSlurm) {
    stand_in("sbatch", kSbatch);
    stand_in("srun", "while [[ $1 == --* ]]; do shift; done\nexec " EVENKEEL_MPIEXEC
                     " --oversubscribe --bind-to none -np \"$RANKS\" \"$@\"\n");
    // Jobs that are over are not in the queue.
    stand_in("squeue",
             "state=$(cat \"$(dirname \"$0\")/$3\")\n"
             "[ \"$state\" = RUNNING ] || { echo 'slurm_load_jobs error: Invalid job id "
             "specified' >&2; exit 1; }\necho \"$state\"\n");
    stand_in("sacct", "cat \"$(dirname \"$0\")/$5\"\n");
    const std::string slurm =
        R"(, "ranks": "1,2", "launcher": "slurm", "sbatch": "--partition=a", "script": ")" EVENKEEL_SOURCE_DIR
        R"(/launch/slurm.sbatch")";
    const Outcome outcome = run(slurm);
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    EXPECT_TRUE(point("tp1_r1")["failure"].is_null());
    EXPECT_TRUE(point("tp1_r2")["failure"].is_null());
    const std::string calls = read_file(tiny_.directory.file("bin") + "/calls");
    EXPECT_EQ(count_of("sbatch --parsable --no-requeue", calls), 2) << calls;
    EXPECT_EQ(count_of("--nodes=1 --ntasks-per-node=2 --gpus-per-node=0", calls), 1) << calls;
    EXPECT_EQ(count_of("--partition=a", calls), 2) << calls;

    // A study that was ended takes over the job that it has left, and what that has measured.
    const Json before = point("tp1_r1");
    const std::string name = out_ + "/points/config_s32_tp1_r1";
    std::ofstream(name + ".measured") << before["result"];
    std::ofstream(name + ".job") << "101 " << before["settings_hash"].get<std::string>() << "\n";
    fs::remove(name + ".json");
    const Outcome taken = run(slurm);
    ASSERT_EQ(taken.status, 0) << taken.output;
    EXPECT_EQ(point("tp1_r1")["result"], before["result"]) << "measured again";
    EXPECT_EQ(count_of("sbatch --parsable", read_file(tiny_.directory.file("bin") + "/calls")), 2);
    EXPECT_FALSE(fs::exists(name + ".job"));

    // What refuses a job says why; what is there stays.
    std::ofstream(tiny_.directory.file("bin") + "/refuse") << "";
    const Outcome more = run(slurm + R"(, "ranks": "1,2,4")");
    EXPECT_EQ(more.status, 2) << "a key that is there twice: " << more.output;
    const Outcome refused = run(slurm, "--set ranks=1,2,4");
    EXPECT_EQ(refused.status, 1) << refused.output;
    EXPECT_NE(point("tp1_r4")["failure"].get<std::string>().find(
                  "sbatch refused the job: sbatch: info: a note of the site; sbatch: error: "
                  "invalid account"),
              std::string::npos);
    EXPECT_TRUE(point("tp1_r2")["failure"].is_null());
}

TEST_F(ScaleRunTest, WeakScalingGivesEachRankItsSequences) {
    const Outcome list = run(R"(, "ranks": "1,2,8", "tensor_parallel": "1,2")",
                             "--set scaling=weak --set batch=3 --list");
    ASSERT_EQ(list.status, 0) << list.output;
    EXPECT_NE(list.output.find("config_s32_tp2_r8  tensor parallel 2 x data parallel 4, 3 x 2 "
                               "sequences of 32 a rank, 24 in all"),
              std::string::npos)
        << list.output;
    EXPECT_EQ(count_of("\n", list.output), 5) << list.output;
    EXPECT_FALSE(fs::exists(out_));
}

TEST_F(ScaleRunTest, BadInputIsToldInOneSentence) {
    expect_refused(R"(, "rank": "1")", "did you mean ranks?");
    expect_refused("", "ranks: got \"0\", want whole numbers from 1", "--set ranks=1,0");
    expect_refused("", "ranks: got \"nan\", want", "--set ranks=nan");
    expect_refused("", "ranks: got \"-2\", want", "--set ranks=-2");
    expect_refused("", "ranks: got \"99999999999999999999\", want",
                   "--set ranks=99999999999999999999");
    expect_refused("", "ranks: got none", "--set ranks=,");
    expect_refused("", "ranks: got 3, want at least one multiple of a tensor_parallel of 2",
                   "--set ranks=3 --set tensor_parallel=2");
    expect_refused("", "none of 1 points can be run; config_s32_tp1_r3: 4 sequences a step",
                   "--set ranks=3");
    expect_refused("", "model.attention.num_heads", "--set ranks=8 --set tensor_parallel=8");
    expect_refused("", "settings: got trainer.steps=9, which the plan decides",
                   "--set settings=trainer.steps=9");
    expect_refused("", "hardware: got \"h10\", want one of ", "--set hardware=h10");
    expect_refused("", "warmup_steps: got 3, want 0 to 2", "--set warmup_steps=3");
    const Outcome none =
        run("", "--set settings=trainer.micro_batch_size=0 --set ranks=1,3 --list");
    EXPECT_EQ(none.status, 0) << none.output;
    EXPECT_EQ(count_of("\n", none.output), 2) << none.output;
    expect_refused("", "trainer.seq_len: got 64", "--set seq_len=64");
    expect_refused("", "nowhere.json", "--set config=nowhere.json");
    for (const char* words : {"scale run nowhere.json", "scale run .", "scale report nowhere"}) {
        const Outcome outcome = run_evenkeel(words);
        EXPECT_NE(outcome.status, 0) << words;
        EXPECT_EQ(count_of("\n", outcome.output), 1) << outcome.output;
    }
}

TEST_F(ScaleRunTest, AReportDrawsAllOfItsPlots) {
    if (run_command("command -v chromium").status != 0 || find_vega().empty()) {
        GTEST_SKIP() << "needs chromium and libjs-vega";
    }
    ASSERT_EQ(run(R"(, "ranks": "1,2", "tensor_parallel": "1,2")").status, 0);
    const Outcome page = open_page(tiny_.directory, out_ + "/report.html");
    EXPECT_EQ(count_of("data-state=\"drawn\"", page.output),
              count_of("data-state=\"waiting\"", read_file(out_ + "/report.html")))
        << page.output.substr(0, 4000);
    EXPECT_EQ(count_of("data-state=\"error\"", page.output), 0);
    for (const char* words : {"Speed-up", "Efficiency", "MFU", "Where a step", "tensor-parallel"}) {
        EXPECT_NE(page.output.find(words), std::string::npos) << words;
    }
}

// The committed plans ask for points that can be run.
TEST(ScalePlansTest, CommittedPlansListTheirPoints) {
    for (const char* name : {"scaling_two_cores", "scaling_weak", "scaling_strong"}) {
        const Outcome list =
            run_command("cd " EVENKEEL_SOURCE_DIR " && " EVENKEEL_PROGRAM " scale run configs/" +
                        std::string(name) + ".json --list");
        EXPECT_EQ(list.status, 0) << list.output;
        EXPECT_EQ(count_of("cannot be run", list.output), 0) << list.output;
        EXPECT_GE(count_of("\n", list.output), 7) << list.output;
    }
}

}  // namespace
}  // namespace evenkeel::testing
