// What the optimizer does on a GPU, beside the CPU.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "framework/graph.h"
#include "framework/optimizer/adamw.h"
#include "framework/optimizer/gradient_norm.h"
#include "tests/support/compare.h"
#include "tests/support/data.h"
#include "tests/support/devices.h"
#include "tests/support/parameters.h"

namespace evenkeel {
namespace {

using testing::on;
using testing::same_bits;
using testing::step_numbers;
using testing::to_doubles;

// Sizes that no vector divides, alone in a chunk and around its end, of both types, with decay and
// without, owned and not, and joined to another of odd size, so that no vector begins where they do.
struct Model {
    std::vector<Parameter> parameters;
    ParameterBuckets buckets;

    explicit Model(Device device, std::int64_t bucket_elements = ParameterBuckets::kElements) {
        const Shape shapes[] = {{1}, {3},       {5, 7},
                                {2}, {37, 129}, {ParameterChunk::kMost + 3},
                                {4}, {0, 8},    {2 * ParameterChunk::kMost},
                                {13}};
        int i = 0;
        for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
            for (std::size_t s = 0; s < std::size(shapes); ++s) {
                const Shape& shape = shapes[s];
                Sharding sharding = Sharding::replicated(i % 3 == 1 ? 1 : 0, 2);
                parameters.push_back(declare_parameter(concat("p", i), shape, sharding, dtype));
                parameters.back().weight_decay = i % 2 == 0;
                parameters.back().joins_previous = s == 1 || s == 5;
                parameters.back().first_phase = i % 4 < 2;
                ++i;
            }
        }
        buckets = ParameterBuckets(testing::pointers_to(parameters), device, bucket_elements);
        for (std::size_t p = 0; p < parameters.size(); ++p) {
            const Parameter& parameter = parameters[p];
            parameter.master.copy_from(
                testing::gaussian(parameter.local_shape(), DType::kFloat32, p, 0.5));
            parameter.refresh_value();
        }
    }
    Model(const Model&) = delete;
    Model& operator=(const Model&) = delete;

