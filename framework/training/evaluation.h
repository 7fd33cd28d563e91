// The loss on the part of the data that is never trained on.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "framework/data/dataset.h"
#include "framework/training/trainable_model.h"

namespace evenkeel {

// Mean validation loss over the tokens with a target of `sequences` sequences spread evenly (0: all). Collective.
double evaluate(TrainableModel& model,
                const Dataset& data,
                std::int64_t sequences,
                std::int64_t micro_batch_size);

// The same, but ends early, with nothing, once `stop` says so. It is asked before each micro-batch, on all ranks
// equally often, and says the same on all of them.
std::optional<double> evaluate_unless(TrainableModel& model,
                                      const Dataset& data,
                                      std::int64_t sequences,
                                      std::int64_t micro_batch_size,
                                      const std::function<bool()>& stop);

}  // namespace evenkeel
