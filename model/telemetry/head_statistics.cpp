#include "model/telemetry/head_statistics.h"

#include <cmath>
#include <limits>
#include <utility>

#include "attention/token_dots.h"
#include "model/cuda/head_statistics.h"
#include "model/telemetry/head_tables.h"

namespace evenkeel {
namespace {

constexpr const char* kOp = "HeadStatistics::add";

// The numbers that tell the rms of each row of q or k. rstd: of its norm, undefined without one; rows
// [B, T, N, D]: q or k, where there is no norm. (Rotation leaves their length as it is.)
RowStatistic row_statistic(const QkNormConfig& norm, const Tensor& rstd, const Tensor& rows) {
    const double channels = static_cast<double>(rows.size(3));
    const std::int64_t tokens = rows.size(0) * rows.size(1), heads = rows.size(2);
    if (norm.kind == QkNormKind::kNone) {
        const Tensor squares =
            Tensor::uninitialized({tokens, heads}, DType::kFloat32, rows.device());
        token_dots(rows.view({tokens, heads, 1, rows.size(3)}),
                   rows.view({tokens, heads, 1, rows.size(3)}), squares);
        return {squares, false, 1.0 / channels, 0.0};
    }
    const Tensor values = rstd.view({tokens, rstd.numel() / tokens});
    if (norm.kind == QkNormKind::kL2) return {values, true, 1.0 / channels, norm.eps / channels};
    return {values, true, 1.0, norm.eps};
}

float rms_of(const RowStatistic& statistic, float value) {
    const float g = statistic.inverse ? 1.0f / (value * value) : value;
    const float square =
        static_cast<float>(statistic.factor) * g - static_cast<float>(statistic.offset);
    return std::sqrt(square < 0.0f ? 0.0f : square);  // NaN stays
}

// NaN is kept.
void raise(float& before, float now) {
    if (!(now <= before) && !std::isnan(before)) before = now;
}

void add_rows(const RowStatistic& statistic,
              std::int64_t heads,
              float* negative_least,
              float* sum) {
    const std::int64_t rows = statistic.values.size(0), columns = statistic.values.size(1);
    const float* values = statistic.values.data<float>();
    std::vector<double> sums(static_cast<std::size_t>(columns), 0.0);
    std::vector<float> least(sums.size(), -std::numeric_limits<float>::infinity());
    for (std::int64_t row = 0; row < rows; ++row) {
        for (std::int64_t column = 0; column < columns; ++column) {
            const float rms = rms_of(statistic, values[row * columns + column]);
            sums[static_cast<std::size_t>(column)] += rms;
            raise(least[static_cast<std::size_t>(column)], -rms);
        }
    }
    for (std::int64_t head = 0; head < heads; ++head) {
        const auto column = static_cast<std::size_t>(columns == 1 ? 0 : head);
        raise(negative_least[head], least[column]);
        sum[head] += static_cast<float>(sums[column]);
    }
}

void add_on_cpu(const LayerHeads& in, const LayerPlanes& planes) {
    const auto plane = [](const Tensor& tensor, std::int64_t index) {
        return tensor.slice(0, index, index + 1).data<float>();
    };
    const std::int64_t heads = planes.q_max.size(1), kv_heads = planes.k_max.size(1);
    const auto rows = static_cast<float>(in.rows);
    const AttentionStats& stats = in.stats;
    for (std::int64_t head = 0; head < heads; ++head) {
        raise(plane(planes.q_max, kMaxLogitPlane)[head], stats.max_logit.data<float>()[head]);
        raise(plane(planes.q_max, kUncappedPlane)[head],
              stats.max_logit_uncapped.data<float>()[head]);
        plane(planes.q_sum, kEntropyPlane)[head] += stats.entropy.data<float>()[head] * rows;
        plane(planes.q_sum, kSharePlane)[head] += stats.entropy_share.data<float>()[head] * rows;
        plane(planes.q_sum, kSaturationPlane)[head] += stats.saturation.data<float>()[head] * rows;
    }
    add_rows(in.q, heads, plane(planes.q_max, kLeastQueryPlane), plane(planes.q_sum, kQueryPlane));
    add_rows(in.k, kv_heads, plane(planes.k_max, 0), plane(planes.k_sum, 0));
}

// Layer `layer` of [planes, L, heads] as [planes, heads].
Tensor layer_of(const Tensor& planes, std::size_t layer) {
    const auto at = static_cast<std::int64_t>(layer);
    return planes.slice(1, at, at + 1).view({planes.size(0), planes.size(2)});
}

}  // namespace

HeadStatistics::HeadStatistics(std::vector<AttentionConfig> layers,
                               std::int64_t local_heads,
                               std::int64_t local_kv_heads,
                               Device device)
    : layers_(std::move(layers)), local_heads_(local_heads), local_kv_heads_(local_kv_heads) {
    const auto num_layers = static_cast<std::int64_t>(layers_.size());
    const auto memory = [&](std::int64_t planes, std::int64_t heads) {
        return Tensor::uninitialized({planes, num_layers, heads}, DType::kFloat32, device);
    };
    q_max_ = memory(kQueryMaxPlanes, local_heads);
    q_sum_ = memory(kQuerySumPlanes, local_heads);
    k_max_ = memory(kKeyMaxPlanes, local_kv_heads);
    k_sum_ = memory(kKeySumPlanes, local_kv_heads);
    clear();
}

std::size_t HeadStatistics::bytes(std::int64_t num_layers,
                                  std::int64_t local_heads,
                                  std::int64_t local_kv_heads) {
    return sizeof(float) * static_cast<std::size_t>(
                               num_layers * ((kQueryMaxPlanes + kQuerySumPlanes) * local_heads +
                                             (kKeyMaxPlanes + kKeySumPlanes) * local_kv_heads));
}

void HeadStatistics::clear() {
    q_max_.fill(-std::numeric_limits<float>::infinity());
    k_max_.fill(-std::numeric_limits<float>::infinity());
    q_sum_.zero();
    k_sum_.zero();
    rows_ = 0;
}

void HeadStatistics::add(std::size_t layer,
                         const AttentionStats& stats,
                         const AttentionSaved& saved,
                         std::int64_t rows) {
    const std::pair<const char*, const Tensor*> per_head[] = {
        {"max_logit", &stats.max_logit},
        {"max_logit_uncapped", &stats.max_logit_uncapped},
        {"entropy", &stats.entropy},
        {"entropy_share", &stats.entropy_share},
        {"saturation", &stats.saturation}};
    for (const auto& [name, tensor] : per_head) {
        check_shape(kOp, name, *tensor, {local_heads_});
        EVENKEEL_CHECK(tensor->device() == q_max_.device(), kOp, name, ": got device ",
                       name_of(tensor->device()), ", want ", name_of(q_max_.device()));
    }
    const QkNormConfig& norm = layers_[layer].qk_norm;
    LayerHeads heads{stats, row_statistic(norm, saved.rstd_q, saved.q),
                     row_statistic(norm, saved.rstd_k, saved.k), rows};
    const LayerPlanes planes{layer_of(q_max_, layer), layer_of(q_sum_, layer),
                             layer_of(k_max_, layer), layer_of(k_sum_, layer)};
    switch (q_max_.device()) {
        case Device::kCpu:
            add_on_cpu(heads, planes);
            break;
        case Device::kCuda:
            cuda::add_head_statistics(heads, planes);
            break;
    }
}

std::vector<MetricTable> HeadStatistics::reduce(const ProcessGrid& grid) {
    const double rows = grid.data().all_reduce_scalar(static_cast<double>(rows_), ReduceOp::kSum);
    if (rows == 0.0) return {};
    const auto over_data = [&](const Tensor& planes, ReduceOp op) {
        const Tensor total = planes.to(Device::kCpu);
        grid.data().host().all_reduce(total, op);
        return total;
    };
    const int replicas = Sharding::sharded_by_head(0, layers_.front().num_kv_heads, 1,
                                                   grid.tp_rank(), grid.tp_size())
                             .replicas;
    auto q_max = gather_heads(grid, {"max_logit", "max_logit_uncapped", "q_rms_min"},
                              over_data(q_max_, ReduceOp::kMax));
    auto q_sum = gather_heads(grid, {"entropy", "entropy_share", "saturation", "q_rms"},
                              over_data(q_sum_, ReduceOp::kSum));
    auto k_max =
        gather_heads(grid, {"k_rms_min"}, over_data(k_max_, ReduceOp::kMax), replicas).front();
    auto k_sum = gather_heads(grid, {"k_rms"}, over_data(k_sum_, ReduceOp::kSum), replicas).front();
    for (MetricTable* table : {&q_max[kLeastQueryPlane], &k_max}) {
        for (float& value : table->values) value = -value;
    }
    for (MetricTable* table : {&q_sum[0], &q_sum[1], &q_sum[2], &q_sum[3], &k_sum}) {
        for (float& value : table->values) value = static_cast<float>(value / rows);
    }
    using Summary = MetricTable::Summary;
    q_max[kMaxLogitPlane].summary = Summary::kMax;
    q_max[kUncappedPlane].summary = Summary::kMax;
    for (const auto plane : {kEntropyPlane, kSharePlane, kSaturationPlane}) {
        q_sum[static_cast<std::size_t>(plane)].summary = Summary::kMean;
    }
    std::vector<MetricTable> tables = {q_max[kMaxLogitPlane]};
    if (layers_.front().softcap > 0.0) tables.push_back(q_max[kUncappedPlane]);
    tables.insert(tables.end(), q_sum.begin(), q_sum.end());
    tables.insert(tables.end(), {q_max[kLeastQueryPlane], k_sum, k_max});
    clear();
    return tables;
}

}  // namespace evenkeel
