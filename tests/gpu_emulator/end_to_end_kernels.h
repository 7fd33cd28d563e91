// Launchers of small kernels, one for each thing that host code and the emulator have to agree on.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace gpu_emulator::end_to_end {

// out[i] = a[i] + b[i] for i < n.
void add(float* out, const float* a, const float* b, int n, cudaStream_t stream = nullptr);

// out[block] = sum of the block's 256 elements: shuffles, then shared memory.
void reduce(float* out, const float* in, int blocks);
void reduce(double* out, const double* in, int blocks);

// Reverses blocks of `threads` floats through dynamic shared memory.
void reverse_blocks(float* data, int blocks, int threads, std::size_t shared_bytes);
extern const void* const reverse_kernel;

// out[y][x][z] = 10000 y + 100 x + z over a grid of 2-D blocks.
void number_cells(int* out, int width, int height, int depth);

// out[i] = coefficients[i % 4] * in[i] + bias, with coefficients in constant and bias in global
// memory.
void scale_by_constants(float* out, const float* in, int n);
cudaError_t set_coefficients(const float* four);
cudaError_t set_bias(float value);
cudaError_t get_calls(int* calls);  // launches of scale_by_constants since the program started

// Elementary functions: out[k * n + i] = function k of in[i].
inline constexpr int kFunctions = 10;
void functions(float* out, const float* in, int n);

// One struct with padding, a pointer, a bfloat16 and small integers as parameters.
struct Parameters {
    signed char small;
    double number;
    float* out;
    short pair[3];
};
void take_parameters(const Parameters& parameters, unsigned char byte, long long wide);

// A launch outside of what the kernel was compiled for: __launch_bounds__(64).
void bounded(int threads);

// Writes one float behind the end of data.
void overrun(float* data, int n);

}  // namespace gpu_emulator::end_to_end
