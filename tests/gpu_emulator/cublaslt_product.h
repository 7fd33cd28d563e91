// A product as cublasLtMatmul is asked for it.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>

namespace gpu_emulator {

struct LayoutState {
    cudaDataType type;
    std::uint64_t rows, columns;
    std::int64_t ld;

    bool operator==(const LayoutState& other) const = default;
    std::size_t element_bytes() const { return type == CUDA_R_32F ? 4 : 2; }
    std::size_t column_bytes() const { return rows * element_bytes(); }
    std::uint64_t column(std::uint64_t address, std::uint64_t index) const {
        return address + index * static_cast<std::uint64_t>(ld) * element_bytes();
    }
    std::uint64_t end(std::uint64_t address) const {
        return rows == 0 || columns == 0 ? address : column(address, columns - 1) + column_bytes();
    }
};

struct OperationState {
    bool transpose_a = false, transpose_b = false;
};

// What an algorithm was chosen for.
struct Problem {
    OperationState operation;
    LayoutState a, b, c, d;

    // The status of what the tables and shapes of the manual do not allow.
    cublasStatus_t check() const;
    std::uint64_t hash() const;
};

// What cublasLtMatmulAlgo_t carries here: what it was chosen for, and what it relies on.
struct Algorithm {
    static constexpr std::uint64_t kMagic = 0x656d756c61746564u;
    std::uint64_t magic = kMagic, problem_hash = 0, workspace_bytes = 0, unused = 0;
    std::uint32_t a_alignment = 1, b_alignment = 1, c_alignment = 1, d_alignment = 1;
    std::uint64_t rest[2] = {};
};
static_assert(sizeof(Algorithm) == sizeof(cublasLtMatmulAlgo_t));

struct Product {
    Problem problem;
    std::uint64_t a = 0, b = 0, c = 0, d = 0, workspace = 0, workspace_bytes = 0;
    float alpha = 0, beta = 0;
};

// What can be told when the product is asked for.
cublasStatus_t check_call(const Product& product, const Algorithm& algorithm);

// Reads, multiplies and writes; false if anything was reported.
bool multiply(const Product& product);

}  // namespace gpu_emulator
