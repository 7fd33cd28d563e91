// The vocabulary-parallel embedding and cross-entropy against double on the whole vocabulary.
#include "parallel/vocab.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/compare.h"
#include "tests/support/data.h"
#include "tests/support/devices.h"
#include "tests/support/parameters.h"
#include "tests/support/ranks.h"

namespace evenkeel {
namespace {

using testing::DataKind;
using testing::gaussian;
using testing::near;
using testing::to_doubles;
using testing::world;

constexpr std::int64_t kWidth = 6;

Tensor tokens_below(std::int64_t vocab, const Shape& shape, std::uint64_t seed) {
    const Tensor tokens = Tensor::zeros(shape, DType::kInt32);
    for (std::int64_t i = 0; i < tokens.numel(); ++i) {
        tokens.data<std::int32_t>()[i] = static_cast<std::int32_t>(
            (i * 17 + static_cast<std::int64_t>(seed) * 5 + i * i) % vocab);
    }
    return tokens;
}

class VocabTest : public ::testing::TestWithParam<std::tuple<DType, Device, std::int64_t>> {
  protected:
    VocabTest() {
        ParallelConfig config;
        config.tensor_parallel = world().size();
        config.communication = Communication::kStaged;
        grid_ = std::make_unique<ProcessGrid>(world(), config, device_);
    }
    Tensor there(const Tensor& tensor) const { return testing::on(device_, tensor); }
    // This rank's part of the logits [B, T, V].
    Tensor local(const Tensor& whole) const {
        return there(whole.slice(2, begin_, begin_ + local_).clone());
    }
    Tensor token_tensor(const Shape& shape, std::uint64_t seed) const {
        return tokens_below(vocab_, shape, seed);
    }
    VocabParallelEmbedding make_embedding() const {
        VocabParallelEmbedding embedding(*grid_, "embedding", vocab_, kWidth, type_);
        testing::allocate(embedding, device_);
        init_normal(embedding.weight(), 1.0, 3);
        return embedding;
    }

