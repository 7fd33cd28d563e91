#include "parallel/reduce_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "framework/isa.h"
#include "parallel/reduce_rows.h"
#include "tests/support/compare.h"
#include "tests/support/data.h"

namespace evenkeel {
namespace {

Tensor reduce(const std::vector<Tensor>& sources, ReduceOp op, const Tensor& out) {
    std::vector<const std::byte*> pointers;
    for (const Tensor& source : sources) pointers.push_back(source.raw());
    reduce_blocks(out.dtype(), op, pointers.data(), static_cast<int>(pointers.size()), out.raw(),
                  out.numel());
    return out;
}

class ReduceKernelsTest : public ::testing::TestWithParam<Isa> {
  protected:
    void SetUp() override {
        limit_isa(GetParam());
        if (current_isa() != GetParam()) GTEST_SKIP() << "this processor lacks it";
    }
    void TearDown() override { limit_isa(Isa::kAvx512); }
};

TEST_P(ReduceKernelsTest, SumsFloatsInOrderWithOneRounding) {
    for (DType type : {DType::kFloat32, DType::kBFloat16}) {
        for (int ranks : {1, 2, 3, 8}) {
            for (std::int64_t count : {1, 31, 2048, 5001}) {
                std::vector<Tensor> sources;
                for (int r = 0; r < ranks; ++r) {
                    sources.push_back(
                        testing::gaussian({count}, type, static_cast<std::uint64_t>(r)));
                }
                const Tensor want = Tensor::zeros({count}, DType::kFloat32);
                for (const Tensor& source : sources) {
                    const Tensor wide = source.to(DType::kFloat32);
                    for (std::int64_t i = 0; i < count; ++i)
                        want.data<float>()[i] += wide.data<float>()[i];
                }
                const Tensor got = Tensor::zeros({count}, type);
                EXPECT_TRUE(testing::same_bits(reduce(sources, ReduceOp::kSum, got), want.to(type)))
                    << name_of(type) << ", " << ranks << " ranks, " << count << " elements";
                // Over one of the sources.
                const int last = ranks - 1;
                EXPECT_TRUE(
                    testing::same_bits(reduce(sources, ReduceOp::kSum, sources[last]), got));
            }
        }
    }
}

TEST_P(ReduceKernelsTest, RoundsBf16SumsOnce) {
    // 256 + 1 + 1 is 258 in bf16; rounding after each addition would stay at 256.
    std::vector<Tensor> sources;
    for (float value : {256.0f, 1.0f, 1.0f})
        sources.push_back(Tensor::full({3}, value, DType::kBFloat16));
    const Tensor got = reduce(sources, ReduceOp::kSum, Tensor::zeros({3}, DType::kBFloat16));
    EXPECT_TRUE(testing::same_bits(got, Tensor::full({3}, 258.0f, DType::kBFloat16)));
}

TEST_P(ReduceKernelsTest, MeansAreSumsTimesOneOverTheNumberOfSources) {
    for (int ranks : {1, 2, 3, 8}) {
        const std::int64_t count = 40001;  // beyond one block
        std::vector<Tensor> sources;
        for (int r = 0; r < ranks; ++r) {
            sources.push_back(
                testing::gaussian({count}, DType::kFloat32, 40 + static_cast<std::uint64_t>(r)));
        }
        const Tensor want =
            reduce(sources, ReduceOp::kSum, Tensor::zeros({count}, DType::kFloat32));
        const float factor = 1.0f / static_cast<float>(ranks);
        for (std::int64_t i = 0; i < count; ++i) want.data<float>()[i] *= factor;
        const Tensor got = Tensor::zeros({count}, DType::kFloat32);
        EXPECT_TRUE(testing::same_bits(reduce(sources, ReduceOp::kMean, got), want)) << ranks;
        EXPECT_TRUE(testing::same_bits(reduce(sources, ReduceOp::kMean, sources[0]), want))
            << ranks << " ranks, over one of the sources";
    }
}

TEST_P(ReduceKernelsTest, DoublesAreReducedAsDoubles) {
    std::vector<Tensor> sources;
    for (int r = 0; r < 3; ++r) {
        sources.push_back(Tensor::zeros({2}, DType::kFloat64));
        sources.back().data<double>()[0] = 1.0 + std::ldexp(1.0, -50) * r;
        sources.back().data<double>()[1] = -r;
    }
    const double sum = 1.0 + (1.0 + std::ldexp(1.0, -50)) + (1.0 + std::ldexp(1.0, -49));
    const auto reduced = [&](ReduceOp op) {
        const Tensor got = reduce(sources, op, Tensor::zeros({2}, DType::kFloat64));
        return std::vector<double>(got.data<double>(), got.data<double>() + 2);
    };
    EXPECT_EQ(reduced(ReduceOp::kSum), (std::vector<double>{sum, -3.0}));
    EXPECT_EQ(reduced(ReduceOp::kMax), (std::vector<double>{1.0 + std::ldexp(1.0, -49), 0.0}));
    EXPECT_EQ(reduced(ReduceOp::kMean),
              (std::vector<double>{sum * (1.0 / 3.0), -3.0 * (1.0 / 3.0)}));
}

TEST_P(ReduceKernelsTest, MaximumKeepsNegativesAndNaN) {
    constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
    for (DType type : {DType::kFloat32, DType::kBFloat16}) {
        for (int position = 0; position < 3; ++position) {
            std::vector<Tensor> sources;
            for (int r = 0; r < 3; ++r) {
                sources.push_back(Tensor::full({40}, -1.0f - static_cast<float>(r), type));
            }
            sources[position].slice(0, 7, 8).fill(kNaN);
            const Tensor got =
                reduce(sources, ReduceOp::kMax, Tensor::zeros({40}, type)).to(DType::kFloat32);
            for (int i = 0; i < 40; ++i) {
                const float value = got.data<float>()[i];
                if (i == 7) EXPECT_TRUE(std::isnan(value)) << value;
                if (i != 7) EXPECT_EQ(value, -1.0f);
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Isas,
                         ReduceKernelsTest,
                         ::testing::ValuesIn(kAllIsas),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST(PiecesTest, CoverEverythingOnceInOrder) {
    for (std::int64_t count : {std::int64_t{0}, std::int64_t{1}, std::int64_t{31}, std::int64_t{33},
                               std::int64_t{1000}, (std::int64_t{1} << 33) + 5}) {
        for (int pieces : {1, 2, 3, 8, 64}) {
            std::int64_t at = 0, longest = 0;
            for (int i = 0; i < pieces; ++i) {
                const Range range = piece_of(count, pieces, i);
                EXPECT_EQ(range.begin, at) << count << " in " << pieces;
                EXPECT_LE(range.begin, range.end);
                longest = std::max(longest, range.size());
                at = range.end;
            }
            EXPECT_EQ(at, count);
            EXPECT_LE(longest, count / pieces + 64);
        }
    }
}

TEST(PiecesTest, MessagesStayBelowTheLimit) {
    const std::int64_t limit = 1 << 30;
    for (std::int64_t bytes :
         {std::int64_t{0}, std::int64_t{1}, limit - 1, limit, limit + 1, 9 * limit + 7}) {
        std::int64_t at = 0, messages = 0;
        for_each_message(bytes, limit, [&](std::int64_t offset, std::int64_t length) {
            EXPECT_EQ(offset, at);
            EXPECT_LE(length, limit);
            at += length;
            ++messages;
        });
        EXPECT_EQ(at, bytes);
        EXPECT_EQ(messages, bytes == 0 ? 1 : (bytes + limit - 1) / limit);
    }
}

}  // namespace
}  // namespace evenkeel
