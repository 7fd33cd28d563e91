// Queries and keys of a packed QKV tensor, normalised and rotated on a device in one call each way.
#pragma once

#include <string>
#include <vector>

#include "tests/attention/qk_norm_rope_reference.h"
#include "tests/support/data.h"
#include "tests/support/devices.h"

namespace evenkeel::testing {

struct DeviceType {
    Device device;
    DType dtype;
};
std::vector<DeviceType> device_types();  // bf16 on every device, on CUDA fp16 and fp32 too
std::string device_type_name(const ::testing::TestParamInfo<DeviceType>& info);

// The table on another device.
RopeTable on(Device device, const RopeTable& table);

// What both parts share. Tensors [B, T, (heads[0] + heads[1] + 1) D]: q, k and one head that is
// not touched.
struct JointCase {
    std::int64_t batch = 1, tokens = 1;
    std::int64_t heads[2] = {1, 1};  // the second may be 0: one part only
    std::int64_t dim = 64;
    RopeConfig rope;
    std::int64_t first = 0;               // of the table
    std::vector<std::int32_t> positions;  // [B * T]; empty: first + t
    Tensor gain[2];                       // on the CPU, offset not added; may be undefined
    std::int64_t gap[2] = {0, 0};         // tokens before each sequence, elements after each token
    QkNormRopeOptions options;            // lambda on the CPU

    std::int64_t width() const { return (heads[0] + heads[1] + 1) * dim; }
    int parts() const { return heads[1] == 0 ? 1 : 2; }
    Tensor part(const Tensor& packed, int i) const;
    NormRopeCase reference(int i) const;
};

// Results on the CPU: y and dx packed like the input, their untouched head still NaN.
struct JointResult {
    Tensor y, dx;
    Tensor rstd[2], dgain[2];
};
JointResult run_joint(Device device, const JointCase& c, const Tensor& x, const Tensor& dy);

// Everything that one call each way gives, by the rule for fast paths.
void expect_right(const JointCase& c, const Tensor& x, const Tensor& dy, const JointResult& got);

// ---- Data for it

enum class GainKind { kNone, kShared, kPerHead };
Tensor make_gain(GainKind kind, std::int64_t heads, std::int64_t dim, std::uint64_t seed);
std::string name_of(QkNormKind kind);
inline constexpr QkNormKind kNorms[] = {QkNormKind::kRms, QkNormKind::kL2, QkNormKind::kLayerNorm};
Tensor packed_data(const JointCase& c, DataKind kind, DType dtype, std::uint64_t seed);

}  // namespace evenkeel::testing