    const DType type_ = std::get<0>(GetParam());
    const Device device_ = std::get<1>(GetParam());
    const std::int64_t vocab_ = std::get<2>(GetParam());
    std::unique_ptr<ProcessGrid> grid_;
    const PieceRange part_ = piece_range(vocab_, world().size(), world().rank());
    const std::int64_t local_ = part_.size(), begin_ = part_.begin;
};

TEST_P(VocabTest, EmbeddingLooksUpRowsExactly) {
    const VocabParallelEmbedding embedding = make_embedding();
    const Parameter whole =
        testing::make_parameter("embedding", {vocab_, kWidth}, Sharding::replicated(0, 1), type_);
    init_normal(whole, 1.0, 3);
    const Tensor tokens = token_tensor({3, 11}, 1);
    const Tensor y = embedding.forward(there(tokens));
    const Tensor want = Tensor::zeros({3, 11, kWidth}, type_);
    for (std::int64_t i = 0; i < 33; ++i) {
        const std::int64_t row = tokens.data<std::int32_t>()[i];
        want.view({33, kWidth}).slice(0, i, i + 1).copy_from(whole.value.slice(0, row, row + 1));
    }
    EXPECT_TRUE(testing::same_bits(y, want));
}

TEST_P(VocabTest, EmbeddingGradientSumsRowsOfTheSameToken) {
    VocabParallelEmbedding embedding = make_embedding();
    const Tensor tokens = token_tensor({3, 11}, 1);
    const Tensor dy = gaussian({3, 11, kWidth}, type_, 5);
    embedding.backward(there(dy), there(tokens));
    embedding.backward(there(dy), there(tokens));  // adds
    std::vector<double> want(static_cast<std::size_t>(local_ * kWidth), 0.0);
    const auto values = to_doubles(dy);
    for (std::int64_t i = 0; i < 33; ++i) {
        const std::int64_t row = tokens.data<std::int32_t>()[i] - begin_;
        if (row < 0 || row >= local_) continue;
        for (std::int64_t c = 0; c < kWidth; ++c)
            want[row * kWidth + c] += 2 * values[i * kWidth + c];
    }
    EXPECT_TRUE(near(embedding.weight().grad, want, 1e-6, 1e-6));
}

TEST_P(VocabTest, EmbeddingRefusesTokensOutsideTheVocabularyOnEveryRank) {
    VocabParallelEmbedding embedding = make_embedding();
    for (std::int32_t bad : {-1, static_cast<std::int32_t>(vocab_)}) {
        const Tensor tokens = token_tensor({1, 4}, 1);
        tokens.data<std::int32_t>()[2] = bad;
        if (device_ != Device::kCpu) {  // the host does not see it
            const std::vector<double> y = to_doubles(embedding.forward(there(tokens)));
            for (std::int64_t i = 0; i < 4 * kWidth; ++i) {
                EXPECT_EQ(std::isnan(y[static_cast<std::size_t>(i)]), i / kWidth == 2) << i;
            }
            continue;
        }
        try {
            embedding.forward(tokens);
            ADD_FAILURE() << "token " << bad << " was accepted";
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
            EXPECT_NE(std::string(error.what()).find(concat("got ", bad, " at position 2")),
                      std::string::npos)
                << error.what();
        }
    }
}

TEST_P(VocabTest, EmbeddingTakesAnEmptyBatch) {
    VocabParallelEmbedding embedding = make_embedding();
    const Tensor none = there(Tensor::zeros({0, 7}, DType::kInt32));
    EXPECT_EQ(embedding.forward(none).shape(), (Shape{0, 7, kWidth}));
    embedding.backward(there(Tensor::zeros({0, 7, kWidth}, type_)), none);
}

// The loss, its log-sum-exps and its gradient, by definition.
struct Reference {
    double loss = 0;
    std::vector<double> log_sum_exp, dlogits;
};

Reference reference(const Tensor& logits, const Tensor& targets, double scale) {
    const std::int64_t vocab = logits.size(2);
    const auto z = to_doubles(logits);
    const std::int64_t rows = targets.numel();
    const std::int32_t* ids = targets.data<std::int32_t>();
    Reference r;
    r.dlogits.assign(z.size(), 0.0);
    std::int64_t counted = 0;
    for (std::int64_t i = 0; i < rows; ++i) counted += ids[i] >= 0;
    for (std::int64_t i = 0; i < rows; ++i) {
        double max = -std::numeric_limits<double>::infinity(), sum = 0;
        for (std::int64_t v = 0; v < vocab; ++v) max = std::max(max, z[i * vocab + v]);
        for (std::int64_t v = 0; v < vocab; ++v) sum += std::exp(z[i * vocab + v] - max);
        r.log_sum_exp.push_back(max + std::log(sum));
        if (ids[i] < 0) continue;
        r.loss += (r.log_sum_exp.back() - z[i * vocab + ids[i]]) / static_cast<double>(counted);
        for (std::int64_t v = 0; v < vocab; ++v) {
            const double p = std::exp(z[i * vocab + v] - r.log_sum_exp.back());
            r.dlogits[i * vocab + v] = (p - (v == ids[i])) * scale / static_cast<double>(counted);
        }
    }
    return r;
}

TEST_P(VocabTest, CrossEntropyMatchesDoubleOnEveryKindOfData) {
    for (DataKind kind : testing::kAllDataKinds) {
        for (const Shape& shape : {Shape{1, 1}, Shape{2, 31}, Shape{3, 33}}) {
            const Tensor targets = token_tensor(shape, 2);
            if (targets.numel() > 1) targets.data<std::int32_t>()[1] = -1;
            const Tensor whole = testing::make_data(kind, {shape[0], shape[1], vocab_}, type_, 9);
            const Reference want = reference(whole, targets, 0.5);
            const Tensor logits = local(whole), ids = there(targets);
            CrossEntropySaved saved;
            const double loss = mean_cross_entropy(*grid_, logits, vocab_, ids, saved);
            EXPECT_NEAR(loss, want.loss, 2e-6 * std::abs(want.loss) + 1e-6) << name_of(kind);
            EXPECT_TRUE(near(saved.log_sum_exp, want.log_sum_exp, 1e-6, 1e-6)) << name_of(kind);
            std::vector<double> dlogits_want;
            for (std::int64_t i = 0; i < targets.numel(); ++i) {
                const auto row = want.dlogits.begin() + i * vocab_ + begin_;
                dlogits_want.insert(dlogits_want.end(), row, row + local_);
            }
            // fp32 logits of a thousand carry an absolute rounding of 6e-5 into the exponent.
            const double relative = type_ == DType::kFloat32 ? 2e-4 : 1.0 / 200;
            cross_entropy_backward(*grid_, logits, vocab_, ids, saved, 0.5, logits);  // in place
            EXPECT_TRUE(near(logits, dlogits_want, relative, 1e-7)) << name_of(kind);
        }
    }
}

TEST_P(VocabTest, CrossEntropyGradientMatchesFiniteDifferences) {
    if (type_ != DType::kFloat32) GTEST_SKIP() << "bf16 steps are too coarse";
    const Tensor targets = token_tensor({1, 3}, 4);
    const Tensor whole = gaussian({1, 3, vocab_}, DType::kFloat32, 6);
    const Tensor ids = there(targets);
    const auto loss_at = [&](std::int64_t index, float change) {
        const Tensor moved = whole.clone();
        moved.data<float>()[index] += change;
        CrossEntropySaved saved;
        return mean_cross_entropy(*grid_, local(moved), vocab_, ids, saved);
    };
    CrossEntropySaved saved;
    const Tensor mine = there(whole).slice(2, begin_, begin_ + local_);  // strided
    mean_cross_entropy(*grid_, mine, vocab_, ids, saved);
    const Tensor gradient = there(Tensor::zeros({1, 3, local_}, DType::kFloat32));
    cross_entropy_backward(*grid_, mine, vocab_, ids, saved, 1.0, gradient);
    const Tensor dmine = testing::on_cpu(gradient);
    for (std::int64_t index : {0, 17, 39, 40, 77, 119, 122}) {
        if (index >= whole.numel()) continue;
        const double slope = (loss_at(index, 0.05f) - loss_at(index, -0.05f)) / 0.1;
        const std::int64_t row = index / vocab_, column = index % vocab_ - begin_;
        if (column < 0 || column >= local_) continue;
        EXPECT_NEAR(dmine.data<float>()[row * local_ + column], slope, 2e-4) << index;
    }
}

TEST_P(VocabTest, CrossEntropyMakesTwoCollectivesAndTheSameBitsOnAllRanks) {
    const Tensor targets = there(token_tensor({2, 9}, 4));
    const Tensor logits = there(
        gaussian({2, 9, local_}, type_, 70 + static_cast<std::uint64_t>(world().rank()), 4.0));
    CrossEntropySaved saved;
    const double loss = mean_cross_entropy(*grid_, logits, vocab_, targets, saved);
    EXPECT_EQ(grid_->tensor().counts().all_reduces, 2);
    EXPECT_EQ(grid_->tensor().counts().bytes, 3 * 18 * 4) << "three numbers a token";
    const double largest = world().all_reduce_scalar(loss, ReduceOp::kMax);
    const double smallest = -world().all_reduce_scalar(-loss, ReduceOp::kMax);
    EXPECT_EQ(largest, smallest);
    cross_entropy_backward(*grid_, logits, vocab_, targets, saved, 1.0, logits);
    EXPECT_EQ(grid_->tensor().counts().all_reduces, 2) << "backward needs none";
}

TEST_P(VocabTest, GatheredLogitsAreTheWholeOnesOnEveryRank) {
    const Tensor whole = gaussian({3, 5, vocab_}, type_, 1);
    const Tensor logits = local(whole).view({15, local_});
    const Tensor gathered = gather_vocabulary(*grid_, logits, vocab_);
    check_shape("test", "gathered", gathered, {15, vocab_});
    EXPECT_EQ(gathered.dtype(), DType::kFloat32);
    EXPECT_EQ(to_doubles(gathered), to_doubles(whole));
}

TEST_P(VocabTest, CrossEntropyOfNothingIsZero) {
    const Tensor targets = there(Tensor::full({1, 4}, -1.0f, DType::kInt32));
    const Tensor logits = there(gaussian({1, 4, local_}, type_, 1));
    CrossEntropySaved saved;
    EXPECT_EQ(mean_cross_entropy(*grid_, logits, vocab_, targets, saved), 0.0);
    cross_entropy_backward(*grid_, logits, vocab_, targets, saved, 1.0, logits);
    EXPECT_TRUE(testing::same_bits(logits, Tensor::zeros({1, 4, local_}, type_)));
    EXPECT_EQ(mean_cross_entropy(*grid_, there(Tensor::zeros({0, 4, local_}, type_)), vocab_,
                                 there(Tensor::zeros({0, 4}, DType::kInt32)), saved),
              0.0);
}

TEST_P(VocabTest, CrossEntropyAddsItsShareToTheLoss) {
    const Tensor targets = there(token_tensor({2, 9}, 4));
    const Tensor logits = there(gaussian({2, 9, local_}, type_, 7));
    CrossEntropySaved saved;
    const double mean = mean_cross_entropy(*grid_, logits, vocab_, targets, saved);
    EXPECT_EQ(*testing::on_cpu(saved.counted).data<std::int32_t>(), 18);
    const Tensor loss = there(Tensor::zeros({1}, DType::kFloat64));
    cross_entropy_forward(*grid_, logits, vocab_, targets, saved, 0.25, loss);
    cross_entropy_forward(*grid_, logits, vocab_, targets, saved, 0.5, loss);
    EXPECT_EQ(*testing::on_cpu(loss).data<double>(), 0.25 * mean + 0.5 * mean);
    EXPECT_THROW(cross_entropy_forward(*grid_, logits, vocab_, targets, saved, 1.0,
                                       there(Tensor::zeros({1}, DType::kFloat32))),
                 Error);
}

TEST_P(VocabTest, ANaNLogitOnOneRankIsSeenByAll) {
    const Tensor targets = there(token_tensor({1, 3}, 4));
    const Tensor logits = there(gaussian({1, 3, local_}, type_, 1));
    if (begin_ < vocab_ && part_.end == vocab_) {  // the last that has any
        logits.slice(1, 1, 2).slice(2, 0, 1).fill(std::numeric_limits<float>::quiet_NaN());
    }
    CrossEntropySaved saved;
    EXPECT_TRUE(std::isnan(mean_cross_entropy(*grid_, logits, vocab_, targets, saved)));
}

TEST_P(VocabTest, CrossEntropyRefusesBadTargets) {
    const Tensor logits = there(gaussian({1, 2, local_}, type_, 1));
    CrossEntropySaved saved;
    for (std::int32_t bad : {-2, static_cast<std::int32_t>(vocab_)}) {
        const Tensor targets = Tensor::zeros({1, 2}, DType::kInt32);
        targets.data<std::int32_t>()[1] = bad;
        if (device_ == Device::kCpu) {
            EXPECT_THROW(mean_cross_entropy(*grid_, logits, vocab_, targets, saved), Error);
            continue;
        }
        const Tensor ids = there(targets), dlogits = there(logits.clone());
        EXPECT_TRUE(std::isnan(mean_cross_entropy(*grid_, logits, vocab_, ids, saved))) << bad;
        cross_entropy_backward(*grid_, logits, vocab_, ids, saved, 1.0, dlogits);
        const std::vector<double> gradient = to_doubles(dlogits);
        for (std::int64_t i = 0; i < 2 * local_; ++i) {
            EXPECT_EQ(std::isnan(gradient[static_cast<std::size_t>(i)]), i >= local_) << bad;
        }
    }
    const Tensor targets = there(Tensor::zeros({1, 2}, DType::kInt32));
    EXPECT_THROW(mean_cross_entropy(*grid_, logits, vocab_,
                                    there(Tensor::zeros({2, 1}, DType::kInt32)), saved),
                 Error);
    EXPECT_THROW(mean_cross_entropy(*grid_, logits.to(DType::kFloat16), vocab_, targets, saved),
                 Error);
    if (device_ != Device::kCpu) {
        EXPECT_THROW(mean_cross_entropy(*grid_, logits, vocab_, testing::on_cpu(targets), saved),
                     Error);
    }
}

INSTANTIATE_TEST_SUITE_P(
    Types,
    VocabTest,
    ::testing::Combine(::testing::Values(DType::kFloat32, DType::kBFloat16),
                       ::testing::ValuesIn(testing::test_devices()),
                       // Also what no number of ranks divides, and less than a row each.
                       ::testing::Values(40, 41, 3)),
    [](const auto& test) {
        return std::string(name_of(std::get<0>(test.param))) + "_" +
               name_of(std::get<1>(test.param)) + "_" + std::to_string(std::get<2>(test.param));
    });

// Parts of another vocabulary than the one that is named, which a multiple of the ranks would hide.
TEST_P(VocabTest, CrossEntropyRefusesLogitsOfAnotherWidth) {
    const Tensor logits = there(Tensor::zeros({1, 2, local_ + 1}, type_));
    CrossEntropySaved saved;
    EXPECT_THROW(mean_cross_entropy(*grid_, logits, vocab_,
                                    there(Tensor::zeros({1, 2}, DType::kInt32)), saved),
                 Error);
    EXPECT_THROW(gather_vocabulary(*grid_, logits.view({2, local_ + 1}), vocab_), Error);
}

}  // namespace
}  // namespace evenkeel
