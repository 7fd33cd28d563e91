// Dynamic shared memory of the attention kernels: the launch asks for it, so no cubin tells.
#pragma once

#include <string>
#include <vector>

namespace kernel_resources {

struct DynamicShared {
    std::string kernel;
    int head_dim;
    int bytes;
    bool operator==(const DynamicShared&) const = default;
};
std::vector<DynamicShared> attention_dynamic_shared();

}  // namespace kernel_resources
