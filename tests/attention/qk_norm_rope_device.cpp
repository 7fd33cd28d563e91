#include "tests/attention/qk_norm_rope_device.h"

#include <array>

#include "tests/support/compare.h"
#include "tests/support/data.h"

namespace evenkeel::testing {

std::vector<DeviceType> device_types() {
    std::vector<DeviceType> all;
    for (const Device device : test_devices()) {
        all.push_back({device, DType::kBFloat16});
        if (device == Device::kCuda) all.push_back({device, DType::kFloat16});
    }
    return all;
}

std::string device_type_name(const ::testing::TestParamInfo<DeviceType>& info) {
    return concat(name_of(info.param.device), "_", name_of(info.param.dtype));
}

RopeTable on(Device device, const RopeTable& table) {
    RopeTable there = table;
    if (table.rotary_dim == 0) return there;
    there.cos = on(device, table.cos);
    there.sin = on(device, table.sin);
    return there;
}

Tensor JointCase::part(const Tensor& packed, int i) const {
    const std::int64_t begin = i == 0 ? 0 : heads[0];
    return packed.slice(2, begin * dim, (begin + heads[i]) * dim)
        .view({batch, tokens, heads[i], dim});
}

NormRopeCase JointCase::reference(int i) const {
    NormRopeCase c;
    c.batch = batch, c.tokens = tokens, c.heads = heads[i], c.dim = dim;
    c.rope = rope;
    c.norm = options.norm;
    c.eps = options.eps;
    c.positions = {positions.begin(), positions.end()};
    if (positions.empty() && first != 0) {
        for (std::int64_t token = 0; token < batch * tokens; ++token) {
            c.positions.push_back(first + token % tokens);
        }
    }
    if (gain[i].defined()) {
        const std::vector<double> values = to_doubles(gain[i]);
        for (std::size_t n = 0; n < static_cast<std::size_t>(heads[i] * dim); ++n) {
            c.gain.push_back(values[n % values.size()] + options.gain_offset);
        }
    }
    return c;
}

JointResult run_joint(Device device, const JointCase& c, const Tensor& x, const Tensor& dy) {
    std::int64_t count = c.tokens;
    Tensor positions;
    if (!c.positions.empty()) {
        positions = Tensor::uninitialized({c.batch, c.tokens}, DType::kInt32);
        for (std::size_t i = 0; i < c.positions.size(); ++i) {
            positions.data<std::int32_t>()[i] = c.positions[i];
        }
        positions = on(device, positions);
    }
    const RopeTable table = on(device, make_rope_table(c.rope, c.dim, c.first, count));
    const Tensor x_there = on(device, x), dy_there = on(device, dy);
    const Tensor y = on(device, poisoned(x.shape(), x.dtype()));
    const Tensor dx = on(device, poisoned(x.shape(), x.dtype()));
    std::array<QkNormRopePart, 2> forward;
    std::array<QkNormRopeGradientPart, 2> backward;
    for (int i = 0; i < c.parts(); ++i) {
        Tensor gain, dgain, rstd;
        if (c.gain[i].defined()) {
            gain = on(device, c.gain[i]);
            dgain = on(device, Tensor::zeros(gain.shape(), DType::kFloat32));
        }
        if (c.options.norm) {
            rstd = on(device, poisoned({c.batch, c.tokens, c.heads[i]}, DType::kFloat32));
        }
        forward[i] = {c.part(x_there, i), gain, c.part(y, i), rstd};
        backward[i] = {c.part(dy_there, i), c.part(x_there, i), gain, rstd, c.part(dx, i), dgain};
    }
    const auto parts = static_cast<std::size_t>(c.parts());
    qk_norm_rope_forward(std::span(forward).first(parts), table, positions, c.options);
    qk_norm_rope_backward(std::span(backward).first(parts), table, positions, c.options);
    JointResult result{on_cpu(y), on_cpu(dx), {}, {}};
    for (int i = 0; i < c.parts(); ++i) {
        if (c.options.norm) result.rstd[i] = on_cpu(forward[i].rstd);
        if (c.gain[i].defined()) result.dgain[i] = on_cpu(backward[i].dgain);
    }
    return result;
}

}  // namespace evenkeel::testing
