#include "parallel/embedding.h"

#include <gtest/gtest.h>

#include "tests/support/compare.h"
#include "tests/support/data.h"
#include "tests/support/devices.h"

namespace evenkeel {
namespace {

using testing::gaussian;
using testing::on_cpu;
using testing::poisoned;
using testing::same_bits;

constexpr DType kFp32 = DType::kFloat32, kBf16 = DType::kBFloat16;
constexpr std::int64_t kVocab = 20, kBegin = 5, kRows = 12;  // this rank holds tokens 5 to 16

Tensor tokens_of(std::int64_t count) {
    const Tensor tokens = Tensor::uninitialized({count}, DType::kInt32);
    for (std::int64_t i = 0; i < count; ++i) {
        tokens.data<std::int32_t>()[i] = static_cast<std::int32_t>((i * i + i / 3) % kVocab);
    }
    return tokens;
}

class EmbeddingTest : public ::testing::TestWithParam<Device> {
  protected:
    Tensor there(const Tensor& tensor) const { return testing::on(GetParam(), tensor); }

    void expect_gradient_of_the_tokens(const Tensor& tokens, std::int64_t width, DType dtype) {
        const Tensor dy = gaussian({tokens.numel(), width}, dtype, 2);
        const Tensor start = gaussian({kRows, width}, kFp32, 3);
        const Tensor grad = there(start.clone()), want = start.clone();
        embedding_backward(there(dy), there(tokens), kBegin, kVocab, grad);
        // By definition, in the order of tokens.
        const Tensor values = dy.to(kFp32);
        for (std::int64_t i = 0; i < tokens.numel(); ++i) {
            const std::int64_t row = tokens.data<std::int32_t>()[i] - kBegin;
            if (row < 0 || row >= kRows) continue;
            for (std::int64_t c = 0; c < width; ++c) {
                want.data<float>()[row * width + c] += values.data<float>()[i * width + c];
            }
        }
        EXPECT_TRUE(same_bits(grad, want));
    }
};
INSTANTIATE_TEST_SUITE_P(,
                         EmbeddingTest,
                         ::testing::ValuesIn(testing::test_devices()),
                         testing::device_name);

TEST_P(EmbeddingTest, LooksUpItsOwnRowsAndLeavesZerosElsewhere) {
    for (const DType dtype : {kFp32, kBf16}) {
        for (const std::int64_t width : {1, 3, 31, 33, 64, 257, 4104}) {
            SCOPED_TRACE(concat(evenkeel::name_of(dtype), " width ", width));
            const Tensor tokens = tokens_of(23), weight = gaussian({kRows, width}, dtype, 1);
            const Tensor y = there(poisoned({23, width}, dtype));
            embedding_forward(there(tokens), there(weight), kBegin, kVocab, y);
            const Tensor want = Tensor::zeros({23, width}, dtype);
            for (std::int64_t i = 0; i < 23; ++i) {
                const std::int64_t row = tokens.data<std::int32_t>()[i] - kBegin;
                if (row < 0 || row >= kRows) continue;
                want.slice(0, i, i + 1).copy_from(weight.slice(0, row, row + 1));
            }
            EXPECT_TRUE(same_bits(y, want));
        }
    }
}

TEST_P(EmbeddingTest, GradientAddsRowsInTheOrderOfTokens) {
    for (const DType dtype : {kFp32, kBf16}) {
        for (const std::int64_t width : {1, 3, 31, 33, 64, 257, 4104}) {
            SCOPED_TRACE(concat(evenkeel::name_of(dtype), " width ", width));
            expect_gradient_of_the_tokens(tokens_of(70), width, dtype);
        }
    }
}

// More tokens than are sorted at once on a GPU, and the counts around that.
TEST_P(EmbeddingTest, GradientOfManyTokens) {
    for (const std::int64_t count : {1, 2, 2047, 2048, 2049, 5000}) {
        SCOPED_TRACE(count);
        expect_gradient_of_the_tokens(tokens_of(count), 4, kFp32);
    }
}

TEST_P(EmbeddingTest, GradientOfOneTokenThatFillsTheBatch) {
    expect_gradient_of_the_tokens(Tensor::full({41}, 7.0f, DType::kInt32), 24, kBf16);
    expect_gradient_of_the_tokens(Tensor::full({41}, 2.0f, DType::kInt32), 24, kBf16);  // elsewhere
}

TEST_P(EmbeddingTest, RejectsWrongShapesAndTypes) {
    const Tensor tokens = there(tokens_of(3)), y = there(Tensor::zeros({3, 8}, kFp32));
    const Tensor weight = there(Tensor::zeros({kRows, 8}, kFp32));
    const auto forward = [&](const Tensor& ids, const Tensor& table, const Tensor& out) {
        embedding_forward(ids, table, kBegin, kVocab, out);
    };
    EXPECT_THROW(forward(y, weight, y), Error);
    EXPECT_THROW(forward(tokens.view({1, 3}), weight, y), Error);
    EXPECT_THROW(forward(tokens, weight, y.slice(0, 0, 2)), Error);
    EXPECT_THROW(forward(tokens, weight, y.slice(1, 0, 4)), Error);
    EXPECT_THROW(forward(tokens, weight.to(kBf16), y), Error);
    EXPECT_THROW(forward(tokens, weight.to(DType::kFloat16), y.to(DType::kFloat16)), Error);
    EXPECT_THROW(embedding_backward(y, tokens, kBegin, kVocab, weight.to(kBf16)), Error);
    if (GetParam() != Device::kCpu) {
        EXPECT_THROW(forward(on_cpu(tokens), weight, y), Error);
        EXPECT_THROW(forward(tokens, weight, on_cpu(y)), Error);
        EXPECT_THROW(embedding_backward(on_cpu(y), tokens, kBegin, kVocab, weight), Error);
    }
}

}  // namespace
}  // namespace evenkeel
