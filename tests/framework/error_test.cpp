#include "framework/error.h"

#include <gtest/gtest.h>

#include "framework/dispatch.h"

namespace evenkeel {
namespace {

TEST(ErrorTest, CheckSaysWhereAndWhat) {
    const int width = 3;
    try {
        EVENKEEL_CHECK(width == 4, "op", "width: got ", width, ", want ", 4);
        FAIL() << "no error";
    } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
        EXPECT_STREQ(e.what(), "[op] width: got 3, want 4");
    }
}

TEST(ErrorTest, MessagesHoldNothingThatATerminalObeys) {
    try {
        throw_error(ErrorCode::kIo, "op", "a\x1b[31m\rb\x7f\n\tc\xc3\xa9");
    } catch (const Error& e) {
        EXPECT_STREQ(e.what(), "[op] a?[31m?b?\n\tc\xc3\xa9");
    }
}

TEST(ErrorTest, CheckEvaluatesItsConditionOnceAndItsMessageOnlyOnFailure) {
    int evaluated = 0, formatted = 0;
    EVENKEEL_CHECK(++evaluated == 1, "op", ++formatted);
    EXPECT_EQ(evaluated, 1);
    EXPECT_EQ(formatted, 0);
}

TEST(ErrorTest, ExitStatusIsTwoForUsageAndOneForTheRest) {
    EXPECT_EQ(Error(ErrorCode::kConfig, "").exit_status(), 2);
    EXPECT_EQ(Error(ErrorCode::kInvalidArgument, "").exit_status(), 2);
    for (ErrorCode code : {ErrorCode::kIo, ErrorCode::kMpi, ErrorCode::kCuda, ErrorCode::kNccl,
                           ErrorCode::kNotBuilt, ErrorCode::kNonFinite, ErrorCode::kInternal}) {
        EXPECT_EQ(Error(code, "").exit_status(), 1);
    }
}

TEST(DispatchTest, FloatPicksTheElementType) {
    const auto size = [](DType dtype) {
        return dispatch_float(dtype, "op", []<typename T>() { return sizeof(T); });
    };
    EXPECT_EQ(size(DType::kFloat32), 4u);
    EXPECT_EQ(size(DType::kBFloat16), 2u);
    EXPECT_THROW(size(DType::kInt32), Error);
}

TEST(DispatchTest, ValueNamesTheSupportedOnes) {
    int got = 0;
    dispatch_value<64, 128>(128, "op", "head_dim", [&]<int V>() { got = V; });
    EXPECT_EQ(got, 128);
    try {
        dispatch_value<64, 128>(80, "op", "head_dim", [&]<int V>() { got = V; });
        FAIL() << "no error";
    } catch (const Error& e) {
        EXPECT_STREQ(e.what(), "[op] head_dim: got 80, want one of 64, 128");
    }
}

}  // namespace
}  // namespace evenkeel
