#include "model/ops/elementwise.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <string>

#include "framework/isa.h"
#include "tests/model/ops/elementwise_formulas.h"
#include "tests/support/compare.h"
#include "tests/support/data.h"
#include "tests/support/devices.h"

namespace evenkeel {
namespace {

using testing::finite_difference;
using testing::gaussian;
using testing::make_data;
using testing::near;
using testing::poisoned;
using testing::same_bits;
using testing::tensor_of;
using testing::to_doubles;
using testing::to_floats;
using testing::within_error_of_plain;

constexpr DType kFp32 = DType::kFloat32;
constexpr DType kBf16 = DType::kBFloat16;

using Exact = testing::Formulas<double>;
using Plain = testing::Formulas<float>;

class ElementwiseTest : public ::testing::TestWithParam<Device> {
  protected:
    Tensor there(const Tensor& tensor) const { return testing::on(GetParam(), tensor); }
    Tensor unwritten(const Shape& shape, DType dtype) const {
        return there(poisoned(shape, dtype));
    }

    // Runs the body for every type, width (whole chunks, ragged, below one chunk) and kind of data; on
    // the CPU with every instruction set.
    void for_all_inputs(
        const std::function<void(DType, std::int64_t width, testing::DataKind)>& body) const {
        for (const Isa isa : kAllIsas) {
            if (GetParam() != Device::kCpu && isa != kAllIsas[0]) continue;
            limit_isa(isa);
            for (const DType dtype : {kFp32, kBf16}) {
                for (const std::int64_t width : {1, 3, 16, 31, 33, 64, 257}) {
                    for (const testing::DataKind kind : testing::kAllDataKinds) {
                        SCOPED_TRACE(concat(evenkeel::name_of(isa), " ", evenkeel::name_of(dtype),
                                            " width ", width, " ", testing::name_of(kind)));
                        body(dtype, width, kind);
                    }
                }
            }
        }
        limit_isa(Isa::kAvx512);
    }
};
INSTANTIATE_TEST_SUITE_P(,
                         ElementwiseTest,
                         ::testing::ValuesIn(testing::test_devices()),
                         testing::device_name);

TEST(ElementwiseReferenceTest, GradientsMatchFiniteDifferences) {
    const auto x = to_doubles(gaussian({2, 10}, kFp32, 1));
    const auto dy = to_doubles(gaussian({2, 10}, kFp32, 2));
    const auto gain = to_doubles(gaussian({10}, kFp32, 3));
    const auto half_dy = to_doubles(gaussian({2, 5}, kFp32, 4));
    const auto [dx, dgain] = Exact::rms_norm_gradients(dy, x, gain, 1e-6);
    const auto dgelu = Exact::gelu_gradient(dy, x);
    for (std::size_t i = 0; i < x.size(); ++i) {
        EXPECT_NEAR(
            dx[i],
            finite_difference([&](auto& v) { return Exact::rms_norm(v, gain, 1e-6); }, dy, x, i),
            1e-8);
        EXPECT_NEAR(dgelu[i], finite_difference(Exact::gelu, dy, x, i), 1e-8);
        for (const bool gelu : {false, true}) {
            const auto f = [&](auto& v) { return Exact::gated(gelu, v, 5); };
            EXPECT_NEAR(Exact::gated_gradient(gelu, half_dy, x, 5)[i],
                        finite_difference(f, half_dy, x, i), 1e-8);
        }
    }
    for (std::size_t i = 0; i < gain.size(); ++i) {
        EXPECT_NEAR(
            dgain[i],
            finite_difference([&](auto& g) { return Exact::rms_norm(x, g, 1e-6); }, dy, gain, i),
            1e-8);
    }
}

// Both directions against the rule for fast paths.
void check_rms_norm(
    Device device, const Tensor& x, const Tensor& dy, const Tensor& gain, bool accumulate) {
    const DType dtype = x.dtype();
    const Shape& shape = x.shape();
    const std::int64_t width = x.size(-1);
    const auto there = [&](const Tensor& tensor) { return testing::on(device, tensor); };
    const Tensor y = there(poisoned(shape, dtype));
    const Tensor rstd = there(poisoned({x.numel() / width}, kFp32));
    rms_norm_forward(there(x), there(gain), 1e-6, y, rstd);
    EXPECT_TRUE(within_error_of_plain(
        y, tensor_of(Plain::rms_norm(to_floats(x), to_floats(gain), 1e-6), shape, dtype),
        Exact::rms_norm(to_doubles(x), to_doubles(gain), 1e-6), 2.0));

    const Tensor start = accumulate ? gaussian(shape, dtype, 4) : poisoned(shape, dtype);
    const Tensor dx = there(start.clone()), dgain = there(Tensor::full({width}, 1.0f, kFp32));
    rms_norm_backward(there(dy), there(x), there(gain), rstd, accumulate, dx, dgain);
    auto plain = Plain::rms_norm_gradients(to_floats(dy), to_floats(x), to_floats(gain), 1e-6);
    auto want = Exact::rms_norm_gradients(to_doubles(dy), to_doubles(x), to_doubles(gain), 1e-6);
    for (std::size_t c = 0; c < plain.second.size(); ++c) {
        plain.second[c] += 1.0f;
        want.second[c] += 1.0;
    }
    for (std::size_t i = 0; accumulate && i < plain.first.size(); ++i) {
        plain.first[i] += to_floats(start)[i];
        want.first[i] += to_doubles(start)[i];
    }
    EXPECT_TRUE(within_error_of_plain(dx, tensor_of(plain.first, shape, dtype), want.first, 3.0));
    EXPECT_TRUE(
        within_error_of_plain(dgain, tensor_of(plain.second, {width}, kFp32), want.second, 3.0));
}

TEST_P(ElementwiseTest, RmsNormMatchesReference) {
    for_all_inputs([&](DType dtype, std::int64_t width, testing::DataKind kind) {
        const Shape shape{2, 17, width};
        const Tensor x = make_data(kind, shape, dtype, 1), dy = gaussian(shape, dtype, 2);
        for (const DType gain_type : {kFp32, dtype}) {
            if (gain_type == kFp32 && dtype == kFp32 && width % 2 != 0) continue;  // once is enough
            check_rms_norm(GetParam(), x, dy, gaussian({width}, gain_type, 3), false);
        }
    });
}

// Rows of several warps, of more than fit in registers, and a last chunk that is not whole.
TEST_P(ElementwiseTest, RmsNormOfWideRows) {
    for (const DType dtype : {kFp32, kBf16}) {
        for (const std::int64_t width : {1032, 4104, 8200, 16401}) {
            SCOPED_TRACE(concat(evenkeel::name_of(dtype), " width ", width));
            const Shape shape{3, width};
            check_rms_norm(GetParam(), gaussian(shape, dtype, 1), gaussian(shape, dtype, 2),
                           gaussian({width}, kFp32, 3), width == 4104);
        }
    }
}

// So many that several groups of rows add up to a gain's gradient.
TEST_P(ElementwiseTest, RmsNormOfManyRows) {
    for (const DType dtype : {kFp32, kBf16}) {
        const Shape shape{150, 24};
        check_rms_norm(GetParam(), gaussian(shape, dtype, 1), gaussian(shape, dtype, 2),
                       gaussian({24}, kFp32, 3), true);
    }
}

TEST_P(ElementwiseTest, RmsNormWorksInPlace) {
    for (const std::int64_t width : {40, 1100}) {
        const Tensor x = there(gaussian({3, width}, kFp32, 1));
        const Tensor dy = there(gaussian({3, width}, kFp32, 2));
        const Tensor gain = there(gaussian({width}, kFp32, 3)), rstd = unwritten({3}, kFp32);
        const Tensor y = unwritten({3, width}, kFp32), dx = unwritten({3, width}, kFp32);
        const Tensor dgain = there(Tensor::zeros({width}, kFp32));
        rms_norm_forward(x, gain, 1e-6, y, rstd);
        rms_norm_backward(dy, x, gain, rstd, false, dx, dgain);
        rms_norm_backward(dy, x, gain, rstd, false, dy, dgain);
        EXPECT_TRUE(same_bits(dy, dx));
        rms_norm_forward(x, gain, 1e-6, x, rstd);
        EXPECT_TRUE(same_bits(x, y));
    }
}

TEST_P(ElementwiseTest, RmsNormOfExtremeRows) {
    for (const std::int64_t width : {48, 4104}) {
        for (const float scale : {0.0f, 1e30f, 1e-30f}) {
            const Shape shape{2, width};
            const Tensor x = there(Tensor::full(shape, scale, kFp32));
            const Tensor gain = there(Tensor::full({width}, 2.0f, kFp32));
            const Tensor y = unwritten(shape, kFp32), rstd = unwritten({2}, kFp32);
            rms_norm_forward(x, gain, 0.0, y, rstd);
            const std::vector<double> want(static_cast<std::size_t>(2 * width),
                                           scale == 0.0f ? 0.0 : 2.0);
            EXPECT_TRUE(near(y, want, 1e-6, 0.0)) << width << ", " << scale;
        }
        // An ordinary row beside one that is not, and one that is no number.
        const Tensor x = Tensor::full({3, width}, 1.0f, kFp32);
        x.slice(0, 0, 1).fill(1e25f);
        x.slice(0, 2, 3).slice(1, 7, 8).fill(NAN);
        const Tensor gain = there(Tensor::full({width}, 2.0f, kFp32));
        const Tensor y = unwritten({3, width}, kFp32), rstd = unwritten({3}, kFp32);
        rms_norm_forward(there(x), gain, 0.0, y, rstd);
        std::vector<double> want(static_cast<std::size_t>(3 * width), 2.0);
        std::fill(want.end() - width, want.end(), NAN);
        EXPECT_TRUE(near(y, want, 1e-6, 0.0)) << width;
    }
}

// gelu: GEGLU, or else SwiGLU.
void check_gated(Device device, bool gelu, const Tensor& gate_up, const Tensor& dy) {
    const auto there = [&](const Tensor& tensor) { return testing::on(device, tensor); };
    const auto width = static_cast<std::size_t>(dy.size(-1));
    const Tensor y = there(poisoned(dy.shape(), dy.dtype())), dgate_up = there(gate_up.clone());
    (gelu ? geglu_forward : swiglu_forward)(there(gate_up), y);
    EXPECT_TRUE(within_error_of_plain(
        y, tensor_of(Plain::gated(gelu, to_floats(gate_up), width), dy.shape(), dy.dtype()),
        Exact::gated(gelu, to_doubles(gate_up), width), 2.0));
    (gelu ? geglu_backward : swiglu_backward)(there(dy), dgate_up, dgate_up);  // in place
    EXPECT_TRUE(within_error_of_plain(
        dgate_up,
        tensor_of(Plain::gated_gradient(gelu, to_floats(dy), to_floats(gate_up), width),
                  gate_up.shape(), dy.dtype()),
        Exact::gated_gradient(gelu, to_doubles(dy), to_doubles(gate_up), width), 3.0));
}

TEST_P(ElementwiseTest, SwiGluMatchesReference) {
    for_all_inputs([&](DType dtype, std::int64_t width, testing::DataKind kind) {
        check_gated(GetParam(), false, make_data(kind, {3, 5, 2 * width}, dtype, 1),
                    gaussian({3, 5, width}, dtype, 2));
    });
}

TEST_P(ElementwiseTest, GeGluMatchesReference) {
    for_all_inputs([&](DType dtype, std::int64_t width, testing::DataKind kind) {
        check_gated(GetParam(), true, make_data(kind, {3, 5, 2 * width}, dtype, 1),
                    gaussian({3, 5, width}, dtype, 2));
    });
}

TEST_P(ElementwiseTest, GeluMatchesReference) {
    for_all_inputs([&](DType dtype, std::int64_t width, testing::DataKind kind) {
        const Shape shape{3, 5, width};
        const Tensor x = make_data(kind, shape, dtype, 1), dy = gaussian(shape, dtype, 2);
        const Tensor y = unwritten(shape, dtype), dx = there(dy).clone();
        gelu_forward(there(x), y);
        EXPECT_TRUE(within_error_of_plain(y, tensor_of(Plain::gelu(to_floats(x)), shape, dtype),
                                          Exact::gelu(to_doubles(x)), 2.0));
        gelu_backward(dx, there(x), dx);  // in place
        EXPECT_TRUE(within_error_of_plain(
            dx, tensor_of(Plain::gelu_gradient(to_floats(dy), to_floats(x)), shape, dtype),
            Exact::gelu_gradient(to_doubles(dy), to_doubles(x)), 3.0));
    });
}

// Relative accuracy, element by element, where the rule above looks at the largest element only.
TEST_P(ElementwiseTest, ActivationsAreAccurateEverywhere) {
    const Tensor x = Tensor::uninitialized({1, 2000}, kFp32);
    const Tensor gate_up = Tensor::full({1, 4000}, 1.0f, kFp32), near_zero = gate_up.clone();
    for (int i = 0; i < 2000; ++i) {
        const float value = 0.01f * static_cast<float>(i - 1000);  // -10 to 10
        x.data<float>()[i] = value;
        gate_up.data<float>()[i] = 8.0f * value;
        near_zero.data<float>()[i] = 0.5f * value;
    }
    const Tensor y = unwritten({1, 2000}, kFp32);
    for (const Isa isa : kAllIsas) {
        limit_isa(isa);
        swiglu_forward(there(gate_up), y);
        EXPECT_TRUE(near(y, Exact::gated(false, to_doubles(gate_up), 2000), 1e-6, 1e-35));
        gelu_forward(there(x), y);
        EXPECT_TRUE(near(y, Exact::gelu(to_doubles(x)), 5e-6, 0.0));
        geglu_forward(there(near_zero), y);
        EXPECT_TRUE(near(y, Exact::gated(true, to_doubles(near_zero), 2000), 2e-5, 1e-35));
        if (GetParam() != Device::kCpu) break;
    }
    limit_isa(Isa::kAvx512);
}

TEST_P(ElementwiseTest, ActivationsSaturateAndKeepNaN) {
    const float inputs[] = {1e30f, -1e30f, 1000.0f, -1000.0f, NAN};
    const Tensor x = Tensor::uninitialized({5}, kFp32), ones = Tensor::full({5}, 1.0f, kFp32);
    const Tensor gate_up = Tensor::full({5, 2}, 1.0f, kFp32), y = unwritten({5, 1}, kFp32);
    for (int i = 0; i < 5; ++i) gate_up.data<float>()[2 * i] = x.data<float>()[i] = inputs[i];
    const std::vector<double> want{1e30f, 0.0, 1000.0, 0.0, NAN};
    swiglu_forward(there(gate_up), y);
    EXPECT_TRUE(near(y, want, 0.0, 1e-7));
    geglu_forward(there(gate_up), y);
    EXPECT_TRUE(near(y, want, 0.0, 1e-7));
    const Tensor dgate_up = unwritten({5, 2}, kFp32);
    geglu_backward(there(ones.view({5, 1})), there(gate_up), dgate_up);
    EXPECT_TRUE(near(dgate_up,
                     std::vector<double>{1.0, 1e30f, 0.0, 0.0, 1.0, 1000.0, 0.0, 0.0, NAN, NAN},
                     0.0, 1e-7));
    gelu_forward(there(x), y.view({5}));
    EXPECT_TRUE(near(y, want, 0.0, 1e-7));
    gelu_backward(there(ones), there(x), y.view({5}));
    EXPECT_TRUE(near(y, std::vector<double>{1.0, 0.0, 1.0, 0.0, NAN}, 0.0, 1e-7));
}

TEST_P(ElementwiseTest, SumsAndProductsAreRoundedOnce) {
    for_all_inputs([&](DType dtype, std::int64_t width, testing::DataKind kind) {
        const Shape shape{7, width};
        const Tensor x = make_data(kind, shape, dtype, 1), y = gaussian(shape, dtype, 2);
        std::vector<float> want_sum = to_floats(y), want_product = to_floats(x);
        for (std::size_t i = 0; i < want_sum.size(); ++i) want_sum[i] += want_product[i];
        for (float& value : want_product) value *= 0.3f;
        const Tensor sum = there(y.clone()), product = there(x.clone());
        add_in_place(sum, there(x));
        scale_in_place(product, 0.3f);
        EXPECT_TRUE(same_bits(sum, tensor_of(want_sum, shape, dtype)));
        EXPECT_TRUE(same_bits(product, tensor_of(want_product, shape, dtype)));
    });
}

TEST(ElementwiseCpuTest, ResultsDoNotDependOnThreads) {
    const Shape shape{700, 100};
    const Tensor x = gaussian(shape, kFp32, 1), dy = gaussian(shape, kFp32, 2);
    const Tensor gain = gaussian({100}, kFp32, 3), rstd = Tensor::full({700}, 1.0f, kFp32);
    const int threads = omp_get_max_threads();
    Tensor first_gain, first_swiglu, first_gelu;
    for (const int count : {1, 2, 3, 7}) {
        omp_set_num_threads(count);
        const Tensor dgain = Tensor::zeros({100}, kFp32), dx = poisoned(shape, kFp32);
        rms_norm_backward(dy, x, gain, rstd, false, dx, dgain);
        const Tensor swiglu = poisoned({700, 50}, kFp32), gelu = poisoned(shape, kFp32);
        swiglu_forward(x, swiglu);
        gelu_forward(x, gelu);
        if (count == 1) first_gain = dgain, first_swiglu = swiglu, first_gelu = gelu;
        EXPECT_TRUE(same_bits(dgain, first_gain)) << count;
        EXPECT_TRUE(same_bits(swiglu, first_swiglu)) << count;
        EXPECT_TRUE(same_bits(gelu, first_gelu)) << count;
    }
    omp_set_num_threads(threads);
}

TEST_P(ElementwiseTest, EmptyTensorsAreNoWork) {
    const Tensor x = there(Tensor::zeros({0, 8}, kFp32)),
                 half = there(Tensor::zeros({0, 4}, kFp32));
    const Tensor gain = there(Tensor::full({8}, 1.0f, kFp32)),
                 rstd = there(Tensor::zeros({0}, kFp32));
    rms_norm_forward(x, gain, 1e-6, x, rstd);
    rms_norm_backward(x, x, gain, rstd, false, x, gain.clone());
    swiglu_forward(x, half);
    swiglu_backward(half, x, x);
    gelu_forward(x, x);
    gelu_backward(x, x, x);
    add_in_place(x, x);
    scale_in_place(x, 2.0);
}

// Views that begin where no 16 bytes do.
TEST_P(ElementwiseTest, UnalignedViewsAreTaken) {
    for (const DType dtype : {kFp32, kBf16}) {
        const Shape shape{4, 16};
        const auto shifted = [&](const Tensor& tensor) {
            const Tensor whole = there(Tensor::zeros({tensor.numel() + 1}, tensor.dtype()));
            const Tensor view = whole.slice(0, 1, tensor.numel() + 1).view(tensor.shape());
            view.copy_from(tensor);
            return view;
        };
        const Tensor x = gaussian(shape, dtype, 1), dy = gaussian({4, 8}, dtype, 2);
        const Tensor gain = gaussian({16}, kFp32, 3);
        const auto results = [&](auto&& place) {
            std::vector<Tensor> all;
            const auto made = [&](const Shape& size, DType type) {
                return all.emplace_back(place(poisoned(size, type)));
            };
            const Tensor rstd = made({4}, kFp32), dgain = place(Tensor::zeros({16}, kFp32));
            rms_norm_forward(place(x), place(gain), 1e-6, made(shape, dtype), rstd);
            rms_norm_backward(place(x), place(x), place(gain), rstd, false, made(shape, dtype),
                              dgain);
            swiglu_forward(place(x), made({4, 8}, dtype));
            swiglu_backward(place(dy), place(x), made(shape, dtype));
            gelu_forward(place(x), made(shape, dtype));
            gelu_backward(place(x), place(x), made(shape, dtype));
            add_in_place(all.emplace_back(place(x)), place(x));
            scale_in_place(all.emplace_back(place(x)), 3.0);
            all.push_back(dgain);
            return all;
        };
        const auto want = results([&](const Tensor& tensor) { return there(tensor.clone()); });
        const auto got = results(shifted);
        for (std::size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(same_bits(got[i], want[i])) << i;
    }
}

TEST(ElementwiseCheckTest, RejectsWrongShapesAndTypes) {
    const Tensor x = Tensor::zeros({3, 8}, kFp32), odd = Tensor::zeros({3, 7}, kFp32);
    const Tensor half = Tensor::zeros({3, 4}, kFp32), bf16 = Tensor::zeros({3, 8}, kBf16);
    const Tensor gain = Tensor::zeros({8}, kFp32), rstd = Tensor::zeros({3}, kFp32);
    EXPECT_THROW(rms_norm_forward(x, half, 1e-6, x, rstd), Error);
    EXPECT_THROW(rms_norm_forward(x, gain, 1e-6, bf16, rstd), Error);
    EXPECT_THROW(rms_norm_forward(x, gain, -1.0, x, rstd), Error);
    EXPECT_THROW(rms_norm_forward(x, gain, 1e-6, x, gain), Error);
    EXPECT_THROW(rms_norm_backward(x, x, gain, rstd, false, odd, gain), Error);
    EXPECT_THROW(swiglu_forward(odd, half), Error);
    EXPECT_THROW(swiglu_forward(x, x), Error);
    EXPECT_THROW(swiglu_backward(x, x, x), Error);
    EXPECT_THROW(gelu_forward(x, odd), Error);
    EXPECT_THROW(gelu_forward(Tensor::zeros({3, 16}, kFp32).slice(1, 0, 8), x), Error);
    EXPECT_THROW(add_in_place(x, bf16), Error);
    EXPECT_THROW(add_in_place(x, Tensor()), Error);
    const Tensor fp16 = x.to(DType::kFloat16);
    EXPECT_THROW(rms_norm_forward(fp16, gain, 1e-6, fp16, rstd), Error);
    EXPECT_THROW(gelu_forward(fp16, fp16), Error);
    EXPECT_THROW(add_in_place(fp16, fp16), Error);
    for (const Device gpu : testing::test_gpus()) {
        EXPECT_THROW(add_in_place(x, testing::on(gpu, x)), Error);
        EXPECT_THROW(rms_norm_forward(testing::on(gpu, x), gain, 1e-6, x, rstd), Error);
    }
}

}  // namespace
}  // namespace evenkeel
