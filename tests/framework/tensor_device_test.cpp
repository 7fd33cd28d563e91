// What tensors do with their elements, on each device.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "framework/tensor.h"
#include "tests/support/compare.h"
#include "tests/support/data.h"
#include "tests/support/devices.h"

namespace evenkeel {
namespace {

using testing::gaussian;
using testing::on;
using testing::on_cpu;
using testing::same_bits;
using testing::to_doubles;

class TensorDeviceTest : public ::testing::TestWithParam<Device> {
  protected:
    Device device() const { return GetParam(); }

    Tensor counting(const Shape& shape) const {
        const Tensor tensor = Tensor::uninitialized(shape, DType::kFloat32);
        for (std::int64_t i = 0; i < tensor.numel(); ++i) {
            tensor.data<float>()[i] = static_cast<float>(i);
        }
        return on(device(), tensor);
    }
};

TEST_P(TensorDeviceTest, StaysOnItsDevice) {
    const Tensor a = Tensor::zeros({2, 3}, DType::kBFloat16, device());
    EXPECT_EQ(a.device(), device());
    for (const Tensor& b : {a.clone(), a.contiguous(), a.to(DType::kFloat32),
                            a.slice(1, 0, 2).contiguous(), a.view({6})}) {
        EXPECT_EQ(b.device(), device());
    }
    EXPECT_EQ(a.to(device()).raw(), a.raw());
    EXPECT_EQ(on_cpu(a).device(), Device::kCpu);
}

TEST_P(TensorDeviceTest, CopiesAreViewsAndClonesAreNot) {
    const Tensor a = counting({4});
    const Tensor view = a, copy = a.clone();
    view.slice(0, 0, 1).fill(9.0f);
    EXPECT_EQ(to_doubles(a), (std::vector<double>{9, 1, 2, 3}));
    EXPECT_EQ(to_doubles(copy), (std::vector<double>{0, 1, 2, 3}));
    EXPECT_EQ(a.contiguous().raw(), a.raw());
    EXPECT_EQ(a.to(DType::kFloat32).raw(), a.raw());
}

TEST_P(TensorDeviceTest, SlicesAreFilledAlone) {
    const Tensor a = counting({4, 6});
    const Tensor rows = a.slice(0, 1, 3), columns = a.slice(-1, 2, 5);
    EXPECT_EQ(to_doubles(columns.slice(0, 1, 2)), (std::vector<double>{8, 9, 10}));
    columns.fill(-1.0f);
    EXPECT_EQ(to_doubles(rows),
              (std::vector<double>{6, 7, -1, -1, -1, 11, 12, 13, -1, -1, -1, 17}));
    columns.zero();
    EXPECT_EQ(to_doubles(rows), (std::vector<double>{6, 7, 0, 0, 0, 11, 12, 13, 0, 0, 0, 17}));
}

TEST_P(TensorDeviceTest, DoublesAreKeptWhole) {
    const Tensor sum = Tensor::uninitialized({2}, DType::kFloat64);
    sum.data<double>()[0] = 1.0 / 3.0;
    sum.data<double>()[1] = -1e300;
    const Tensor moved = on(device(), sum).clone();
    EXPECT_EQ(moved.bytes(), 16u);
    EXPECT_TRUE(same_bits(on_cpu(moved), sum));
    moved.slice(0, 0, 1).zero();
    EXPECT_EQ(on_cpu(moved).data<double>()[0], 0.0);
    EXPECT_EQ(on_cpu(moved).data<double>()[1], -1e300);
    EXPECT_THROW(moved.to(DType::kFloat32), Error);
}

TEST_P(TensorDeviceTest, StridedViewsAreReadInOrder) {
    // q of a fused [B, T, (H + 2K) D] projection becomes [B, T, H, D].
    const Tensor q = counting({2, 3, 16}).slice(2, 4, 12);
    EXPECT_EQ(to_doubles(q.view({2, 3, 2, 4})), to_doubles(q));
    EXPECT_EQ(to_doubles(q.slice(0, 1, 2).slice(1, 2, 3)),
              (std::vector<double>{84, 85, 86, 87, 88, 89, 90, 91}));
    const Tensor column = counting({5, 7}).slice(1, 3, 4);
    EXPECT_EQ(to_doubles(column), (std::vector<double>{3, 10, 17, 24, 31}));
}

TEST_P(TensorDeviceTest, EmptyTensorsWork) {
    const Tensor empty = Tensor::zeros({3, 0, 2}, DType::kFloat32, device());
    EXPECT_NO_THROW(empty.fill(1.0f));
    EXPECT_EQ(empty.clone().shape(), empty.shape());
    EXPECT_EQ(empty.to(DType::kBFloat16).numel(), 0);
    EXPECT_EQ(on_cpu(empty).numel(), 0);
    EXPECT_EQ(empty.view({0, 6}).numel(), 0);
}

TEST_P(TensorDeviceTest, ScalarsWork) {
    const Tensor scalar = Tensor::full({}, 2.5f, DType::kBFloat16, device());
    EXPECT_EQ(scalar.numel(), 1);
    EXPECT_EQ(to_doubles(scalar.to(DType::kFloat32)), std::vector<double>{2.5});
}

TEST_P(TensorDeviceTest, FillsEveryType) {
    for (const float value : {0.0f, -0.0f, 0.5f, -7.0f, 1.0e5f, 0.1f, INFINITY, NAN}) {
        for (const DType type : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
            // 11 elements: whole vectors and a rest.
            const Tensor got = on_cpu(Tensor::full({11}, value, type, device()));
            for (std::int64_t i = 0; i < got.numel(); ++i) {
                if (type == DType::kFloat32) {
                    ASSERT_EQ(std::bit_cast<std::uint32_t>(got.data<float>()[i]),
                              std::bit_cast<std::uint32_t>(value));
                } else if (type == DType::kBFloat16) {
                    ASSERT_EQ(got.data<bfloat16>()[i].bits, bfloat16(value).bits) << value;
                } else {
                    ASSERT_EQ(got.data<float16>()[i].bits, float16(value).bits) << value;
                }
            }
        }
    }
    const Tensor whole = on_cpu(Tensor::full({3}, -7.0f, DType::kInt32, device()));
    EXPECT_EQ(whole.data<std::int32_t>()[2], -7);
}

TEST_P(TensorDeviceTest, CopiesBetweenFloatTypesRoundOnce) {
    const Tensor wide = gaussian({37, 29}, DType::kFloat32, 1, 100.0);
    const Tensor bf16 = on_cpu(on(device(), wide).to(DType::kBFloat16));
    const Tensor fp16 = on_cpu(on(device(), wide).to(DType::kFloat16));
    for (std::int64_t i = 0; i < wide.numel(); ++i) {
        const float value = wide.data<float>()[i];
        ASSERT_EQ(bf16.data<bfloat16>()[i].bits, bfloat16(value).bits) << value;
        ASSERT_EQ(fp16.data<float16>()[i].bits, float16(value).bits) << value;
    }
    const Tensor crossed = on_cpu(on(device(), bf16).to(DType::kFloat16));
    const Tensor back = on_cpu(on(device(), fp16).to(DType::kBFloat16));
    const Tensor widened = on_cpu(on(device(), fp16).to(DType::kFloat32));
    for (std::int64_t i = 0; i < wide.numel(); ++i) {
        const auto from_bf16 = static_cast<float>(bf16.data<bfloat16>()[i]);
        const auto from_fp16 = static_cast<float>(fp16.data<float16>()[i]);
        ASSERT_EQ(crossed.data<float16>()[i].bits, float16(from_bf16).bits);
        ASSERT_EQ(back.data<bfloat16>()[i].bits, bfloat16(from_fp16).bits);
        ASSERT_EQ(widened.data<float>()[i], from_fp16);
    }
}

TEST_P(TensorDeviceTest, ConversionKeepsSpecialValues) {
    const float values[] = {0.0f,     -0.0f,       INFINITY, -INFINITY, NAN,      65504.0f,
                            65519.0f, 65520.0f,    3.4e38f,  1e-40f,    0x1p-24f, 0x1p-25f,
                            0x1p-14f, -0x1.8p-24f, 1e-20f,   0x1p-126f, 1.0f};
    const Tensor wide = Tensor::uninitialized({std::ssize(values)}, DType::kFloat32);
    std::copy(std::begin(values), std::end(values), wide.data<float>());
    const Tensor bf16 = on_cpu(on(device(), wide).to(DType::kBFloat16));
    const Tensor fp16 = on_cpu(on(device(), wide).to(DType::kFloat16));
    for (std::int64_t i = 0; i < wide.numel(); ++i) {
        if (std::isnan(values[i])) {
            EXPECT_TRUE(std::isnan(static_cast<float>(bf16.data<bfloat16>()[i])));
            EXPECT_TRUE(std::isnan(static_cast<float>(fp16.data<float16>()[i])));
        } else {
            EXPECT_EQ(bf16.data<bfloat16>()[i].bits, bfloat16(values[i]).bits) << values[i];
            EXPECT_EQ(fp16.data<float16>()[i].bits, float16(values[i]).bits) << values[i];
        }
    }
}

TEST_P(TensorDeviceTest, EveryPatternOfTwoBytesIsWidenedAndCrossesOver) {
    const std::int64_t count = 1 << 16;
    const Tensor halves = Tensor::uninitialized({count}, DType::kFloat16);
    const Tensor brains = Tensor::uninitialized({count}, DType::kBFloat16);
    for (std::int64_t i = 0; i < count; ++i) {
        halves.data<float16>()[i].bits = brains.data<bfloat16>()[i].bits =
            static_cast<std::uint16_t>(i);
    }
    for (const Tensor& narrow : {halves, brains}) {
        for (const DType type : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
            const Tensor got = on_cpu(on(device(), narrow).to(type));
            EXPECT_TRUE(testing::near(got, narrow.to(type), 0.0, 0.0))
                << name_of(narrow.dtype()) << " to " << name_of(type);
        }
    }
}

TEST_P(TensorDeviceTest, CopiesWriteTheirTargetAndNothingElse) {
    const Tensor narrow = on(device(), gaussian({5, 7}, DType::kBFloat16, 1));
    const Tensor target = on(device(), testing::poisoned({5, 14}, DType::kFloat32));
    target.slice(1, 3, 10).copy_from(narrow);
    EXPECT_TRUE(same_bits(target.slice(1, 3, 10).clone(), narrow.to(DType::kFloat32)));
    const std::vector<double> all = to_doubles(target);
    for (int row = 0; row < 5; ++row) {
        for (const int column : {0, 1, 2, 10, 11, 12, 13}) {
            EXPECT_TRUE(std::isnan(all[row * 14 + column])) << row << ", " << column;
        }
    }
}

TEST_P(TensorDeviceTest, RefusesWhatDoesNotFit) {
    const Tensor a = Tensor::zeros({5, 7}, DType::kFloat32, device());
    EXPECT_THROW(Tensor::zeros({5, 14}, DType::kFloat32, device()).copy_from(a), Error);
    EXPECT_THROW(Tensor::zeros({5, 14}, DType::kFloat32).copy_from(a), Error);
    try {
        Tensor::zeros({5, 7}, DType::kInt32, device()).copy_from(a);
        FAIL() << "no error";
    } catch (const Error& e) {
        EXPECT_STREQ(e.what(),
                     "[Tensor::copy_from] element type: got fp32 for int32, want the same type, or "
                     "floats");
    }
    const Tensor tokens = Tensor::full({3}, 5.0f, DType::kInt32, device());
    EXPECT_EQ(on_cpu(tokens.clone()).data<std::int32_t>()[2], 5);
}

// Copies between strided places, from any device to any, against a loop over the elements.
TEST_P(TensorDeviceTest, StridedCopiesAgreeWithALoop) {
    struct Cut {
        int dim;
        std::int64_t begin, end;
    };
    struct Case {
        Shape whole_to, whole_from;
        std::vector<Cut> to, from;  // both end in the same shape
    };
    const std::vector<Case> cases = {
        {{3, 24}, {3, 24}, {}, {}},                             // one run
        {{3, 5, 16}, {3, 5, 48}, {}, {{2, 16, 32}}},            // whole vectors
        {{3, 5, 16}, {3, 5, 48}, {}, {{2, 3, 19}}},             // a misaligned start
        {{3, 5, 17}, {3, 5, 51}, {}, {{2, 0, 17}}},             // misaligned rows
        {{3, 5, 64}, {3, 5, 64}, {{2, 8, 31}}, {{2, 16, 39}}},  // a rest in every row
        {{4, 6, 8}, {4, 9, 8}, {{1, 1, 4}, {0, 1, 3}}, {{1, 5, 8}, {0, 2, 4}}},
        {{7, 3}, {7, 11}, {{1, 2, 3}}, {{1, 4, 5}}},  // single columns
        {{2, 3, 4, 5, 6, 7},
         {2, 4, 5, 6, 7, 8},
         {{1, 0, 2}, {2, 1, 3}, {3, 2, 4}, {4, 0, 5}, {5, 1, 6}},
         {{1, 1, 3}, {2, 3, 5}, {3, 4, 6}, {4, 1, 6}, {5, 3, 8}}},  // as many runs as there may be
    };
    const auto cut = [](Tensor tensor, const std::vector<Cut>& cuts) {
        for (const Cut& c : cuts) tensor = tensor.slice(c.dim, c.begin, c.end);
        return tensor;
    };
    for (std::size_t i = 0; i < cases.size(); ++i) {
        const Case& c = cases[i];
        for (const DType from_type : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
            for (const DType to_type : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
                const Tensor source = gaussian(c.whole_from, from_type, i + 1);
                const Tensor want = Tensor::full(c.whole_to, -3.0f, to_type);
                cut(want, c.to).copy_from(cut(source, c.from));
                for (const Device from_device : {Device::kCpu, device()}) {
                    for (const Device to_device : {Device::kCpu, device()}) {
                        const Tensor got = Tensor::full(c.whole_to, -3.0f, to_type, to_device);
                        cut(got, c.to).copy_from(cut(on(from_device, source), c.from));
                        EXPECT_TRUE(same_bits(got, want))
                            << "case " << i << ", " << name_of(from_type) << " on "
                            << name_of(from_device) << " to " << name_of(to_type) << " on "
                            << name_of(to_device);
                    }
                }
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(,
                         TensorDeviceTest,
                         ::testing::ValuesIn(testing::test_devices()),
                         testing::device_name);

class TensorCudaTest : public ::testing::TestWithParam<Device> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TensorCudaTest);

TEST_P(TensorCudaTest, RefusesMoreRunsThanItsKernelsTake) {
    Tensor tensor = Tensor::zeros({2, 2, 2, 2, 2, 2, 2}, DType::kFloat32, Device::kCuda);
    const Tensor wide = Tensor::zeros({3, 3, 3, 3, 3, 3, 3}, DType::kFloat32, Device::kCuda);
    Tensor cut = wide;
    for (int dim = 0; dim < 7; ++dim) cut = cut.slice(dim, 0, 2);
    EXPECT_THROW(tensor.copy_from(cut), Error);
    EXPECT_THROW(cut.fill(1.0f), Error);
}

INSTANTIATE_TEST_SUITE_P(,
                         TensorCudaTest,
                         ::testing::ValuesIn(testing::test_gpus()),
                         testing::device_name);

}  // namespace
}  // namespace evenkeel
