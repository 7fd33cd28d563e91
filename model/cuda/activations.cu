// SwiGLU, GEGLU, GELU, the residual sum and a factor: every element is read once, in fp32, and written once.
//
// A thread moves one chunk of 16 bytes of each tensor. No shared memory.
//
// Floor: the bytes of all tensors that are read or written, over the GPU's bandwidth. For N = 16384,
// F = 11008, bf16 (360.7 MB a tensor of [N, F]):
//   SwiGLU forward 3 tensors, 1.08 GB: A100 (2.04 TB/s) 530 us, H200 (4.8 TB/s) 225 us; backward 5,
//   1.80 GB: 884 us, 376 us. GELU forward 2, backward 3; the sum 3.
// The instructions are the nearer limit of GELU's backward pass: about 30 an element against the 36 that
// an H200 can issue in the time that its 6 bytes take.
#include "framework/chunks_cuda.cuh"
#include "framework/cuda.h"
#include "model/cuda/elementwise.h"
#include "model/ops/normal_tail.h"

namespace evenkeel::cuda {
namespace {

constexpr int kThreads = 256;

// Within 2 units in the last place; 0 where the result would be below 2^-126.
__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + expf(-x)); }

// Phi(x), and the normal density times sqrt(2 pi).
struct Normal {
    float below, density;

    __device__ __forceinline__ explicit Normal(float x) {
        const float t = __fdividef(1.0f, 1.0f + kNormalTailSlope * fabsf(x));
        density = expf(-0.5f * x * x);
        constexpr float kTerms[kNormalTailTerms] = {kNormalTail[0], kNormalTail[1], kNormalTail[2],
                                                    kNormalTail[3], kNormalTail[4], kNormalTail[5],
                                                    kNormalTail[6], kNormalTail[7], kNormalTail[8],
                                                    kNormalTail[9], kNormalTail[10]};
        float q = kTerms[0];
#pragma unroll
        for (int i = 1; i < kNormalTailTerms; ++i) q = q * t + kTerms[i];
        const float tail = density * t * q;
        below = x < 0.0f ? tail : 1.0f - tail;
    }
};

struct Gelu {
    static constexpr bool kTwoInputs = false;
    __device__ float of(float x, float) const { return x * Normal(x).below; }
};
struct GeluGradient {
    static constexpr bool kTwoInputs = true;
    __device__ float of(float x, float dy) const {
        const Normal normal(x);
        return dy * (normal.below + kNormalDensityAtZero * x * normal.density);
    }
};
struct Add {
    static constexpr bool kTwoInputs = true;
    __device__ float of(float x, float y) const { return y + x; }
};
struct Scale {
    static constexpr bool kTwoInputs = false;
    float factor;
    __device__ float of(float x, float) const { return x * factor; }
};

// out[i] = f.of(a[i], b[i]).
template <typename T, typename F>
__global__ void __launch_bounds__(kThreads) map_kernel(
    const F f, const std::int64_t count, const bool aligned, const T* a, const T* b, T* out) {
    const std::int64_t at =
        (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kChunk<T>;
    if (at >= count) return;
    const int size = chunk_size<T>(count, at);
    float x[kChunk<T>], y[kChunk<T>] = {};
    load_chunk(a + at, size, x, aligned);
    if constexpr (F::kTwoInputs) load_chunk(b + at, size, y, aligned);
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) x[i] = f.of(x[i], y[i]);
    store_chunk(out + at, size, x, aligned);
}

// A gate is g sigmoid(z(g)).
struct Silu {
    __device__ static float z(float g) { return g; }
    __device__ static float slope(float) { return 1.0f; }  // dz/dg
};
// The tanh form of GELU. Beyond |g| = 10 the sigmoid is 0 or 1 in fp32.
struct TanhGelu {
    __device__ static float square(float g) { return fminf(g * g, 100.0f); }
    __device__ static float z(float g) {
        return g * (kTanhGeluLinear + kTanhGeluCubic * square(g));
    }
    __device__ static float slope(float g) {
        return g * g > 100.0f ? 0.0f : kTanhGeluLinear + 3.0f * kTanhGeluCubic * (g * g);
    }
};

// A chunk of one row of [N, F], beside [N, 2F].
struct GatedRows {
    std::int64_t width = 0;           // F
    std::int64_t chunks_per_row = 0;  // the last one perhaps partial
    std::int64_t chunks = 0;          // in all
    bool aligned = false;
};

template <typename T>
struct GatedPlace {
    std::int64_t hidden, gate;  // offsets in elements; up stands F behind the gate
    int size;                   // 0: beyond the last

    __device__ explicit GatedPlace(const GatedRows& rows) {
        const std::int64_t chunk = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
        const std::int64_t row = divide(chunk, rows.chunks_per_row);
        const std::int64_t at = (chunk - row * rows.chunks_per_row) * kChunk<T>;
        hidden = row * rows.width + at;
        gate = hidden + row * rows.width;
        size = chunk < rows.chunks ? chunk_size<T>(rows.width, at) : 0;
    }
};

template <typename T, typename Gate>
__global__ void __launch_bounds__(kThreads)
    gated_forward_kernel(const GatedRows rows, const T* gate_up, T* y) {
    const GatedPlace<T> place(rows);
    if (place.size == 0) return;
    float gate[kChunk<T>], up[kChunk<T>];
    load_chunk(gate_up + place.gate, place.size, gate, rows.aligned);
    load_chunk(gate_up + place.gate + rows.width, place.size, up, rows.aligned);
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) gate[i] = gate[i] * sigmoid(Gate::z(gate[i])) * up[i];
    store_chunk(y + place.hidden, place.size, gate, rows.aligned);
}

