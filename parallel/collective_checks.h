// What every Communicator demands of its arguments, and counts. Internal.
#pragma once

#include "parallel/communicator.h"

namespace evenkeel {

inline void check_block(const char* op, const char* name, const Tensor& tensor, Device device) {
    EVENKEEL_CHECK(tensor.defined(), op, name, ": got no tensor");
    EVENKEEL_CHECK(tensor.device() == device, op, name, ": got ", name_of(tensor.device()),
                   ", want ", name_of(device));
    EVENKEEL_CHECK(tensor.is_contiguous(), op, name, ": got shape ", to_string(tensor.shape()),
                   " with strides ", to_string(tensor.strides()), ", want a contiguous tensor");
}

// What is added up, or the maximum of.
inline void check_reducible(
    const char* op, const char* name, const Tensor& tensor, ReduceOp reduce, Device device) {
    check_block(op, name, tensor, device);
    const DType type = tensor.dtype();
    EVENKEEL_CHECK(type != DType::kFloat16, op, name, ": got fp16, want fp32, bf16, int32 or fp64");
    EVENKEEL_CHECK(reduce != ReduceOp::kMean || type == DType::kFloat32 || type == DType::kFloat64,
                   op, name, ": got ", name_of(type), ", want fp32 or fp64 for a mean");
}

// `whole` holds `size` blocks of block's size.
inline void check_blocks(const char* op,
                         const char* block_name,
                         const Tensor& block,
                         const Tensor& whole,
                         int size,
                         Device device) {
    check_block(op, "input", block, device);
    check_block(op, "output", whole, device);
    EVENKEEL_CHECK(block.dtype() == whole.dtype(), op, "element types: got ",
                   name_of(block.dtype()), " and ", name_of(whole.dtype()), ", want the same");
    EVENKEEL_CHECK(block.numel() * size == whole.numel(), op, block_name, ": got ", block.numel(),
                   " elements, want a ", size, "th of ", whole.numel());
}

inline void check_peer(const char* op, const char* name, int peer, const Communicator& group) {
    EVENKEEL_CHECK(0 <= peer && peer < group.size(), op, name, ": got rank ", peer,
                   ", want one of a group of ", group.size());
}

inline void check_other(const char* op, const char* name, int peer, const Communicator& group) {
    check_peer(op, name, peer, group);
    EVENKEEL_CHECK(peer != group.rank(), op, name, ": got ", peer, ", which is this rank itself");
}

}  // namespace evenkeel
