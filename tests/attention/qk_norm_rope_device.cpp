#include "tests/attention/qk_norm_rope_device.h"

#include <array>

#include "tests/support/compare.h"
#include "tests/support/data.h"

namespace evenkeel::testing {
namespace {

// Sums the heads' gain gradients where they share a gain.
template <typename Real>
std::vector<Real> like_gain(const std::vector<Real>& per_head, const Tensor& gain) {
    std::vector<Real> sum(static_cast<std::size_t>(gain.numel()), Real(0));
    for (std::size_t i = 0; i < per_head.size(); ++i) sum[i % sum.size()] += per_head[i];
    return sum;
}

// Where a packed tensor lies in memory that is not its own, on the device.
Tensor spread(Device device, const JointCase& c, const Tensor& packed) {
    if (c.gap[0] == 0 && c.gap[1] == 0) return on(device, packed);
    const std::int64_t tokens = c.tokens + c.gap[0];
    const Tensor around = poisoned({c.batch, tokens, c.width() + c.gap[1]}, packed.dtype());
    const auto inside = [&](const Tensor& whole) {
        return whole.slice(1, c.gap[0], tokens).slice(2, 0, c.width());
    };
    inside(around).copy_from(packed);
    return inside(on(device, around));
}

}  // namespace

std::vector<DeviceType> device_types() {
    std::vector<DeviceType> all;
    for (const Device device : test_devices()) {
        all.push_back({device, DType::kBFloat16});
        if (device == Device::kCuda) {
            all.push_back({device, DType::kFloat16});
            all.push_back({device, DType::kFloat32});
        }
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
    if (options.lambda.defined()) c.lambda = *options.lambda.data<float>();
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
    const Tensor x_there = spread(device, c, x), dy_there = spread(device, c, dy);
    const Tensor y = spread(device, c, poisoned(x.shape(), x.dtype()));
    const Tensor dx = spread(device, c, poisoned(x.shape(), x.dtype()));
    std::array<QkNormRopePart, 2> forward;
    std::array<QkNormRopeGradientPart, 2> backward;
    for (int i = 0; i < c.parts(); ++i) {
        Tensor gain, dgain, rstd;
        if (c.gain[i].defined()) {
            gain = on(device, c.gain[i]);
            dgain = on(device, Tensor::zeros(gain.shape(), DType::kFloat32));
        }
        if (c.options.norm != QkNormKind::kNone) {
            rstd = on(device, poisoned({c.batch, c.tokens, c.heads[i]}, DType::kFloat32));
        }
        forward[i] = {c.part(x_there, i), gain, c.part(y, i), rstd};
        backward[i] = {c.part(dy_there, i), c.part(x_there, i), gain, rstd, c.part(dx, i), dgain};
    }
    QkNormRopeOptions options = c.options;
    if (options.lambda.defined()) options.lambda = on(device, options.lambda);
    const auto parts = static_cast<std::size_t>(c.parts());
    qk_norm_rope_forward(std::span(forward).first(parts), table, positions, options);
    qk_norm_rope_backward(std::span(backward).first(parts), table, positions, options);
    JointResult result{on_cpu(y), on_cpu(dx), {}, {}};
    for (int i = 0; i < c.parts(); ++i) {
        if (c.options.norm != QkNormKind::kNone) result.rstd[i] = on_cpu(forward[i].rstd);
        if (c.gain[i].defined()) result.dgain[i] = on_cpu(backward[i].dgain);
    }
    return result;
}

void expect_right(const JointCase& c, const Tensor& x, const Tensor& dy, const JointResult& got) {
    for (int i = 0; i < c.parts(); ++i) {
        SCOPED_TRACE(concat("part ", i));
        const NormRopeCase reference = c.reference(i);
        const Tensor part_x = c.part(x, i), part_dy = c.part(dy, i);
        const Shape& shape = part_x.shape();
        EXPECT_TRUE(within_error_of_plain(
            c.part(got.y, i), tensor_of(norm_rope(reference, to_floats(part_x)), shape, x.dtype()),
            norm_rope(reference, to_doubles(part_x)), 2.0))
            << "y";
        const auto want = norm_rope_gradients(reference, to_doubles(part_dy), to_doubles(part_x));
        const auto plain = norm_rope_gradients(reference, to_floats(part_dy), to_floats(part_x));
        EXPECT_TRUE(within_error_of_plain(c.part(got.dx, i), tensor_of(plain.dx, shape, x.dtype()),
                                          want.dx, 3.0))
            << "dx";
        if (!c.gain[i].defined()) continue;
        const std::vector<double> plain_dgain = like_gain(plain.dgain, c.gain[i]);
        EXPECT_TRUE(within_error_of_plain(
            got.dgain[i], tensor_of(plain_dgain, c.gain[i].shape(), DType::kFloat32),
            like_gain(want.dgain, c.gain[i]), 3.0))
            << "dgain";
    }
    // The values' head beside them is nobody's business.
    const std::int64_t begin = (c.heads[0] + c.heads[1]) * c.dim;
    const Tensor untouched = poisoned({c.batch, c.tokens, c.dim}, x.dtype());
    EXPECT_TRUE(same_bits(got.y.slice(2, begin, c.width()), untouched)) << "beside y";
    EXPECT_TRUE(same_bits(got.dx.slice(2, begin, c.width()), untouched)) << "beside dx";
}

Tensor make_gain(GainKind kind, std::int64_t heads, std::int64_t dim, std::uint64_t seed) {
    switch (kind) {
        case GainKind::kNone:
            return {};
        case GainKind::kShared:
            return gaussian({dim}, DType::kFloat32, seed);
        case GainKind::kPerHead:
            return gaussian({heads, dim}, DType::kFloat32, seed);
    }
    return {};
}

std::string name_of(QkNormKind kind) {
    static constexpr const char* kNames[] = {"none", "rms", "l2", "layer_norm"};
    return kNames[static_cast<int>(kind)];
}

Tensor packed_data(const JointCase& c, DataKind kind, DType dtype, std::uint64_t seed) {
    const Tensor rows = make_data(kind, {c.batch, c.tokens, c.width() / c.dim, c.dim}, dtype, seed);
    return rows.view({c.batch, c.tokens, c.width()});
}

}  // namespace evenkeel::testing
