#include "framework/adamw.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <vector>

#include "tests/support/compare.h"
#include "tests/support/data.h"

namespace evenkeel {
namespace {

using testing::gaussian;
using testing::near;
using testing::same_bits;
using testing::to_doubles;

Parameter make(const std::string& name, const Shape& shape, DType dtype, bool weight_decay = true) {
    Parameter parameter = make_parameter(name, shape, Sharding::replicated(0, 1), dtype);
    parameter.weight_decay = weight_decay;
    init_normal(parameter, 0.5, 7);
    return parameter;
}

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
        Parameter parameter = make("w", {37, 129}, GetParam(), decay);
        Reference reference(parameter);
        for (int step = 1; step <= 20; ++step) {
            set_gradient(parameter, step);
            const double lr = 0.01 / step, scale = step % 3 == 0 ? 0.25 : 1.0;
            reference.step(parameter.grad, config, lr, scale, step, decay);
            adamw_step({&parameter}, config, lr, scale, step);
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
    Parameter parameter = make_parameter("w", {3}, Sharding::replicated(0, 1), DType::kFloat32);
    parameter.grad.data<float>()[0] = 1e-3f;
    parameter.grad.data<float>()[1] = -50.0f;
    adamw_step({&parameter}, config, 0.125, 1.0, 1);
    EXPECT_TRUE(near(parameter.value, {-0.125, 0.125, 0.0}, 2e-5, 0.0));
}

TEST(AdamWTest, DecayAloneShrinksTheWeight) {
    AdamWConfig config;
    config.weight_decay = 0.5;
    Parameter with = make_parameter("a", {1}, Sharding::replicated(0, 1), DType::kFloat32);
    Parameter without = make_parameter("b", {1}, Sharding::replicated(0, 1), DType::kFloat32);
    without.weight_decay = false;
    init_constant(with, 2.0f);
    init_constant(without, 2.0f);
    adamw_step({&with, &without}, config, 0.25, 1.0, 1);
    EXPECT_FLOAT_EQ(with.value.data<float>()[0], 2.0f - 0.25f * 0.5f * 2.0f);
    EXPECT_EQ(without.value.data<float>()[0], 2.0f);
}

// Runs some steps and returns the parameters with the moments.
std::vector<Tensor> run(int threads, std::int64_t pieces) {
    const int before = omp_get_max_threads();
    omp_set_num_threads(threads);
    const std::int64_t rows = 24, columns = 1001;
    std::vector<Parameter> parameters;
    for (std::int64_t i = 0; i < pieces; ++i) {
        parameters.push_back(make_parameter(
            "w", {rows, columns}, Sharding::sharded(0, rows, 1, static_cast<int>(i), pieces),
            DType::kBFloat16));
        init_normal(parameters.back(), 0.5, 7);
    }
    ParameterList list;
    for (Parameter& parameter : parameters) list.push_back(&parameter);
    for (int step = 1; step <= 5; ++step) {
        const Tensor grad = gaussian({rows, columns}, DType::kFloat32, step);
        for (Parameter* p : list) {
            p->grad.copy_from(grad.slice(0, p->sharding.begin, p->sharding.end));
        }
        adamw_step(list, AdamWConfig{}, 0.01, 0.7, step);
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

TEST(AdamWTest, LeavesGradientsAloneAndZeroGradientsClearsThem) {
    Parameter parameter = make("w", {5000}, DType::kBFloat16);
    set_gradient(parameter, 1);
    const Tensor before = parameter.grad.clone();
    adamw_step({&parameter}, AdamWConfig{}, 0.01, 0.5, 1);
    EXPECT_TRUE(same_bits(parameter.grad, before));
    zero_gradients({&parameter});
    EXPECT_TRUE(same_bits(parameter.grad, Tensor::zeros({5000}, DType::kFloat32)));
}

TEST(AdamWTest, UpdatesSlicesOfAFusedTensorOnly) {
    const Tensor fused = Tensor::full({6, 8}, 1.0f, DType::kFloat32);
    const Tensor grads = Tensor::full({6, 8}, 1.0f, DType::kFloat32);
    Parameter parameter = make_parameter("w", {2, 8}, Sharding::replicated(0, 1),
                                         fused.slice(0, 2, 4), grads.slice(0, 2, 4));
    adamw_step({&parameter}, AdamWConfig{}, 0.5, 1.0, 1);
    for (std::int64_t row = 0; row < 6; ++row) {
        const bool updated = row == 2 || row == 3;
        EXPECT_EQ(fused.data<float>()[row * 8 + 7] != 1.0f, updated) << "row " << row;
    }
}

TEST(AdamWTest, EmptyParametersAreFine) {
    Parameter parameter = make("w", {0, 4}, DType::kBFloat16);
    EXPECT_NO_THROW(adamw_step({&parameter}, AdamWConfig{}, 0.1, 1.0, 1));
    EXPECT_NO_THROW(adamw_step({}, AdamWConfig{}, 0.1, 1.0, 1));
}

TEST(AdamWTest, RejectsWhatItCannotUpdate) {
    Parameter parameter = make("w", {4, 6}, DType::kBFloat16);
    EXPECT_THROW(adamw_step({&parameter}, AdamWConfig{}, 0.1, 1.0, 0), Error);
    AdamWConfig config;
    config.beta2 = 1.0;
    EXPECT_THROW(adamw_step({&parameter}, config, 0.1, 1.0, 1), Error);
    Parameter strided = parameter;
    strided.grad = Tensor::zeros({4, 12}, DType::kFloat32).slice(1, 0, 6);
    try {
        adamw_step({&strided}, AdamWConfig{}, 0.1, 1.0, 1);
        FAIL() << "no error";
    } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find("w's gradient: got strides [12, 1]"),
                  std::string::npos)
            << e.what();
    }
    Parameter missing = parameter;
    missing.exp_avg = Tensor();
    EXPECT_THROW(adamw_step({&missing}, AdamWConfig{}, 0.1, 1.0, 1), Error);
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
