// The one place where layer results and gradients are summed across ranks, with sequence_region.h. Layers never call a
// communicator themselves, so another order of summation (a fixed tree over virtual shards, say) can be
// put here without touching them.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "framework/parameter_buckets.h"
#include "parallel/process_grid.h"

namespace evenkeel {

// Sums the parts of a row-parallel product, or of an input gradient of a column-parallel one, over the
// tensor-parallel group, in place.
void sum_partial_products(const ProcessGrid& grid,
                          const Tensor& tensor,
                          CallSite site = CallSite::current());
// The same, while the caller goes on with something else until wait().
Pending start_sum_of_partial_products(const ProcessGrid& grid,
                                      const Tensor& tensor,
                                      CallSite site = CallSite::current());

// The same of a product that has been formed by virtual shards (ParallelConfig::virtual_shards): parts
// [local shards, ...], contiguous fp32 on the CPU. Returns their sum over all ranks' parts, in the order of the
// shards: the same bits whichever rank has formed them.
Tensor sum_of_shards(const ProcessGrid& grid,
                     const Tensor& parts,
                     CallSite site = CallSite::current());

// Completes gradients bucket by bucket: sums over TP (or over the replica group of num_kv_heads) what
// GradientSum declares, then averages over DP, beside the backward pass that fills the other buckets. Of a bucket
// that is cut a rank gets its own part, to the bit what it has of a bucket that is not (over NCCL for two ranks; for
// more, sums have another order); the rest holds anything. Every rank of the grid calls the same functions in the
// same order.
class GradientReducer {
  public:
    // Both must outlive it.
    GradientReducer(const ProcessGrid& grid,
                    const ParameterBuckets& buckets,
                    std::int64_t num_kv_heads);

    // This rank's gradients of these parameters are final: starts each bucket of which all are. Called at
    // most once for each parameter before finish().
    void complete(const ParameterList& parameters);
    // Reduces what has not been started; afterwards all gradients may be read on the current stream.
    void finish();

  private:
    void start(std::size_t bucket);
    Communicator* group_of(GradientSum sum) const;  // null: nothing to sum

    const ProcessGrid& grid_;
    const ParameterBuckets& buckets_;
    std::int64_t num_kv_heads_;
    std::unordered_map<const Parameter*, std::size_t> bucket_of_;
    std::vector<std::size_t> missing_;  // parameters of each bucket that are not complete
    std::vector<bool> started_;
    std::vector<Pending> pending_;
};

// All of it at once.
void reduce_gradients(const ProcessGrid& grid,
                      const ParameterBuckets& buckets,
                      std::int64_t num_kv_heads);

// Sets `total` [1] fp64, on the buckets' device, to the squared L2 norm over all parameters' gradients,
// each element of each global tensor counted once (owners only), summed in double. The same bits on all
// ranks, and whether buckets are cut or not. Collective.
void squared_gradient_norm(const ProcessGrid& grid,
                           const ParameterBuckets& buckets,
                           const Tensor& total);

// Gives every rank the values of all of each bucket that is cut, after the ranks have updated their parts, while the
// caller goes on with something else until it has waited for all that is returned; nothing to do for others.
// Collective.
[[nodiscard]] std::vector<Pending> start_gather_of_values(const ProcessGrid& grid,
                                                          const ParameterBuckets& buckets);

}  // namespace evenkeel
