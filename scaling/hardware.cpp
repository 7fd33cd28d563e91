#include "scaling/hardware.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "framework/config_names.h"
#include "framework/error.h"
#include "scaling/built_in.h"

namespace evenkeel::scaling {

void Hardware::visit_fields(ConfigVisitor& v) {
    v.field("title", title, "what it is");
    v.field("source", source, "where the numbers come from");
    v.field("peak_teraflops", peak_teraflops, "bf16, dense");
    v.field("matmul_teraflops", matmul_teraflops, "best measured product of bf16 matrices");
    v.field("attention_forward_teraflops", attention_forward_teraflops,
            "flash attention of sm_80 instructions");
    v.field("attention_backward_teraflops", attention_backward_teraflops, "the same, backward");
    v.field("native_attention_forward_teraflops", native_attention_forward_teraflops,
            "flash attention written for this GPU");
    v.field("native_attention_backward_teraflops", native_attention_backward_teraflops,
            "the same, backward");
    v.field("memory_gib", memory_gib, "of a GPU");
    v.field("memory_gigabytes_per_second", memory_gigabytes_per_second, "of a GPU's memory");
    v.field("design_watts", design_watts, "thermal design power of a GPU");
    v.field("limit_watts", limit_watts, "what a GPU may take");
    v.field("gpus_per_node", gpus_per_node, "GPUs that NVLink joins");
    v.field("node_gigabytes_per_second", node_gigabytes_per_second,
            "one direction, each GPU, within a node");
    v.field("network_gigabytes_per_second", network_gigabytes_per_second,
            "one direction, each GPU, between nodes");
    v.field("host_gigabytes_per_second", host_gigabytes_per_second,
            "one direction, each GPU to its host");
    v.field("node_latency_microseconds", node_latency_microseconds, "of a ring's step in a node");
    v.field("network_latency_microseconds", network_latency_microseconds,
            "of a ring's step between nodes");
    v.field("collective_latency_microseconds", collective_latency_microseconds,
            "of a collective, once");
    v.field("checkpoint_gigabytes_per_second", checkpoint_gigabytes_per_second,
            "to storage, all nodes together");
    v.field("gpu_hours_between_failures", gpu_hours_between_failures,
            "mean time between failures that end a job, times its GPUs");
    v.field("restart_minutes", restart_minutes, "from a failure to the next step");
}

void Hardware::validate() const {
    const auto positive = [&](const char* field, double value) {
        EVENKEEL_CHECK_CODE(std::isfinite(value) && value > 0.0, ErrorCode::kConfig, "scale",
                            "hardware ", name, ": ", field, ": got ", value,
                            ", want a positive number");
        // Beyond these no number is of a machine, and what follows from it is none.
        constexpr double kLeast = 1e-9, kMost = 1e12;
        EVENKEEL_CHECK_CODE(value >= kLeast && value <= kMost, ErrorCode::kConfig, "scale",
                            "hardware ", name, ": ", field, ": got ", value, ", want ", kLeast,
                            " to ", kMost);
    };
    positive("peak_teraflops", peak_teraflops);
    positive("matmul_teraflops", matmul_teraflops);
    positive("attention_forward_teraflops", attention_forward_teraflops);
    positive("attention_backward_teraflops", attention_backward_teraflops);
    positive("native_attention_forward_teraflops", native_attention_forward_teraflops);
    positive("native_attention_backward_teraflops", native_attention_backward_teraflops);
    positive("memory_gib", memory_gib);
    positive("memory_gigabytes_per_second", memory_gigabytes_per_second);
    positive("design_watts", design_watts);
    positive("limit_watts", limit_watts);
    positive("gpus_per_node", static_cast<double>(gpus_per_node));
    positive("node_gigabytes_per_second", node_gigabytes_per_second);
    positive("network_gigabytes_per_second", network_gigabytes_per_second);
    positive("host_gigabytes_per_second", host_gigabytes_per_second);
    positive("node_latency_microseconds", node_latency_microseconds);
    positive("network_latency_microseconds", network_latency_microseconds);
    positive("collective_latency_microseconds", collective_latency_microseconds);
    positive("checkpoint_gigabytes_per_second", checkpoint_gigabytes_per_second);
    positive("gpu_hours_between_failures", gpu_hours_between_failures);
    positive("restart_minutes", restart_minutes);
    EVENKEEL_CHECK_CODE(matmul_teraflops <= peak_teraflops, ErrorCode::kConfig, "scale",
                        "hardware ", name, ": matmul_teraflops: got ", matmul_teraflops,
                        ", want at most peak_teraflops, ", peak_teraflops);
}

double power_factor(const Hardware& hardware) {
    return std::cbrt(std::min(1.0, hardware.limit_watts / hardware.design_watts));
}

std::vector<std::string> hardware_names() {
    std::vector<std::string> names;
    for (const BuiltInFile& file : kBuiltInHardware) names.emplace_back(file.name);
    std::sort(names.begin(), names.end());
    return names;
}

Hardware load_hardware(const std::string& name_or_file) {
    Hardware hardware;
    const auto visit = [&](ConfigVisitor& v) { hardware.visit_fields(v); };
    for (const BuiltInFile& file : kBuiltInHardware) {
        if (name_or_file != file.name) continue;
        hardware.name = file.name;
        parse_config(visit, std::string(file.text, file.size), concat("hardware ", file.name));
        hardware.validate();
        return hardware;
    }
    if (!std::filesystem::exists(name_or_file)) {
        std::string known;
        for (const std::string& name : hardware_names())
            known += (known.empty() ? "" : ", ") + name;
        const bool is_file =
            name_or_file.ends_with(".json") || name_or_file.find('/') != std::string::npos;
        const std::string near = is_file ? "" : nearest_name(name_or_file, hardware_names());
        throw_error(
            ErrorCode::kConfig, "scale",
            concat("hardware: got \"", name_or_file, "\"", is_file ? ", which does not exist" : "",
                   ", want one of ", known, ", or a JSON file",
                   near.empty() ? "" : concat("; did you mean ", near, "?")));
    }
    hardware.name = std::filesystem::path(name_or_file).stem().string();
    load_config(visit, name_or_file, {});
    hardware.validate();
    return hardware;
}

}  // namespace evenkeel::scaling
