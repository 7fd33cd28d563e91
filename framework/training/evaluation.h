// The loss on the part of the data that is never trained on.
#pragma once

#include <cstdint>

#include "framework/data/dataset.h"
#include "framework/training/trainable_model.h"

namespace evenkeel {

// Mean validation loss over `sequences` sequences spread evenly (0: all). Collective.
double evaluate(TrainableModel& model,
                const Dataset& data,
                std::int64_t sequences,
                std::int64_t micro_batch_size);

}  // namespace evenkeel
