#include "attention/cuda/flash_attention_backward.cuh"
#include "attention/cuda/flash_attention_forward.cuh"
#include "attention/cuda/flash_attention_fp32.cuh"
#include "tests/kernel_resources/dynamic_shared.h"

namespace kernel_resources {
namespace {

template <int D>
void add(std::vector<DynamicShared>& all) {
    using namespace evenkeel::cuda;
    all.push_back({"forward", D, ForwardTiles<__nv_bfloat16, D, false>::kSharedBytes});
    all.push_back({"capped forward", D, ForwardTiles<__nv_bfloat16, D, true>::kSharedBytes});
    all.push_back({"backward prepare", D, PrepareTiles<D>::kShared});
    all.push_back({"backward keys", D, KeysTiles<D, false>::kShared});
    all.push_back({"capped backward keys", D, KeysTiles<D, true>::kShared});
    all.push_back({"backward queries", D, QueriesTiles<D>::kShared});
    all.push_back({"fp32 forward", D, fp32::forward_shared_bytes({D})});
    all.push_back({"fp32 backward", D, fp32::backward_shared_bytes({D})});
}

}  // namespace

std::vector<DynamicShared> attention_dynamic_shared() {
    std::vector<DynamicShared> all;
    add<64>(all), add<96>(all), add<128>(all), add<256>(all);
    return all;
}

}  // namespace kernel_resources