// dgate_up may be gate_up: a thread reads its elements before it writes them.
template <typename T, typename Gate>
__global__ void __launch_bounds__(kThreads)
    gated_backward_kernel(const GatedRows rows, const T* dy, const T* gate_up, T* dgate_up) {
    const GatedPlace<T> place(rows);
    if (place.size == 0) return;
    float d[kChunk<T>], gate[kChunk<T>], up[kChunk<T>];
    load_chunk(dy + place.hidden, place.size, d, rows.aligned);
    load_chunk(gate_up + place.gate, place.size, gate, rows.aligned);
    load_chunk(gate_up + place.gate + rows.width, place.size, up, rows.aligned);
#pragma unroll
    for (int i = 0; i < kChunk<T>; ++i) {
        const float g = gate[i], s = sigmoid(Gate::z(g));
        gate[i] = d[i] * up[i] * (s * (1.0f + g * Gate::slope(g) * (1.0f - s)));
        up[i] = d[i] * (g * s);
    }
    store_chunk(dgate_up + place.gate, place.size, gate, rows.aligned);
    store_chunk(dgate_up + place.gate + rows.width, place.size, up, rows.aligned);
}

bool is_aligned(const Tensor& tensor) { return takes_chunks(tensor.raw(), 0, 1); }

template <typename F>
void map(const char* op, const Tensor& a, const Tensor& b, const Tensor& out, const F f = {}) {
    for_storage_type(a.dtype(), [&]<typename T>() {
        const std::int64_t chunks = (a.numel() + kChunk<T> - 1) / kChunk<T>;
        launch(op, map_kernel<T, F>,
               {grid_size(op, (chunks + kThreads - 1) / kThreads), dim3(kThreads)}, f, a.numel(),
               is_aligned(a) && is_aligned(b) && is_aligned(out),
               reinterpret_cast<const T*>(a.raw()), reinterpret_cast<const T*>(b.raw()),
               reinterpret_cast<T*>(out.raw()));
    });
}

// hidden [.., F], wide [.., 2F].
template <typename T>
GatedRows rows_of(const Tensor& hidden, const Tensor& wide) {
    GatedRows rows;
    rows.width = hidden.size(-1);
    rows.chunks_per_row = (rows.width + kChunk<T> - 1) / kChunk<T>;
    rows.chunks = hidden.numel() / rows.width * rows.chunks_per_row;
    rows.aligned = takes_chunks(hidden.raw(), rows.width, sizeof(T)) && is_aligned(wide);
    return rows;
}

LaunchShape shape_of(const char* op, const GatedRows& rows) {
    return {grid_size(op, (rows.chunks + kThreads - 1) / kThreads), dim3(kThreads)};
}

template <typename Gate>
void gated_forward(const char* op, const Tensor& gate_up, const Tensor& y) {
    for_storage_type(y.dtype(), [&]<typename T>() {
        const GatedRows rows = rows_of<T>(y, gate_up);
        launch(op, gated_forward_kernel<T, Gate>, shape_of(op, rows), rows,
               reinterpret_cast<const T*>(gate_up.raw()), reinterpret_cast<T*>(y.raw()));
    });
}

template <typename Gate>
void gated_backward(const char* op,
                    const Tensor& dy,
                    const Tensor& gate_up,
                    const Tensor& dgate_up) {
    for_storage_type(dy.dtype(), [&]<typename T>() {
        GatedRows rows = rows_of<T>(dy, gate_up);
        rows.aligned = rows.aligned && is_aligned(dgate_up);
        launch(op, gated_backward_kernel<T, Gate>, shape_of(op, rows), rows,
               reinterpret_cast<const T*>(dy.raw()), reinterpret_cast<const T*>(gate_up.raw()),
               reinterpret_cast<T*>(dgate_up.raw()));
    });
}

}  // namespace

void swiglu_forward(const Tensor& gate_up, const Tensor& y) {
    gated_forward<Silu>("swiglu_forward", gate_up, y);
}

void swiglu_backward(const Tensor& dy, const Tensor& gate_up, const Tensor& dgate_up) {
    gated_backward<Silu>("swiglu_backward", dy, gate_up, dgate_up);
}

void geglu_forward(const Tensor& gate_up, const Tensor& y) {
    gated_forward<TanhGelu>("geglu_forward", gate_up, y);
}

void geglu_backward(const Tensor& dy, const Tensor& gate_up, const Tensor& dgate_up) {
    gated_backward<TanhGelu>("geglu_backward", dy, gate_up, dgate_up);
}

void gelu_forward(const Tensor& x, const Tensor& y) { map<Gelu>("gelu_forward", x, x, y); }

void gelu_backward(const Tensor& dy, const Tensor& x, const Tensor& dx) {
    map<GeluGradient>("gelu_backward", x, dy, dx);
}

void add_in_place(const Tensor& y, const Tensor& x) { map<Add>("add_in_place", x, y, y); }

void scale_in_place(const Tensor& y, double factor) {
    map("scale_in_place", y, y, y, Scale{static_cast<float>(factor)});
}

}  // namespace evenkeel::cuda
