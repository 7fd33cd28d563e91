#include "model/ops/logit_clip.h"

#include <cmath>

#include "framework/dispatch.h"
#include "model/cuda/logit_clip.h"

namespace evenkeel {
namespace {

void check_floats(const char* op, const char* name, const Tensor& tensor) {
    check_dtype(op, name, tensor, DType::kFloat32);
    EVENKEEL_CHECK(tensor.is_contiguous(), op, name, ": want a contiguous tensor");
}

void check_device(const char* op, const char* name, const Tensor& tensor, const Tensor& like) {
    EVENKEEL_CHECK(tensor.device() == like.device(), op, name, ": got ", name_of(tensor.device()),
                   ", want ", name_of(like.device()));
}

float larger(float before, float now) {
    return !(now <= before) && !std::isnan(before) ? now : before;
}

void group_maximum_on_cpu(const Tensor& max_logit, const Tensor& groups) {
    const std::int64_t count = groups.numel(), size = max_logit.numel() / count;
    const float* from = max_logit.data<float>();
    for (std::int64_t group = 0; group < count; ++group) {
        float highest = from[group * size];
        for (std::int64_t i = 1; i < size; ++i) highest = larger(highest, from[group * size + i]);
        groups.data<float>()[group] = highest;
    }
}

bool is_clipped(float highest, float threshold) {
    return highest > threshold && !std::isinf(highest);
}

template <typename T>
void clip_on_cpu(const Tensor& maximum, float threshold, float offset, const Parameter& parameter) {
    const std::int64_t heads = maximum.numel(), size = parameter.master.numel() / heads;
    for (std::int64_t head = 0; head < heads; ++head) {
        const float highest = maximum.data<float>()[head];
        if (!is_clipped(highest, threshold)) continue;
        const float factor = std::sqrt(threshold / highest);
        float* master = parameter.master.data<float>() + head * size;
        T* value = parameter.value.data<T>() + head * size;
        for (std::int64_t i = 0; i < size; ++i) {
            const float scaled = (master[i] + offset) * factor - offset;
            master[i] = scaled;
            value[i] = static_cast<T>(scaled);
        }
    }
}

}  // namespace

void take_maximum(const Tensor& highest, const Tensor& now) {
    constexpr const char* kOp = "take_maximum";
    check_floats(kOp, "highest", highest);
    check_shape(kOp, "now", now, highest.shape());
    check_floats(kOp, "now", now);
    check_device(kOp, "now", now, highest);
    if (highest.numel() == 0) return;
    if (highest.device() == Device::kCuda) return cuda::take_maximum(highest, now);
    for (std::int64_t i = 0; i < highest.numel(); ++i) {
        float& element = highest.data<float>()[i];
        element = larger(element, now.data<float>()[i]);
    }
}

void group_maximum(const Tensor& max_logit, const Tensor& groups) {
    constexpr const char* kOp = "group_maximum";
    check_floats(kOp, "max_logit", max_logit);
    check_floats(kOp, "groups", groups);
    check_device(kOp, "groups", groups, max_logit);
    EVENKEEL_CHECK(max_logit.rank() == 2 && groups.rank() == 2 && groups.size(1) > 0 &&
                       max_logit.size(0) == groups.size(0) &&
                       max_logit.size(1) % groups.size(1) == 0,
                   kOp, "groups: got ", to_string(groups.shape()), " for max_logit ",
                   to_string(max_logit.shape()), ", want [L, K] for [L, a multiple of K]");
    if (max_logit.numel() == 0) return;
    if (max_logit.device() == Device::kCuda) return cuda::group_maximum(max_logit, groups);
    group_maximum_on_cpu(max_logit, groups);
}

void clip_heads(const Tensor& maximum,
                double threshold,
                double offset,
                const Parameter& parameter) {
    constexpr const char* kOp = "clip_heads";
    check_floats(kOp, "maximum", maximum);
    check_floats(kOp, parameter.name.c_str(), parameter.master);
    check_device(kOp, parameter.name.c_str(), parameter.master, maximum);
    EVENKEEL_CHECK(threshold > 0.0, kOp, "threshold: got ", threshold, ", want more than 0");
    EVENKEEL_CHECK(maximum.numel() > 0 && parameter.master.numel() % maximum.numel() == 0, kOp,
                   parameter.name, ": got ", parameter.master.numel(), " elements for ",
                   maximum.numel(), " heads, want a multiple");
    const auto limit = static_cast<float>(threshold), shift = static_cast<float>(offset);
    if (maximum.device() == Device::kCuda) {
        return cuda::clip_heads(maximum, limit, shift, parameter.master, parameter.value);
    }
    dispatch_float(parameter.value.dtype(), kOp,
                   [&]<typename T>() { clip_on_cpu<T>(maximum, limit, shift, parameter); });
}

void count_clipped(const Tensor& maximum, double threshold, const Tensor& counts) {
    constexpr const char* kOp = "count_clipped";
    check_floats(kOp, "maximum", maximum);
    check_shape(kOp, "counts", counts, maximum.shape());
    check_floats(kOp, "counts", counts);
    check_device(kOp, "counts", counts, maximum);
    const auto limit = static_cast<float>(threshold);
    if (maximum.numel() == 0) return;
    if (maximum.device() == Device::kCuda) return cuda::count_clipped(maximum, limit, counts);
    for (std::int64_t i = 0; i < maximum.numel(); ++i) {
        if (is_clipped(maximum.data<float>()[i], limit)) counts.data<float>()[i] += 1.0f;
    }
}

}  // namespace evenkeel
