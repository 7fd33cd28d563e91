// Memory for parameters and layers that no model owns.
#pragma once

#include <vector>

#include "framework/optimizer/adamw.h"
#include "framework/parameter_buckets.h"

namespace evenkeel::testing {

inline ParameterList pointers_to(std::vector<Parameter>& parameters) {
    ParameterList list;
    for (Parameter& parameter : parameters) list.push_back(&parameter);
    return list;
}

// What a layer declares.
template <typename Layer>
ParameterList parameters_of(Layer& layer) {
    ParameterList list;
    layer.collect_parameters(list);
    return list;
}

template <typename Layer>
ParameterBuckets allocate(Layer& layer, Device device = Device::kCpu) {
    return ParameterBuckets(parameters_of(layer), device);
}

// A parameter by itself with memory on the CPU.
inline Parameter make_parameter(const std::string& name,
                                const Shape& global_shape,
                                const Sharding& sharding,
                                DType dtype) {
    Parameter parameter = declare_parameter(name, global_shape, sharding, dtype);
    const ParameterBuckets memory({&parameter}, Device::kCpu);
    return parameter;
}

// What adamw_step asks for.
inline Tensor step_numbers(double loss, double squared_norm) {
    const Tensor numbers = Tensor::uninitialized({2}, DType::kFloat64);
    numbers.data<double>()[kLossIndex] = loss;
    numbers.data<double>()[kSquaredNormIndex] = squared_norm;
    return numbers;
}

}  // namespace evenkeel::testing
