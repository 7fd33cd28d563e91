#include "parallel/watchdog_report.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "framework/error.h"

namespace evenkeel {
namespace {

using Place = RankAnswer::Place;

std::string seconds_text(double seconds) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f s", seconds);
    return text;
}

std::string list_of(const std::vector<int>& ranks) {
    constexpr std::size_t kMost = 16;
    std::string text = ranks.size() == 1 ? "rank " : "ranks ";
    for (std::size_t i = 0; i < std::min(ranks.size(), kMost); ++i) {
        text += concat(i == 0 ? "" : ", ", ranks[i]);
    }
    return text + (ranks.size() > kMost ? ", .." : "");
}

std::string describe(const LoggedOperation& operation) {
    std::string text = operation.what;
    if (operation.peer >= 0) {
        text += concat(operation.sequence == 0 ? ", the other is rank " : " from rank ",
                       operation.peer);
    }
    if (operation.sequence > 0) text += concat(", number ", operation.sequence);
    return text + concat(" of group ", operation.group, " (", list_of(operation.ranks), "), at ",
                         operation.site);
}

const LoggedOperation* last_of(const RankAnswer& answer) {
    return answer.operations.empty() ? nullptr : &answer.operations.back();
}

// What the rank waits in: the oldest that its GPU has not done, or the last.
const LoggedOperation* awaited(const RankAnswer& answer) {
    if (answer.place == Place::kGpu) {
        for (const LoggedOperation& operation : answer.operations) {
            if (!operation.done) return &operation;
        }
    }
    const bool waits = answer.place == Place::kOperation || answer.place == Place::kGpu;
    return waits ? last_of(answer) : nullptr;
}

// How far a rank has come in that group.
std::int64_t reached(const RankAnswer& answer, const LoggedOperation& group) {
    std::int64_t last = 0;
    for (const LoggedOperation& operation : answer.operations) {
        if (operation.same_group(group)) last = std::max(last, operation.sequence);
    }
    return last;
}

class Inquiry {
  public:
    explicit Inquiry(const std::vector<RankAnswer>& ranks) : ranks_(ranks) {
        find_silent_and_slow();
        find_differences();
        find_cycles();
    }

    std::string text(const std::string& opening) const {
        std::string text = opening + "\n";
        for (const std::string& finding : findings_) text += "  " + finding + "\n";
        if (findings_.empty()) {
            text += "  every rank has answered, and none is seen to be to blame\n";
        }
        std::string others;
        for (const RankAnswer& answer : ranks_) {
            if (answer.place == Place::kNoAnswer) continue;
            others += concat("  rank ", answer.rank, ": ", describe_place(answer), "\n");
        }
        if (!others.empty()) text += "where the ranks are\n" + others;
        return text;
    }

  private:
    const RankAnswer* find(int rank) const {
        for (const RankAnswer& answer : ranks_) {
            if (answer.rank == rank) return &answer;
        }
        return nullptr;
    }
    void blame(int rank, const std::string& finding) {
        blamed_.insert(rank);
        findings_.push_back(finding);
    }

    // Those that have not come to what the rank waits in.
    std::vector<int> waits_for(const RankAnswer& answer) const {
        const LoggedOperation* const operation = awaited(answer);
        if (operation == nullptr) return {};
        if (operation->sequence == 0) return {operation->peer};
        std::vector<int> missing;
        for (const int rank : operation->ranks) {
            const RankAnswer* const other = find(rank);
            if (rank == answer.rank || other == nullptr) continue;
            if (reached(*other, *operation) < operation->sequence) missing.push_back(rank);
        }
        return missing;
    }

    // Whoever waits for a GPU may wait for anyone: the log knows nothing of what CUDA graphs hold.
    bool is_waited_for(int rank) const {
        return std::any_of(ranks_.begin(), ranks_.end(), [&](const RankAnswer& answer) {
            const std::vector<int> missing = waits_for(answer);
            return answer.place == Place::kGpu ||
                   std::find(missing.begin(), missing.end(), rank) != missing.end();
        });
    }

    void find_silent_and_slow() {
        for (const RankAnswer& answer : ranks_) {
            if (answer.place != Place::kNoAnswer) continue;
            blame(answer.rank, concat("rank ", answer.rank, " gives no answer: ", answer.process));
        }
        for (const RankAnswer& answer : ranks_) {
            if (answer.place != Place::kOutside || !is_waited_for(answer.rank)) continue;
            blame(answer.rank,
                  concat("rank ", answer.rank, " is slow or stuck: ", describe_place(answer)));
        }
        for (const RankAnswer& answer : ranks_) {
            if (!answer.why.empty())
                findings_.push_back(concat("rank ", answer.rank, " says: ", answer.why));
        }
    }

