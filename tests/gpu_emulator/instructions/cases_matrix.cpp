// Tensor-core instructions (PTX ISA 9.7.14): which lane and register hold which element, by the
// manual's formulas.
#include <cmath>
#include <string>
#include <vector>

#include "tests/gpu_emulator/instructions/cases.h"

namespace instructions {
namespace {

struct Element {
    std::size_t row, column;
};

// Element i of a lane's fragment; two 16-bit elements a register, the lower half first.
Element a_element(std::size_t lane, std::size_t i, std::size_t k_size) {
    const std::size_t group = lane >> 2, in_group = lane % 4;
    if (k_size == 8) return {i < 2 ? group : group + 8, in_group * 2 + (i & 1)};
    return {i < 2 || (4 <= i && i < 6) ? group : group + 8,
            in_group * 2 + (i & 1) + (i >= 4 ? 8 : 0)};
}
Element b_element(std::size_t lane, std::size_t i) {
    return {(lane % 4) * 2 + (i & 1) + (i >= 2 ? 8 : 0), lane >> 2};
}
Element c_element(std::size_t lane, std::size_t i) {
    return {i < 2 ? lane >> 2 : (lane >> 2) + 8, (lane % 4) * 2 + (i & 1)};
}

struct Product {
    std::size_t k_size;
    bool bf16;
    bool f32_sum;  // else fp16
};

using Matrix = std::vector<std::vector<double>>;
Matrix zeros(std::size_t rows, std::size_t columns) {
    return Matrix(rows, std::vector<double>(columns));
}

struct Operands {
    Matrix a, b, c;
};

double element_value(const Product& p, Word bits) {
    return p.bf16 ? bf16_value(bits) : f16_value(bits);
}
Word element_bits(const Product& p, double value) {
    return p.bf16 ? bf16_bits(value) : f16_bits(value);
}

std::size_t a_registers(const Product& p) { return p.k_size / 4; }
std::size_t b_registers(const Product& p) { return p.k_size / 8; }
std::size_t c_registers(const Product& p) { return p.f32_sum ? 4 : 2; }

// A warp's rows of inputs for these matrices.
Lanes fragments(const Product& p, const Operands& m) {
    Lanes rows(32);
    const auto pair = [&](double low, double high) {
        return element_bits(p, low) | element_bits(p, high) << 16;
    };
    for (std::size_t lane = 0; lane < 32; ++lane) {
        for (std::size_t r = 0; r < a_registers(p); ++r) {
            const Element x = a_element(lane, 2 * r, p.k_size),
                          y = a_element(lane, 2 * r + 1, p.k_size);
            rows[lane].push_back(pair(m.a[x.row][x.column], m.a[y.row][y.column]));
        }
        for (std::size_t r = 0; r < b_registers(p); ++r) {
            const Element x = b_element(lane, 2 * r), y = b_element(lane, 2 * r + 1);
            rows[lane].push_back(pair(m.b[x.row][x.column], m.b[y.row][y.column]));
        }
        for (std::size_t r = 0; r < c_registers(p); ++r) {
            const Element x = c_element(lane, p.f32_sum ? r : 2 * r);
            if (p.f32_sum) {
                rows[lane].push_back(f32_bits(m.c[x.row][x.column]));
            } else {
                const Element y = c_element(lane, 2 * r + 1);
                rows[lane].push_back(f16_bits(m.c[x.row][x.column]) | f16_bits(m.c[y.row][y.column])
                                                                          << 16);
            }
        }
    }
    return rows;
}

// The matrices that a warp's registers hold.
Operands gathered(const Product& p, const Lanes& lanes, std::size_t first) {
    Operands m{zeros(16, p.k_size), zeros(p.k_size, 8), zeros(16, 8)};
    for (std::size_t lane = 0; lane < 32; ++lane) {
        const auto& row = lanes[first + lane];
        std::size_t at = 0;
        for (std::size_t i = 0; i < 2 * a_registers(p); ++i) {
            const Element x = a_element(lane, i, p.k_size);
            m.a[x.row][x.column] = element_value(p, row[at + i / 2] >> (16 * (i & 1)) & 0xFFFF);
        }
        at += a_registers(p);
        for (std::size_t i = 0; i < 2 * b_registers(p); ++i) {
            const Element x = b_element(lane, i);
            m.b[x.row][x.column] = element_value(p, row[at + i / 2] >> (16 * (i & 1)) & 0xFFFF);
        }
        at += b_registers(p);
        for (std::size_t i = 0; i < 4; ++i) {
            const Element x = c_element(lane, i);
            m.c[x.row][x.column] = p.f32_sum
                                       ? as_float(row[at + i])
                                       : f16_value(row[at + i / 2] >> (16 * (i & 1)) & 0xFFFF);
        }
    }
    return m;
}

Expectation product_expectation(const Product& p, const Lanes& lanes) {
    Expectation e;
    for (std::size_t first = 0; first < lanes.size(); first += 32) {
        const Operands m = gathered(p, lanes, first);
        Matrix d = m.c, scale = zeros(16, 8);
        std::vector<std::vector<int>> terms(16, std::vector<int>(8));
        for (std::size_t i = 0; i < 16; ++i)
            for (std::size_t j = 0; j < 8; ++j) {
                scale[i][j] = std::abs(m.c[i][j]);
                terms[i][j] = m.c[i][j] != 0;
                for (std::size_t k = 0; k < p.k_size; ++k) {
                    const double term = m.a[i][k] * m.b[k][j];
                    d[i][j] += term;
                    scale[i][j] += std::abs(term);
                    terms[i][j] += term != 0;
                }
            }
        // Order and rounding of the sum are the hardware's; of a single term there is nothing to
        // round in fp32.
        const auto expected = [&](const Element& x) {
            const double unit = p.f32_sum ? std::ldexp(1.0, -20) : std::ldexp(1.0, -9);
            const double tolerance = terms[x.row][x.column] > 1 ? scale[x.row][x.column] * unit : 0;
            return Expected{p.f32_sum ? f32_bits(d[x.row][x.column]) : f16_bits(d[x.row][x.column]),
                            tolerance};
        };
        for (std::size_t lane = 0; lane < 32; ++lane) {
            e.out.emplace_back();
            for (std::size_t i = 0; i < 4; ++i) {
                const Expected value = expected(c_element(lane, i));
                if (p.f32_sum || (i & 1) == 0) {
                    e.out.back().push_back(value);
                } else {
                    e.out.back().back().bits |= value.bits << 16;
                    e.out.back().back().tolerance =
                        std::max(e.out.back().back().tolerance, value.tolerance);
                }
            }
        }
    }
    return e;
}

std::string registers(const char* letter, std::size_t first, std::size_t count) {
    std::string text = "{";
    for (std::size_t i = 0; i < count; ++i)
        text += (i ? ", %" : "%") + (letter + std::to_string(first + i));
    return text + "}";
}

Matrix numbered(std::size_t rows, std::size_t columns) {
    Matrix m = zeros(rows, columns);
    // Up to 256 they are exact in bf16 too.
    for (std::size_t i = 0; i < rows; ++i)
        for (std::size_t j = 0; j < columns; ++j)
            m[i][j] = static_cast<double>(i * columns + j + 1);
    return m;
}

Matrix random_matrix(
    const Product& p, std::size_t rows, std::size_t columns, std::uint64_t seed, bool whole) {
    Matrix m = zeros(rows, columns);
    const Lanes bits = random_lanes(rows * columns, {32}, seed);
    for (std::size_t i = 0; i < rows * columns; ++i) {
        const double uniform = std::ldexp(static_cast<double>(bits[i][0]), -31) - 1;
        m[i / columns][i % columns] =
            whole ? uniform * 3 : element_value(p, element_bits(p, uniform * 3));
    }
    return m;
}

std::vector<Case> product_cases(const Product& p, const std::string& form) {
    const std::size_t a = a_registers(p), b = b_registers(p), c = c_registers(p);
    Case base;
    base.form = form;
    base.snippet.in.assign(a + b + c, 32);
    base.snippet.out.assign(c, 32);
    base.kinds.assign(c, p.f32_sum ? Kind::kF32 : Kind::kF16x2);
    base.snippet.body = form + " " + registers("o", 0, c) + ", " + registers("i", 0, a) + ", " +
                        registers("i", a, b) + ", " + registers("i", a + b, c) + ";";
    base.expect = [p](const Lanes& lanes) { return product_expectation(p, lanes); };

    std::vector<Case> cases;
    const auto add = [&](const char* name, const std::vector<Operands>& all) {
        Case next = base;
        next.name = name;
        for (const Operands& m : all) next.in = joined(std::move(next.in), fragments(p, m));
        cases.push_back(next);
    };
    const Operands empty{zeros(16, p.k_size), zeros(p.k_size, 8), zeros(16, 8)};
    std::vector<Operands> one_a, one_b, random;
    for (std::size_t i = 0; i < 16 * p.k_size; ++i) {
        Operands m = empty;
        m.a[i / p.k_size][i % p.k_size] = 1;
        m.b = numbered(p.k_size, 8);
        one_a.push_back(m);
    }
    for (std::size_t i = 0; i < p.k_size * 8; ++i) {
        Operands m = empty;
        m.b[i / 8][i % 8] = 1;
        m.a = numbered(16, p.k_size);
        one_b.push_back(m);
    }
    for (std::uint64_t seed = 0; seed < 4; ++seed)
        random.push_back({random_matrix(p, 16, p.k_size, 161 + seed, false),
                          random_matrix(p, p.k_size, 8, 171 + seed, false),
                          random_matrix(p, 16, 8, 181 + seed, p.f32_sum)});
    Operands only_c = empty;
    only_c.c = numbered(16, 8);
    add("one element of A", one_a);
    add("one element of B", one_b);
    add("only C", {only_c});
    add("random", random);
    return cases;
}

Case ldmatrix_case(const std::string& space,
                   std::size_t matrices,
                   bool transposed,
                   bool scattered) {
    const std::string form = std::string("ldmatrix.sync.aligned.m8n8.x") +
                             std::to_string(matrices) + (transposed ? ".trans" : "") + space +
                             ".b16";
    Case c;
    c.form = form;
    c.name = scattered ? "rows anywhere" : "rows in order";
    c.snippet.in = {32};
    c.snippet.out.assign(matrices, 32);
    const std::string destination = registers("o", 0, matrices);
    c.snippet.body = "add.s32 %r0, %smem, %i0;\n" + form + " " + destination + ", [%r0];";
    // Each half word tells where it lies.
    std::vector<std::uint32_t> words;
    for (std::uint32_t i = 0; i < 512; ++i)
        words.push_back((2 * i + 0x1000) | (2 * i + 0x1001) << 16);
    c.snippet.shared = bytes_of(words);
    // Lanes 8 m .. 8 m + 7 name the rows of matrix m, 16 bytes each; the others' addresses do not
    // count.
    for (Word lane = 0; lane < 32; ++lane)
        c.in.push_back({scattered ? (lane * 53 + 7) % 128 * 16 : lane * 16});
    c.expect = [=](const Lanes& lanes) {
        Expectation e;
        for (std::size_t lane = 0; lane < 32; ++lane) {
            e.out.emplace_back();
            for (std::size_t m = 0; m < matrices; ++m) {
                Word bits = 0;
                for (std::size_t half = 0; half < 2; ++half) {
                    std::size_t row = lane / 4, column = lane % 4 * 2 + half;
                    if (transposed) std::swap(row, column);
                    const Word at = lanes[8 * m + row][0] / 2 + column;
                    bits |= (0x1000 + at) << (16 * half);
                }
                e.out.back().push_back({bits});
            }
        }
        return e;
    };
    return c;
}

// A lane's register holds elements 2 (lane % 4) and the next of row lane / 4, before and after
// transposing.
Case movmatrix_case() {
    Case c;
    c.form = "movmatrix.sync.aligned.m8n8.trans.b16";
    c.snippet.in = c.snippet.out = {32};
    c.snippet.body = c.form + " %o0, %i0;";
    c.in = random_lanes(32, {32}, 191);
    c.expect = [](const Lanes& lanes) {
        Expectation e;
        const auto element = [&](std::size_t row, std::size_t column) {
            return lanes[row * 4 + column / 2][0] >> (16 * (column & 1)) & 0xFFFF;
        };
        for (std::size_t lane = 0; lane < 32; ++lane) {
            const std::size_t row = lane / 4, column = lane % 4 * 2;
            e.out.push_back({{element(column, row) | element(column + 1, row) << 16}});
        }
        return e;
    };
    return c;
}

}  // namespace

std::vector<Case> matrix_cases() {
    std::vector<Case> cases;
    for (const std::size_t k_size : {16, 8}) {
        const std::string shape = "mma.sync.aligned.m16n8k" + std::to_string(k_size) + ".row.col.";
        append(cases, product_cases({k_size, true, true}, shape + "f32.bf16.bf16.f32"));
        append(cases, product_cases({k_size, false, true}, shape + "f32.f16.f16.f32"));
        append(cases, product_cases({k_size, false, false}, shape + "f16.f16.f16.f16"));
    }
    for (const char* space : {".shared", ".shared::cta"})
        for (const std::size_t matrices : {1, 2, 4})
            for (const bool transposed : {false, true})
                for (const bool scattered : {false, true})
                    cases.push_back(ldmatrix_case(space, matrices, transposed, scattered));
    cases.push_back(movmatrix_case());
    return cases;
}

}  // namespace instructions
