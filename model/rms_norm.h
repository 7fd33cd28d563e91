// RMSNorm over the residual stream, a layer with its gain (Zhang and Sennrich 2019, eq. 4). Every
// tensor-parallel rank holds the whole gain and sees all tokens, so nothing is communicated.
//
// B batch, T positions, C width.
#pragma once

#include <cstdint>
#include <string>

#include "framework/parameter.h"
#include "parallel/process_grid.h"

namespace evenkeel {

class RmsNorm {
  public:
    // The gain [C] is fp32 and takes no weight decay.
    RmsNorm(const ProcessGrid& grid, const std::string& name, std::int64_t width, double eps);

    void initialize() { init_constant(gain_, 1.0f); }

    // x [B, T, C]; returns y like x. rstd [B T] fp32 is made here and kept for backward.
    Tensor forward(const Tensor& x, Tensor& rstd) const;
    // dx = or, with accumulate, += the input gradient; adds to the gain's.
    void backward(const Tensor& dy,
                  const Tensor& x,
                  const Tensor& rstd,
                  bool accumulate,
                  const Tensor& dx) const;

    const Parameter& gain() const { return gain_; }
    void collect_parameters(ParameterList& list) { list.push_back(&gain_); }

  private:
    double eps_;
    Parameter gain_;
};

}  // namespace evenkeel