    void set_gradients(std::uint64_t seed, double deviation = 0.3) const {
        for (std::size_t p = 0; p < parameters.size(); ++p) {
            parameters[p].grad.copy_from(testing::gaussian(
                parameters[p].local_shape(), DType::kFloat32, seed + 100 * p, deviation));
        }
    }
};

void expect_same_state(const Model& got, const Model& want, const std::string& where) {
    for (std::size_t p = 0; p < want.parameters.size(); ++p) {
        const Parameter &g = got.parameters[p], &w = want.parameters[p];
        EXPECT_TRUE(same_bits(g.master, w.master)) << where << ", master of " << w.name;
        EXPECT_TRUE(same_bits(g.value, w.value)) << where << ", value of " << w.name;
        EXPECT_TRUE(same_bits(g.exp_avg, w.exp_avg)) << where << ", mean of " << w.name;
        EXPECT_TRUE(same_bits(g.exp_avg_sq, w.exp_avg_sq)) << where << ", square of " << w.name;
        EXPECT_TRUE(same_bits(g.grad, w.grad)) << where << ", gradient of " << w.name;
    }
}

class OptimizerGpuTest : public ::testing::TestWithParam<Device> {
  protected:
    Device device() const { return GetParam(); }
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(OptimizerGpuTest);

TEST_P(OptimizerGpuTest, UpdatesToTheBitsOfTheCpu) {
    AdamWConfig config;
    config.weight_decay = 0.3;
    for (const std::int64_t bucket_elements : {ParameterBuckets::kElements, std::int64_t{5000}}) {
        const Model cpu(Device::kCpu, bucket_elements), gpu(device(), bucket_elements);
        // Not clipped, clipped, at the limit, without a limit.
        const double clip_norms[] = {10.0, 0.37, std::sqrt(5.0), 0.0};
        for (int step = 1; step <= 4; ++step) {
            for (const Model* model : {&cpu, &gpu}) model->set_gradients(step);
            const Tensor numbers = step_numbers(2.5, 5.0);
            const double clip_norm = clip_norms[step - 1];
            adamw_step(cpu.buckets, config, 0.01 / step, clip_norm, numbers, step);
            adamw_step(gpu.buckets, config, 0.01 / step, clip_norm, on(device(), numbers), step);
            expect_same_state(gpu, cpu, concat("step ", step));
        }
    }
}

TEST_P(OptimizerGpuTest, UpdatesToTheBitsOfTheCpuAtTheEdgesOfFp32) {
    for (const double deviation : {0.0, 1e-42, 1e-30, 1e-19, 1e18, 1e25}) {
        const Model cpu(Device::kCpu), gpu(device());
        const Tensor numbers = step_numbers(1.0, 1e4);
        for (int step = 1; step <= 2; ++step) {
            for (const Model* model : {&cpu, &gpu}) model->set_gradients(step, deviation);
            adamw_step(cpu.buckets, {}, 0.01, 1.0, numbers, step);
            adamw_step(gpu.buckets, {}, 0.01, 1.0, on(device(), numbers), step);
        }
        expect_same_state(gpu, cpu, concat("gradients of ", deviation));
    }
}

TEST_P(OptimizerGpuTest, AFirstPhaseUpdatesToTheBitsOfTheCpu) {
    const Model cpu(Device::kCpu), gpu(device()), before(Device::kCpu);
    const Tensor numbers = step_numbers(2.5, 5.0);
    for (int step = 1; step <= 2; ++step) {
        for (const Model* model : {&cpu, &gpu, &before}) model->set_gradients(step);
        adamw_step(cpu.buckets, {}, 0.01, 1.0, numbers, step, UpdateScope::kFirstPhase);
        adamw_step(gpu.buckets, {}, 0.01, 1.0, on(device(), numbers), step,
                   UpdateScope::kFirstPhase);
        expect_same_state(gpu, cpu, concat("step ", step));
    }
    for (std::size_t p = 0; p < before.parameters.size(); ++p) {
        const Parameter &g = gpu.parameters[p], &b = before.parameters[p];
        if (b.global_shape[0] == 0) continue;
        EXPECT_EQ(same_bits(g.master, b.master) && same_bits(g.exp_avg, b.exp_avg), !b.first_phase)
            << b.name;
    }
    gpu.buckets.zero_gradients_after_first_phase();
    for (const Parameter& p : gpu.parameters) {
        if (p.global_shape[0] == 0) continue;
        const Tensor zeros = Tensor::zeros(p.local_shape(), DType::kFloat32);
        EXPECT_EQ(same_bits(p.grad, zeros), !p.first_phase) << p.name;
    }
}

TEST_P(OptimizerGpuTest, LeavesEverythingAsItIsWithoutFiniteNumbers) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const double infinity = std::numeric_limits<double>::infinity();
    const Model before(device()), after(device());
    for (const Model* model : {&before, &after}) model->set_gradients(1);
    for (const auto& [loss, squared_norm] :
         {std::pair{nan, 1.0}, {infinity, 1.0}, {1.0, nan}, {1.0, infinity}, {1.0, -1.0}}) {
        adamw_step(after.buckets, {}, 0.01, 1.0, on(device(), step_numbers(loss, squared_norm)), 1);
        expect_same_state(after, before, concat("loss ", loss, ", norm^2 ", squared_norm));
    }
}

TEST_P(OptimizerGpuTest, LeavesEverythingAsItIsAboveALimitAndUpdatesUpToIt) {
    const Model before(device()), after(device()), cpu(Device::kCpu);
    for (const Model* model : {&before, &after, &cpu}) model->set_gradients(1);
    const Tensor numbers = step_numbers(2.0, 9.0);
    const auto update = [&](const Model& model, const UpdateLimits& limits) {
        adamw_step(model.buckets, {}, 0.01, 1.0,
                   model.buckets.device() == Device::kCpu ? numbers : on(device(), numbers), 1,
                   UpdateScope::kAll, limits);
    };
    for (const UpdateLimits& limits :
         {UpdateLimits{std::nextafter(2.0, 0.0), 10.0}, {3.0, std::nextafter(3.0, 0.0)}}) {
        update(after, limits);
        expect_same_state(after, before, concat("limits ", limits.loss, ", ", limits.grad_norm));
    }
    update(after, {2.0, 3.0});
    update(cpu, {});
    expect_same_state(after, cpu, "at the limits");
}

TEST_P(OptimizerGpuTest, AddsTheSquaresOfTheGradientsItOwns) {
    for (const std::int64_t bucket_elements : {ParameterBuckets::kElements, std::int64_t{5000}}) {
        const Model model(device(), bucket_elements);
        model.set_gradients(1);
        double want = 0.75;
        std::int64_t owned = 0;
        for (const Parameter& parameter : model.parameters) {
            if (!parameter.sharding.is_owner()) continue;
            ++owned;
            for (const double value : to_doubles(parameter.grad)) want += value * value;
        }
        ASSERT_LT(owned, static_cast<std::int64_t>(model.parameters.size()));
        std::vector<Tensor> totals;
        for (int i = 0; i < 2; ++i) {
            const Tensor start = Tensor::uninitialized({1}, DType::kFloat64);
            *start.data<double>() = 0.75;
            totals.push_back(on(device(), start));
            add_squared_gradient_norm(model.buckets, totals.back());
        }
        EXPECT_TRUE(same_bits(totals[1], totals[0]));
        const double got = to_doubles(totals[0])[0];
        EXPECT_NEAR(got, want, 1e-13 * want);
    }
}

TEST_P(OptimizerGpuTest, ANormOfLargeAndSmallGradientsIsAsGoodAsInDouble) {
    const Model model(device());
    for (const Parameter& parameter : model.parameters) parameter.grad.fill(1e-20f);
    model.parameters[4].grad.fill(1e25f);  // the square overflows in fp32
    ASSERT_FALSE(model.parameters[4].sharding.is_owner());
    model.parameters[5].grad.fill(3e22f);
    const Tensor total = Tensor::zeros({1}, DType::kFloat64, device());
    add_squared_gradient_norm(model.buckets, total);
    const double value = 3e22f, want = value * value * (ParameterChunk::kMost + 3);
    EXPECT_NEAR(to_doubles(total)[0], want, 1e-13 * want);
}

TEST_P(OptimizerGpuTest, OneBadGradientShowsInTheNorm) {
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        const Model model(device());
        model.set_gradients(1);
        const Tensor& grad = model.parameters[5].grad;
        grad.slice(0, ParameterChunk::kMost + 2, ParameterChunk::kMost + 3).fill(bad);
        const Tensor total = Tensor::zeros({1}, DType::kFloat64, device());
        add_squared_gradient_norm(model.buckets, total);
        EXPECT_FALSE(std::isfinite(to_doubles(total)[0])) << bad;
    }
}

