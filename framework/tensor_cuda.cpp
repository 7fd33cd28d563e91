#include <bit>

#include "framework/cuda.h"
#include "framework/device_cuda.h"
#include "framework/stream.h"
#include "framework/strided_cuda.h"

namespace evenkeel::cuda {
namespace {

constexpr const char* kCopy = "Tensor::copy_from";
constexpr const char* kFill = "Tensor::fill";

// The fewest nested runs that both tensors' dimensions form.
StridedRuns runs_of(const char* op, const Tensor& to, const Tensor& from) {
    StridedRuns runs;
    for (int i = to.rank() - 1; i >= 0; --i) {
        const std::int64_t size = to.size(i), to_stride = to.stride(i),
                           from_stride = from.stride(i);
        if (size == 1) continue;
        const int last = runs.count - 1;
        if (last >= 0 && to_stride == runs.sizes[last] * runs.to[last] &&
            from_stride == runs.sizes[last] * runs.from[last]) {
            runs.sizes[last] *= size;
            continue;
        }
        EVENKEEL_CHECK(runs.count < StridedRuns::kMost, op, "strides: got ",
                       to_string(to.strides()), " and ", to_string(from.strides()),
                       ", want at most ", StridedRuns::kMost, " runs that do not merge");
        runs.sizes[runs.count] = size;
        runs.to[runs.count] = to_stride;
        runs.from[runs.count] = from_stride;
        ++runs.count;
    }
    return runs;
}

void copy_bytes(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    if (to == from) return;
    check(cudaMemcpyAsync(to, from, bytes, kind, Stream::current().handle()), kCopy,
          "cudaMemcpyAsync");
}

// The kernels move elements of 2 or 4 bytes.
void check_not_fp64(const char* op, const Tensor& tensor) {
    EVENKEEL_CHECK(tensor.dtype() != DType::kFloat64, op,
                   "element type: got fp64 that is strided on CUDA, or filled with another number "
                   "than 0, want a contiguous tensor, zeros");
}

bool is_plain(const Tensor& to, const Tensor& from) {
    return to.dtype() == from.dtype() && to.is_contiguous() && from.is_contiguous();
}

void copy_on_device(const Tensor& to, const Tensor& from) {
    if (is_plain(to, from)) {
        return copy_bytes(to.raw(), from.raw(), to.bytes(), cudaMemcpyDeviceToDevice);
    }
    check_not_fp64(kCopy, to);
    copy_strided(runs_of(kCopy, to, from), to.raw(), to.dtype(), from.raw(), from.dtype());
}

// A graph would repeat the copy into or from memory that this call alone knows.
void check_not_captured() {
    EVENKEEL_CHECK(!Stream::current().is_capturing(), kCopy,
                   "stream: got one that is captured into a graph, want copies between a GPU and "
                   "the CPU's memory before or after");
}

// What is strided is gathered or spread, and converted, on the GPU; memory crosses the bus in one
// piece.
void copy_to_device(const Tensor& to, const Tensor& from) {
    check_not_captured();
    const Tensor packed = from.contiguous();
    const bool plain = is_plain(to, packed);
    const Tensor landing =
        plain ? to : Tensor::uninitialized(to.shape(), packed.dtype(), Device::kCuda);
    copy_bytes(landing.raw(), packed.raw(), packed.bytes(), cudaMemcpyHostToDevice);
    if (!plain) copy_on_device(to, landing);
    Stream::current().synchronize();
}

void copy_to_host(const Tensor& to, const Tensor& from) {
    check_not_captured();
    Tensor packed = from;
    if (!from.is_contiguous() || from.dtype() != to.dtype()) {
        packed = Tensor::uninitialized(from.shape(), to.dtype(), Device::kCuda);
        copy_on_device(packed, from);
    }
    const Tensor landing =
        to.is_contiguous() ? to : Tensor::uninitialized(to.shape(), to.dtype(), Device::kCpu);
    // Into pageable memory the call itself waits, on most systems to the end of the copy: for the work before it that is
    // done here, where a guard looks on.
    wait_under_guard(kCopy);
    copy_bytes(landing.raw(), packed.raw(), packed.bytes(), cudaMemcpyDeviceToHost);
    check(cudaStreamSynchronize(Stream::current().handle()), kCopy, "cudaStreamSynchronize");
    if (!to.is_contiguous()) to.copy_from(landing);
}

std::uint64_t bits_of(float value, DType dtype) {
    switch (dtype) {
        case DType::kFloat32:
            return std::bit_cast<std::uint32_t>(value);
        case DType::kBFloat16:
            return bfloat16(value).bits;
        case DType::kFloat16:
            return float16(value).bits;
        case DType::kInt32:
            return static_cast<std::uint32_t>(static_cast<std::int32_t>(value));
        case DType::kFloat64:
            return std::bit_cast<std::uint64_t>(static_cast<double>(value));
    }
    return 0;
}

}  // namespace

void fill(const Tensor& tensor, float value) {
    if (tensor.numel() == 0) return;
    const std::uint64_t bits = bits_of(value, tensor.dtype());
    if (bits == 0 && tensor.is_contiguous()) {
        return check(cudaMemsetAsync(tensor.raw(), 0, tensor.bytes(), Stream::current().handle()),
                     kFill, "cudaMemsetAsync");
    }
    check_not_fp64(kFill, tensor);
    fill_strided(runs_of(kFill, tensor, tensor), tensor.raw(), size_of(tensor.dtype()),
                 static_cast<std::uint32_t>(bits));
}

void copy(const Tensor& to, const Tensor& from) {
    if (to.numel() == 0) return;
    if (from.device() == Device::kCpu) return copy_to_device(to, from);
    if (to.device() == Device::kCpu) return copy_to_host(to, from);
    copy_on_device(to, from);
}

}  // namespace evenkeel::cuda
