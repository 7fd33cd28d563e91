#include "framework/tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "framework/convert.h"
#include "framework/overlap.h"
#include "tests/support/compare.h"
#include "tests/support/data.h"

namespace evenkeel {
namespace {

using testing::gaussian;
using testing::same_bits;
using testing::to_doubles;

Tensor counting(const Shape& shape) {
    Tensor tensor = Tensor::uninitialized(shape, DType::kFloat32);
    for (std::int64_t i = 0; i < tensor.numel(); ++i) {
        tensor.data<float>()[i] = static_cast<float>(i);
    }
    return tensor;
}

TEST(ShapeTest, CountsElements) {
    EXPECT_EQ(num_elements({}), 1);
    EXPECT_EQ(num_elements({2, 3, 4}), 24);
    EXPECT_EQ(num_elements({2, 0, 4}), 0);
    EXPECT_THROW(num_elements({2, -1}), Error);
    EXPECT_THROW(num_elements({std::int64_t{1} << 32, std::int64_t{1} << 31}), Error);
    EXPECT_EQ(to_string(Shape{2, 16}), "[2, 16]");
    EXPECT_EQ(to_string(Shape{}), "[]");
}

TEST(TensorTest, StartsUndefined) {
    const Tensor tensor;
    EXPECT_FALSE(tensor.defined());
    EXPECT_THROW(check_shape("op", "x", tensor, {1}), Error);
    EXPECT_THROW(check_dtype("op", "x", tensor, DType::kFloat32), Error);
}

TEST(TensorTest, HasRowMajorStrides) {
    const Tensor tensor = Tensor::zeros({2, 3, 4}, DType::kBFloat16);
    EXPECT_EQ(tensor.strides(), (Shape{12, 4, 1}));
    EXPECT_EQ(tensor.bytes(), 48u);
    EXPECT_EQ(tensor.size(-1), 4);
    EXPECT_EQ(tensor.stride(0), 12);
    EXPECT_THROW(tensor.size(3), Error);
    EXPECT_THROW(tensor.size(-4), Error);
}

TEST(TensorTest, DataChecksTheElementType) {
    const Tensor tensor = Tensor::zeros({2}, DType::kBFloat16);
    EXPECT_NO_THROW(tensor.data<bfloat16>());
    try {
        tensor.data<float>();
        FAIL() << "no error";
    } catch (const Error& e) {
        EXPECT_STREQ(e.what(), "[Tensor] element type: got bf16, want fp32");
    }
}

TEST(TensorTest, SlicesShareMemory) {
    const Tensor a = counting({4, 6});
    const Tensor rows = a.slice(0, 1, 3), columns = a.slice(-1, 2, 5);
    EXPECT_TRUE(rows.is_contiguous());
    EXPECT_FALSE(columns.is_contiguous());
    EXPECT_EQ(to_doubles(columns.slice(0, 1, 2)), (std::vector<double>{8, 9, 10}));
    columns.fill(-1.0f);
    EXPECT_EQ(to_doubles(rows),
              (std::vector<double>{6, 7, -1, -1, -1, 11, 12, 13, -1, -1, -1, 17}));
    EXPECT_EQ(a.slice(0, 2, 2).numel(), 0);
    EXPECT_THROW(a.slice(0, 3, 5), Error);
    EXPECT_THROW(a.slice(0, 3, 2), Error);
    EXPECT_THROW(a.slice(2, 0, 1), Error);
}

TEST(TensorTest, ViewsKeepOrder) {
    const Tensor a = counting({2, 3, 8});
    EXPECT_EQ(to_doubles(a.view({6, 2, 4})), to_doubles(a));
    EXPECT_EQ(a.view({48}).strides(), Shape{1});
    EXPECT_THROW(a.view({5, 5}), Error);
}

TEST(TensorTest, ViewsSplitAndMergeStridedDimensions) {
    // q of a fused [B, T, (H + 2K) D] projection becomes [B, T, H, D].
    const Tensor fused = counting({2, 3, 16});
    const Tensor q = fused.slice(2, 4, 12);
    const Tensor heads = q.view({2, 3, 2, 4});
    EXPECT_EQ(heads.strides(), (Shape{48, 16, 4, 1}));
    EXPECT_EQ(to_doubles(heads), to_doubles(q));
    EXPECT_EQ(q.view({6, 8}).strides(), (Shape{16, 1}));
    EXPECT_EQ(to_doubles(q.view({6, 8})), to_doubles(q));
    EXPECT_THROW(q.view({2, 24}), Error) << "rows do not follow one another";
    EXPECT_THROW(q.view({48}), Error);
    EXPECT_EQ(fused.slice(1, 0, 1).slice(2, 0, 8).view({2, 8}).strides(), (Shape{48, 1}));
}

TEST(TensorTest, SizesOfOneNeverStandInTheWay) {
    const Tensor one_token = counting({4, 3, 16}).slice(1, 1, 2).slice(2, 0, 8);  // [4, 1, 8]
    const std::vector<double> want = to_doubles(one_token);
    for (const Shape& shape : {Shape{4, 8}, Shape{4, 1, 2, 4}, Shape{1, 4, 8}, Shape{2, 2, 8, 1},
                               Shape{1, 2, 1, 2, 1, 4, 2, 1}, Shape{4, 1, 1, 8}}) {
        EXPECT_EQ(to_doubles(one_token.view(shape)), want) << to_string(shape);
    }
    EXPECT_THROW(one_token.view({32}), Error);
    EXPECT_THROW(one_token.view({2, 16}), Error);
    EXPECT_THROW(one_token.view({8, 4}), Error);
    EXPECT_EQ(one_token.slice(0, 1, 2).view({8}).numel(), 8);
    EXPECT_EQ(one_token.slice(0, 1, 1).view({5, 0}).numel(), 0);
}

TEST(TensorTest, ChecksSayWhatTheyWant) {
    const Tensor q = Tensor::zeros({2, 3}, DType::kFloat32);
    EXPECT_NO_THROW(check_shape("op", "q", q, {2, 3}));
    try {
        check_shape("op", "q", q, {2, 4});
        FAIL() << "no error";
    } catch (const Error& e) {
        EXPECT_STREQ(e.what(), "[op] q: got shape [2, 3], want [2, 4]");
    }
    try {
        check_dtype("op", "q", q, DType::kBFloat16);
        FAIL() << "no error";
    } catch (const Error& e) {
        EXPECT_STREQ(e.what(), "[op] q: got fp32, want bf16");
    }
}

TEST(ConvertTest, RowsRoundLikeTheType) {
    // Every upper half with lower halves around the tie.
    std::vector<float> wide;
    for (std::uint32_t high = 0; high <= 0xffff; ++high) {
        for (std::uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
            wide.push_back(std::bit_cast<float>(high << 16 | low));
        }
    }
    std::vector<bfloat16> narrowed(wide.size());
    narrow(wide.data(), narrowed.data(), static_cast<std::int64_t>(wide.size()));
    for (std::size_t i = 0; i < wide.size(); ++i) {
        ASSERT_EQ(narrowed[i].bits, bfloat16(wide[i]).bits)
            << std::bit_cast<std::uint32_t>(wide[i]);
    }
    std::vector<float> back(wide.size());
    widen(narrowed.data(), back.data(), static_cast<std::int64_t>(wide.size()));
    for (std::size_t i = 0; i < wide.size(); ++i) {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(back[i]), std::uint32_t{narrowed[i].bits} << 16);
    }
}

TEST(TensorTest, OverlapIsSharedMemoryAndNotSharedBuffers) {
    const Tensor packed = Tensor::zeros({2, 6, 5, 8}, DType::kFloat32);
    const auto heads = [&](std::int64_t begin, std::int64_t end) {
        return packed.slice(2, begin, end);
    };
    EXPECT_TRUE(overlap(packed, packed));
    EXPECT_TRUE(overlap(packed, heads(4, 5)));
    EXPECT_TRUE(overlap(heads(4, 5), packed));
    // Side by side in every token, with others' tokens in between.
    EXPECT_FALSE(overlap(heads(0, 2), heads(2, 3)));
    EXPECT_FALSE(overlap(heads(2, 3), heads(0, 2)));
    EXPECT_TRUE(overlap(heads(0, 3), heads(2, 4)));
    EXPECT_TRUE(overlap(heads(2, 4), heads(0, 3)));
    // Tokens 0 .. 4 and 1 .. 5 of the same heads, tokens of other sequences.
    EXPECT_TRUE(overlap(heads(0, 2).slice(1, 0, 5), heads(0, 2).slice(1, 1, 6)));
    EXPECT_FALSE(overlap(packed.slice(1, 0, 3), packed.slice(1, 3, 6)));
    EXPECT_FALSE(overlap(packed.slice(1, 3, 6), packed.slice(1, 0, 3)));
    EXPECT_FALSE(overlap(packed.slice(0, 0, 1), packed.slice(0, 1, 2)));
    EXPECT_TRUE(overlap(heads(3, 5).slice(0, 1, 2), heads(4, 5).slice(1, 2, 3)));
    EXPECT_FALSE(overlap(packed.slice(3, 0, 4), packed.slice(3, 4, 8)));
    EXPECT_TRUE(overlap(packed.slice(3, 0, 5), packed.slice(3, 4, 8)));
    // Another shape, from the same start; other buffers; nothing; another device.
    EXPECT_TRUE(overlap(packed, packed.view({480})));
    EXPECT_FALSE(overlap(packed, packed.clone()));
    EXPECT_FALSE(overlap(packed, heads(2, 2)));
    EXPECT_FALSE(overlap(packed, Tensor()));
}

}  // namespace
}  // namespace evenkeel
