#include "framework/cores.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <fstream>
#include <string>
#include <vector>

namespace evenkeel {
namespace {

TEST(CoresTest, AllowedCoresAreThoseOfTheAffinityMask) {
    cpu_set_t before;
    ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
    const std::vector<int> all = allowed_cores();
    ASSERT_EQ(static_cast<int>(all.size()), CPU_COUNT(&before));
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(all.back(), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    EXPECT_EQ(allowed_cores(), std::vector<int>{all.back()});
    ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
}

TEST(CoresTest, CacheShareIsAPartOfTheLastLevelCache) {
    std::ifstream size_file("/sys/devices/system/cpu/cpu" +
                            std::to_string(allowed_cores().front()) + "/cache/index3/size");
    std::int64_t kibibytes = 0;
    if (!(size_file >> kibibytes)) GTEST_SKIP() << "the system does not tell its caches";
    EXPECT_GT(cache_share(), 0);
    EXPECT_LE(cache_share(), kibibytes * 1024);
}

}  // namespace
}  // namespace evenkeel
