#include "framework/training/stop_request.h"

#include <unistd.h>

#include <atomic>
#include <cstring>

namespace evenkeel {
namespace {

// Lock-free, so that a handler may use them.
std::atomic<int> end_signal{0};
std::atomic<bool> wants_checkpoint{false};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

std::atomic<int> exit_status{0};
std::atomic<const char*> last_words{nullptr};

extern "C" void end_now(int) {
    const char* const text = last_words;
    const ssize_t written = ::write(STDERR_FILENO, text, std::strlen(text));
    static_cast<void>(written);
    _exit(exit_status);
}

extern "C" void note_signal(int signal) {
    if (signal == SIGUSR2) {
        wants_checkpoint = true;
    } else if (end_signal.exchange(signal) != 0 && signal == SIGINT) {
        _exit(128 + SIGINT);
    }
}

// As nohup wants it.
bool stays_ignored(int signal, const struct sigaction& before) {
    return signal == SIGHUP && before.sa_handler == SIG_IGN;
}

}  // namespace

StopRequest StopRequest::from(double number) {
    return {static_cast<int>(number >= 1000.0 ? number - 1000.0 : number)};
}

const char* StopRequest::name() const {
    switch (signal) {
        case SIGUSR1:
            return "SIGUSR1";
        case SIGUSR2:
            return "SIGUSR2";
        case SIGTERM:
            return "SIGTERM";
        case SIGHUP:
            return "SIGHUP";
        case SIGINT:
            return "SIGINT";
        default:
            return "no signal";
    }
}

StopSignals::StopSignals() {
    end_signal = 0;
    wants_checkpoint = false;
    struct sigaction action {};
    action.sa_handler = note_signal;
    action.sa_flags = SA_RESTART;  // reads and writes go on
    sigemptyset(&action.sa_mask);
    for (std::size_t i = 0; i < std::size(kSignals); ++i) {
        sigaction(kSignals[i], nullptr, &before_[i]);
        if (!stays_ignored(kSignals[i], before_[i])) sigaction(kSignals[i], &action, nullptr);
    }
}

StopSignals::~StopSignals() {
    for (std::size_t i = 0; i < std::size(kSignals); ++i) {
        sigaction(kSignals[i], &before_[i], nullptr);
    }
}

void StopSignals::end_at_once(int status, const char* words) {
    exit_status = status;
    last_words = words;
    struct sigaction action {};
    action.sa_handler = end_now;
    sigemptyset(&action.sa_mask);
    for (std::size_t i = 0; i < std::size(kSignals); ++i) {
        if (kSignals[i] == SIGINT) {
            sigaction(SIGINT, &before_[i], nullptr);
        } else if (kSignals[i] == SIGUSR2) {
            struct sigaction none {};
            none.sa_handler = SIG_IGN;
            sigaction(SIGUSR2, &none, nullptr);
        } else if (!stays_ignored(kSignals[i], before_[i])) {
            sigaction(kSignals[i], &action, nullptr);
        }
    }
    if (end_signal != 0 && !told_) raise(end_signal);
}

StopRequest StopSignals::request() const {
    const int signal = end_signal;
    told_ = told_ || signal != 0;
    if (signal != 0) return {signal};
    return {wants_checkpoint.exchange(false) ? SIGUSR2 : 0};
}

}  // namespace evenkeel
