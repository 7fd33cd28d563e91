#include "framework/training/evaluation.h"

#include <algorithm>
#include <vector>

namespace evenkeel {

double evaluate(TrainableModel& model,
                const Dataset& data,
                std::int64_t sequences,
                std::int64_t micro_batch_size) {
    const std::int64_t available = data.validation_sequences();
    const std::int64_t count = sequences == 0 ? available : std::min(sequences, available);
    // A contiguous part for each data-parallel rank; parts may differ by one sequence.
    const std::int64_t ranks = model.data_parallel_size(), rank = model.data_parallel_rank();
    const std::int64_t end = count * (rank + 1) / ranks;
    double sum = 0.0;
    for (std::int64_t first = count * rank / ranks; first < end; first += micro_batch_size) {
        std::vector<std::int64_t> batch;
        for (std::int64_t i = first; i < std::min(end, first + micro_batch_size); ++i) {
            batch.push_back(i * available / count);
        }
        sum += static_cast<double>(batch.size()) * model.evaluate(data.validation_batch(batch));
    }
    return model.data_parallel_mean(sum) * static_cast<double>(ranks) / static_cast<double>(count);
}

}  // namespace evenkeel