TEST_P(OptimizerGpuTest, AGraphRepeatsTheNormAndTheStep) {
    const Model direct(device()), replayed(device());
    const Tensor numbers = on(device(), step_numbers(1.0, 0.0));
    const Tensor replayed_numbers = numbers.clone();
    const auto step = [](const Model& model, const Tensor& of) {
        const Tensor squared_norm = of.slice(0, kSquaredNormIndex, kSquaredNormIndex + 1);
        squared_norm.zero();
        add_squared_gradient_norm(model.buckets, squared_norm);
        adamw_step(model.buckets, {}, 0.01, 1.0, of, 1);
    };
    const Stream stream;
    Stream::current().synchronize();
    const StreamScope scope(stream);
    const Graph graph = Graph::capture(stream, [&] { step(replayed, replayed_numbers); });
    for (int i = 1; i <= 2; ++i) {
        for (const Model* model : {&direct, &replayed}) model->set_gradients(i);
        step(direct, numbers);
        graph.launch();
        EXPECT_TRUE(same_bits(replayed_numbers, numbers));
        expect_same_state(replayed, direct, concat("step ", i));
    }
}

TEST_P(OptimizerGpuTest, NothingToDoIsFine) {
    const ParameterBuckets none({}, device());
    const Tensor total = Tensor::full({1}, 0.0f, DType::kFloat64, device());
    add_squared_gradient_norm(none, total);
    EXPECT_EQ(to_doubles(total)[0], 0.0);
    adamw_step(none, {}, 0.1, 1.0, on(device(), step_numbers(1.0, 1.0)), 1);
}

INSTANTIATE_TEST_SUITE_P(,
                         OptimizerGpuTest,
                         ::testing::ValuesIn(testing::test_gpus()),
                         testing::device_name);

}  // namespace
}  // namespace evenkeel
