#include "model/head_statistics.h"

#include <algorithm>
#include <cmath>

namespace evenkeel {
namespace {

// local [L, H/P] -> [L, H] with the ranks' heads in order.
MetricTable gather_heads(const ProcessGrid& grid, const char* name, const Tensor& local) {
    const std::int64_t layers = local.size(0), heads = local.size(1), ranks = grid.tp_size();
    const Tensor gathered = Tensor::uninitialized({ranks, layers, heads}, DType::kFloat32);
    grid.tensor().all_gather(local, gathered);
    MetricTable table{name, layers, ranks * heads, {}};
    table.values.resize(static_cast<std::size_t>(layers * ranks * heads));
    const float* from = gathered.data<float>();
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
        for (std::int64_t layer = 0; layer < layers; ++layer) {
            std::copy_n(from + (rank * layers + layer) * heads, heads,
                        table.values.begin() + (layer * ranks + rank) * heads);
        }
    }
    return table;
}

}  // namespace

HeadStatistics::HeadStatistics(std::int64_t num_layers, std::int64_t local_heads)
    : num_layers_(num_layers),
      local_heads_(local_heads),
      max_logit_(Tensor::uninitialized({num_layers, local_heads}, DType::kFloat32)),
      entropy_sum_(Tensor::uninitialized({num_layers, local_heads}, DType::kFloat32)) {
    clear();
}

void HeadStatistics::clear() {
    max_logit_.fill(-INFINITY);
    entropy_sum_.zero();
    rows_ = 0;
}

AttentionStats HeadStatistics::make_stats() const {
    return {Tensor::uninitialized({local_heads_}, DType::kFloat32),
            Tensor::uninitialized({local_heads_}, DType::kFloat32)};
}

void HeadStatistics::add(std::size_t layer, const AttentionStats& stats, std::int64_t rows) {
    const auto at = static_cast<std::int64_t>(layer) * local_heads_;
    float* max_logit = max_logit_.data<float>() + at;
    float* entropy_sum = entropy_sum_.data<float>() + at;
    for (std::int64_t head = 0; head < local_heads_; ++head) {
        const float highest = stats.max_logit.data<float>()[head];
        // NaN is kept.
        if (!(highest <= max_logit[head]) && !std::isnan(max_logit[head])) {
            max_logit[head] = highest;
        }
        entropy_sum[head] += stats.entropy.data<float>()[head] * static_cast<float>(rows);
    }
    if (layer == 0) rows_ += rows;
}

std::vector<MetricTable> HeadStatistics::reduce(const ProcessGrid& grid) {
    const double rows = grid.data().all_reduce_scalar(static_cast<double>(rows_), ReduceOp::kSum);
    if (rows == 0.0) return {};
    grid.data().all_reduce(max_logit_, ReduceOp::kMax);
    grid.data().all_reduce(entropy_sum_, ReduceOp::kSum);
    std::vector<MetricTable> tables = {gather_heads(grid, "max_logit", max_logit_),
                                       gather_heads(grid, "entropy", entropy_sum_)};
    for (float& value : tables[1].values) value = static_cast<float>(value / rows);
    clear();
    return tables;
}

}  // namespace evenkeel
