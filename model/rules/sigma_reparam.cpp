#include "model/rules/sigma_reparam.h"

#include <cmath>
#include <utility>

#include "framework/memory_scope.h"

namespace evenkeel {
namespace {

// The first estimate of sigma is good enough when it grows by less than this in kBetweenChecks iterations.
// What it still lacks, gamma lacks as well, so that the model's function is not changed.
constexpr double kConverged = 1e-5;
constexpr int kBetweenChecks = 10, kMostIterations = 100;

Parameter state_of(const Parameter& weight,
                   const char* suffix,
                   const Shape& shape,
                   const Sharding& sharding) {
    Parameter parameter = declare_parameter(weight.name + suffix, shape, sharding, DType::kFloat32);
    parameter.weight_decay = false;
    parameter.whole_state = true;
    return parameter;
}

// What an iteration takes: `weight` holds W, `u` where to begin.
SpectralMatrix part_of(const Parameter& parameter,
                       const Tensor& weight,
                       const Tensor& u,
                       const Tensor& sigma) {
    SpectralMatrix part;
    part.weight = weight.data<float>();
    part.start = u.data<float>();
    part.sigma = sigma.data<float>();
    part.rows = weight.size(0);
    part.columns = weight.size(1);
    part.rows_cut = parameter.sharding.dim == 0 ? 1 : 0;
    part.owned = parameter.sharding.is_owner() ? 1 : 0;
    return part;
}

// One power iteration, from u', the last one's result, or again from where the last one began.
void iterate(const SpectralWork& work, Communicator& group, bool advance) {
    start_iteration(work, advance);
    group.all_reduce(work.right_sums(), ReduceOp::kSum);
    continue_iteration(work);
    group.all_reduce(work.left_sums(), ReduceOp::kSum);
    finish_iteration(work);
}

}  // namespace

SigmaReparam::SigmaReparam(const ProcessGrid& grid,
                           const std::vector<const Parameter*>& matrices,
                           DType type)
    : grid_(grid), type_(type) {
    const Sharding whole = Sharding::replicated(grid.tp_rank(), grid.tp_size());
    for (const Parameter* weight : matrices) {
        EVENKEEL_CHECK(weight->global_shape.size() == 2 &&
                           weight->sharding.kind != Sharding::Kind::kReplicated,
                       "SigmaReparam", weight->name, ": want a matrix that is cut over ranks");
        const Sharding rows = weight->sharding.dim == 0 ? weight->sharding : whole;
        auto matrix = std::make_unique<Matrix>(
            Matrix{weight, state_of(*weight, "_gamma", {1}, whole),
                   state_of(*weight, "_sigma", {1}, whole),
                   state_of(*weight, "_u", {weight->global_shape[0]}, rows)});
        matrix->sigma.trained = matrix->u.trained = false;
        matrices_.push_back(std::move(matrix));
    }
}

void SigmaReparam::collect_parameters(ParameterList& list) {
    for (const auto& matrix : matrices_) {
        Parameter& weight = declaration_of(list, matrix->weight);
        weight.derived_value = weight.whole_state = true;
    }
    for (const auto& matrix : matrices_) {
        for (Parameter* parameter : {&matrix->gamma, &matrix->sigma, &matrix->u}) {
            list.push_back(parameter);
        }
    }
}

// Parameters have their memory only after collect_parameters.
void SigmaReparam::make_work() {
    const MemoryScope scope("the singular vectors of weights");
    std::vector<SpectralMatrix> parts;
    for (const auto& matrix : matrices_) {
        SpectralMatrix part = part_of(*matrix->weight, matrix->weight->master, matrix->u.master,
                                      matrix->sigma.master);
        part.gradient = matrix->weight->grad.data<float>();
        part.value = matrix->weight->value.raw();
        part.gamma = matrix->gamma.master.data<float>();
        part.gamma_gradient = matrix->gamma.grad.data<float>();
        parts.push_back(part);
    }
    work_ = std::make_unique<SpectralWork>(std::move(parts), type_, grid_.device());
}

void SigmaReparam::find_largest_singular_values() {
    struct OnCpu {
        Tensor weight, u, sigma;
    };
    std::vector<OnCpu> tensors;
    std::vector<SpectralMatrix> parts;
    for (const auto& matrix : matrices_) {
        init_normal(matrix->u, 1.0, 0);
        tensors.push_back({matrix->weight->master.to(Device::kCpu),
                           matrix->u.master.to(Device::kCpu).clone(),
                           Tensor::zeros({1}, DType::kFloat32)});
        const OnCpu& of = tensors.back();
        parts.push_back(part_of(*matrix->weight, of.weight, of.u, of.sigma));
    }
    const SpectralWork work(std::move(parts), type_, Device::kCpu);
    std::vector<float> before(tensors.size());
    for (int iteration = 1; iteration <= kMostIterations; ++iteration) {
        iterate(work, grid_.host_tensor(), iteration > 1);
        if (iteration % kBetweenChecks != 0) continue;
        bool converged = true;
        for (std::size_t i = 0; i < tensors.size(); ++i) {
            const float now = *tensors[i].sigma.data<float>();
            converged = converged && std::abs(now - before[i]) <= kConverged * now;
            before[i] = now;
        }
        if (converged) break;
    }
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        matrices_[i]->u.master.copy_from(tensors[i].u);
    }
}

void SigmaReparam::initialized() {
    make_work();
    find_largest_singular_values();
    iterate(*work_, grid_.tensor(), false);
    for (const auto& matrix : matrices_) matrix->gamma.master.copy_from(matrix->sigma.master);
    refresh_values(*work_);
}

void SigmaReparam::loaded() {
    iterate(*work_, grid_.tensor(), false);
    refresh_values(*work_);
}

void SigmaReparam::updated(const Tensor&) {
    iterate(*work_, grid_.tensor(), true);
    refresh_values(*work_);
}

void SigmaReparam::gradients_complete() {
    inner_products(*work_);
    grid_.tensor().all_reduce(work_->inner(), ReduceOp::kSum);
    convert_gradients(*work_);
}

}  // namespace evenkeel
