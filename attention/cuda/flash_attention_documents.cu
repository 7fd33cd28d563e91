// Finds the document of each token of a packed sequence.
#include <algorithm>
#include <limits>

#include "attention/cuda/flash_attention_documents.h"
#include "framework/cuda.h"

namespace evenkeel::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kBoundaries = 64;  // of one launch

// By value to the kernel: no copy, and nothing that must outlive the launch.
struct Boundaries {
    std::int32_t at[kBoundaries];  // ascending; unused ones lie beyond every token
};

// One token a thread, from at[0] on, before `end`. Writes 8 bytes a token: nothing, beside the
// attention that reads them. Every thread looks at every boundary, at places known to the compiler:
// an index would put them into local memory.
__global__ void __launch_bounds__(kThreads) find_documents_kernel(const Boundaries boundaries,
                                                                  int end,
                                                                  std::int32_t* begin_of,
                                                                  std::int32_t* end_of) {
    const int token =
        boundaries.at[0] + static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
    if (token >= end) return;
    std::int32_t document_begin = 0, document_end = 0;
#pragma unroll
    for (int i = 0; i + 1 < kBoundaries; ++i) {
        if (boundaries.at[i] <= token) {
            document_begin = boundaries.at[i];
            document_end = boundaries.at[i + 1];
        }
    }
    begin_of[token] = document_begin;
    end_of[token] = document_end;
}

}  // namespace

Tensor document_bounds(const std::vector<std::int32_t>& cu_seqlens) {
    const char* op = "flash_attention";
    const std::int64_t tokens = cu_seqlens.back();
    const Tensor bounds = Tensor::uninitialized({2, tokens}, DType::kInt32, Device::kCuda);
    auto* const begin_of = bounds.data<std::int32_t>();
    const std::size_t documents = cu_seqlens.size() - 1;
    constexpr std::size_t kDocuments = kBoundaries - 1;
    for (std::size_t first = 0; first < documents; first += kDocuments) {
        const std::size_t last = std::min(first + kDocuments, documents);
        Boundaries boundaries;
        std::fill(std::begin(boundaries.at), std::end(boundaries.at),
                  std::numeric_limits<std::int32_t>::max());
        std::copy(cu_seqlens.begin() + static_cast<std::ptrdiff_t>(first),
                  cu_seqlens.begin() + static_cast<std::ptrdiff_t>(last) + 1, boundaries.at);
        const std::int32_t begin = cu_seqlens[first], end = cu_seqlens[last];
        launch(op, find_documents_kernel,
               {grid_size(op, (end - begin + kThreads - 1) / kThreads), dim3(kThreads)}, boundaries,
               end, begin_of, begin_of + tokens);
    }
    return bounds;
}

}  // namespace evenkeel::cuda
