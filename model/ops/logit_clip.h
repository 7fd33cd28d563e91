// What QK-Clip (Kimi Team 2025, Kimi K2, section 2.1) does to weights, on the CPU and on CUDA; nothing here waits
// for a GPU. All tensors are fp32, contiguous and on one device unless it says otherwise.
//
// L layers, H query heads, K key heads, each of G = H/K query heads; all of this rank.
#pragma once

#include "framework/parameter.h"

namespace evenkeel {

// highest [H] takes in now [H], element by element; a NaN stays.
void take_maximum(const Tensor& highest, const Tensor& now);

// groups [L, K]: the largest element of each group of G in max_logit [L, H]; NaN if there is one.
void group_maximum(const Tensor& max_logit, const Tensor& groups);

// Scales what belongs to each of K key heads in a parameter, one Kth of its elements a head in order, by the root of
//   f = min(1, threshold / S),  S that head's element of maximum [K]; 1 where S is NaN or infinite:
// master becomes (master + offset) sqrt(f) - offset, and value that, rounded. Heads with f = 1 keep their bits.
// offset: what gains are more than their parameters.
void clip_heads(const Tensor& maximum, double threshold, double offset, const Parameter& parameter);

// counts gets 1 more for each head whose element of maximum makes clip_heads scale it. Same shapes.
void count_clipped(const Tensor& maximum, double threshold, const Tensor& counts);

}  // namespace evenkeel
