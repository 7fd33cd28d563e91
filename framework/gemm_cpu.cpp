// Products on the CPU. c is cut into tiles whose sizes depend on the shape alone; OpenMP threads share
// the tiles, and each tile is one single-threaded oneDNN product over the whole inner dimension. So no
// sum is ever split over threads, and the bits of c do not depend on how many there are. (oneDNN left to
// its own threads splits by their number.) A tile of 256 x 512 runs at the rate of a large product.
#include "framework/gemm_cpu.h"

#include <omp.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>

#include "framework/convert.h"
#include "framework/memory_scope.h"
#include "framework/thread_errors.h"

namespace evenkeel::cpu {
namespace {

// Tile sizes, the fastest first: the first that gives enough tiles to share is taken.
struct TileSize {
    std::int64_t rows, columns;
};
constexpr TileSize kTileSizes[] = {{256, 512}, {128, 512}, {128, 256}, {64, 256}, {64, 128}};
constexpr std::int64_t kWantedTiles = 8;
constexpr std::size_t kCachedPrimitives = 512;  // a thread; a training run needs about 50

std::atomic<Bf16Path> forced_path{Bf16Path::kAutomatic};

// Memory that a thread keeps from one product to the next. No Buffer: those are counted as tensors, and what is
// kept here grows with the largest product that the process has ever made.
class Scratch {
  public:
    template <typename T>
    T* get(std::size_t count) {
        const std::size_t bytes = count * sizeof(T);
        if (bytes_ < bytes) {
            memory_.reset();
            bytes_ = 0;  // should there be no room
            memory_.reset(static_cast<std::byte*>(::operator new(bytes, kAlignment)));
            bytes_ = bytes;
        }
        return reinterpret_cast<T*>(memory_.get());
    }

  private:
    static constexpr std::align_val_t kAlignment{64};
    struct Delete {
        void operator()(std::byte* memory) const { ::operator delete(memory, kAlignment); }
    };
    std::unique_ptr<std::byte, Delete> memory_;
    std::size_t bytes_ = 0;
};

// oneDNN crashes where it lacks memory to make or first run a product: throws bad_alloc before it comes to that.
void check_room_for_onednn() {
    constexpr std::size_t kNeeded = 8 << 20;  // more than was seen to be asked for
    void* room = mmap(nullptr, kNeeded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED) throw std::bad_alloc();
    munmap(room, kNeeded);
}

struct Matrix {
    const std::byte* data;
    std::int64_t rows, columns, stride;  // as stored
    DType dtype;
    bool transposed;

    const std::byte* at(std::int64_t row, std::int64_t column) const {
        return data + (row * stride + column) * static_cast<std::int64_t>(size_of(dtype));
    }
    // The part that op(.)'s rows (or columns) [begin, end) occupy.
    Matrix op_rows(std::int64_t begin, std::int64_t end) const {
        return transposed ? column_range(begin, end) : row_range(begin, end);
    }
    Matrix op_columns(std::int64_t begin, std::int64_t end) const {
        return transposed ? row_range(begin, end) : column_range(begin, end);
    }
    Matrix row_range(std::int64_t begin, std::int64_t end) const {
        return {at(begin, 0), end - begin, columns, stride, dtype, transposed};
    }
    Matrix column_range(std::int64_t begin, std::int64_t end) const {
        return {at(0, begin), rows, end - begin, stride, dtype, transposed};
    }
};

Matrix as_matrix(const Tensor& tensor, bool transposed) {
    return {tensor.raw(),     tensor.size(0), tensor.size(1),
            tensor.stride(0), tensor.dtype(), transposed};
}

// Rows begin .. end-1 as fp32, without gaps.
void copy_rows(const Matrix& from, float* to, std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
        if (from.dtype == DType::kFloat32) {
            std::memcpy(to + row * from.columns, from.at(row, 0),
                        static_cast<std::size_t>(from.columns) * sizeof(float));
            continue;
        }
        widen(reinterpret_cast<const bfloat16*>(from.at(row, 0)), to + row * from.columns,
              from.columns);
    }
}

Matrix copied(const Matrix& from, const float* data) {
    return {reinterpret_cast<const std::byte*>(data),
            from.rows,
            from.columns,
            from.columns,
            DType::kFloat32,
            from.transposed};
}

// One oneDNN product with everything it needs, for reuse with other pointers.
class Product {
  public:
    Product(const Matrix& a, const Matrix& b, std::int64_t ldc, DType c_type, bool accumulate)
        : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
        const auto descriptor = [](const Matrix& x) {
            return x.transposed ? dnnl::memory::desc({x.columns, x.rows}, type(x.dtype),
                                                     dnnl::memory::dims{1, x.stride})
                                : dnnl::memory::desc({x.rows, x.columns}, type(x.dtype),
                                                     dnnl::memory::dims{x.stride, 1});
        };
        const auto a_desc = descriptor(a);
        const auto b_desc = descriptor(b);
        const dnnl::memory::desc c_desc(
            {a.transposed ? a.columns : a.rows, b.transposed ? b.rows : b.columns}, type(c_type),
            dnnl::memory::dims{ldc, 1});
        dnnl::primitive_attr attributes;
        attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
        if (accumulate) {
            dnnl::post_ops sum;
            sum.append_sum(1.0f);
            attributes.set_post_ops(sum);
        }
#if DNNL_VERSION_MAJOR >= 3
        const dnnl::matmul::primitive_desc primitive(engine_, a_desc, b_desc, c_desc, attributes);
#else
        const dnnl::matmul::primitive_desc primitive(dnnl::matmul::desc(a_desc, b_desc, c_desc),
                                                     attributes, engine_);
#endif
        matmul_ = dnnl::matmul(primitive);
        scratch_bytes_ = primitive.scratchpad_desc().get_size();
        const auto memory = [&](const dnnl::memory::desc& desc) {
            return dnnl::memory(desc, engine_, nullptr);
        };
        arguments_ = {{DNNL_ARG_SRC, memory(a_desc)},
                      {DNNL_ARG_WEIGHTS, memory(b_desc)},
                      {DNNL_ARG_DST, memory(c_desc)},
                      {DNNL_ARG_SCRATCHPAD, memory(primitive.scratchpad_desc())}};
    }

