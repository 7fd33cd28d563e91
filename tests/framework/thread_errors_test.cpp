#include "framework/thread_errors.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <atomic>
#include <stdexcept>
#include <string>

namespace evenkeel {
namespace {

TEST(ThreadErrorsTest, WhatAThreadThrowsComesOutBehindTheRegion) {
    for (const int threads : {1, 3}) {
        std::atomic<int> done{0};
        const auto run = [&] {
            ThreadErrors errors;
#pragma omp parallel for num_threads(threads) schedule(static, 1)
            for (int i = 0; i < 30; ++i) {
                errors.keep([&] {
                    ++done;
                    if (i % 10 == 4) throw std::runtime_error("item " + std::to_string(i));
                });
            }
            errors.rethrow();
        };
        std::string what;
        try {
            run();
        } catch (const std::runtime_error& error) {
            what = error.what();
        }
        EXPECT_EQ(done, 30) << "others go on";
        if (threads == 1) EXPECT_EQ(what, "item 4") << "the first";
        EXPECT_EQ(what.rfind("item ", 0), 0u) << what;
    }
}

TEST(ThreadErrorsTest, NothingIsThrownWhereNothingWas) {
    ThreadErrors errors;
    errors.keep([] {});
    EXPECT_NO_THROW(errors.rethrow());
}

}  // namespace
}  // namespace evenkeel
