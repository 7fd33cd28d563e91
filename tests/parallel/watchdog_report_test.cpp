#include "parallel/watchdog_report.h"

#include <gtest/gtest.h>

namespace evenkeel {
namespace {

using Place = RankAnswer::Place;

LoggedOperation operation(const std::string& group,
                          const std::vector<int>& ranks,
                          std::int64_t sequence,
                          const std::string& what = "all_reduce of 8 bytes of fp32",
                          bool done = true) {
    return {group, ranks, sequence, what, -1, "training/step.cpp:7 (step)", done};
}

RankAnswer answer(int rank, Place place, std::vector<LoggedOperation> operations) {
    RankAnswer answer;
    answer.rank = rank;
    answer.place = place;
    answer.since_seconds = 3.0;
    answer.operations = std::move(operations);
    return answer;
}

// What is said between the opening and the list of where the ranks are.
std::string findings(const std::vector<RankAnswer>& ranks) {
    const std::string text = fault_report("opening", ranks);
    return text.substr(0, text.find("where the ranks are"));
}

TEST(WatchdogReportTest, WhoWaitsForASilentRankIsNotToBlame) {
    // 0 waits for 1 in one group, 1 for 3 in another, and 3 is gone.
    RankAnswer silent = answer(3, Place::kNoAnswer, {});
    silent.process = "process 12 on a is dead";
    const std::string text =
        findings({answer(0, Place::kOperation, {operation("tensor", {0, 1}, 5)}),
                  answer(1, Place::kOperation,
                         {operation("tensor", {0, 1}, 4), operation("data", {1, 3}, 2)}),
                  answer(2, Place::kOperation, {operation("tensor", {2, 3}, 5)}), silent});
    EXPECT_EQ(text, "opening\n  rank 3 gives no answer: process 12 on a is dead\n");
}

TEST(WatchdogReportTest, ARankOutsideIsToBlameIfSomeoneWaitsForIt) {
    const std::vector<int> both = {0, 1};
    const auto waits = answer(0, Place::kOperation, {operation("data", both, 2)});
    EXPECT_EQ(findings({waits, answer(1, Place::kOutside, {operation("data", both, 1)})}),
              "opening\n  rank 1 is slow or stuck: in no operation for 3.0 s; the last was "
              "all_reduce of 8 bytes of fp32, number 1 of group data (ranks 0, 1), at "
              "training/step.cpp:7 (step)\n");
    EXPECT_EQ(findings({waits, answer(1, Place::kOutside, {operation("data", both, 2)})}),
              "opening\n  every rank has answered, and none is seen to be to blame\n");
}

TEST(WatchdogReportTest, DifferentRequestsAtOneNumberAreShownTheFewFirst) {
    const std::vector<int> all = {0, 1, 2};
    const auto same = [&](int rank) {
        return answer(rank, Place::kOperation, {operation("world", all, 9)});
    };
    EXPECT_EQ(findings({same(0), same(1),
                        answer(2, Place::kOperation, {operation("world", all, 9, "barrier")})}),
              "opening\n  ranks ask for different operations at number 9 of group world\n"
              "    rank 2: barrier, at training/step.cpp:7 (step)\n"
              "    ranks 0, 1: all_reduce of 8 bytes of fp32, at training/step.cpp:7 (step)\n");
}

TEST(WatchdogReportTest, RanksThatWaitForOneAnotherAreBothNamed) {
    const std::string text =
        findings({answer(0, Place::kOperation, {operation("tensor", {0, 1}, 1)}),
                  answer(1, Place::kOperation, {operation("data", {0, 1}, 1)})});
    EXPECT_NE(text.find("rank 0 is in another operation than rank 1, for which it waits: "),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("rank 1 is in another operation than rank 0, for which it waits: "),
              std::string::npos)
        << text;
}

TEST(WatchdogReportTest, AGpuWaitsInTheOldestOperationThatIsNotDone) {
    const auto waits =
        answer(0, Place::kGpu,
               {operation("tensor on GPUs", {0, 1}, 1),
                operation("tensor on GPUs", {0, 1}, 2, "all_gather of 4 bytes of bf16", false),
                operation("tensor on GPUs", {0, 1}, 3, "barrier", false)});
    EXPECT_NE(describe_place(waits).find("all_gather of 4 bytes of bf16, number 2"),
              std::string::npos)
        << describe_place(waits);
}

}  // namespace
}  // namespace evenkeel
