// The inner loops of KlObjective, in double, compiled once per instruction set. Plain data only: see
// cmake/EvenkeelIsa.cmake. Rows of `width` numbers lie behind one another; width is a multiple of
// kKlWidthStep.
//   kl_dots         logits[j] = weights . rows_j, j = 0 .. count - 1
//   kl_sum          sum = sum over j of p_j rows_j
//   kl_centred      row = root (a c + b e - mean), by element: ab is [a, b], key is [c, e], each of `width`
//   kl_add_squares  squares += rows^T rows, [width, width], the upper triangle at least
#pragma once

#include <cstdint>

#include "framework/isa.h"

namespace evenkeel {

inline constexpr std::int64_t kKlWidthStep = 16;

EVENKEEL_DECLARE_FOR_ISAS(void kl_dots(const double* weights,
                                       const double* rows,
                                       std::int64_t count,
                                       std::int64_t width,
                                       double* logits);
                          void kl_sum(const double* p,
                                      const double* rows,
                                      std::int64_t count,
                                      std::int64_t width,
                                      double* sum);
                          void kl_centred(const double* ab,
                                          const double* key,
                                          const double* mean,
                                          double root,
                                          std::int64_t width,
                                          double* row);
                          void kl_add_squares(const double* rows,
                                              std::int64_t count,
                                              std::int64_t width,
                                              double* squares);)

}  // namespace evenkeel
