// Weights of bounded spectral norm (Zhai et al. 2023, "Stabilizing transformer training by preventing attention
// entropy collapse", section 3.2): every linear layer of the blocks multiplies with gamma / sigma(W) W.
//
// A parameter's master holds W, which the optimizer changes; its value holds gamma / sigma(W) W, which the
// passes read. sigma is estimated by one power iteration after each update, over tensor-parallel ranks with two
// sums for the whole model; the gradients take a third. u and v are constants of the derivative, as in Miyato
// et al. 2018, section 2.1:
//
//   dW = gamma / sigma (dV - (<dV, W> / sigma) u v^T),   dgamma = <dV, W> / sigma,   dV: of gamma / sigma W.
//
// Each matrix NAME has three parameters more: NAME_gamma [1], trained without weight decay; NAME_sigma [1] and
// NAME_u [O], the vector that the last iteration began with, which are not trained. So a checkpoint goes on bit
// for bit, and another program gets the weight that is multiplied with as NAME * NAME_gamma / NAME_sigma.
// gamma starts as sigma, so the model starts as the same function that it is without all this.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/ops/spectral_norm.h"
#include "model/rules/weight_rule.h"
#include "parallel/process_grid.h"

namespace evenkeel {

class SigmaReparam : public WeightRule {
  public:
    // The grid and the matrices must outlive the rule. type: of the matrices' values.
    SigmaReparam(const ProcessGrid& grid,
                 const std::vector<const Parameter*>& matrices,
                 DType type);

    void collect_parameters(ParameterList& list) override;
    void initialized() override;
    void loaded() override;
    void gradients_complete() override;
    void updated(const Tensor& max_logit) override;

  private:
    struct Matrix {
        const Parameter* weight;
        Parameter gamma, sigma, u;
    };
    void make_work();
    // Sets sigma and u on the CPU, whatever the device: many iterations over matrices that are few and small in
    // comparison with what training does.
    void find_largest_singular_values();

    const ProcessGrid& grid_;
    DType type_;
    std::vector<std::unique_ptr<Matrix>> matrices_;
    std::unique_ptr<SpectralWork> work_;
};

}  // namespace evenkeel
