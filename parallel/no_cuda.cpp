// Stands in for the CUDA sources of this folder in a build without CUDA.
#include "parallel/bias_backends.h"
#include "parallel/replica_hash.h"
#include "parallel/vocab_backends.h"

namespace evenkeel::cuda {
namespace {

[[noreturn]] void throw_not_built(const char* op) {
    throw_error(ErrorCode::kNotBuilt, op,
                "device: got cuda, want cpu (this build has no CUDA back end)");
}

}  // namespace

void add_hash(const Tensor&, std::int64_t, std::uint64_t*) { throw_not_built("replica_drift"); }
void add_bias(const Tensor&, const Tensor&) { throw_not_built("add_bias"); }
void add_bias_gradient(const Tensor&, const Tensor&) { throw_not_built("add_bias_gradient"); }
void embedding_forward(const Tensor&, const Tensor&, std::int64_t, std::int64_t, const Tensor&) {
    throw_not_built("embedding_forward");
}
void embedding_backward(const Tensor&, const Tensor&, std::int64_t, const Tensor&) {
    throw_not_built("embedding_backward");
}
void cross_entropy_maxima(const LogitRows&, const Tensor&, const Tensor&, const Tensor&) {
    throw_not_built("cross_entropy_forward");
}
void cross_entropy_sums(const Tensor&, const Tensor&, const Tensor&) {
    throw_not_built("cross_entropy_forward");
}
void cross_entropy_finish(const LogitRows&,
                          const Tensor&,
                          const Tensor&,
                          double,
                          const Tensor&,
                          const Tensor&,
                          const Tensor&) {
    throw_not_built("cross_entropy_forward");
}
void cross_entropy_gradient(const LogitRows&, const Tensor&, const Tensor&, double, const Tensor&) {
    throw_not_built("cross_entropy_backward");
}

}  // namespace evenkeel::cuda
