// evenkeel study retrofit on a rig that trains in a fraction of a second: every point, and what is made of them.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "framework/json.h"
#include "framework/storage/checkpoint.h"
#include "tests/launch/command_line.h"

namespace evenkeel {
namespace {

using Json = nlohmann::json;
using testing::Outcome;
using testing::run_evenkeel;

constexpr double kBound = 1.5;

class RetrofitStudyTest : public ::testing::Test {
  protected:
    std::string command(const std::string& more = "") const {
        return concat("study retrofit --out ", out_, " --set text=", tiny_.text,
                      " --set batch=2 --set seq_len=16 --set width=32 --set layers=2 --set heads=4"
                      " --set kv_heads=2 --set eval_sequences=4 --set calibration=4"
                      " --set cool_steps=5 --set hot_steps=5 --set fine_steps=4 --set rewarm=2"
                      " --set anneal=2 --set eval_interval=1 --set gains_steps=2"
                      " --set long_steps=10 --set bound=",
                      kBound, " ", more);
    }
    Json point(const std::string& key) const {
        return Json::parse(read_file(concat(out_, "/points/", key, ".json")));
    }
    static const Json& row_of(const Json& table, const std::string& gains) {
        for (const Json& row : table) {
            if (row.at("gains") == gains) return row;
        }
        throw std::runtime_error("no row of " + gains);
    }

    testing::TinyRun tiny_;
    std::string out_ = tiny_.directory.file("retrofit");
};

TEST_F(RetrofitStudyTest, MeasuresGainsAndHowTrainingGoesOn) {
    const Outcome outcome = run_evenkeel(command(), 110);
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    const Json results = Json::parse(read_file(out_ + "/results.json"));
    const Json& tables = results.at("tables");
    EXPECT_EQ(results.at("findings").size(), 5u) << results.at("findings").dump(2);
    for (const std::string model : {"cool", "hot"}) {
        const Json& gains = tables.at(model + "_gains");
        ASSERT_EQ(gains.size(), 6u);
        const double plain = point(model + "_gains").at("numbers").at("loss");
        for (const char* name : {"ones", "mean_rms", "kl_tied", "kl_untied"}) {
            const Json& row = row_of(gains, name);
            const double loss = point(model + "_gains").at("numbers").at(concat(name, ".loss"));
            EXPECT_NEAR(row.at("loss_jump").get<double>(), loss - plain, 1e-9) << name;
            EXPECT_LE(row.at("max_logit").get<double>(), 1.0001 * row.at("bound").get<double>())
                << name;
            EXPECT_GE(row.at("kl_worst").get<double>(), row.at("kl").get<double>()) << name;
        }
        EXPECT_TRUE(row_of(gains, "mean_rms").at("alone").is_number());

        const Json& recovery = tables.at(model + "_recovery");
        ASSERT_EQ(recovery.size(), 6u);
        for (const char* name : {"control", "ones", "annealed"}) {
            const Json run = point(concat(model, "_", name)).at("curves").at("validation");
            const Json control = point(model + "_control").at("curves").at("validation");
            ASSERT_EQ(run.size(), 4u);
            EXPECT_NEAR(row_of(recovery, name).at("step_4").get<double>(),
                        run[3][1].get<double>() - control[3][1].get<double>(), 1e-9)
                << name;
        }
    }
    const Json& far = tables.at("hot_far");
    EXPECT_LE(row_of(far, "far_bounded").at("max_logit").get<double>(), kBound * 1.0001);
    EXPECT_LE(row_of(far, "far_bounded").at("bound").get<double>(), kBound * 1.0001);
    EXPECT_FALSE(std::filesystem::exists(out_ + "/runs/hot_far_bounded")) << "files left over";

    const Outcome again = run_evenkeel(command(), 110);
    ASSERT_EQ(again.status, 0) << again.output;
    EXPECT_EQ(Json::parse(read_file(out_ + "/results.json")), results) << "nothing computed again";
}

TEST_F(RetrofitStudyTest, RefusesWhatHasNoMeaning) {
    const struct {
        const char *settings, *word;
    } cases[] = {{"--set cool_steps=0", "cool_steps: got 0"},
                 {"--set bound=0", "bound: got 0"},
                 {"--set calibration=1", "calibration: got 1"},
                 {"--set text=/nowhere", "/nowhere"},
                 {"--point warm", "--point: got warm"}};
    for (const auto& [settings, word] : cases) {
        const Outcome outcome = run_evenkeel(command(settings));
        EXPECT_EQ(outcome.status, 2) << settings << ": " << outcome.output;
        EXPECT_NE(outcome.output.find(word), std::string::npos) << outcome.output;
    }
}

}  // namespace
}  // namespace evenkeel
