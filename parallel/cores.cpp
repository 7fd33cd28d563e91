#include "parallel/cores.h"

#include <algorithm>

#include "framework/cores.h"

namespace evenkeel {

int cores_of_ranks(Communicator& world) {
    constexpr int kMost = 4096;
    const Tensor used = Tensor::zeros({kMost}, DType::kFloat32);
    auto* const data = used.data<float>();
    for (const int core : allowed_cores()) {
        if (core < kMost) data[core] = 1.0f;
    }
    world.all_reduce(used, ReduceOp::kMax);
    return static_cast<int>(std::count(data, data + kMost, 1.0f));
}

}  // namespace evenkeel
