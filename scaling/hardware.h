// A cluster as the model of a step sees it: what one GPU does at best, and what lies between GPUs.
//
// A description is a JSON file of configs/hardware/. Its numbers are of data sheets or of published measurements, named
// in `source`; nothing in it depends on a model or a run. What a real step reaches of them is one set of shares for all
// hardware and all runs (Shares).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "framework/config.h"

namespace evenkeel::scaling {

// Units in the names; GB/s are 1e9 bytes a second in one direction, TFLOP/s 1e12 operations, GiB 2^30 bytes.
struct Hardware {
    std::string name;    // of the file
    std::string title;   // for people
    std::string source;  // where the numbers come from

    // One GPU.
    double peak_teraflops = 0.0;    // bf16, dense: what utilisation is a share of
    double matmul_teraflops = 0.0;  // the best product of bf16 matrices that has been measured
    // Flash attention, causal, head width 128: kernels of sm_80 instructions (FlashAttention-2, and evenkeel's own), and
    // kernels written for this GPU. Backward counts 2.5 times the operations of forward.
    double attention_forward_teraflops = 0.0;
    double attention_backward_teraflops = 0.0;
    double native_attention_forward_teraflops = 0.0;
    double native_attention_backward_teraflops = 0.0;
    double memory_gib = 0.0;
    double memory_gigabytes_per_second = 0.0;
    double design_watts = 0.0;
    double limit_watts = 0.0;  // less than design_watts: tensor cores are slower, see power_factor

    // Between GPUs.
    std::int64_t gpus_per_node = 8;
    double node_gigabytes_per_second = 0.0;     // each GPU to the others of its node
    double network_gigabytes_per_second = 0.0;  // each GPU to other nodes
    double host_gigabytes_per_second = 0.0;     // each GPU to its host's memory
    double node_latency_microseconds = 0.0;     // of a step of a ring
    double network_latency_microseconds = 0.0;
    double collective_latency_microseconds = 0.0;  // of any collective, once

    // Long runs.
    double checkpoint_gigabytes_per_second = 0.0;  // to storage, all nodes together
    double gpu_hours_between_failures = 0.0;  // mean time between ends of a job, times its GPUs
    double restart_minutes = 0.0;             // from a failure to the first step after it

    void visit_fields(ConfigVisitor& v);
    // Throws kConfig naming the field that is missing or is no positive number.
    void validate() const;
};

// What a step reaches of a Hardware's numbers. One set for everything: chosen beforehand, the same for each row of the
// published results (docs/scaling.md says why each is what it is).
struct Shares {
    double matmul = 0.90;   // of matmul_teraflops, on average over the shapes of a decoder
    double memory = 0.85;   // of memory_gigabytes_per_second, for kernels that stream
    double node = 0.80;     // of node_gigabytes_per_second
    double network = 0.85;  // of network_gigabytes_per_second
    double overlap = 0.15;  // of hidden communication, that is lost to computing all the same
    double kernel_microseconds = 3.0;  // from the end of a kernel to the work of the next
};

// Tensor cores' clock under a power limit: power goes with the cube of the clock where voltage follows it, so
// (limit / design)^(1/3); 1 without a limit.
double power_factor(const Hardware& hardware);

// Names of the descriptions that are part of the program, sorted.
std::vector<std::string> hardware_names();
// One of these names, or a file. Throws kConfig for an unknown name, with the nearest and all.
Hardware load_hardware(const std::string& name_or_file);

}  // namespace evenkeel::scaling
