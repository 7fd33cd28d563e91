// The weights of nGPT (Loshchilov et al. 2024, sections 2.1, 2.4 and 2.6): after every step each matrix's vectors
// along the width of the residual stream have unit length, the rows of embedding, output, wq, wk, wv, w_gate,
// w_up, the columns of wo and w_down: all of them whole on one rank. No weight decay on these.
//
// Three scales of outputs are learned, and folded into the matrices' values (diag(g) W in place of W, whose
// product with x is the scaled output), while masters hold the unit vectors:
//   w_up_scale    [F], 1 at first, g = s_u
//   w_gate_scale  [F], 1 at first, g = s_v sqrt(C), in front of the nonlinearity; of w_up with GELU
//   output_scale  [V], stored in units of 1 / sqrt(C): g = s_z = sqrt(C) parameter, 1 at first
// So another program gets the weight that is multiplied with as diag(g) NAME.
#pragma once

#include <memory>
#include <vector>

#include "model/model_config.h"
#include "model/ops/unit_weights.h"
#include "model/rules/weight_rule.h"
#include "parallel/process_grid.h"

namespace evenkeel {

class NgptWeights : public WeightRule {
  public:
    // The grid and the weights must outlive the rule.
    NgptWeights(const ProcessGrid& grid, const ModelConfig& config, const ModelWeights& weights);

    void collect_parameters(ParameterList& list) override;
    void initialized() override;
    void loaded() override;
    void gradients_complete() override;
    void updated(const Tensor& max_logit) override;

  private:
    struct Matrix {
        const Parameter* weight;
        bool unit_rows;
        double factor;    // of the scale
        float first;      // scale parameter
        Parameter scale;  // without a name where there is none
    };
    void add(const Parameter* weight, bool unit_rows);
    void add_scaled(const Parameter* weight, double factor, double first);
    void make_work();

    const ProcessGrid& grid_;
    DType type_;
    std::vector<std::unique_ptr<Matrix>> matrices_;
    std::unique_ptr<UnitWork> work_;
};

}  // namespace evenkeel
