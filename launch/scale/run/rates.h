// What ranks on CPUs do a second while all of them compute: what utilisation is a share of, and the model of a step's numbers
// of this machine.
#pragma once

#include "launch/run_config.h"
#include "parallel/communicator.h"

namespace evenkeel::scale {

// Of a rank, the mean over all.
struct Rates {
    double yardstick_flops =
        0.0;  // a product of 1536 x 1536 matrices of the model's type, oneDNN's
    double product_flops =
        0.0;  // of the model's own: a micro-batch's rows times the way into the feed-forward layer
    double attention_forward_flops = 0.0, attention_backward_flops = 0.0;  // as the model's layers
    double memory_bytes = 0.0;  // a copy of 64 MiB, read and written
};
// Collective: all ranks run the same at a time. About a second.
Rates measure_rates(const RunConfig& config, Communicator& world);

}  // namespace evenkeel::scale
