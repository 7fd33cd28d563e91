// What the emulator counts of attention's kernels.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "tests/gpu_emulator/machine.h"

namespace evenkeel::testing {

// Of the kernels whose names contain `kernel`, since the last reset_counters(): there are `count`,
// no two lanes met in a bank, and global sectors exceed the bytes asked for by one part in `spare`
// at most.
inline void expect_no_bank_conflicts_and_whole_sectors(const std::string& kernel,
                                                       int count,
                                                       std::uint64_t spare) {
    int kernels = 0;
    for (const auto& [name, c] : gpu_emulator::counters()) {
        if (name.find(kernel) == std::string::npos) continue;
        ++kernels;
        EXPECT_GT(c.shared_requests, 0u);
        EXPECT_EQ(c.shared_wavefronts, c.shared_ideal) << name;
        for (const auto& [place, conflicts] : c.conflicts_at) {
            EXPECT_EQ(conflicts, 0u) << place;
        }
        EXPECT_LE(32 * c.global_sectors, c.global_bytes + c.global_bytes / spare) << name;
    }
    EXPECT_EQ(kernels, count);
}

}  // namespace evenkeel::testing
