// Retrofit under mpirun: the same gains at any number of ranks.
#include <gtest/gtest.h>

#include "framework/storage/safetensors.h"
#include "tests/launch/command_line.h"
#include "tests/support/compare.h"

namespace evenkeel::testing {
namespace {

// Two key heads, so that four ranks share them.
TEST(RetrofitRanksTest, GainsHaveTheSameBitsAtAnyNumberOfRanks) {
    const TinyRun tiny;
    ASSERT_EQ(run_evenkeel(tiny.train("--set model.method=plain --set model.type=fp32 "
                                      "--set data.validation_fraction=0.4 --set trainer.steps=30 "
                                      "--set schedule.peak_lr=2e-2 --set schedule.warmup_steps=5"))
                  .status,
              0);
    for (const char* gains : {"mean_rms", "kl_tied", "kl_untied"}) {
        std::string first;
        for (const int ranks : {1, 2, 4}) {
            const std::string out = tiny.directory.file(concat(gains, ranks));
            const Outcome outcome = run_command(concat(
                "OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
                "OMPI_MCA_rmaps_base_oversubscribe=1 ",
                EVENKEEL_MPIEXEC, " -np ", ranks, " ", EVENKEEL_PROGRAM,
                " retrofit --tokens 512 --anneal 5 --gains ", gains, " --model ", tiny.run,
                " --out ", out));
            ASSERT_EQ(outcome.status, 0) << outcome.output;
            EXPECT_EQ(count_of("written     ", outcome.output), 1) << outcome.output;
            EXPECT_EQ(count_of(concat("mpirun -np ", ranks, " evenkeel train"), outcome.output),
                      ranks > 1 ? 2 : 0)
                << outcome.output;
            const std::string file = out + "/checkpoints/step_00000000/model.safetensors";
            if (first.empty()) {
                first = file;
                continue;
            }
            const SafetensorsReader want(first), got(file);
            for (const TensorInfo& info : want.tensors()) {
                if (!info.name.ends_with("_gain")) continue;
                const Tensor a = want.read(info.name), b = got.read(info.name);
                EXPECT_TRUE(same_bits(a, b))
                    << info.name << " with " << ranks << " ranks, " << gains;
            }
        }
    }
}

}  // namespace
}  // namespace evenkeel::testing
