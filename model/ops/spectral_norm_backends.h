// The functions of spectral_norm.h on each device.
#pragma once

#include "model/ops/spectral_norm.h"

namespace evenkeel {
namespace cpu {
void start_iteration(const SpectralWork& work, bool advance);
void continue_iteration(const SpectralWork& work);
void finish_iteration(const SpectralWork& work);
void refresh_values(const SpectralWork& work);
void inner_products(const SpectralWork& work);
void convert_gradients(const SpectralWork& work);
}  // namespace cpu
namespace cuda {
void start_iteration(const SpectralWork& work, bool advance);
void continue_iteration(const SpectralWork& work);
void finish_iteration(const SpectralWork& work);
void refresh_values(const SpectralWork& work);
void inner_products(const SpectralWork& work);
void convert_gradients(const SpectralWork& work);
}  // namespace cuda
}  // namespace evenkeel
