// A norm of the residual stream, a layer with its gain and bias: RMSNorm (Zhang and Sennrich 2019, eq. 4) or
// LayerNorm (Ba et al. 2016, eq. 4). Every tensor-parallel rank holds all of them and sees all tokens or, with
// sequence parallelism, some whole ones, so nothing is communicated.
//
// B batch, T positions, C width.
#pragma once

#include <string>

#include "framework/parameter.h"
#include "model/model_config.h"
#include "parallel/process_grid.h"

namespace evenkeel {

class Norm {
  public:
    // As config.norm and config.norm_eps say. Parameters: `name`, the gain [C], and with norm.bias name_bias [C];
    // both fp32, without weight decay.
    Norm(const ProcessGrid& grid, const ModelConfig& config, const std::string& name);

    // To a factor of 1, whatever gain makes it, and a bias of 0.
    void initialize();

    // x [B, T, C], or of some tokens [1, N, C], and then N stands for B T; returns y like x. statistics, made here and
    // kept for backward, fp32: [B T] of RMSNorm, [2, B T] of LayerNorm (elementwise.h).
    Tensor forward(const Tensor& x, Tensor& statistics) const;
    // dx = or, with accumulate, += the input gradient; adds to those of the gain and the bias.
    void backward(const Tensor& dy,
                  const Tensor& x,
                  const Tensor& statistics,
                  bool accumulate,
                  const Tensor& dx) const;

    void collect_parameters(ParameterList& list);

  private:
    NormConfig config_;
    double eps_;
    Parameter gain_;
    Parameter bias_;  // without a name where there is none
};

}  // namespace evenkeel
