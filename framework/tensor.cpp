#include "framework/tensor.h"

#include <cstring>
#include <vector>

#include "framework/device_cuda.h"
#include "framework/dispatch.h"

namespace evenkeel {
namespace {

Shape contiguous_strides(const Shape& shape) {
    Shape strides(shape.size());
    std::int64_t stride = 1;
    for (int i = static_cast<int>(shape.size()) - 1; i >= 0; --i) {
        strides[i] = stride;
        stride *= shape[i];
    }
    return strides;
}

int wrap(int dim, int rank) {
    EVENKEEL_CHECK(dim >= -rank && dim < rank, "Tensor", "dimension: got ", dim,
                   ", want one of a tensor of rank ", rank);
    return dim < 0 ? dim + rank : dim;
}

struct Run {
    std::int64_t size, stride;
};

// The fewest strided runs that the dimensions form, innermost first; none for a single element.
std::vector<Run> runs_of(const Shape& shape, const Shape& strides) {
    std::vector<Run> runs;
    for (int i = static_cast<int>(shape.size()) - 1; i >= 0; --i) {
        if (shape[i] == 1) continue;
        if (!runs.empty() && strides[i] == runs.back().size * runs.back().stride) {
            runs.back().size *= shape[i];
        } else {
            runs.push_back({shape[i], strides[i]});
        }
    }
    return runs;
}

// Calls f(offset of a, offset of b, length) for every contiguous run of the innermost dimension.
template <typename F>
void for_each_row(const Shape& shape, const Shape& a, const Shape& b, F&& f) {
    if (num_elements(shape) == 0) return;
    const int rank = static_cast<int>(shape.size());
    if (rank == 0) return f(0, 0, 1);
    const std::int64_t length = shape[rank - 1];
    Shape index(rank, 0);
    std::int64_t offset_a = 0, offset_b = 0;
    while (true) {
        f(offset_a, offset_b, length);
        int dim = rank - 2;
        for (; dim >= 0; --dim) {
            offset_a += a[dim];
            offset_b += b[dim];
            if (++index[dim] < shape[dim]) break;
            offset_a -= a[dim] * shape[dim];
            offset_b -= b[dim] * shape[dim];
            index[dim] = 0;
        }
        if (dim < 0) return;
    }
}

// Calls f.template operator()<T>() with the float type.
template <typename F>
void for_float_type(DType dtype, F&& f) {
    if (dtype == DType::kFloat16) return f.template operator()<float16>();
    dispatch_float(dtype, "Tensor::copy_from", f);
}

void copy_on_cpu(const Tensor& to, const Tensor& from) {
    if (to.dtype() == from.dtype()) {
        const std::size_t element = size_of(to.dtype());
        for_each_row(to.shape(), to.strides(), from.strides(),
                     [&](std::int64_t to_at, std::int64_t from_at, std::int64_t length) {
                         std::memcpy(to.raw() + to_at * element, from.raw() + from_at * element,
                                     static_cast<std::size_t>(length) * element);
                     });
        return;
    }
    for_float_type(to.dtype(), [&]<typename To>() {
        for_float_type(from.dtype(), [&]<typename From>() {
            To* to_data = to.data<To>();
            const From* from_data = from.data<From>();
            for_each_row(to.shape(), to.strides(), from.strides(),
                         [&](std::int64_t to_at, std::int64_t from_at, std::int64_t length) {
                             for (std::int64_t i = 0; i < length; ++i) {
                                 to_data[to_at + i] =
                                     To(static_cast<float>(from_data[from_at + i]));
                             }
                         });
        });
    });
}

void fill_on_cpu(const Tensor& tensor, float value) {
    const auto fill_as = [&]<typename T>(T element) {
        T* elements = tensor.data<T>();
        for_each_row(tensor.shape(), tensor.strides(), tensor.strides(),
                     [&](std::int64_t at, std::int64_t, std::int64_t length) {
                         for (std::int64_t i = 0; i < length; ++i) elements[at + i] = element;
                     });
    };
    switch (tensor.dtype()) {
        case DType::kFloat32:
            return fill_as(value);
        case DType::kBFloat16:
            return fill_as(bfloat16(value));
        case DType::kFloat16:
            return fill_as(float16(value));
        case DType::kInt32:
            return fill_as(static_cast<std::int32_t>(value));
        case DType::kFloat64:
            return fill_as(static_cast<double>(value));
    }
}

}  // namespace

std::int64_t num_elements(const Shape& shape) {
    std::int64_t product = 1;
    for (std::int64_t size : shape) {
        EVENKEEL_CHECK(size >= 0, "Shape", "size: got ", size, ", want 0 or more");
        EVENKEEL_CHECK(!__builtin_mul_overflow(product, size, &product), "Shape",
                       "more elements than 63 bits can count in ", to_string(shape));
    }
    return product;
}

std::string to_string(const Shape& shape) {
    std::string text = "[";
    for (std::size_t i = 0; i < shape.size(); ++i) {
        text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
    }
    return text + "]";
}

Tensor Tensor::uninitialized(const Shape& shape, DType dtype, Device device) {
    Tensor tensor;
    tensor.shape_ = shape;
    tensor.strides_ = contiguous_strides(shape);
    tensor.dtype_ = dtype;
    tensor.buffer_ = std::make_shared<Buffer>(
        static_cast<std::size_t>(num_elements(shape)) * size_of(dtype), device);
    return tensor;
}

Tensor Tensor::zeros(const Shape& shape, DType dtype, Device device) {
    Tensor tensor = uninitialized(shape, dtype, device);
    tensor.zero();
    return tensor;
}

Tensor Tensor::full(const Shape& shape, float value, DType dtype, Device device) {
    Tensor tensor = uninitialized(shape, dtype, device);
    tensor.fill(value);
    return tensor;
}

std::int64_t Tensor::size(int dim) const { return shape_[wrap(dim, rank())]; }
std::int64_t Tensor::stride(int dim) const { return strides_[wrap(dim, rank())]; }

bool Tensor::is_contiguous() const {
    std::int64_t stride = 1;
    for (int i = rank() - 1; i >= 0; --i) {
        if (shape_[i] != 1 && strides_[i] != stride) return false;
        stride *= shape_[i];
    }
    return true;
}

Tensor Tensor::slice(int dim, std::int64_t begin, std::int64_t end) const {
    dim = wrap(dim, rank());
    EVENKEEL_CHECK(0 <= begin && begin <= end && end <= shape_[dim], "Tensor::slice", "range: got ",
                   begin, " to ", end, " of dimension ", dim, ", want inside ", to_string(shape_));
    Tensor result = *this;
    result.offset_ += begin * strides_[dim];
    result.shape_[dim] = end - begin;
    return result;
}

Tensor Tensor::joined(const Tensor& first, const Tensor& second) {
    constexpr const char* kOp = "Tensor::joined";
    EVENKEEL_CHECK(first.is_contiguous() && second.is_contiguous() && first.rank() > 0, kOp,
                   "strides: got ", to_string(first.strides_), " and ", to_string(second.strides_),
                   ", want contiguous tensors");
    Shape shape = second.shape_;
    if (!shape.empty()) shape[0] = first.size(0);
    check_shape(kOp, "first", first, shape);
    check_dtype(kOp, "second", second, first.dtype_);
    EVENKEEL_CHECK(
        first.buffer_ == second.buffer_ && first.offset_ + first.numel() == second.offset_, kOp,
        "second: got a tensor elsewhere, want one that lies directly behind the first");
    Tensor result = first;
    result.shape_[0] += second.size(0);
    return result;
}

Tensor Tensor::view(const Shape& shape) const {
    EVENKEEL_CHECK(num_elements(shape) == numel(), "Tensor::view", "shape: got ", to_string(shape),
                   ", want as many elements as ", to_string(shape_));
    Tensor result = *this;
    result.shape_ = shape;
    result.strides_ = contiguous_strides(shape);
    if (is_contiguous() || numel() == 0) return result;
    // Cut the runs of memory, innermost first, into the new dimensions. A dimension must not reach
    // over the end of a run; those of size 1 fit anywhere.
    const std::vector<Run> runs = runs_of(shape_, strides_);
    std::size_t at = 0;
    std::int64_t taken = 1;  // of the run at hand
    for (int i = static_cast<int>(shape.size()) - 1; i >= 0; --i) {
        if (taken == runs[at].size && at + 1 < runs.size() && shape[i] != 1) ++at, taken = 1;
        EVENKEEL_CHECK(runs[at].size % (taken * shape[i]) == 0, "Tensor::view", "cannot view ",
                       to_string(shape_), " with strides ", to_string(strides_), " as ",
                       to_string(shape));
        result.strides_[i] = runs[at].stride * taken;
        taken *= shape[i];
    }
    return result;
}

Tensor Tensor::contiguous() const { return is_contiguous() ? *this : clone(); }

Tensor Tensor::clone() const {
    Tensor result = uninitialized(shape_, dtype_, device());
    result.copy_from(*this);
    return result;
}

Tensor Tensor::to(DType dtype) const {
    if (dtype == dtype_) return *this;
    Tensor result = uninitialized(shape_, dtype, device());
    result.copy_from(*this);
    return result;
}

Tensor Tensor::to(Device device) const {
    if (device == this->device()) return *this;
    Tensor result = uninitialized(shape_, dtype_, device);
    result.copy_from(*this);
    return result;
}

void Tensor::copy_from(const Tensor& source) const {
    check_shape("Tensor::copy_from", "source", source, shape_);
    EVENKEEL_CHECK(
        dtype_ == source.dtype_ || (dtype_ != DType::kInt32 && source.dtype_ != DType::kInt32),
        "Tensor::copy_from", "element type: got ", name_of(source.dtype_), " for ", name_of(dtype_),
        ", want the same type, or floats");
    if (device() == Device::kCpu && source.device() == Device::kCpu) {
        copy_on_cpu(*this, source);
    } else {
        cuda::copy(*this, source);
    }
}

void Tensor::fill(float value) const {
    switch (device()) {
        case Device::kCpu:
            return fill_on_cpu(*this, value);
        case Device::kCuda:
            return cuda::fill(*this, value);
    }
}

void check_shape(const char* op, const char* name, const Tensor& tensor, const Shape& want) {
    EVENKEEL_CHECK(tensor.defined(), op, name, ": got no tensor, want shape ", to_string(want));
    EVENKEEL_CHECK(tensor.shape() == want, op, name, ": got shape ", to_string(tensor.shape()),
                   ", want ", to_string(want));
}

void check_dtype(const char* op, const char* name, const Tensor& tensor, DType want) {
    EVENKEEL_CHECK(tensor.defined() && tensor.dtype() == want, op, name, ": got ",
                   tensor.defined() ? name_of(tensor.dtype()) : "no tensor", ", want ",
                   name_of(want));
}

}  // namespace evenkeel
