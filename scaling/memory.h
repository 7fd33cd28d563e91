// What a plan takes of a GPU's memory: model/memory_plan.h, which is of evenkeel's own layouts.
#pragma once

#include <cstddef>

#include "model/memory_plan.h"
#include "scaling/hardware.h"
#include "scaling/step_plan.h"

namespace evenkeel::scaling {

// Without a pipeline: plan_memory of evenkeel's run on GPUs, to the byte. With one, which evenkeel does not have, an
// estimate: the plan of a stage's layers with embedding and head, whose activations are there once for each of the
// micro-batches that the first stage holds, p (1 + (p - 1) / (v p)) of them (Korthikanti et al. 2022, section 4.2.3), and
// no more than there are. Layout's cut and again must be evenkeel's own.
MemoryPlan plan_memory(const StepPlan& plan);

// What a plan may use of a GPU: usable_memory.h.
std::size_t usable_bytes(const Hardware& hardware);

// What a checkpoint of the model holds: master weights and two moments in fp32, 12 bytes a parameter.
double checkpoint_bytes(const ModelConfig& model);

}  // namespace evenkeel::scaling
