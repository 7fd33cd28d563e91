#include "framework/optimizer/adamw.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <vector>

#include "tests/support/compare.h"
#include "tests/support/data.h"
#include "tests/support/parameters.h"

namespace evenkeel {
namespace {

using testing::gaussian;
using testing::make_parameter;
using testing::near;
using testing::same_bits;
using testing::step_numbers;
using testing::to_doubles;

// A parameter with its memory.
struct Single {
    Parameter parameter;
    ParameterBuckets buckets;

    Single(const Shape& shape, DType dtype, bool weight_decay = true)
        : parameter(declare_parameter("w", shape, Sharding::replicated(0, 1), dtype)) {
        parameter.weight_decay = weight_decay;
        buckets = ParameterBuckets({&parameter}, Device::kCpu);
        init_normal(parameter, 0.5, 7);
    }
    Single(const Single&) = delete;
    Single& operator=(const Single&) = delete;
};

const Tensor kNoClipping = step_numbers(1.0, 1.0);

void set_gradient(const Parameter& parameter, std::int64_t step) {
    parameter.grad.copy_from(gaussian(parameter.global_shape, DType::kFloat32, 100 + step, 0.3));
}

// The update of the header, in double, from the same start and gradients.
struct Reference {
    std::vector<double> w, m, v;

    explicit Reference(const Parameter& parameter)
        : w(to_doubles(parameter.master)), m(w.size()), v(w.size()) {}