    void run(const std::byte* a, const std::byte* b, void* c, Scratch& scratch) {
        arguments_[DNNL_ARG_SRC].set_data_handle(const_cast<std::byte*>(a));
        arguments_[DNNL_ARG_WEIGHTS].set_data_handle(const_cast<std::byte*>(b));
        arguments_[DNNL_ARG_DST].set_data_handle(c);
        arguments_[DNNL_ARG_SCRATCHPAD].set_data_handle(scratch.get<std::byte>(scratch_bytes_));
        if (!has_run_) check_room_for_onednn();
        has_run_ = true;
        matmul_.execute(stream_, arguments_);
        stream_.wait();
    }

  private:
    static dnnl::memory::data_type type(DType dtype) {
        return dtype == DType::kBFloat16 ? dnnl::memory::data_type::bf16
                                         : dnnl::memory::data_type::f32;
    }
    dnnl::engine engine_;
    dnnl::stream stream_;
    dnnl::matmul matmul_;
    std::unordered_map<int, dnnl::memory> arguments_;
    std::size_t scratch_bytes_ = 0;
    bool has_run_ = false;
};

// What one thread keeps.
struct Workspace {
    using Key = std::array<std::int64_t, 9>;
    struct KeyHash {
        std::size_t operator()(const Key& key) const {
            std::uint64_t hash = 0;
            for (std::int64_t x : key)
                hash = (hash ^ static_cast<std::uint64_t>(x)) * 0x9e3779b97f4a7c15u;
            return hash ^ (hash >> 32);
        }
    };
    std::unordered_map<Key, Product, KeyHash> products;
    Scratch onednn, a, b, c;

    Product& product(const Matrix& a_tile,
                     const Matrix& b_tile,
                     std::int64_t ldc,
                     DType c_type,
                     bool accumulate) {
        const Key key = {a_tile.rows,
                         a_tile.columns,
                         a_tile.stride,
                         b_tile.rows,
                         b_tile.columns,
                         b_tile.stride,
                         ldc,
                         a_tile.transposed + 2 * b_tile.transposed + 4 * accumulate,
                         static_cast<int>(a_tile.dtype) + 4 * static_cast<int>(c_type)};
        if (const auto found = products.find(key); found != products.end()) return found->second;
        if (products.size() >= kCachedPrimitives) products.clear();
        check_room_for_onednn();
        return products.try_emplace(key, a_tile, b_tile, ldc, c_type, accumulate).first->second;
    }
};

Workspace& workspace() {
    thread_local Workspace mine;
    return mine;
}

[[noreturn]] void throw_no_memory() {
    const std::string purpose = MemoryScope::current();
    throw OutOfMemory(ErrorCode::kInternal,
                      concat("[gemm] out of memory: no room for what oneDNN needs for a product",
                             purpose.empty() ? "" : " of ", purpose));
}

struct Tiling {
    std::int64_t rows, columns;  // of a tile
    std::int64_t row_tiles, column_tiles;
};

Tiling choose_tiling(std::int64_t m, std::int64_t n) {
    Tiling tiling{};
    for (const TileSize& tile : kTileSizes) {
        tiling = {tile.rows, tile.columns, (m + tile.rows - 1) / tile.rows,
                  (n + tile.columns - 1) / tile.columns};
        if (tiling.row_tiles * tiling.column_tiles >= kWantedTiles) break;
    }
    return tiling;
}

}  // namespace

void set_bf16_path(Bf16Path path) { forced_path = path; }

