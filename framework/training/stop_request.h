// Signals that ask a training run to save what it has done. SIGUSR1, SIGTERM and SIGHUP, and SIGINT once: write a
// checkpoint and end. SIGUSR2: write one and go on. A second SIGINT ends the program at once.
#pragma once

#include <csignal>
#include <iterator>

namespace evenkeel {

// As a number that grows with what is asked for, so that the largest over ranks is what all of them do.
struct StopRequest {
    int signal = 0;  // 0: nothing is asked for
    bool asks_for_checkpoint() const { return signal != 0; }
    bool asks_to_end() const { return signal != 0 && signal != SIGUSR2; }
    double number() const { return asks_to_end() ? 1000.0 + signal : signal; }
    static StopRequest from(double number);
    const char* name() const;  // "SIGUSR1"
};

// Takes these signals while it lives; what they did before is restored with its end. One at a time. The handler
// only notes the signal: work goes on until somebody asks. A SIGHUP that was ignored (nohup) still is.
class StopSignals {
  public:
    StopSignals();
    ~StopSignals();
    StopSignals(const StopSignals&) = delete;
    StopSignals& operator=(const StopSignals&) = delete;

    // What has been asked for. A request for a checkpoint is told once, one to end from then on.
    StopRequest request() const;

    // Nobody will ask any more. Signals that ask to end now do so at once: SIGINT as it did before, the others
    // with that exit status, after `last_words` on standard error. SIGUSR2 asks for nothing. One that came meanwhile, and
    // was not told, counts as if it came now.
    void end_at_once(int exit_status, const char* last_words);

  private:
    static constexpr int kSignals[] = {SIGUSR1, SIGUSR2, SIGTERM, SIGHUP, SIGINT};
    struct sigaction before_[std::size(kSignals)];
    mutable bool told_ = false;  // of a request to end
};

}  // namespace evenkeel
