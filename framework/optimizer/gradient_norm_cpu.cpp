#include "framework/optimizer/gradient_norm_cpu.h"

#include "framework/optimizer/gradient_norm_rows.h"

namespace evenkeel::cpu {

void chunk_sums_of_squares(const ParameterBuckets& buckets, const Tensor& sums) {
    const auto row_sum = EVENKEEL_FOR_CURRENT_ISA(row_sum_of_squares);
    for (const ParameterBucket& bucket : buckets.list()) {
        const float* values = bucket.part_grad.data<float>();
        double* of_chunks = sums.data<double>() + bucket.first_chunk;
        const auto count = static_cast<std::int64_t>(bucket.chunks.size());
#pragma omp parallel for
        for (std::int64_t i = 0; i < count; ++i) {
            const ParameterChunk& chunk = bucket.chunks[static_cast<std::size_t>(i)];
            of_chunks[i] = chunk.owned() ? row_sum(values + chunk.begin, chunk.count) : 0.0;
        }
    }
}

void add_in_order(const Tensor& sums, const Tensor& total) {
    double sum = 0.0;
    for (std::int64_t i = 0; i < sums.numel(); ++i) sum += sums.data<double>()[i];
    *total.data<double>() += sum;
}

}  // namespace evenkeel::cpu
