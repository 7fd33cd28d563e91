// A thread in every process that sees when its rank waits too long for others, finds out which rank is to
// blame, says so once, and ends the job. It needs nothing of the main thread, which may be stuck in MPI, in
// NCCL or in a driver, and no message between ranks: they meet in files of a directory that all see.
//
// A rank whose wait exceeds the time-out, or with which an operation between ranks has failed, asks for a
// report: it makes a file there. Every rank's thread looks for it once a second and answers with a file of
// its own, rank_R.json: where its main thread is, its last operations, its time. The one who asked compares
// the answers, or their absence, writes report.txt, prints it, and all ranks end with status kExitRankLost.
#pragma once

#include <string>

#include "parallel/communicator.h"

namespace evenkeel {

// Exit status of a job that lost a rank.
constexpr int kExitRankLost = 3;

struct WatchdogOptions {
    double timeout_seconds = 300.0;
    // Made when there is something to write. "": a temporary one where all ranks are on one machine; else
    // none, and every rank says what it waits for on standard error alone.
    std::string directory = "";
    double poll_seconds = 1.0;
    double grace_seconds = 0.0;  // for the answers; 0: a tenth of the time-out, from 5 to 60
};

// From now on until stop_watchdog(), or with other options from the next call on. Collective. Nothing to do
// in a group of one.
void start_watchdog(Communicator& world, const WatchdogOptions& options);
void stop_watchdog();

// Removes what earlier jobs have left in the directory. Other jobs that live may have the same one: for who knows that none
// does, on one rank.
void remove_old_watchdog_files();

// An operation of this rank with others has failed, and `why` says how. Does not return where a watchdog
// runs, which reports and ends the process; else does nothing.
void rank_is_lost(const std::string& why);

}  // namespace evenkeel
