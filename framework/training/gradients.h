// The gradients of a training step.
#pragma once

#include <span>

#include "framework/data/batch.h"
#include "framework/optimizer/adamw.h"
#include "framework/tensor.h"
#include "framework/training/trainable_model.h"

namespace evenkeel {

// The passes of one training step: gradients from zero over this rank's micro-batches, reduced. Sets
// `numbers` to {mean loss, squared gradient norm}, [2] fp64 on the model's device: see adamw_step. The mean is over
// the tokens with a target of all ranks' micro-batches, however these are divided; 0 where there is none. Gradients
// outside of `scope` are zero, also for the norm. The same tensor in every step lets a model replay what it has
// recorded. Collective; on CUDA the host waits for no work of its own, with several data-parallel ranks for the other
// hosts' count of targets.
void compute_gradients(TrainableModel& model,
                       std::span<const Batch> micro_batches,
                       const Tensor& numbers,
                       UpdateScope scope = UpdateScope::kAll);

}  // namespace evenkeel