Bf16Path chosen_bf16_path() {
    if (const Bf16Path path = forced_path; path != Bf16Path::kAutomatic) return path;
    static const Bf16Path best = [] {
        __builtin_cpu_init();
        // Intel's avx512_bf16 dot product has half the rate of fp32 FMA in useful work; AMD's has twice.
        const bool fast = __builtin_cpu_supports("amx-bf16") ||
                          (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_is("amd"));
        return fast ? Bf16Path::kNative : Bf16Path::kWiden;
    }();
    return best;
}

void gemm(const Tensor& a_tensor,
          const Tensor& b_tensor,
          const Tensor& c,
          const GemmOptions& options) {
    const Matrix a = as_matrix(a_tensor, options.transpose_a);
    const Matrix stored_b = as_matrix(b_tensor, options.transpose_b);
    const std::int64_t m = c.size(0), n = c.size(1);
    const Tiling tiling = choose_tiling(m, n);
    const bool widen_operands =
        a.dtype == DType::kBFloat16 && chosen_bf16_path() == Bf16Path::kWiden;
    // oneDNN reads a transposed operand with a long stride slowly.
    const bool copy_a = widen_operands || (a.transposed && a.dtype == DType::kFloat32);
    // An fp32 product can't be written as bf16 by oneDNN: it goes through a tile of fp32.
    const bool narrow_result =
        c.dtype() == DType::kBFloat16 && (widen_operands || a.dtype == DType::kFloat32);
    const std::int64_t c_stride = c.stride(0);

    float* wide_b = nullptr;
    Matrix b = stored_b;
    if (widen_operands) {
        wide_b = workspace().b.get<float>(static_cast<std::size_t>(b.rows * b.columns));
        b = copied(stored_b, wide_b);
    }
    const int threads = static_cast<int>(
        std::min<std::int64_t>(omp_get_max_threads(), tiling.row_tiles * tiling.column_tiles));
    // Tiles begin .. end-1, by one thread.
    const auto multiply_tiles = [&](std::int64_t begin, std::int64_t end) {
        Workspace& mine = workspace();
        std::int64_t copied_row_tile = -1;
        for (std::int64_t tile = begin; tile < end; ++tile) {
            const std::int64_t row_tile = tile / tiling.column_tiles;
            const std::int64_t row = row_tile * tiling.rows;
            const std::int64_t column = tile % tiling.column_tiles * tiling.columns;
            const std::int64_t row_end = std::min(m, row + tiling.rows);
            const std::int64_t column_end = std::min(n, column + tiling.columns);
            Matrix a_tile = a.op_rows(row, row_end);
            if (copy_a) {
                float* copy_of_a =
                    mine.a.get<float>(static_cast<std::size_t>(a_tile.rows * a_tile.columns));
                if (copied_row_tile != row_tile) copy_rows(a_tile, copy_of_a, 0, a_tile.rows);
                copied_row_tile = row_tile;
                a_tile = copied(a_tile, copy_of_a);
            }
            const Matrix b_tile = b.op_columns(column, column_end);
            std::byte* c_tile =
                c.raw() + (row * c_stride + column) * static_cast<std::int64_t>(size_of(c.dtype()));
            if (!narrow_result) {
                mine.product(a_tile, b_tile, c_stride, c.dtype(), options.accumulate)
                    .run(a_tile.data, b_tile.data, c_tile, mine.onednn);
                continue;
            }
            const std::int64_t width = column_end - column;
            float* wide_c =
                mine.c.get<float>(static_cast<std::size_t>(tiling.rows * tiling.columns));
            mine.product(a_tile, b_tile, width, DType::kFloat32, false)
                .run(a_tile.data, b_tile.data, wide_c, mine.onednn);
            for (std::int64_t i = 0; i < row_end - row; ++i) {
                narrow(wide_c + i * width, reinterpret_cast<bfloat16*>(c_tile) + i * c_stride,
                       width);
            }
        }
    };
    ThreadErrors errors;
#pragma omp parallel num_threads(threads)
    {
        omp_set_num_threads(1);  // for oneDNN, in this region only
        const std::int64_t thread = omp_get_thread_num(), team = omp_get_num_threads();
        if (widen_operands) {
            copy_rows(stored_b, wide_b, b.rows * thread / team, b.rows * (thread + 1) / team);
        }
#pragma omp barrier
        errors.keep([&] {
            const std::int64_t tiles = tiling.row_tiles * tiling.column_tiles;
            multiply_tiles(tiles * thread / team, tiles * (thread + 1) / team);
        });
    }
    try {
        errors.rethrow();
    } catch (const std::bad_alloc&) {
        throw_no_memory();
    } catch (const dnnl::error& error) {
        if (error.status == dnnl_out_of_memory) throw_no_memory();
        throw;
    }
}

}  // namespace evenkeel::cpu
