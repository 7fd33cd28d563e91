#include "tests/kernel_resources/dynamic_shared.h"

#include <gtest/gtest.h>

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
                                             {"forward", 96, 49152},
                                             {"capped forward", 96, 49152},
                                             {"backward prepare", 96, 36864},
                                             {"backward keys", 96, 132608},
                                             {"capped backward keys", 96, 132608},
                                             {"backward queries", 96, 61504},
                                             {"forward", 128, 65536},
                                             {"capped forward", 128, 65536},
                                             {"backward prepare", 128, 49152},
                                             {"backward keys", 128, 165376},
                                             {"capped backward keys", 128, 115456},
                                             {"backward queries", 128, 81984},
                                             {"forward", 256, 98304},
                                             {"capped forward", 256, 98304},
                                             {"backward prepare", 256, 98304},
                                             {"backward keys", 256, 140032},
                                             {"capped backward keys", 256, 140032},
                                             {"backward queries", 256, 163968}};
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

}  // namespace
}  // namespace kernel_resources
