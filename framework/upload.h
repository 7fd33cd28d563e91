// Small CPU tensors on their way to the GPU, step after step, without making the host wait: each is
// copied to pinned memory, from where the GPU fetches it when the stream comes to it. Throws kNotBuilt
// in a build without CUDA.
#pragma once

#include <memory>

#include "framework/tensor.h"

namespace evenkeel {

class UploadRing {
  public:
    // How many uploads may be on their way before one waits for the oldest.
    explicit UploadRing(int slots = 4);
    ~UploadRing();
    UploadRing(const UploadRing&) = delete;
    UploadRing& operator=(const UploadRing&) = delete;

    // On the current stream; the source may change as soon as this returns. The host waits only
    // while all slots are on their way, and where a slot takes more bytes than ever before. Not for
    // work of a graph, which would read the slot when it is launched: upload before the launch.
    Tensor upload(const Tensor& source);
    // Into a contiguous CUDA tensor of the same shape and type.
    void upload_to(const Tensor& target, const Tensor& source);

  private:
    struct Slots;
    std::unique_ptr<Slots> slots_;
};

}  // namespace evenkeel
