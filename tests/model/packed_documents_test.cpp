// Documents packed one behind the other: what one of them holds changes nothing in another.
#include <gtest/gtest.h>

#include <cmath>

#include "framework/stream.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/training.h"

namespace evenkeel {
namespace {

using testing::random_batch;
using testing::same_bits;

struct Where {
    Device device;
    ComputeType type;
};

std::vector<Where> places() {
    std::vector<Where> all;
    for (const Device device : testing::test_devices()) {
        for (const ComputeType type : {ComputeType::kFp32, ComputeType::kBf16}) {
            all.push_back({device, type});
        }
    }
    return all;
}

// Two rows of 24 tokens in five documents, one of which has a single token.
constexpr std::int64_t kRows = 2, kLength = 24;
const std::vector<std::int32_t> kBounds = {0, 7, 20, 24, 25, 48};

Batch packed_batch(std::uint64_t seed) {
    Batch batch = random_batch(kRows, kLength, 32, seed);
    batch.cu_seqlens = kBounds;
    for (std::size_t i = 1; i < kBounds.size(); ++i) {
        if (kBounds[i] == kRows * kLength) continue;  // the last goes on in another batch
        batch.targets.data<std::int32_t>()[kBounds[i] - 1] = Batch::kNoTarget;
    }
    return batch;
}

// Of one document alone.
Batch document(const Batch& batch, std::size_t index) {
    const std::int64_t begin = kBounds[index], end = kBounds[index + 1];
    const auto part = [&](const Tensor& ids) {
        return ids.view({kRows * kLength}).slice(0, begin, end).clone().view({1, end - begin});
    };
    return {part(batch.tokens), part(batch.targets), {}};
}

// All other documents' targets left out, or, with `others`, this one's.
Batch with_targets_of(const Batch& batch, std::size_t index, bool others) {
    Batch result{batch.tokens.clone(), batch.targets.clone(), batch.cu_seqlens};
    for (std::int64_t t = 0; t < kRows * kLength; ++t) {
        const bool within = t >= kBounds[index] && t < kBounds[index + 1];
        if (within == others) result.targets.data<std::int32_t>()[t] = Batch::kNoTarget;
    }
    return result;
}

class PackedDocumentsTest : public ::testing::TestWithParam<Where> {
  protected:
    PackedDocumentsTest() {
        if (GetParam().device == Device::kCuda) scope_.emplace(stream_.emplace());
    }
    ModelConfig config() const {
        ModelConfig result = testing::small_gpu_model();
        result.type = GetParam().type;
        result.max_seq_len = kLength;  // of a document; the rows together are longer
        return result;
    }
    std::vector<Tensor> gradients(LanguageModel& model, const Batch& batch) const {
        model.buckets().zero_gradients();
        testing::forward_backward(model, batch);
        std::vector<Tensor> all;
        for (const Parameter* parameter : model.parameters()) {
            all.push_back(testing::on_cpu(parameter->grad).clone());
        }
        return all;
    }

