#include "framework/device.h"

#include "framework/device_cuda.h"

namespace evenkeel {

int device_count(Device device) { return device == Device::kCpu ? 1 : cuda::device_count(); }

std::string why_no_cuda() { return cuda::why_not(); }

GpuDescription describe_gpu() { return cuda::describe(); }

void use_gpu(int index) { cuda::use_gpu(index); }

}  // namespace evenkeel
