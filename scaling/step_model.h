// How long a training step takes on a cluster, and where the time goes.
//
// m micro-batches a rank, p pipeline stages of v parts, P tensor-parallel and Q data-parallel ranks, W parameters on
// a rank, n = e N C bytes of a micro-batch's stream.
//
//   a micro-batch  the layers of a stage (layer_cost.h), on the stage that has most to do, with what tensor parallelism
//                  sends: of each layer 2 sums of n bytes forward and 2 backward (Shoeybi et al. 2019, section 3), or
//                  as many gathers and scatters with sequence parallelism and 2 more gathers backward, beside products
//                  (Korthikanti et al. 2022, section 4.2.2); what is made again sends again
//   pipeline       (m + (p - 1) / v) micro-batches in all: the bubble is (p - 1) / (v m) of the rest (Narayanan et al.
//                  2021, section 2.2); every part of a stage sends n / P bytes forward and as many backward
//   gradients      an all-reduce of W gradients over Q; or, with the optimizer's state cut, a reduce-scatter of these and
//                  an all-gather of 2 W bytes; with weights cut too, of every micro-batch two gathers of 2 W bytes and a
//                  reduce-scatter of gradients (Rajbhandari et al. 2020, sections 5 and 7). What is beside backward is
//                  hidden as far as backward of the last micro-batch lasts, but for the last bucket
//   optimizer      30 bytes a parameter of AdamW: master, mean and mean square read and written, gradient read, bf16 value
//                  written; 4 for the norm of gradients; gradients set to 0
//   overlap        what is hidden still takes Shares::overlap of its time from the GPU, whose cores and memory it uses
#pragma once

#include <string>

#include "scaling/collectives.h"
#include "scaling/layer_cost.h"

namespace evenkeel::scaling {

// Seconds of a step. All but the last three add up to the step.
struct StepTime {
    double products = 0.0;
    double attention = 0.0;
    double memory = 0.0;  // kernels between products
    double again = 0.0;   // computing that backward does once more
    double optimizer = 0.0;
    double tensor = 0.0;    // exposed: what computing waits for
    double pipeline = 0.0;  // exposed
    double data = 0.0;      // exposed
    double overlap = 0.0;   // computing slowed down by what is hidden
    double bubble = 0.0;

    double tensor_hidden = 0.0, data_hidden = 0.0, pipeline_hidden = 0.0;

    double computing() const { return products + attention + memory + again + optimizer; }
    double total() const { return computing() + tensor + pipeline + data + overlap + bubble; }
};

// Where the ranks of a group lie: tensor-parallel ranks are neighbours, then data-parallel ones, then stages. Where copies
// do not fill nodes evenly, as many a node as divide them all.
Group tensor_group(const Layout& layout, std::int64_t gpus_per_node);
Group data_group(const Layout& layout, std::int64_t gpus_per_node);

// Throws as validate(plan, ..) does.
StepTime predict_step(const Hardware& hardware, const Shares& shares, const StepPlan& plan);

// Model FLOPs of a step, flops_per_token of model_config.h (causal attention counted once, nothing made again), over
// what all GPUs could do at their bf16 peak in that time.
double utilisation(const Hardware& hardware, const StepPlan& plan, double step_seconds);

// The share of a pipeline's time, without its bubble, that the bubble takes on top: (p - 1) / (v m).
double bubble_share(std::int64_t stages, std::int64_t chunks, std::int64_t micro_batches);

}  // namespace evenkeel::scaling
