// A saved model and sequences of its tokens: their loss, or their logits in a file that any other implementation can be
// held against.
#pragma once

#include "launch/commands.h"

namespace evenkeel {

// For the tensor `tokens` [N, T] of command.tokens (framework/data/token_file.h) writes the tensor `logits` [N, T, V], fp32, to
// command.logits, all of it or nothing; the whole of it is in the memory of every rank. Without command.logits prints the
// mean loss of the tokens that follow one, N (T - 1). On the CPU the model computes in fp32 whatever model.type is.
// Collective over world.
void eval_tokens(const EvalCommand& command, Communicator& world);

}  // namespace evenkeel
