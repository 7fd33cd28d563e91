// The logits of a saved model for token sequences, in a file that any other implementation can be held against.
#pragma once

#include "launch/commands.h"

namespace evenkeel {

// Writes the tensor `logits` [N, T, V], fp32, for the tensor `tokens` [N, T] of command.tokens (framework/token_file.h)
// to command.logits, all of it or nothing. On the CPU the model computes in fp32 whatever model.type is. The whole result
// is in the memory of every rank. Collective over world.
void write_logits(const EvalCommand& command, Communicator& world);

}  // namespace evenkeel
