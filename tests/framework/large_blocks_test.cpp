#include "framework/large_blocks.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace evenkeel {
namespace {

constexpr std::size_t kMiB = 1 << 20;

TEST(LargeBlocksTest, AFreedBlockServesTheNextOfItsSize) {
    LargeBlocks blocks;
    void* first = blocks.take(5 * kMiB);
    std::memset(first, 1, 5 * kMiB);
    blocks.give(first);
    EXPECT_EQ(blocks.take(5 * kMiB - 100), first);  // a little less
    EXPECT_EQ(blocks.count().mappings, 1u);
    blocks.give(first);
    void* other = blocks.take(2 * kMiB);  // much less: not at the cost of the large one
    EXPECT_NE(other, first);
    blocks.give(other);
}

TEST(LargeBlocksTest, WhatWaitsMakesRoomForOtherSizes) {
    LargeBlocks blocks;
    for (std::size_t size = 1; size <= 64; ++size) {
        void* block = blocks.take(size * kMiB);
        ASSERT_NE(block, nullptr);
        EXPECT_LE(blocks.count().mapped, size * kMiB * 17 / 16)
            << "one block of " << size << " MiB at a time";
        blocks.give(block);
    }
    EXPECT_EQ(blocks.count().live, 0u);
    blocks.release_unused();
    EXPECT_EQ(blocks.count().mapped, 0u);
}

TEST(LargeBlocksTest, StepsThatRepeatAskTheSystemForLittle) {
    LargeBlocks blocks;
    std::vector<void*> kept;
    std::uint64_t after_first = 0;
    for (int step = 0; step < 20; ++step) {
        // Forward keeps some and drops others; backward goes the other way.
        for (std::size_t layer = 0; layer < 6; ++layer) {
            void* temporary = blocks.take(7 * kMiB);
            kept.push_back(blocks.take(3 * kMiB));
            kept.push_back(blocks.take(2 * kMiB));
            blocks.give(temporary);
        }
        while (!kept.empty()) {
            void* temporary = blocks.take(5 * kMiB);
            blocks.give(kept.back());
            kept.pop_back();
            blocks.give(temporary);
        }
        if (step == 0) after_first = blocks.count().mappings;
    }
    EXPECT_EQ(after_first, 14u);
    // Six layers of 5 MiB and a temporary of 7 live at most, and 1/16 more has no room for the one of 5: what waited
    // longest makes room, and is missed at once, until as much more may wait.
    EXPECT_LE(blocks.count().mapped, 37 * kMiB * 5 / 4);
    EXPECT_LE(blocks.count().mappings - after_first, 24u);
}

TEST(LargeBlocksTest, ThreadsDoNotShareBlocks) {
    LargeBlocks blocks;
    std::vector<std::thread> threads;
    std::vector<int> wrong(4, 0);
    for (int id = 0; id < 4; ++id) {
        threads.emplace_back([&, id] {
            for (int i = 0; i < 200; ++i) {
                auto* block = static_cast<unsigned char*>(blocks.take(kMiB + (i % 3) * kMiB));
                std::memset(block, id, kMiB);
                std::this_thread::yield();
                for (std::size_t at = 0; at < kMiB; at += 4096) wrong[id] += block[at] != id;
                blocks.give(block);
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, std::vector<int>(4, 0));
    EXPECT_EQ(blocks.count().live, 0u);
}

TEST(LargeBlocksTest, SizesBeyondMemoryAreRefused) {
    LargeBlocks blocks;
    EXPECT_EQ(blocks.take(SIZE_MAX / 2), nullptr);
    EXPECT_EQ(blocks.take(SIZE_MAX), nullptr);
    EXPECT_EQ(blocks.count().mapped, 0u);
}

}  // namespace
}  // namespace evenkeel
