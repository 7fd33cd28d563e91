// What attention kernels are made of: tensor-core products, tiles in shared memory, copies into
// them. Device code only. Names in quotes are sections of NVIDIA's PTX ISA 8.x, chapter 9.7.
//
// A warp multiplies 16x16 squares (of A) with 16x8 ones (of B). Element (i, j) of an 8x8 matrix of
// 16-bit numbers lies in lane 4 i + j / 2; of an fp32 accumulator, 16x8, the lane 4 i + j / 2 holds
// rows i and i + 8. So a lane's row of an accumulator is shared by 4 neighbouring lanes (a quad),
// and two neighbouring accumulators, packed to 16 bits, are an A operand as they stand.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace evenkeel::cuda {

// A 16x16 square as four 8x8 matrices. As operand A of multiply_add: top left, bottom left, top
// right, bottom right, with rows along m and columns along k.
struct Square {
    std::uint32_t r[4];
};

// 16x8: c[0], c[1] are row g, columns 2 q and 2 q + 1, and c[2], c[3] the same of row g + 8, where
// the lane is 4 g + q.
struct Accumulator {
    float c[4];
};

// c += a b. "Multiply-and-accumulate: mma", m16n8k16 with fp32 sums.
template <typename T>
__device__ __forceinline__ void multiply_add(Accumulator& sum,
                                             const Square& a,
                                             std::uint32_t b0,
                                             std::uint32_t b1) {
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(sum.c[0]), "+f"(sum.c[1]), "+f"(sum.c[2]), "+f"(sum.c[3])
            : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b0), "r"(b1));
    } else {
        static_assert(std::is_same_v<T, __half>);
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(sum.c[0]), "+f"(sum.c[1]), "+f"(sum.c[2]), "+f"(sum.c[3])
            : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b0), "r"(b1));
    }
}

// Two numbers rounded to nearest even; `low` in the lower half. "cvt".
template <typename T>
__device__ __forceinline__ std::uint32_t pack(float low, float high) {
    std::uint32_t packed;
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    } else {
        static_assert(std::is_same_v<T, __half>);
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    }
    return packed;
}

// Columns 0 .. 7 and 8 .. 15 of a square, as an A operand.
template <typename T>
__device__ __forceinline__ Square pack(const Accumulator& left, const Accumulator& right) {
    return {{pack<T>(left.c[0], left.c[1]), pack<T>(left.c[2], left.c[3]),
             pack<T>(right.c[0], right.c[1]), pack<T>(right.c[2], right.c[3])}};
}

