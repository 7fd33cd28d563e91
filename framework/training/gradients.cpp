#include "framework/training/gradients.h"

#include <cmath>
#include <numeric>
#include <vector>

namespace evenkeel {
namespace {

// What each micro-batch's mean counts for, so that the mean over the data-parallel ranks of their sums is that over all
// targets of all ranks. Where every token has a target these are the bits of 1 / micro-batches.
std::vector<double> shares_of(TrainableModel& model, std::span<const Batch> micro_batches) {
    std::vector<std::int64_t> targets;
    for (const Batch& batch : micro_batches) targets.push_back(batch.num_targets());
    const double ranks = model.data_parallel_size();
    const auto own =
        static_cast<double>(std::accumulate(targets.begin(), targets.end(), std::int64_t{0}));
    const double all = ranks == 1.0 ? own : std::round(model.data_parallel_mean(own) * ranks);
    std::vector<double> shares;
    for (const std::int64_t count : targets) {
        shares.push_back(count == 0 ? 0.0 : static_cast<double>(count) * ranks / all);
    }
    return shares;
}

}  // namespace

void compute_gradients(TrainableModel& model,
                       std::span<const Batch> micro_batches,
                       const Tensor& numbers,
                       UpdateScope scope) {
    model.buckets().zero_gradients();
    numbers.zero();
    const Tensor loss = numbers.slice(0, kLossIndex, kLossIndex + 1);
    const std::vector<double> shares = shares_of(model, micro_batches);
    for (std::size_t i = 0; i < micro_batches.size(); ++i) {
        model.forward_backward(micro_batches[i], shares[i], i + 1 == micro_batches.size(), loss);
    }
    if (scope == UpdateScope::kFirstPhase) model.buckets().zero_gradients_after_first_phase();
    model.reduce_numbers(numbers);
}

}  // namespace evenkeel
