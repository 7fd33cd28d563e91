#include "parallel/collective_log.h"

#include <gtest/gtest.h>

#include <memory>

namespace evenkeel {
namespace {

class CollectiveLogTest : public ::testing::Test {
  protected:
    CollectiveRecord record(const char* op) const {
        CollectiveRecord record;
        record.group = group_;
        record.op = op;
        return record;
    }
    std::unique_ptr<CollectiveLog> log_ = std::make_unique<CollectiveLog>();
    int group_ = log_->add_group({"tensor", {0, 1}});
    std::int64_t sequence_ = 0;
};

TEST_F(CollectiveLogTest, TellsWhereTheHostIs) {
    EXPECT_EQ(log_->position().since, 0) << "nowhere so far";
    const std::int64_t first = log_->begin(record("all_reduce"), &sequence_);
    EXPECT_TRUE(log_->position().in_operation);
    log_->end(first);
    const HostPosition after = log_->position();
    EXPECT_FALSE(after.in_operation);
    EXPECT_EQ(after.since, log_->records().front().returned);
    EXPECT_EQ(after.progress, after.since);
    EXPECT_EQ(sequence_, 1);
}

TEST_F(CollectiveLogTest, PartsOfAnOperationAreNotOperations) {
    const std::int64_t outer = log_->begin(record("all_reduce"), &sequence_);
    std::int64_t inner_sequence = 0;
    const std::int64_t inner = log_->begin(record("barrier"), &inner_sequence);
    EXPECT_EQ(inner, 0);
    EXPECT_EQ(inner_sequence, 0);
    log_->end(inner);
    EXPECT_TRUE(log_->position().in_operation);
    log_->end(outer);
    EXPECT_EQ(log_->records().size(), 1u);
    EXPECT_GE(log_->records().front().waits, log_->records().front().asked);
}

TEST_F(CollectiveLogTest, WhatGoesOnOnAGpuIsDoneLater) {
    const std::int64_t index = log_->begin(record("all_reduce"), &sequence_);
    EXPECT_EQ(log_->goes_on(), index);
    log_->end(index);
    EXPECT_EQ(log_->records().front().done, 0);
    EXPECT_EQ(log_->position().oldest_on_gpu, log_->records().front().asked);
    log_->done(index);
    EXPECT_NE(log_->records().front().done, 0);
    EXPECT_EQ(log_->position().oldest_on_gpu, 0);
    log_->waits_for_gpu(2.0);
    EXPECT_TRUE(log_->position().waits_for_gpu);
}

TEST_F(CollectiveLogTest, MessagesBetweenTwoRanksHaveNoNumber) {
    const std::int64_t index = log_->begin(record("send"), nullptr);
    log_->end(index);
    EXPECT_EQ(log_->records().front().sequence, 0);
}

TEST_F(CollectiveLogTest, KeepsTheLastOnesInFixedMemory) {
    const auto most = static_cast<std::int64_t>(CollectiveLog::kEntries);
    for (std::int64_t i = 0; i < most + 5; ++i)
        log_->end(log_->begin(record("barrier"), &sequence_));
    const auto records = log_->records();
    ASSERT_EQ(records.size(), CollectiveLog::kEntries);
    EXPECT_EQ(records.front().sequence, 6);
    EXPECT_EQ(records.back().sequence, most + 5);
    log_->done(1);  // long forgotten: nothing happens
}

}  // namespace
}  // namespace evenkeel
