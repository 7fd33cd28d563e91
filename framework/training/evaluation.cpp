#include "framework/training/evaluation.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace evenkeel {

double evaluate(TrainableModel& model,
                const Dataset& data,
                std::int64_t sequences,
                std::int64_t micro_batch_size) {
    return *evaluate_unless(model, data, sequences, micro_batch_size, [] { return false; });
}

std::optional<double> evaluate_unless(TrainableModel& model,
                                      const Dataset& data,
                                      std::int64_t sequences,
                                      std::int64_t micro_batch_size,
                                      const std::function<bool()>& stop) {
    const std::int64_t available = data.validation_sequences();
    const std::int64_t count = sequences == 0 ? available : std::min(sequences, available);
    // A contiguous part for each data-parallel rank; parts may differ by one sequence.
    const std::int64_t ranks = model.data_parallel_size(), rank = model.data_parallel_rank();
    const std::int64_t begin = count * rank / ranks, end = count * (rank + 1) / ranks;
    const std::int64_t longest = (count + ranks - 1) / ranks;
    // Means of micro-batches count by their targets, in units of a sequence's.
    const auto seq_len = static_cast<double>(data.validation_batch({}).targets.size(1));
    double sum = 0.0;
    std::int64_t targets = 0;
    for (std::int64_t done = 0; done < longest; done += micro_batch_size) {
        if (stop()) return std::nullopt;
        std::vector<std::int64_t> batch;
        for (std::int64_t i = begin + done; i < std::min(end, begin + done + micro_batch_size);
             ++i) {
            batch.push_back(i * available / count);
        }
        if (batch.empty()) continue;
        const Batch rows = data.validation_batch(batch);
        const std::int64_t of_batch = rows.num_targets();
        sum += static_cast<double>(of_batch) / seq_len * model.evaluate(rows);
        targets += of_batch;
    }
    const auto over_ranks = [&](double value) {
        return model.data_parallel_mean(value) * static_cast<double>(ranks);
    };
    const double all = std::round(over_ranks(static_cast<double>(targets)));
    const double total = over_ranks(sum);
    return all == 0.0 ? 0.0 : total / (all / seq_len);
}

}  // namespace evenkeel
