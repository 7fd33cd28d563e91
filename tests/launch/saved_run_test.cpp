#include "launch/saved_run.h"

#include <gtest/gtest.h>

namespace evenkeel {
namespace {

TEST(SavedRunTest, PrintableKeepsTextAndReplacesTheRest) {
    EXPECT_EQ(printable("a\tb\nc"), "a\tb\nc");
    EXPECT_EQ(printable("\xC3\xA9"), "\xC3\xA9");
    EXPECT_EQ(printable("\xC3("), "\xEF\xBF\xBD(");
    EXPECT_EQ(printable("\x1b[31m"), "\xEF\xBF\xBD[31m");
    EXPECT_EQ(printable(std::string("\0", 1)), "\xEF\xBF\xBD");
    EXPECT_EQ(printable("\xC2\x9B"
                        "31m"),
              "\xEF\xBF\xBD"
              "31m")
        << "as terminals understand it, ESC [";
    EXPECT_EQ(printable("\xC2\xA0\xF0\x9F\x98\x80"), "\xC2\xA0\xF0\x9F\x98\x80");
}

TEST(SavedRunTest, TheShareThatCannotBePrintedCountsCharacters) {
    EXPECT_EQ(unprintable_share(""), 0.0);
    EXPECT_EQ(unprintable_share("plain\n\xC3\xA9"), 0.0);
    EXPECT_DOUBLE_EQ(unprintable_share("ab\xff\x01"), 0.5);
    EXPECT_DOUBLE_EQ(unprintable_share("\xC3\xA9\xC3\xA9\xC3\xA9\xff"), 0.25);
}

TEST(SavedRunTest, GroupsDigitsByThousands) {
    EXPECT_EQ(grouped(0), "0");
    EXPECT_EQ(grouped(999), "999");
    EXPECT_EQ(grouped(1000), "1,000");
    EXPECT_EQ(grouped(1234567), "1,234,567");
    EXPECT_EQ(grouped(-123456), "-123,456");
}

TEST(SavedRunTest, NamesWhatIsMissing) {
    try {
        open_saved_run("/nowhere/run", {});
        FAIL() << "no error";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kIo);
        EXPECT_NE(std::string(error.what()).find("/nowhere/run"), std::string::npos);
    }
}

}  // namespace
}  // namespace evenkeel
