// A strided view of a shared buffer: what every operation takes and returns. Copying a Tensor copies
// the view, not the elements. Strides are in elements; the last dimension is contiguous in every tensor
// made here, so a row is one run of memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "framework/buffer.h"
#include "framework/device.h"
#include "framework/dtype.h"
#include "framework/error.h"
#include "framework/shape.h"

namespace evenkeel {

class Tensor {
  public:
    Tensor() = default;  // empty: defined() is false

    // New contiguous tensors.
    static Tensor uninitialized(const Shape& shape, DType dtype, Device device = Device::kCpu);
    static Tensor zeros(const Shape& shape, DType dtype, Device device = Device::kCpu);
    static Tensor full(const Shape& shape, float value, DType dtype, Device device = Device::kCpu);

    bool defined() const { return buffer_ != nullptr; }
    DType dtype() const { return dtype_; }
    Device device() const { return buffer_->device(); }
    const Shape& shape() const { return shape_; }
    const Shape& strides() const { return strides_; }
    int rank() const { return static_cast<int>(shape_.size()); }
    // Size and stride of one dimension; a negative index counts from the last.
    std::int64_t size(int dim) const;
    std::int64_t stride(int dim) const;
    std::int64_t numel() const { return num_elements(shape_); }
    std::size_t bytes() const { return static_cast<std::size_t>(numel()) * size_of(dtype_); }
    bool is_contiguous() const;

    // First element. The typed form throws when T is not the tensor's type.
    std::byte* raw() const { return buffer_->data() + offset_ * size_of(dtype_); }
    template <typename T>
    T* data() const {
        EVENKEEL_CHECK(dtype_of<T>::value == dtype_, "Tensor", "element type: got ",
                       name_of(dtype_), ", want ", name_of(dtype_of<T>::value));
        return reinterpret_cast<T*>(raw());
    }

    // Views, sharing memory.
    Tensor slice(int dim, std::int64_t begin, std::int64_t end) const;
    // Same elements, other shape. The strided dimensions must stay as they are: a row-strided
    // [B, T, H*D] becomes [B, T, H, D], a contiguous tensor anything of equal size.
    Tensor view(const Shape& shape) const;
    // Two contiguous slices of one tensor, `second` directly behind `first`, as one along dimension 0.
    static Tensor joined(const Tensor& first, const Tensor& second);

    // New memory.
    Tensor contiguous() const;  // this, if it is already
    Tensor clone() const;       // always a contiguous copy
    Tensor to(DType dtype) const;
    Tensor to(Device device) const;  // this, if it is there already; else a contiguous copy

    // Same shape; converts between float types; between devices too. Whatever touches CUDA memory runs on the
    // current stream; a copy to or from the CPU has ended on return.
    void copy_from(const Tensor& source) const;
    void fill(float value) const;
    void zero() const { fill(0.0f); }

  private:
    std::shared_ptr<Buffer> buffer_;
    std::int64_t offset_ = 0;  // elements
    Shape shape_;
    Shape strides_;
    DType dtype_ = DType::kFloat32;
};

// Throws "[op] name: got shape [..], want [..]" unless the tensor is defined and has that shape.
void check_shape(const char* op, const char* name, const Tensor& tensor, const Shape& want);
void check_dtype(const char* op, const char* name, const Tensor& tensor, DType want);

}  // namespace evenkeel
