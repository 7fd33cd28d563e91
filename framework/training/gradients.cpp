#include "framework/training/gradients.h"

namespace evenkeel {

void compute_gradients(TrainableModel& model,
                       std::span<const Batch> micro_batches,
                       const Tensor& numbers,
                       UpdateScope scope) {
    model.buckets().zero_gradients();
    numbers.zero();
    const Tensor loss = numbers.slice(0, kLossIndex, kLossIndex + 1);
    const double share = 1.0 / static_cast<double>(micro_batches.size());
    for (std::size_t i = 0; i < micro_batches.size(); ++i) {
        model.forward_backward(micro_batches[i], share, i + 1 == micro_batches.size(), loss);
    }
    if (scope == UpdateScope::kFirstPhase) model.buckets().zero_gradients_after_first_phase();
    model.reduce_numbers(numbers);
}

}  // namespace evenkeel