// 2^x, log2 x and 1 / x to within 2^-22, with subnormal numbers taken for zero. "ex2", "lg2",
// "rcp".
__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float log2_approx(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float reciprocal_approx(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// tanh x to within 2^-21 of itself: 1 - 2 / (1 + e^2x), and for small x, where that cancels, x
// times a polynomial of x^2 (least largest error for |x| <= 0.4).
__device__ __forceinline__ float tanh_approx(float x) {
    constexpr float kTwoLog2E = 2.88539008f;
    const float square = x * x;
    const float cubic = fmaf(fmaf(-0.0477942191f, square, 0.132776290f), square, -0.333318830f);
    const float small = fmaf(x * square, cubic, x);
    const float large = fmaf(-2.0f, reciprocal_approx(1.0f + exp2_approx(x * kTwoLog2E)), 1.0f);
    return fabsf(x) < 0.4f ? small : large;
}

// NaN if either is, which fmaxf hides. "max".
__device__ __forceinline__ float max_or_nan(float a, float b) {
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}

// threadIdx.x, read again at every call: an ordinary read would live in a register from the first
// use to the last.
__device__ __forceinline__ int thread_index() {
    int index;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
    return index;
}

// blockIdx likewise: what follows from it in a loop is computed there and takes no registers
// outside.
__device__ __forceinline__ int this_tile() {
    int tile;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(tile));
    return tile;
}
__device__ __forceinline__ int this_head() {
    int head;
    asm volatile("mov.u32 %0, %%ctaid.y;" : "=r"(head));
    return head;
}
__device__ __forceinline__ int this_batch() {
    int batch;
    asm volatile("mov.u32 %0, %%ctaid.z;" : "=r"(batch));
    return batch;
}

// The address that shared-memory instructions take. "cvta".
__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// Starts to copy 16 bytes from global to shared memory, past the first-level cache. Only the first
// `bytes` (0 or 16) are read; the rest become zeros. The address of 0 bytes need not be one.
// "cp.async".
__device__ __forceinline__ void copy_async(std::uint32_t to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_async(std::uint32_t to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}
// Closes a group of this thread's copies. "cp.async.commit_group".
__device__ __forceinline__ void commit_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
// Until all but the newest kGroups groups of this thread have arrived. Other threads see them after
// a barrier. "cp.async.wait_group".
template <int kGroups>
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

// A kRows x kColumns tile of 16-bit numbers in shared memory, in pages of 64 columns (of 32 where
// 64 does not divide) with rows of 128 (64) bytes. Chunk c of 8 columns lies at position c ^ (row
// mod 8) of its row (for 32 columns c ^ (row / 2 mod 4)), so that 8 chunks below one another, and 8
// side by side, fill all banks once. The tile starts at a multiple of 128 bytes.
template <int kRows_, int kColumns_>
struct Tile {
    static constexpr int kRows = kRows_, kColumns = kColumns_;
    static constexpr int kPageColumns = kColumns % 64 == 0 ? 64 : 32;
    static constexpr int kPages = kColumns / kPageColumns;
    static constexpr int kChunks = kPageColumns / 8;  // in a row of a page
    static constexpr int kRowBytes = kPageColumns * 2;
    static constexpr int kPageBytes = kRows * kRowBytes;
    static constexpr int kBytes = kPages * kPageBytes;
    static_assert(kRows % 16 == 0 && kColumns % 32 == 0);

    // Byte offset of columns 8 * chunk .. + 7 of a row of page 0.
    __device__ static constexpr std::uint32_t offset(std::uint32_t row, std::uint32_t chunk) {
        const std::uint32_t turn = kPageColumns == 64 ? row & 7 : row >> 1 & 3;
        return row * kRowBytes + (chunk ^ turn) * 16;
    }
};

// The order of the four 8x8 matrices of a loaded square.
//
//     Operand of multiply_add                      stored as  order    load
//     A                                            [m][k]     kDown    plain
//     A                                            [k][m]     kAcross  transposed
//     B: r[0], r[1] of columns 0 .. 7 of n,        [n][k]     kAcross  plain
//        r[2], r[3] of columns 8 .. 15             [k][n]     kDown    transposed
enum class Order {
    kDown,   // top left, bottom left, top right, bottom right
    kAcross  // top left, top right, bottom left, bottom right
};

// Loads 16x16 squares of a tile, all lanes of a warp together. "ldmatrix".
template <typename Layout, Order kOrder>
class SquareLoader {
  public:
    // The loader's row 0 is row `row` of the tile, a multiple of 8.
    __device__ SquareLoader(std::uint32_t tile, int row, int lane) {
        const int lower = lane & 7, bit3 = lane >> 3 & 1, bit4 = lane >> 4 & 1;
        const int down = kOrder == Order::kDown ? bit3 : bit4;
        const int right = kOrder == Order::kDown ? bit4 : bit3;
        at_ = tile + Layout::offset(row + lower + 8 * down, right);
    }

    // The square at row `row` (a multiple of 8) and column 16 * square; both constants when loops
    // are unrolled. Then an address is one exclusive or away, shared by all rows, and the rest of
    // it part of the instruction.
    template <bool kTransposed = false>
    __device__ __forceinline__ Square load(int row, int square) const {
        const std::uint32_t in_page = square % (Layout::kChunks / 2) * 32;
        const std::uint32_t address = (at_ ^ in_page) + row * Layout::kRowBytes +
                                      square / (Layout::kChunks / 2) * Layout::kPageBytes;
        Square s;
        if constexpr (kTransposed) {
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(s.r[0]), "=r"(s.r[1]), "=r"(s.r[2]), "=r"(s.r[3])
                         : "r"(address)
                         : "memory");
        } else {
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(s.r[0]), "=r"(s.r[1]), "=r"(s.r[2]), "=r"(s.r[3])
                         : "r"(address)
                         : "memory");
        }
        return s;
    }

    // To a tile `bytes` further on (a multiple of 128): the other one of two buffers.
    __device__ __forceinline__ void move(int bytes) { at_ += bytes; }

  private:
    std::uint32_t at_;  // of column square 0; bits 4 .. 6 (4, 5 for 32 columns) are the chunk's
};

