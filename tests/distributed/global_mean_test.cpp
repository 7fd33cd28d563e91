// The loss and its gradient are means over the targets of the whole global batch, however it is divided.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/compare.h"
#include "tests/support/sharded_models.h"
#include "tests/support/tiny_model.h"

namespace evenkeel {
namespace {

using testing::distance;
using testing::gather;
using testing::GridShape;
using testing::make_grid;
using testing::random_batch;
using testing::rows_of;
using testing::SoloGrid;

constexpr std::int64_t kRows = 8, kLength = 12;

struct Case {
    const char* name;
    Batch batch;
};

std::vector<Case> cases() {
    std::vector<Case> all;
    const auto add = [&](const char* name, const auto& keeps) {
        Batch batch = random_batch(kRows, kLength, 32, 3);
        for (std::int64_t i = 0; i < kRows * kLength; ++i) {
            if (!keeps(i / kLength, i % kLength)) {
                batch.targets.data<std::int32_t>()[i] = Batch::kNoTarget;
            }
        }
        all.push_back({name, batch});
    };
    add("every token", [](std::int64_t, std::int64_t) { return true; });
    add("ragged", [](std::int64_t row, std::int64_t t) { return t < 1 + row; });
    add("one target", [](std::int64_t row, std::int64_t t) { return row == 5 && t == 3; });
    add("half of the rows", [](std::int64_t row, std::int64_t) { return row >= 4; });
    add("two rows",
        [](std::int64_t row, std::int64_t t) { return row == 2 || (row == 7 && t == 0); });
    add("none", [](std::int64_t, std::int64_t) { return false; });
    add("documents", [](std::int64_t row, std::int64_t t) { return t != row && t != row / 2; });
    for (std::int32_t row = 0; row < kRows; ++row) {
        auto& bounds = all.back().batch.cu_seqlens;
        bounds.push_back(row * static_cast<std::int32_t>(kLength));
        bounds.push_back(bounds.back() + row / 2 + 1);
        if (row / 2 != row) bounds.push_back(row * static_cast<std::int32_t>(kLength) + row + 1);
    }
    all.back().batch.cu_seqlens.push_back(kRows * kLength);
    return all;
}

struct Outcome {
    double loss, norm;
};

Outcome gradients(LanguageModel& model,
                  const ProcessGrid& grid,
                  const Batch& batch,
                  std::int64_t micro) {
    const std::int64_t rows = kRows / grid.dp_size(), begin = rows * grid.dp_rank();
    std::vector<Batch> batches;
    for (std::int64_t at = begin; at < begin + rows; at += micro) {
        batches.push_back(rows_of(batch, at, at + micro));
    }
    const Tensor numbers = Tensor::zeros({2}, DType::kFloat64);
    compute_gradients(model, batches, numbers);
    return {numbers.data<double>()[kLossIndex],
            std::sqrt(numbers.data<double>()[kSquaredNormIndex])};
}

std::vector<GridShape> shapes() {
    const std::int64_t size = testing::world().size();
    std::vector<GridShape> all = {{1, size}};
    if (size == 4) all.push_back({2, 2});
    return all;
}

TEST(GlobalMeanTest, AnyDivisionGivesTheSameLossAndGradient) {
    const SoloGrid solo;
    LanguageModel one(solo.grid, testing::tiny_model(), 1);
    for (const Case& c : cases()) {
        const Outcome want = gradients(one, solo.grid, c.batch, kRows);
        if (c.batch.num_targets() > 0) EXPECT_NEAR(want.loss, one.evaluate(c.batch), 1e-6);
        for (const GridShape& shape : shapes()) {
            const ProcessGrid grid = make_grid(shape);
            LanguageModel many(grid, testing::tiny_model(), 1);
            for (const std::int64_t micro : {1, 2}) {
                SCOPED_TRACE(
                    concat(c.name, ", ", testing::name_of(grid), ", micro-batches of ", micro));
                const Outcome got = gradients(many, grid, c.batch, micro);
                EXPECT_NEAR(got.loss, want.loss, 1e-6 * std::abs(want.loss));
                EXPECT_NEAR(got.norm, want.norm, 1e-5 * std::abs(want.norm));
                for (std::size_t i = 0; i < many.parameters().size(); ++i) {
                    const Parameter& parameter = *many.parameters()[i];
                    EXPECT_LE(distance(gather(grid, parameter, parameter.grad),
                                       one.parameters()[i]->grad),
                              1e-5)
                        << parameter.name;
                }
            }
        }
    }
}

TEST(GlobalMeanTest, AccumulationGivesTheSameLossAndGradient) {
    const SoloGrid solo;
    LanguageModel whole(solo.grid, testing::tiny_model(), 1),
        parts(solo.grid, testing::tiny_model(), 1);
    for (const Case& c : cases()) {
        const Outcome want = gradients(whole, solo.grid, c.batch, kRows);
        for (const std::int64_t micro : {1, 2, 4}) {
            SCOPED_TRACE(concat(c.name, ", micro-batches of ", micro));
            const Outcome got = gradients(parts, solo.grid, c.batch, micro);
            EXPECT_NEAR(got.loss, want.loss, 1e-6 * std::abs(want.loss));
            for (std::size_t i = 0; i < parts.parameters().size(); ++i) {
                EXPECT_LE(distance(parts.parameters()[i]->grad, whole.parameters()[i]->grad), 1e-5)
                    << parts.parameters()[i]->name;
            }
        }
    }
}

// Where every token has a target, each micro-batch counts for one over their number, to the bit.
TEST(GlobalMeanTest, WithoutMasksSharesAreThoseOfMicroBatches) {
    const SoloGrid solo;
    LanguageModel got(solo.grid, testing::tiny_model(), 1),
        want(solo.grid, testing::tiny_model(), 1);
    const Batch batch = cases()[0].batch;
    std::vector<Batch> thirds;
    for (std::int64_t at : {0, 2, 4}) thirds.push_back(rows_of(batch, at, at + 2));
    const Tensor numbers = Tensor::zeros({2}, DType::kFloat64),
                 loss = Tensor::zeros({1}, DType::kFloat64);
    compute_gradients(got, thirds, numbers);
    want.buckets().zero_gradients();
    for (std::size_t i = 0; i < 3; ++i) want.forward_backward(thirds[i], 1.0 / 3.0, i == 2, loss);
    EXPECT_EQ(numbers.data<double>()[kLossIndex], loss.data<double>()[0]);
    for (std::size_t i = 0; i < got.parameters().size(); ++i) {
        EXPECT_TRUE(testing::same_bits(got.parameters()[i]->grad, want.parameters()[i]->grad));
    }
}

// Held-out sequences whose numbers of targets differ.
class MaskedDataset final : public Dataset {
  public:
    explicit MaskedDataset(Batch batch) : batch_(std::move(batch)) {}
    std::int64_t vocab_size() const override { return 32; }
    std::int64_t train_tokens() const override { return kRows * kLength; }
    std::int64_t validation_tokens() const override { return kRows * kLength; }
    std::int64_t train_sequences() const override { return kRows; }
    std::int64_t validation_sequences() const override { return kRows; }
    std::uint64_t fingerprint() const override { return 1; }
    std::string description() const override { return "{}"; }
    Batch train_batch(std::uint64_t, const std::vector<std::int64_t>& samples) const override {
        return validation_batch(samples);
    }
    Batch validation_batch(const std::vector<std::int64_t>& rows) const override {
        Batch result{
            Tensor::zeros({static_cast<std::int64_t>(rows.size()), kLength}, DType::kInt32),
            Tensor::zeros({static_cast<std::int64_t>(rows.size()), kLength}, DType::kInt32),
            {}};
        for (std::size_t i = 0; i < rows.size(); ++i) {
            const auto at = static_cast<std::int64_t>(i);
            result.tokens.slice(0, at, at + 1)
                .copy_from(batch_.tokens.slice(0, rows[i], rows[i] + 1));
            result.targets.slice(0, at, at + 1)
                .copy_from(batch_.targets.slice(0, rows[i], rows[i] + 1));
        }
        return result;
    }

  private:
    Batch batch_;
};

TEST(GlobalMeanTest, AnEvaluationIsAMeanOverTargetsToo) {
    const SoloGrid solo;
    LanguageModel one(solo.grid, testing::tiny_model(), 1);
    for (const Case& c : cases()) {
        if (!c.batch.cu_seqlens.empty()) continue;
        const MaskedDataset data(c.batch);
        const double want = one.evaluate(c.batch);
        for (const std::int64_t micro : {1, 3, 8}) {
            EXPECT_NEAR(evaluate(one, data, 0, micro), want, 1e-6 * want) << c.name;
        }
        for (const GridShape& shape : shapes()) {
            const ProcessGrid grid = make_grid(shape);
            LanguageModel many(grid, testing::tiny_model(), 1);
            EXPECT_NEAR(evaluate(many, data, 0, 2), want, 1e-5 * want) << c.name;
        }
    }
}

}  // namespace
}  // namespace evenkeel
