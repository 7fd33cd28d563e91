// A program of somebody else's: one training step of a small model with nothing but the installed package.
#include <cmath>
#include <cstdio>

#include "framework/optimizer/adamw.h"
#include "model/language_model.h"
#include "parallel/process_grid.h"

int main() {
    using namespace evenkeel;
    const auto world = make_single_communicator();
    const ProcessGrid grid(*world, {});
    ModelConfig config;
    config.num_layers = 1;
    config.width = 64;
    config.feed_forward_width = 128;
    config.max_seq_len = 32;
    LanguageModel model(grid, config, 1);

    const Batch batch{Tensor::zeros({1, 32}, DType::kInt32), Tensor::zeros({1, 32}, DType::kInt32)};
    const Tensor numbers = Tensor::zeros({2}, DType::kFloat64);
    compute_gradients(model, {&batch, 1}, numbers);
    const double before = numbers.data<double>()[kLossIndex];
    adamw_step(model.buckets(), {}, 1e-2, 0.0, numbers, 1);
    const double after = model.evaluate(batch);
    std::printf("loss %.4f, then %.4f\n", before, after);
    return std::abs(before - std::log(256.0)) < 0.5 && after < before ? 0 : 1;
}
