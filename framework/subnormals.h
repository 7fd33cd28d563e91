// Numbers below 2^-126, which processors multiply a hundred times more slowly than others.
#pragma once

namespace evenkeel {

// From here on the calling thread, and every thread that it starts afterwards, takes subnormal fp32 and fp64
// operands for zeros of the same sign and makes zeros of results that would be subnormal. Attention that has
// become nearly one-hot passes gradients of that size through every product of its layer: without this a step
// of a hot model takes several times as long. The program calls it first thing; a library that is linked
// into another program leaves the choice to that. Does nothing where the processor has no such mode.
void flush_subnormals();

}  // namespace evenkeel
