// What only the emulator can show of the vocabulary's kernels: any order of threads gives the same bits,
// and memory is moved in whole sectors, once.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "parallel/embedding.h"
#include "parallel/vocab.h"
#include "tests/gpu_emulator/machine.h"
#include "tests/support/compare.h"
#include "tests/support/data.h"
#include "tests/support/devices.h"

namespace evenkeel::testing {
namespace {

constexpr DType kBf16 = DType::kBFloat16, kFp32 = DType::kFloat32;

Tensor there(const Tensor& tensor) { return on(Device::kCuda, tensor); }

// i, scattered and repeated.
Tensor tokens_of(const Shape& shape, std::int64_t vocab_size) {
    const Tensor tokens = Tensor::uninitialized(shape, DType::kInt32);
    for (std::int64_t i = 0; i < tokens.numel(); ++i) {
        tokens.data<std::int32_t>()[i] = static_cast<std::int32_t>((i * 7 + i * i) % vocab_size);
    }
    return there(tokens);
}

class VocabEmulated : public ::testing::Test {
  protected:
    // loss, log-sum-exps, gradient.
    std::vector<Tensor> cross_entropy(const Shape& shape, DType dtype) {
        const Tensor logits = there(gaussian(shape, dtype, 1, 3.0));
        const Tensor targets = tokens_of({shape[0], shape[1]}, shape[2]);
        const Tensor loss = there(Tensor::zeros({1}, DType::kFloat64));
        CrossEntropySaved saved;
        cross_entropy_forward(grid_, logits, logits.size(2), targets, saved, 1.0, loss);
        cross_entropy_backward(grid_, logits, logits.size(2), targets, saved, 1.0, logits);
        return {loss, saved.log_sum_exp, logits};
    }

    std::unique_ptr<Communicator> world_ = make_single_communicator();
    ProcessGrid grid_{*world_, ParallelConfig{}, Device::kCuda};
};

Tensor embedding_gradient(std::int64_t count, std::int64_t width, DType dtype) {
    const Tensor grad = there(Tensor::zeros({11, width}, kFp32));
    embedding_backward(there(gaussian({count, width}, dtype, 2)), tokens_of({count}, 13), 1, 13,
                       grad);
    return grad;
}

TEST_F(VocabEmulated, OrderOfThreadsDoesNotMatter) {
    gpu_emulator::set_seed(0);
    const auto want = cross_entropy({2, 140, 700}, kBf16);
    const Tensor want_grad = embedding_gradient(2100, 9, kBf16);
    for (const std::uint64_t seed : {1, 2, 3}) {
        gpu_emulator::set_seed(seed);
        const auto got = cross_entropy({2, 140, 700}, kBf16);
        for (std::size_t i = 0; i < want.size(); ++i) {
            EXPECT_TRUE(same_bits(got[i], want[i])) << "result " << i << ", seed " << seed;
        }
        EXPECT_TRUE(same_bits(embedding_gradient(2100, 9, kBf16), want_grad)) << "seed " << seed;
    }
    EXPECT_EQ(gpu_emulator::report_count(), 0u);
}

// Sectors of 32 bytes that the one kernel with this in its name asked for.
std::uint64_t sectors_of(const std::string& name) {
    for (const auto& [kernel, counters] : gpu_emulator::counters()) {
        if (kernel.find(name) != std::string::npos) return counters.global_sectors;
    }
    ADD_FAILURE() << "no launch of " << name;
    return 0;
}

// Logits once forward, and the target's again; backward read and written. A few numbers a row.
TEST_F(VocabEmulated, LogitsMoveInWholeSectorsOnce) {
    const std::uint64_t rows = 6;
    for (const DType dtype : {kBf16, kFp32}) {
        SCOPED_TRACE(evenkeel::name_of(dtype));
        const std::uint64_t width = 4096, row = width * size_of(dtype) / 32;
        gpu_emulator::reset_counters();
        cross_entropy({2, 3, static_cast<std::int64_t>(width)}, dtype);
        // Target id, its logit; maximum twice, sum, target's logit.
        EXPECT_EQ(sectors_of("cross_entropy_rows_kernel"), rows * (row + 2 + 4));
        // Target id, log-sum-exp and count, by each warp.
        EXPECT_EQ(sectors_of("cross_entropy_gradient_kernel"), rows * (2 * row + 3 * 8));
    }
}

TEST_F(VocabEmulated, EmbeddingRowsMoveInWholeSectorsOnce) {
    const std::int64_t width = 1024;
    gpu_emulator::reset_counters();
    const Tensor tokens = tokens_of({32}, 13), y = there(poisoned({32, width}, kBf16));
    embedding_forward(tokens, there(gaussian({13, width}, kBf16, 1)), 0, 13, y);
    const std::uint64_t row = width * 2 / 32, warps_of_row = width * 2 / 16 / 32;
    EXPECT_EQ(sectors_of("embedding_forward_kernel"), 32 * (2 * row + warps_of_row));
}

}  // namespace
}  // namespace evenkeel::testing