    std::optional<Stream> stream_;
    std::optional<StreamScope> scope_;
    std::unique_ptr<Communicator> world_ = make_single_communicator();
    ProcessGrid grid_{*world_, ParallelConfig{}, GetParam().device};
};

TEST_P(PackedDocumentsTest, ATokenOfOneChangesNothingInAnother) {
    LanguageModel model(grid_, config(), 1);
    const Batch before = packed_batch(4);
    Batch after{before.tokens.clone(), before.targets.clone(), before.cu_seqlens};
    constexpr std::int64_t kChanged = 10;
    std::int32_t& token = after.tokens.data<std::int32_t>()[kChanged];
    token = (token + 1) % 32;
    after.targets.data<std::int32_t>()[kChanged - 1] = token;

    const Tensor a = testing::on_cpu(model.local_logits(before.tokens, kBounds));
    const Tensor b = testing::on_cpu(model.local_logits(after.tokens, kBounds));
    const std::int64_t width = a.size(2);
    for (std::int64_t t = 0; t < kRows * kLength; ++t) {
        const auto row = [&](const Tensor& logits) {
            return logits.view({kRows * kLength, width}).slice(0, t, t + 1);
        };
        const bool may_change = t >= kChanged && t < 20;
        EXPECT_EQ(static_cast<bool>(same_bits(row(a), row(b))), !may_change) << "token " << t;
    }

    const Batch others_before = with_targets_of(before, 1, true);
    const Batch others_after = with_targets_of(after, 1, true);
    EXPECT_EQ(model.evaluate(others_before), model.evaluate(others_after));
    EXPECT_NE(model.evaluate(before), model.evaluate(after));
    const auto want = gradients(model, others_before), got = gradients(model, others_after);
    for (std::size_t i = 0; i < want.size(); ++i) {
        EXPECT_TRUE(same_bits(got[i], want[i])) << model.parameters()[i]->name;
    }
}

TEST_P(PackedDocumentsTest, EachIsAsItWouldBeAlone) {
    LanguageModel model(grid_, config(), 1);
    const Batch batch = packed_batch(5);
    const bool is_bf16 = GetParam().type == ComputeType::kBf16;
    const Tensor packed = testing::on_cpu(model.local_logits(batch.tokens, kBounds));
    const Tensor rows = packed.view({kRows * kLength, packed.size(2)});
    double losses = 0.0;
    for (std::size_t i = 0; i + 1 < kBounds.size(); ++i) {
        const Batch one = document(batch, i);
        const Tensor alone = testing::on_cpu(model.local_logits(one.tokens));
        EXPECT_TRUE(testing::near(rows.slice(0, kBounds[i], kBounds[i + 1]),
                                  alone.view({one.tokens.numel(), packed.size(2)}),
                                  is_bf16 ? 0.03 : 1e-5, is_bf16 ? 0.03 : 1e-5))
            << "document " << i;
        losses += static_cast<double>(one.num_targets()) * model.evaluate(one);
    }
    EXPECT_EQ(batch.num_targets(), kRows * kLength - 4);
    const double want = losses / static_cast<double>(batch.num_targets());
    EXPECT_NEAR(model.evaluate(batch), want, (is_bf16 ? 1e-2 : 1e-5) * want);
}

TEST_P(PackedDocumentsTest, TelemetryIsOfWhatIsSeenWithinDocuments) {
    LanguageModel packed(grid_, config(), 1), alone(grid_, config(), 1);
    const Batch batch = packed_batch(6);
    testing::forward_backward(packed, batch);
    for (std::size_t i = 0; i + 1 < kBounds.size(); ++i) {
        if (i == 3) continue;  // its one token sees itself alone, which is not telling
        testing::forward_backward(alone, document(batch, i));
    }
    const auto got = packed.head_metrics(), want = alone.head_metrics();
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t table = 0; table < got.size(); ++table) {
        if (got[table].name != "max_logit") continue;
        for (std::size_t i = 0; i < got[table].values.size(); ++i) {
            const float value = want[table].values[i];
            EXPECT_GE(got[table].values[i], value - 0.02f * std::abs(value)) << i;
        }
    }
}

TEST_P(PackedDocumentsTest, StepsWithOtherBoundsEachAreThoseOfNoGraph) {
    LanguageModel with(grid_, config(), 1), without(grid_, config(), 1);
    without.set_graphs(false);
    for (int step = 0; step < 6; ++step) {
        Batch batch = packed_batch(static_cast<std::uint64_t>(step));
        batch.cu_seqlens[1] += step;
        const auto got = gradients(with, batch), want = gradients(without, batch);
        for (std::size_t i = 0; i < want.size(); ++i) {
            ASSERT_TRUE(same_bits(got[i], want[i]))
                << "step " << step << " " << with.parameters()[i]->name;
        }
    }
}

TEST_P(PackedDocumentsTest, WhatIsNotFiniteIsFoundInThem) {
    LanguageModel model(grid_, config(), 1);
    const std::vector<Batch> batches = {packed_batch(7)};
    EXPECT_EQ(model.locate_non_finite(batches), "");
    const Parameter& weight = testing::find(model, "layers.1.attention.wo");
    weight.value.fill(NAN);
    EXPECT_EQ(model.locate_non_finite(batches), "layers.1.attention.wo (weight)");
}

TEST_P(PackedDocumentsTest, WrongBoundsAreRefused) {
    LanguageModel model(grid_, config(), 1);
    const auto fault = [&](std::vector<std::int32_t> bounds) -> std::string {
        Batch batch = packed_batch(1);
        batch.cu_seqlens = std::move(bounds);
        try {
            model.evaluate(batch);
        } catch (const Error& error) {
            return error.what();
        }
        return "";
    };
    const auto has = [](const std::string& text, const char* part) {
        EXPECT_NE(text.find(part), std::string::npos) << text;
    };
    has(fault({0}), "cu_seqlens: got 1 numbers from 0 to 0, want two or more, from 0 to 48");
    has(fault({1, 48}), "from 1 to 48");
    has(fault({0, 24, 40}), "from 0 to 40");
    has(fault({0, 30, 20, 48}), "cu_seqlens: got 20 after 30");
    has(fault({0, 90, 48}), "cu_seqlens: got 90 after 0");
    has(fault({0, 20, 48}), "a sequence of 28, want at most 24 (model.max_seq_len)");
}

INSTANTIATE_TEST_SUITE_P(,
                         PackedDocumentsTest,
                         ::testing::ValuesIn(places()),
                         [](const ::testing::TestParamInfo<Where>& info) {
                             return std::string(name_of(info.param.device)) +
                                    (info.param.type == ComputeType::kFp32 ? "_fp32" : "_bf16");
                         });

}  // namespace
}  // namespace evenkeel
