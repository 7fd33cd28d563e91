#include "model/rules/qk_norm_anneal.h"

#include "model/ops/gain_rules.h"

namespace evenkeel {

QkNormAnneal::QkNormAnneal(const ProcessGrid& grid, std::int64_t steps)
    : steps_(steps),
      updates_(declare_parameter("qk_norm_anneal",
                                 {1},
                                 Sharding::replicated(grid.tp_rank(), grid.tp_size()),
                                 DType::kFloat32)),
      lambda_(Tensor::zeros({1}, DType::kFloat32, grid.device())) {
    updates_.weight_decay = false;
    updates_.trained = false;
    updates_.optional = true;
    updates_.whole_state = true;
}

void QkNormAnneal::collect_parameters(ParameterList& list) { list.push_back(&updates_); }

void QkNormAnneal::initialized() {
    loading();
    advance_anneal(steps_, false, updates_.master, lambda_);
}

// A checkpoint without a number is of no update.
void QkNormAnneal::loading() { init_constant(updates_, 0.0f); }

void QkNormAnneal::loaded() {
    const Tensor number = updates_.master.to(Device::kCpu);
    const float updates = *number.data<float>();
    EVENKEEL_CHECK_CODE(updates >= 0.0f, ErrorCode::kIo, "load", "qk_norm_anneal: got ", updates,
                        ", want a number of updates");
    advance_anneal(steps_, false, updates_.master, lambda_);
}

void QkNormAnneal::updated(const Tensor&) {
    advance_anneal(steps_, true, updates_.master, lambda_);
}

}  // namespace evenkeel
