// Who is to blame, from what the ranks say about themselves. Internal to the watchdog, and for its tests.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace evenkeel {

// One entry of a rank's CollectiveLog, as it travels.
struct LoggedOperation {
    std::string
        group;  // the name, and where groups of one name and the same ranks follow one another, "#2"
    std::vector<int> ranks;  // of the group
    std::int64_t sequence = 0;
    std::string what;  // "all_reduce of 4096 bytes of fp32"
    int peer = -1;     // see CollectiveRecord
    std::string site;  // "parallel/tensor_reduce.cpp:80 (start)"
    bool done =
        false;  // the host has returned from it, and its GPU if there is one was seen to be done

    bool same_group(const LoggedOperation& other) const {
        return group == other.group && ranks == other.ranks;
    }
};

// One rank, by its answer or by what others know of it.
struct RankAnswer {
    enum class Place {
        kNoAnswer,
        kOperation,  // its main thread waits in the last of `operations`
        kGpu,        // or for its GPU, which has not done all of them
        kOutside,    // or is in none
    };
    int rank = 0;
    Place place = Place::kNoAnswer;
    double since_seconds = 0.0;               // there
    std::string why;                          // an operation has failed, and how
    std::string process;                      // without an answer: what is known of the process
    std::vector<LoggedOperation> operations;  // oldest first
};

// The report, many lines. `opening` says who asked and why.
std::string fault_report(const std::string& opening, const std::vector<RankAnswer>& ranks);

// One line: where a rank is.
std::string describe_place(const RankAnswer& answer);

}  // namespace evenkeel
