#include "framework/training/batch_ranges.h"

#include <gtest/gtest.h>

#include "framework/error.h"

namespace evenkeel {
namespace {

TEST(BatchRangesTest, ReadsRangesAndSingleBatches) {
    EXPECT_TRUE(parse_batch_ranges("").empty());
    const std::vector<BatchRange> ranges = parse_batch_ranges("1200-1350,7,3-3");
    ASSERT_EQ(ranges.size(), 3u);
    EXPECT_EQ(ranges[0].first, 1200);
    EXPECT_EQ(ranges[0].last, 1350);
    EXPECT_EQ(ranges[1].first, 7);
    EXPECT_EQ(ranges[1].last, 7);
    EXPECT_EQ(ranges[2].last, 3);
}

TEST(BatchRangesTest, NamesThePartThatIsNoRange) {
    for (const char* text : {"0", "5-4", "a", "1-", "-3", "1,,2", "2,", "1 - 2", "1-2-3",
                             "99999999999999999999", "4294967297"}) {
        try {
            parse_batch_ranges(text);
            ADD_FAILURE() << "took " << text;
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::kConfig);
            EXPECT_NE(std::string(error.what()).find("trainer.skip_batches: got "),
                      std::string::npos)
                << error.what();
        }
    }
}

TEST(BatchRangesTest, PassesByEveryBatchOfTheRangesAndNoOther) {
    // Batches of 4 samples: 3 to 4 are samples 8 to 15, 5 is 16 to 19, 9 is 32 to 35.
    const std::vector<BatchRange> ranges = parse_batch_ranges("9,5,3-4");
    std::vector<std::int64_t> trained;
    for (std::int64_t sample = 0; sample < 48; sample += 4) {
        sample = first_sample_outside(ranges, sample, 4);
        trained.push_back(sample / 4 + 1);
    }
    EXPECT_EQ(trained, (std::vector<std::int64_t>{1, 2, 6, 7, 8, 10, 11, 12}));
}

TEST(BatchRangesTest, LeavesOutABatchThatOnlyPartlyLiesInARange) {
    // As after a change of the batch size: 6 to 9 reaches into batch 3, which is 8 to 11.
    EXPECT_EQ(first_sample_outside(parse_batch_ranges("3"), 6, 4), 12);
    EXPECT_EQ(first_sample_outside(parse_batch_ranges("3"), 4, 4), 4);
    EXPECT_EQ(first_sample_outside(parse_batch_ranges("3"), 11, 4), 12);
}

}  // namespace
}  // namespace evenkeel
