#include "model/head_statistics.h"

#include <algorithm>
#include <cmath>

#include "model/cuda/elementwise.h"

namespace evenkeel {
namespace {

// local [L, H/P] -> [L, H] with the ranks' heads in order.
MetricTable gather_heads(const ProcessGrid& grid, const char* name, const Tensor& local) {
    const std::int64_t layers = local.size(0), heads = local.size(1), ranks = grid.tp_size();
    const Tensor gathered = Tensor::uninitialized({ranks, layers, heads}, DType::kFloat32);
    grid.tensor().host().all_gather(local, gathered);
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

void add_on_cpu(const Tensor& highest,
                const Tensor& entropy_sum,
                const AttentionStats& stats,
                double rows) {
    for (std::int64_t head = 0; head < highest.numel(); ++head) {
        const float now = stats.max_logit.data<float>()[head];
        float& before = highest.data<float>()[head];
        // NaN is kept.
        if (!(now <= before) && !std::isnan(before)) before = now;
        entropy_sum.data<float>()[head] +=
            stats.entropy.data<float>()[head] * static_cast<float>(rows);
    }
}

}  // namespace

HeadStatistics::HeadStatistics(std::int64_t num_layers, std::int64_t local_heads, Device device)
    : num_layers_(num_layers),
      local_heads_(local_heads),
      max_logit_(Tensor::uninitialized({num_layers, local_heads}, DType::kFloat32, device)),
      entropy_sum_(Tensor::uninitialized({num_layers, local_heads}, DType::kFloat32, device)) {
    clear();
}

void HeadStatistics::clear() {
    max_logit_.fill(-INFINITY);
    entropy_sum_.zero();
    rows_ = 0;
}

AttentionStats HeadStatistics::make_stats() const {
    const Device device = max_logit_.device();
    return {Tensor::uninitialized({local_heads_}, DType::kFloat32, device),
            Tensor::uninitialized({local_heads_}, DType::kFloat32, device)};
}

void HeadStatistics::add(std::size_t layer, const AttentionStats& stats, std::int64_t rows) {
    constexpr const char* kOp = "HeadStatistics::add";
    check_shape(kOp, "max_logit", stats.max_logit, {local_heads_});
    check_shape(kOp, "entropy", stats.entropy, {local_heads_});
    for (const Tensor* tensor : {&stats.max_logit, &stats.entropy}) {
        EVENKEEL_CHECK(tensor->device() == max_logit_.device(), kOp, "device: got ",
                       name_of(tensor->device()), ", want ", name_of(max_logit_.device()));
    }
    const auto at = static_cast<std::int64_t>(layer);
    const Tensor highest = max_logit_.slice(0, at, at + 1).view({local_heads_});
    const Tensor entropy_sum = entropy_sum_.slice(0, at, at + 1).view({local_heads_});
    switch (max_logit_.device()) {
        case Device::kCpu:
            add_on_cpu(highest, entropy_sum, stats, static_cast<double>(rows));
            break;
        case Device::kCuda:
            cuda::add_head_statistics(highest, entropy_sum, stats.max_logit, stats.entropy,
                                      static_cast<double>(rows));
            break;
    }
}

std::vector<MetricTable> HeadStatistics::reduce(const ProcessGrid& grid) {
    const double rows = grid.data().all_reduce_scalar(static_cast<double>(rows_), ReduceOp::kSum);
    if (rows == 0.0) return {};
    const Tensor max_logit = max_logit_.to(Device::kCpu);
    const Tensor entropy_sum = entropy_sum_.to(Device::kCpu);
    grid.data().host().all_reduce(max_logit, ReduceOp::kMax);
    grid.data().host().all_reduce(entropy_sum, ReduceOp::kSum);
    std::vector<MetricTable> tables = {gather_heads(grid, "max_logit", max_logit),
                                       gather_heads(grid, "entropy", entropy_sum)};
    for (float& value : tables[1].values) value = static_cast<float>(value / rows);
    clear();
    return tables;
}

}  // namespace evenkeel