    void step(
        const Tensor& grad, const AdamWConfig& c, double lr, double scale, int t, bool decay) {
        const std::vector<double> g = to_doubles(grad);
        for (std::size_t i = 0; i < w.size(); ++i) {
            const double x = g[i] * scale;
            m[i] = c.beta1 * m[i] + (1 - c.beta1) * x;
            v[i] = c.beta2 * v[i] + (1 - c.beta2) * x * x;
            const double update = m[i] / (1 - std::pow(c.beta1, t)) /
                                  (std::sqrt(v[i] / (1 - std::pow(c.beta2, t))) + c.epsilon);
            w[i] -= lr * (update + (decay ? c.weight_decay * w[i] : 0.0));
        }
    }
};

class AdamWAgainstDouble : public ::testing::TestWithParam<DType> {};

TEST_P(AdamWAgainstDouble, TwentySteps) {
    AdamWConfig config;
    config.weight_decay = 0.5;
    for (const bool decay : {true, false}) {
        Single single({37, 129}, GetParam(), decay);
        const Parameter& parameter = single.parameter;
        Reference reference(parameter);
        for (int step = 1; step <= 20; ++step) {
            set_gradient(parameter, step);
            const double lr = 0.01 / step, scale = step % 3 == 0 ? 0.25 : 1.0;
            reference.step(parameter.grad, config, lr, scale, step, decay);
            // A norm of 4 clipped to 1 is a scale of a quarter.
            adamw_step(single.buckets, config, lr, 1.0, step_numbers(1.0, 1.0 / (scale * scale)),
                       step);
        }
        EXPECT_TRUE(near(parameter.master, reference.w, 1e-6, 1e-6)) << "decay " << decay;
        EXPECT_TRUE(near(parameter.exp_avg, reference.m, 1e-6, 1e-7)) << "decay " << decay;
        EXPECT_TRUE(near(parameter.exp_avg_sq, reference.v, 2e-6, 1e-9)) << "decay " << decay;
        EXPECT_TRUE(same_bits(parameter.value, parameter.master.to(GetParam())));
    }
}

INSTANTIATE_TEST_SUITE_P(Types,
                         AdamWAgainstDouble,
                         ::testing::Values(DType::kFloat32, DType::kBFloat16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(AdamWTest, FirstStepMovesByTheLearningRate) {
    // Bias correction makes the first update lr * sign(g), whatever g's size.
    AdamWConfig config;
    config.weight_decay = 0.0;
    const Single single({3}, DType::kFloat32);
    init_constant(single.parameter, 0.0f);
    single.parameter.grad.data<float>()[0] = 1e-3f;
    single.parameter.grad.data<float>()[1] = -50.0f;
    adamw_step(single.buckets, config, 0.125, 0.0, kNoClipping, 1);
    EXPECT_TRUE(near(single.parameter.value, {-0.125, 0.125, 0.0}, 2e-5, 0.0));
}

TEST(AdamWTest, DecayAloneShrinksTheWeight) {
    AdamWConfig config;
    config.weight_decay = 0.5;
    const Single with({1}, DType::kFloat32, true), without({1}, DType::kFloat32, false);
    for (const Single* single : {&with, &without}) {
        init_constant(single->parameter, 2.0f);
        adamw_step(single->buckets, config, 0.25, 0.0, kNoClipping, 1);
    }
    EXPECT_FLOAT_EQ(with.parameter.value.data<float>()[0], 2.0f - 0.25f * 0.5f * 2.0f);
    EXPECT_EQ(without.parameter.value.data<float>()[0], 2.0f);
}

TEST(AdamWTest, LeavesEverythingAsItIsWithoutFiniteNumbers) {
    const double nan = NAN, infinite = INFINITY;
    for (const Tensor& numbers : {step_numbers(nan, 1.0), step_numbers(1.0, nan),
                                  step_numbers(infinite, 1.0), step_numbers(1.0, infinite)}) {
        const Single single({33}, DType::kBFloat16);
        const Parameter& parameter = single.parameter;
        set_gradient(parameter, 1);
        const Tensor master = parameter.master.clone(), value = parameter.value.clone();
        adamw_step(single.buckets, {}, 0.01, 1.0, numbers, 1);
        EXPECT_TRUE(same_bits(parameter.master, master));
        EXPECT_TRUE(same_bits(parameter.value, value));
        EXPECT_TRUE(same_bits(parameter.exp_avg, Tensor::zeros({33}, DType::kFloat32)));
        EXPECT_TRUE(same_bits(parameter.exp_avg_sq, Tensor::zeros({33}, DType::kFloat32)));
    }
}

TEST(AdamWTest, LeavesEverythingAsItIsAboveALimitAndUpdatesUpToIt) {
    const Single single({33}, DType::kBFloat16);
    const Parameter& parameter = single.parameter;
    set_gradient(parameter, 1);
    const Tensor master = parameter.master.clone();
    const Tensor numbers = step_numbers(2.0, 9.0);
    for (const UpdateLimits& limits :
         {UpdateLimits{std::nextafter(2.0, 0.0), 10.0}, {3.0, std::nextafter(3.0, 0.0)}}) {
        adamw_step(single.buckets, {}, 0.01, 1.0, numbers, 1, UpdateScope::kAll, limits);
        EXPECT_TRUE(same_bits(parameter.master, master));
        EXPECT_TRUE(same_bits(parameter.exp_avg, Tensor::zeros({33}, DType::kFloat32)));
    }
    adamw_step(single.buckets, {}, 0.01, 1.0, numbers, 1, UpdateScope::kAll, {2.0, 3.0});
    EXPECT_FALSE(same_bits(parameter.master, master));
}

// Runs some steps and returns the parameters with the moments.
std::vector<Tensor> run(int threads, std::int64_t pieces) {
    const int before = omp_get_max_threads();
    omp_set_num_threads(threads);
    const std::int64_t rows = 24, columns = 1001;
    std::vector<Parameter> parameters;
    for (std::int64_t i = 0; i < pieces; ++i) {
        parameters.push_back(declare_parameter(
            "w", {rows, columns}, Sharding::sharded(0, rows, 1, static_cast<int>(i), pieces),
            DType::kBFloat16));
    }
    const ParameterList list = testing::pointers_to(parameters);
    const ParameterBuckets buckets(list, Device::kCpu);
    for (const Parameter& parameter : parameters) init_normal(parameter, 0.5, 7);
    for (int step = 1; step <= 5; ++step) {
        const Tensor grad = gaussian({rows, columns}, DType::kFloat32, step);
        for (Parameter* p : list) {
            p->grad.copy_from(grad.slice(0, p->sharding.begin, p->sharding.end));
        }
        adamw_step(buckets, AdamWConfig{}, 0.01, 0.7, kNoClipping, step);
    }
    omp_set_num_threads(before);
    std::vector<Tensor> whole(4);
    for (int k = 0; k < 4; ++k) {
        const auto pick = [&](const Parameter& p) {
            return k == 0 ? p.value : k == 1 ? p.master : k == 2 ? p.exp_avg : p.exp_avg_sq;
        };
        whole[k] = Tensor::zeros({rows, columns}, pick(parameters[0]).dtype());
        for (const Parameter& p : parameters) {
            whole[k].slice(0, p.sharding.begin, p.sharding.end).copy_from(pick(p));
        }
    }
    return whole;
}

TEST(AdamWTest, SameBitsForAnyThreadCountAndSharding) {
    const std::vector<Tensor> want = run(1, 1);
    for (int threads : {1, 2, 5}) {
        for (std::int64_t pieces : {1, 2, 8}) {
            const std::vector<Tensor> got = run(threads, pieces);
            for (int k = 0; k < 4; ++k) {
                EXPECT_TRUE(same_bits(got[k], want[k]))
                    << threads << " threads, " << pieces << " pieces, tensor " << k;
            }
        }
    }
}

TEST(AdamWTest, AFirstPhaseLeavesOtherParametersAndTheirMomentsAlone) {
    std::vector<Parameter> parameters;
    for (const bool first : {false, true, false}) {
        parameters.push_back(declare_parameter(concat("w", parameters.size()), {37, 129},
                                               Sharding::replicated(0, 1), DType::kBFloat16));
        parameters.back().first_phase = first;
    }
    const ParameterBuckets buckets(testing::pointers_to(parameters), Device::kCpu);
    const Single alone({37, 129}, DType::kBFloat16);
    for (const Parameter& parameter : parameters) init_normal(parameter, 0.5, 7);
    parameters[1].master.copy_from(alone.parameter.master);
    std::vector<Tensor> before;
    for (const Parameter& p : parameters) before.push_back(p.master.clone());
    for (int step = 1; step <= 2; ++step) {
        for (const Parameter& parameter : parameters) set_gradient(parameter, step);
        set_gradient(alone.parameter, step);
        adamw_step(buckets, {}, 0.01, 0.0, kNoClipping, step, UpdateScope::kFirstPhase);
        adamw_step(alone.buckets, {}, 0.01, 0.0, kNoClipping, step);
    }
    for (const int i : {0, 2}) {
        const Tensor zeros = Tensor::zeros({37, 129}, DType::kFloat32);
        EXPECT_TRUE(same_bits(parameters[i].master, before[i])) << i;
        EXPECT_TRUE(same_bits(parameters[i].exp_avg, zeros)) << i;
        EXPECT_TRUE(same_bits(parameters[i].exp_avg_sq, zeros)) << i;
    }
    EXPECT_TRUE(same_bits(parameters[1].value, alone.parameter.value));
    EXPECT_TRUE(same_bits(parameters[1].exp_avg_sq, alone.parameter.exp_avg_sq));
}

TEST(AdamWTest, LeavesGradientsAloneAndZeroGradientsClearsThem) {
    const Single single({5000}, DType::kBFloat16);
    set_gradient(single.parameter, 1);
    const Tensor before = single.parameter.grad.clone();
    adamw_step(single.buckets, AdamWConfig{}, 0.01, 0.5, kNoClipping, 1);
    EXPECT_TRUE(same_bits(single.parameter.grad, before));
    single.buckets.zero_gradients();
    EXPECT_TRUE(same_bits(single.parameter.grad, Tensor::zeros({5000}, DType::kFloat32)));
}

TEST(AdamWTest, EmptyParametersAreFine) {
    const Single single({0, 4}, DType::kBFloat16);
    EXPECT_NO_THROW(adamw_step(single.buckets, AdamWConfig{}, 0.1, 0.0, kNoClipping, 1));
    EXPECT_NO_THROW(adamw_step(ParameterBuckets(), AdamWConfig{}, 0.1, 0.0, kNoClipping, 1));
}

TEST(AdamWTest, RejectsWhatHasNoMeaning) {
    const Single single({4, 6}, DType::kBFloat16);
    const auto step = [&](const AdamWConfig& config, double clip, const Tensor& numbers, int n) {
        adamw_step(single.buckets, config, 0.1, clip, numbers, n);
    };
    EXPECT_THROW(step({}, 0.0, kNoClipping, 0), Error);
    EXPECT_THROW(step({}, -1.0, kNoClipping, 1), Error);
    EXPECT_THROW(step({}, NAN, kNoClipping, 1), Error);
    EXPECT_THROW(step({}, 0.0, Tensor::zeros({1}, DType::kFloat64), 1), Error);
    EXPECT_THROW(step({}, 0.0, Tensor::zeros({2}, DType::kFloat32), 1), Error);
    EXPECT_THROW(step({}, 0.0, Tensor(), 1), Error);
    AdamWConfig config;
    config.beta2 = 1.0;
    EXPECT_THROW(step(config, 0.0, kNoClipping, 1), Error);
}

TEST(AdamWTest, ValidateNamesTheKey) {
    AdamWConfig config;
    config.epsilon = 0.0;
    try {
        config.validate();
        FAIL() << "no error";
    } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::kConfig);
        EXPECT_NE(std::string(e.what()).find("optimizer.epsilon: got 0"), std::string::npos);
    }
}

}  // namespace
}  // namespace evenkeel
