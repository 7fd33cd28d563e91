// Messages for people, on standard error, so that standard output holds results alone. Rank 0 alone
// prints information; every rank prints warnings and errors, prefixed with its rank when there are
// several. A progress line rewrites itself on a terminal and is a plain line elsewhere. Each message is
// one write. Callable from any thread.
#pragma once

#include <string>

namespace evenkeel {

void set_log_rank(int rank, int size);
void log_info(const std::string& message);
void log_warning(const std::string& message);
void log_error(const std::string& message);
// Replaces the previous progress line on a terminal; `last` ends it with a new line.
void log_progress(const std::string& message, bool last);
// Whether the messages end on a terminal; under mpirun, whether its own standard error does.
bool log_to_terminal();

}  // namespace evenkeel
