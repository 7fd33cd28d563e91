#include "framework/optimizer/gradient_norm_cpu.h"

#include <vector>

#include "framework/optimizer/gradient_norm_rows.h"

namespace evenkeel::cpu {

void add_squared_gradient_norm(const ParameterBuckets& buckets, const Tensor& total) {
    const auto row_sum = EVENKEEL_FOR_CURRENT_ISA(row_sum_of_squares);
    double sum = 0.0;
    for (const ParameterBucket& bucket : buckets.list()) {
        const float* values = bucket.grad.data<float>();
        const auto count = static_cast<std::int64_t>(bucket.chunks.size());
        std::vector<double> partial(bucket.chunks.size());
#pragma omp parallel for
        for (std::int64_t i = 0; i < count; ++i) {
            const ParameterChunk& chunk = bucket.chunks[static_cast<std::size_t>(i)];
            if (!chunk.owned()) continue;
            partial[static_cast<std::size_t>(i)] = row_sum(values + chunk.begin, chunk.count);
        }
        for (const double value : partial) sum += value;
    }
    *total.data<double>() += sum;
}

}  // namespace evenkeel::cpu
