// Runs flash attention on one instruction set of the CPU after another.
#pragma once

#include <vector>

#include "attention/cpu/flash_attention.h"
#include "tests/attention/flash_attention_plain.h"

namespace evenkeel::testing {

inline std::vector<FlashPath> available_paths() {
    std::vector<FlashPath> paths;
    for (FlashPath path : kAllFlashPaths) {
        if (flash_path_available(path)) paths.push_back(path);
    }
    return paths;
}

// Keeps a test on one path, and the next test off it.
class PathGuard {
  public:
    explicit PathGuard(FlashPath path) : before_(flash_path()) { set_flash_path(path); }
    ~PathGuard() { set_flash_path(before_); }

  private:
    FlashPath before_;
};

struct FlashResults {
    Tensor out, lse;
    FlashGradients d;
    AttentionStats stats;
};

// Outputs start as NaN, so that whatever is not written shows; dsink, which is added to, as 0.
inline FlashResults run_flash(const FlashInputs& in, const AttentionOptions& options) {
    const DType dtype = in.q.dtype();
    FlashResults r{poisoned(in.q.shape(), dtype),
                   poisoned({in.shape.B, in.shape.H, in.shape.T}, DType::kFloat32),
                   {poisoned(in.q.shape(), dtype), poisoned(in.k.shape(), dtype),
                    poisoned(in.v.shape(), dtype)},
                   {}};
    if (options.sink.defined()) r.d.dsink = Tensor::zeros({in.shape.H}, DType::kFloat32);
    flash_attention_forward(in.q, in.k, in.v, options, r.out, r.lse, &r.stats);
    flash_attention_backward(in.q, in.k, in.v, r.out, r.lse, in.dout, options, r.d.dq, r.d.dk,
                             r.d.dv, r.d.dsink);
    return r;
}

}  // namespace evenkeel::testing
