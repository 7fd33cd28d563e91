#include "framework/subnormals.h"

#include <gtest/gtest.h>

#include <thread>

namespace evenkeel {
namespace {

// Not known when this is compiled.
volatile float small = 1e-30f;
volatile float smaller = 1e-9f;
volatile float subnormal = 1e-40f;
volatile double small_double = 1e-300;

struct Products {
    float result = small * smaller;           // 1e-39
    float operand = subnormal * 1e10f;        // 1e-30
    double in_double = small_double * 1e-10;  // 1e-310
    float normal = small * 1e-7f;             // 1e-37
};

TEST(SubnormalsTest, AreZeroInTheThreadThatAsksAndInThoseItStarts) {
    Products here, there;
    std::thread([&] {
        flush_subnormals();
        here = Products();
        std::thread([&] { there = Products(); }).join();
    }).join();
    for (const Products& products : {here, there}) {
        EXPECT_EQ(products.result, 0.0f);
        EXPECT_EQ(products.operand, 0.0f);
        EXPECT_EQ(products.in_double, 0.0);
        EXPECT_GT(products.normal, 0.0f);
    }
}

TEST(SubnormalsTest, AreNumbersInThreadsThatDoNotAsk) {
    std::thread([] { flush_subnormals(); }).join();
    const Products products;
    EXPECT_GT(products.result, 0.0f);
    EXPECT_GT(products.operand, 0.0f);
    EXPECT_GT(products.in_double, 0.0);
}

}  // namespace
}  // namespace evenkeel
