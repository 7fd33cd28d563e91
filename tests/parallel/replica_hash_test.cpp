#include <gtest/gtest.h>

#include <cstring>

#include "parallel/replica_check.h"
#include "tests/support/data.h"
#include "tests/support/devices.h"

namespace evenkeel {
namespace {

using testing::gaussian;
using testing::on;

class ReplicaHashTest : public ::testing::TestWithParam<Device> {};
INSTANTIATE_TEST_SUITE_P(,
                         ReplicaHashTest,
                         ::testing::ValuesIn(testing::test_devices()),
                         testing::device_name);

// The formula, one element at a time.
std::uint64_t plain_hash(const Tensor& tensor, std::uint64_t first) {
    std::uint64_t sum = 0;
    const std::size_t width = size_of(tensor.dtype());
    for (std::int64_t i = 0; i < tensor.numel(); ++i) {
        std::uint64_t bits = 0;
        std::memcpy(&bits, tensor.raw() + width * static_cast<std::size_t>(i), width);
        std::uint64_t z =
            bits + (first + static_cast<std::uint64_t>(i) + 1) * 0x9E3779B97F4A7C15ull;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        sum += z ^ (z >> 27);
    }
    return sum;
}

Tensor bits_of(const Tensor& x, DType type) {
    if (type != DType::kInt32) return x.to(type);
    const Tensor bits = Tensor::uninitialized(x.shape(), type);
    std::memcpy(bits.raw(), x.raw(), x.bytes());
    return bits;
}

// Less than a warp, ends within blocks, more than one block; and what the CPU shares among threads.
constexpr std::int64_t kCounts[] = {0, 1, 31, 257, 4096, 70001};

TEST_P(ReplicaHashTest, IsTheFormulaOnEveryDeviceAndOfEveryWidth) {
    for (const DType type : {DType::kFloat32, DType::kBFloat16, DType::kInt32}) {
        for (const std::int64_t count : kCounts) {
            const Tensor x = bits_of(gaussian({count}, DType::kFloat32, 3), type);
            EXPECT_EQ(hash_elements(on(GetParam(), x)), plain_hash(x, 0))
                << name_of(type) << " " << count;
        }
    }
}

TEST_P(ReplicaHashTest, HashesOfPartsAddUpToThatOfTheWhole) {
    const Tensor x = on(GetParam(), gaussian({1001}, DType::kFloat32, 4));
    EXPECT_EQ(hash_elements(x),
              hash_elements(x.slice(0, 0, 333)) + hash_elements(x.slice(0, 333, 1001), 333));
}

TEST_P(ReplicaHashTest, AnyFlippedBitAndAnySwapChangesIt) {
    const Tensor x = gaussian({300}, DType::kBFloat16, 5);
    const std::uint64_t before = hash_elements(on(GetParam(), x));
    auto* const words = reinterpret_cast<std::uint16_t*>(x.raw());
    for (const int element : {0, 150, 299}) {
        for (int bit = 0; bit < 16; ++bit) {
            words[element] = static_cast<std::uint16_t>(words[element] ^ (1 << bit));
            EXPECT_NE(hash_elements(on(GetParam(), x)), before) << element << " " << bit;
            words[element] = static_cast<std::uint16_t>(words[element] ^ (1 << bit));
        }
    }
    std::swap(words[1], words[2]);
    EXPECT_NE(hash_elements(on(GetParam(), x)), before);
}

TEST(ReplicaHashArgumentsTest, MustBeReadable) {
    EXPECT_THROW((void)hash_elements(Tensor::zeros({4}, DType::kFloat64)), Error);
    EXPECT_THROW((void)hash_elements(Tensor::zeros({4, 4}, DType::kFloat32).slice(1, 0, 2)), Error);
}

}  // namespace
}  // namespace evenkeel
