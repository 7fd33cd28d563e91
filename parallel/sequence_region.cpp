#include "parallel/sequence_region.h"

#include "parallel/tensor_reduce.h"

namespace evenkeel {
namespace {

// [1, B T / P, C].
Shape part_shape(const ProcessGrid& grid, const SequenceRegion& region, std::int64_t width) {
    return {1, region.batch * region.positions / grid.tp_size(), width};
}

// Whether x is all rows of a region that is cut.
bool is_whole(const SequenceRegion& region, const Tensor& x) {
    return x.shape() == Shape{region.batch, region.positions, x.size(2)};
}

}  // namespace

SequenceRegion sequence_region(const ProcessGrid& grid,
                               std::int64_t batch,
                               std::int64_t positions) {
    const bool cut = grid.sequence_parallel() && grid.local_shards() == 0 &&
                     batch * positions % grid.tp_size() == 0;
    return cut ? SequenceRegion{batch, positions} : SequenceRegion{};
}

GradientSum gradient_sum_over_rows(const ProcessGrid& grid) {
    return grid.sequence_parallel() ? GradientSum::kTensorParallel : GradientSum::kNone;
}

PendingRows start_gather_rows(const ProcessGrid& grid,
                              const SequenceRegion& region,
                              const Tensor& x) {
    if (!region.is_cut()) return {x, {}};
    EVENKEEL_CHECK(x.defined() && x.rank() == 3, "gather_rows", "x: want [1, B T / P, C]");
    if (is_whole(region, x)) return {x, {}};
    const std::int64_t C = x.size(2);
    check_shape("gather_rows", "x", x, part_shape(grid, region, C));
    const Tensor whole =
        Tensor::uninitialized({region.batch, region.positions, C}, x.dtype(), x.device());
    return {whole, grid.tensor().start_all_gather(x, whole)};
}

Tensor gather_rows(const ProcessGrid& grid, const SequenceRegion& region, const Tensor& x) {
    return start_gather_rows(grid, region, x).wait();
}

PendingRows start_sum_rows(const ProcessGrid& grid,
                           const SequenceRegion& region,
                           const Tensor& parts) {
    if (!region.is_cut()) return {parts, start_sum_of_partial_products(grid, parts)};
    EVENKEEL_CHECK(parts.defined() && parts.rank() == 3, "sum_rows", "parts: want [B, T, C]");
    const std::int64_t C = parts.size(2);
    check_shape("sum_rows", "parts", parts, {region.batch, region.positions, C});
    const Tensor own =
        Tensor::uninitialized(part_shape(grid, region, C), parts.dtype(), parts.device());
    return {own, grid.tensor().start_reduce_scatter(parts, own)};
}

Tensor sum_rows(const ProcessGrid& grid, const SequenceRegion& region, const Tensor& parts) {
    return start_sum_rows(grid, region, parts).wait();
}

}  // namespace evenkeel
