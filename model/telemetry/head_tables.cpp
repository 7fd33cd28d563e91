#include "model/telemetry/head_tables.h"

#include <algorithm>

namespace evenkeel {

std::vector<MetricTable> gather_heads(const ProcessGrid& grid,
                                      const std::vector<std::string>& names,
                                      const Tensor& local,
                                      int replicas) {
    const std::int64_t layers = local.size(1), heads = local.size(2), ranks = grid.tp_size();
    const auto count = static_cast<std::int64_t>(names.size());
    check_shape("gather_heads", "local", local, {count, layers, heads});
    const Tensor gathered = Tensor::uninitialized({ranks, count, layers, heads}, DType::kFloat32);
    grid.tensor().host().all_gather(local, gathered);
    const float* from = gathered.data<float>();
    const std::int64_t columns = ranks / replicas * heads;
    std::vector<MetricTable> tables;
    for (std::int64_t t = 0; t < count; ++t) {
        MetricTable table{names[static_cast<std::size_t>(t)], layers, columns, {}};
        table.values.resize(static_cast<std::size_t>(layers * columns));
        for (std::int64_t rank = 0; rank < ranks; rank += replicas) {
            for (std::int64_t layer = 0; layer < layers; ++layer) {
                std::copy_n(from + ((rank * count + t) * layers + layer) * heads, heads,
                            table.values.begin() + layer * columns + rank / replicas * heads);
            }
        }
        tables.push_back(std::move(table));
    }
    return tables;
}

}  // namespace evenkeel