    // The first operation of each group in which ranks asked for different things.
    void find_differences() {
        struct Turn {
            std::map<std::string, std::vector<int>> by_request;
            std::map<std::string, const LoggedOperation*> examples;
        };
        using Key = std::tuple<std::string, std::vector<int>, std::int64_t>;
        std::map<Key, Turn> turns;
        for (const RankAnswer& answer : ranks_) {
            for (const LoggedOperation& operation : answer.operations) {
                if (operation.sequence == 0) continue;
                Turn& turn = turns[{operation.group, operation.ranks, operation.sequence}];
                const std::string request = concat(operation.what, " ", operation.peer);
                turn.by_request[request].push_back(answer.rank);
                turn.examples.emplace(request, &operation);
            }
        }
        std::set<std::pair<std::string, std::vector<int>>> differing;
        for (const auto& [key, turn] : turns) {
            const auto& [group, members, sequence] = key;
            if (turn.by_request.size() == 1 || !differing.insert({group, members}).second) continue;
            // The fewer ranks first: they are the likelier to be wrong.
            std::vector<std::string> requests;
            for (const auto& entry : turn.by_request) requests.push_back(entry.first);
            std::stable_sort(requests.begin(), requests.end(),
                             [&turn = turn](const std::string& a, const std::string& b) {
                                 return turn.by_request.at(a).size() < turn.by_request.at(b).size();
                             });
            std::string text = concat("ranks ask for different operations at number ", sequence,
                                      " of group ", group);
            for (const std::string& request : requests) {
                const std::vector<int>& ranks = turn.by_request.at(request);
                const LoggedOperation& example = *turn.examples.at(request);
                text += concat("\n    ", list_of(ranks), ": ", example.what,
                               example.peer < 0 ? "" : concat(" from rank ", example.peer), ", at ",
                               example.site);
                blamed_.insert(ranks.begin(), ranks.end());
            }
            findings_.push_back(text);
        }
    }

    // Ranks that wait for ranks that wait, and none of them for one that is to blame: each is in an operation
    // that the other has not come to.
    void find_cycles() {
        for (const RankAnswer& answer : ranks_) {
            if (blamed_.count(answer.rank) != 0) continue;
            std::set<int> seen;
            std::vector<int> next = waits_for(answer);
            bool explained = next.empty();
            bool comes_back = false;
            while (!next.empty() && !explained) {
                const int rank = next.back();
                next.pop_back();
                if (!seen.insert(rank).second) continue;
                comes_back = comes_back || rank == answer.rank;
                explained = blamed_.count(rank) != 0 && cycle_.count(rank) == 0;
                const RankAnswer* const other = find(rank);
                if (other == nullptr) continue;
                for (const int further : waits_for(*other)) next.push_back(further);
            }
            if (explained || !comes_back) continue;
            cycle_.insert(answer.rank);
            blame(answer.rank, concat("rank ", answer.rank, " is in another operation than ",
                                      list_of(waits_for(answer)),
                                      ", for which it waits: ", describe(*awaited(answer))));
        }
    }

    const std::vector<RankAnswer>& ranks_;
    std::vector<std::string> findings_;
    std::set<int> blamed_, cycle_;
};

}  // namespace

std::string describe_place(const RankAnswer& answer) {
    const std::string since = seconds_text(answer.since_seconds);
    const LoggedOperation* const operation = awaited(answer);
    switch (answer.place) {
        case Place::kNoAnswer:
            return "no answer";
        case Place::kOperation:
            return concat("waits for ", since, " in ", describe(*operation));
        case Place::kGpu:
            return concat("waits for its GPU for ", since,
                          operation == nullptr
                              ? std::string()
                              : concat("; asked for last: ", describe(*operation)));
        case Place::kOutside:
            break;
    }
    const LoggedOperation* const last = last_of(answer);
    if (last == nullptr) return "in no operation so far";
    return concat("in no operation for ", since, "; the last was ", describe(*last));
}

std::string fault_report(const std::string& opening, const std::vector<RankAnswer>& ranks) {
    return Inquiry(ranks).text(opening);
}

}  // namespace evenkeel
