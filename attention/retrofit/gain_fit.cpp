#include "attention/retrofit/gain_fit.h"

#include <algorithm>
#include <cmath>

namespace evenkeel {
namespace {

constexpr const char* kOp = "fit_gains";

void fill_row(const Tensor& gains, std::int64_t head, double value) {
    const std::int64_t D = gains.size(1);
    float* row = gains.data<float>() + head * D;
    std::fill(row, row + D, static_cast<float>(std::max(value, kSmallestGain)));
}

}  // namespace

std::string refine_reason(double q_variation,
                          double k_variation,
                          double max_logit,
                          const GainFitOptions& options) {
    std::string reason;
    const auto add = [&](const char* what, double value, double limit) {
        if (value <= limit) return;
        if (!reason.empty()) reason += ", ";
        std::ostringstream text;
        text.precision(3);
        text << what << " " << value << " is above " << limit;
        reason += text.str();
    };
    add("the variation of the queries' rms", q_variation, options.refine_variation);
    add("the variation of the keys' rms", k_variation, options.refine_variation);
    add("the largest logit", max_logit, options.refine_max_logit);
    return reason;
}

GainFit fit_gains(const HeadCalibration& calibration, const GainFitOptions& options) {
    EVENKEEL_CHECK(calibration.sequences() >= 2, kOp, "too little data: got ",
                   calibration.sequences(), " sequences, want 2 or more");
    EVENKEEL_CHECK_CODE(
        options.estimator == GainEstimator::kOnes || options.estimator == GainEstimator::kMeanRms,
        ErrorCode::kNotBuilt, kOp, "estimator: got one that needs a fit, want ones or mean_rms");
    const std::int64_t H = calibration.heads(), K = calibration.kv_heads();
    const std::int64_t D = calibration.config().head_dim;
    GainFit fit;
    fit.q_gain = Tensor::full({H, D}, 1.0f, DType::kFloat32);
    fit.k_gain = Tensor::full({K, D}, 1.0f, DType::kFloat32);
    fit.heads.resize(static_cast<std::size_t>(H));
    for (std::int64_t h = 0; h < H; ++h) {
        HeadFit& head = fit.heads[static_cast<std::size_t>(h)];
        const RunningMoments& q = calibration.q_rms(h);
        const RunningMoments& k = calibration.k_rms(h / (H / K));
        head.q_mean = q.mean();
        head.k_mean = k.mean();
        head.q_variation = q.variation();
        head.k_variation = k.variation();
        if (options.estimator == GainEstimator::kOnes) continue;
        fill_row(fit.q_gain, h, head.q_mean);
        fill_row(fit.k_gain, h / (H / K), head.k_mean);
    }
    return fit;
}

}  // namespace evenkeel
