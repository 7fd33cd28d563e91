#include "tests/kernel_resources/dynamic_shared.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace kernel_resources {

static void PrintTo(const DynamicShared& shared, std::ostream* out) {
    *out << shared.kernel << " D=" << shared.head_dim << ": " << shared.bytes;
}

namespace {

TEST(DynamicSharedMemory, OfAttentionIsAsListed) {
    const std::vector<DynamicShared> want = {{"forward", 64, 49152},
                                             {"capped forward", 64, 32768},
                                             {"backward prepare", 64, 24576},
                                             {"backward keys", 64, 99840},
                                             {"capped backward keys", 64, 99840},
                                             {"backward queries", 64, 49216},
                                             {"fp32 forward", 64, 21504},
                                             {"fp32 backward", 64, 25600},
                                             {"forward", 96, 49152},
                                             {"capped forward", 96, 49152},
                                             {"backward prepare", 96, 36864},
                                             {"backward keys", 96, 132608},
                                             {"capped backward keys", 96, 132608},
                                             {"backward queries", 96, 61504},
                                             {"fp32 forward", 96, 31744},
                                             {"fp32 backward", 96, 37888},
                                             {"forward", 128, 65536},
                                             {"capped forward", 128, 65536},
                                             {"backward prepare", 128, 49152},
                                             {"backward keys", 128, 165376},
                                             {"capped backward keys", 128, 115456},
                                             {"backward queries", 128, 81984},
                                             {"fp32 forward", 128, 41984},
                                             {"fp32 backward", 128, 50176},
                                             {"forward", 256, 98304},
                                             {"capped forward", 256, 98304},
                                             {"backward prepare", 256, 98304},
                                             {"backward keys", 256, 140032},
                                             {"capped backward keys", 256, 140032},
                                             {"backward queries", 256, 163968},
                                             {"fp32 forward", 256, 82944},
                                             {"fp32 backward", 256, 99328}};
    EXPECT_EQ(attention_dynamic_shared(), want);
}

// A multiprocessor of sm_80 has 164 KiB, of which each block costs 1 KiB more than it asks for.
TEST(DynamicSharedMemory, FitsTheBlocksThatKernelsAreMeantToHaveOnAMultiprocessor) {
    for (const DynamicShared& shared : attention_dynamic_shared()) {
        const bool alone = shared.kernel.ends_with("backward keys") || shared.head_dim == 256;
        EXPECT_LE((alone ? 1 : 2) * (shared.bytes + 1024), 164 * 1024)
            << shared.kernel << " D=" << shared.head_dim;
    }
}

// On sm_86 and sm_89 a block may have 99 KiB: enough for heads of 64, and in fp32 for all. The others are refused
// there when backward starts; docs/training_on_gpus.md says so.
TEST(DynamicSharedMemory, FitsSmallerMultiprocessorsInFp32AndWithTheNarrowestHeads) {
    std::map<int, int> most;
    for (const DynamicShared& shared : attention_dynamic_shared()) {
        if (shared.kernel.starts_with("fp32")) {
            EXPECT_LE(shared.bytes, 99 * 1024) << shared.kernel << " D=" << shared.head_dim;
        } else {
            most[shared.head_dim] = std::max(most[shared.head_dim], shared.bytes);
        }
    }
    for (const auto& [head_dim, bytes] : most) {
        EXPECT_EQ(bytes <= 99 * 1024, head_dim == 64) << "D=" << head_dim << ": " << bytes;
    }
}

}  // namespace
}  // namespace kernel_resources
