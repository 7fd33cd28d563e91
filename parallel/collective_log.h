// The last operations between ranks that this process has asked for: what a report shows when one of them
// does not end. One log a process, of fixed size, written by the thread that communicates and read by the
// watchdog's.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "framework/dtype.h"
#include "parallel/communicator.h"

namespace evenkeel {

struct CollectiveRecord {
    std::int64_t index = 0;  // of the process: 1, 2, ..
    // Of the group: the same on all its ranks. 0: from one rank to another, which the others know nothing of.
    std::int64_t sequence = 0;
    int group = 0;
    const char* op = "";
    std::int64_t bytes = 0;  // of the full tensor; of none in a barrier
    DType dtype = DType::kFloat32;
    int peer = -1;  // the other rank or the root, numbered in the job; -1: all of the group
    CallSite site;
    // Nanoseconds of a steady clock. 0: not yet.
    std::int64_t asked = 0;     // when the host came to it
    std::int64_t waits = 0;     // since when it waits for other ranks, at the earliest
    std::int64_t returned = 0;  // when the host went on
    std::int64_t done = 0;      // when it was seen to be done, where that is later: on a GPU
};

struct CollectiveGroup {
    std::string name;
    std::vector<int> ranks;  // numbered in the job
};

// Where the thread that communicates is.
struct HostPosition {
    bool in_operation = false;   // the last record is of it
    bool waits_for_gpu = false;  // for its own GPU, which may wait for others
    std::int64_t since = 0;  // that; or else since the last operation returned, 0: there was none
    std::int64_t progress = 0;  // when an operation was last seen to be done
    std::int64_t oldest_on_gpu =
        0;  // when the oldest that is not seen to be done was asked for; 0: none
};

class CollectiveLog {
  public:
    static constexpr std::size_t kEntries = 1024;

    // This process's.
    static CollectiveLog& instance();
    static std::int64_t now();

    int add_group(CollectiveGroup group);

    // An operation begins: its index, times and its number in the group, of which `sequence` is the last so
    // far (null: it has none), are filled in here. Returns the index, or 0 when it is a part of one that is
    // under way, whose wait then begins now.
    std::int64_t begin(CollectiveRecord record, std::int64_t* sequence);
    void end(std::int64_t index);
    // What is under way goes on on a GPU after it returns, until done() of the index that this returns.
    std::int64_t goes_on();
    void done(std::int64_t index);

    // The host has been waiting for its GPU for so long.
    void waits_for_gpu(double seconds);

    HostPosition position() const;
    std::vector<CollectiveRecord> records() const;  // oldest first
    std::vector<CollectiveGroup> groups() const;

  private:
    CollectiveRecord* find(std::int64_t index);

    mutable std::mutex mutex_;
    std::array<CollectiveRecord, kEntries> entries_;
    std::vector<CollectiveGroup> groups_;
    std::int64_t last_ = 0;     // index of the last record
    std::int64_t current_ = 0;  // of what the host is in
    bool goes_on_ = false;      // the current one
    int depth_ = 0;
    std::int64_t progress_ = 0;
    std::int64_t gpu_wait_since_ = 0, gpu_wait_seen_ = 0;
};

}  // namespace evenkeel