// Rounds an accumulator into rows row .. row + 15 and columns 8 * chunk .. + 7 of a tile.
template <typename T, typename Layout>
__device__ __forceinline__ void store_accumulator(
    unsigned char* tile, int row, int chunk, int lane, const Accumulator& sum) {
    unsigned char* at = tile + chunk / Layout::kChunks * Layout::kPageBytes +
                        Layout::offset(row + lane / 4, chunk % Layout::kChunks) + lane % 4 * 4;
    *reinterpret_cast<std::uint32_t*>(at) = pack<T>(sum.c[0], sum.c[1]);
    *reinterpret_cast<std::uint32_t*>(at + 8 * Layout::kRowBytes) = pack<T>(sum.c[2], sum.c[3]);
}

// Carries tiles between global and shared memory: kThreads threads together, 16 bytes each at a
// time, 8 of them to a row of a page (4 where a page has 32 columns).
template <typename Layout, int kThreads>
class TileCarrier {
  public:
    // `stride`: elements from one row to the next in global memory.
    __device__ TileCarrier(int thread, std::int64_t stride)
        : row_(thread / Layout::kChunks),
          shared_(Layout::offset(row_, thread % Layout::kChunks)),
          global_(row_ * stride * 2 + thread % Layout::kChunks * 16),
          step_(stride * 2 * kRowsAtOnce) {}

    // What this thread carries first of the tile whose row 0 is at `from`: for a walk over tiles,
    // moved on by the caller.
    __device__ __forceinline__ const char* source(const void* from) const {
        return static_cast<const char*>(from) + global_;
    }

    // Starts to copy the tile of that source. kWhole: all rows are there; else rows from `rows` on
    // are not read, and become zeros.
    template <bool kWhole>
    __device__ __forceinline__ void load_at(std::uint32_t tile,
                                            const char* source,
                                            int rows) const {
#pragma unroll
        for (int i = 0; i < kTurns; ++i) {
            const bool there = kWhole || row_ + i * kRowsAtOnce < rows;
#pragma unroll
            for (int page = 0; page < Layout::kPages; ++page) {
                const std::uint32_t to = tile + shared_ + page * Layout::kPageBytes +
                                         i * kRowsAtOnce * Layout::kRowBytes;
                const char* piece = source + page * Layout::kRowBytes;
                if constexpr (kWhole) {
                    copy_async(to, piece);
                } else {
                    copy_async(to, piece, there ? 16 : 0);
                }
            }
            source += step_;
        }
    }

    template <bool kWhole>
    __device__ __forceinline__ void load(std::uint32_t tile, const void* from, int rows) const {
        load_at<kWhole>(tile, source(from), rows);
    }

    // Writes rows 0 .. rows - 1 of a tile to global memory.
    __device__ __forceinline__ void store(void* to, const unsigned char* tile, int rows) const {
        char* target = static_cast<char*>(to) + global_;
#pragma unroll
        for (int i = 0; i < kTurns; ++i) {
            if (row_ + i * kRowsAtOnce < rows) {
#pragma unroll
                for (int page = 0; page < Layout::kPages; ++page) {
                    const unsigned char* piece = tile + shared_ + page * Layout::kPageBytes +
                                                 i * kRowsAtOnce * Layout::kRowBytes;
                    *reinterpret_cast<uint4*>(target + page * Layout::kRowBytes) =
                        *reinterpret_cast<const uint4*>(piece);
                }
            }
            target += step_;
        }
    }

  private:
    static constexpr int kRowsAtOnce = kThreads / Layout::kChunks;
    static constexpr int kTurns = Layout::kRows / kRowsAtOnce;
    // Every turn finds its rows in the same place of the swizzle.
    static_assert(kRowsAtOnce % 8 == 0 && Layout::kRows % kRowsAtOnce == 0);

    int row_;
    std::uint32_t shared_;
    std::int64_t global_, step_;
};

}  // namespace evenkeel::cuda
