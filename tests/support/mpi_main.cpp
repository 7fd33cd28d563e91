// The main of test programs that run under mpirun. Rank 0 prints as GoogleTest does, the others only their
// failures. What ends a test early on one rank (an exception, a failed ASSERT) leaves the other ranks in
// the middle of a collective, so it ends the run. The exit status is the maximum over the ranks.
#include <gtest/gtest.h>

#include <cstdio>
#include <exception>

#include "parallel/mpi_session.h"
#include "tests/support/ranks.h"

namespace evenkeel::testing {
namespace {

constexpr double kTimeoutSeconds = 60.0;

MpiSession* session = nullptr;

class RankListener : public ::testing::EmptyTestEventListener {
    // GoogleTest holds a lock while it reports a part, so the test's name can't be asked for then.
    void OnTestStart(const ::testing::TestInfo& test) override {
        test_ = concat(test.test_suite_name(), ".", test.name(), ": ");
    }
    void OnTestEnd(const ::testing::TestInfo&) override { test_.clear(); }
    void OnTestPartResult(const ::testing::TestPartResult& result) override {
        if (!result.failed()) return;
        const std::string text = concat(test_, result.file_name() ? result.file_name() : "", ":",
                                        result.line_number(), ": ", result.message());
        if (result.fatally_failed()) session->abort(text.c_str(), 1);
        if (world().rank() > 0) {
            std::fprintf(stderr, "rank %d: %s\n", world().rank(), text.c_str());
        }
    }
    std::string test_;
};

}  // namespace

Communicator& world() { return session->world(); }

int run_all(int argc, char** argv) {
    ::testing::InitGoogleTest(&argc, argv);
    MpiSession this_session(&argc, &argv, kTimeoutSeconds);
    session = &this_session;
    auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
    if (world().rank() > 0) delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new RankListener);
    int mine = RUN_ALL_TESTS();
    if (const std::int64_t dropped = Pending::dropped(); dropped > 0) {
        std::fprintf(stderr, "rank %d: %lld started collectives were never waited for\n",
                     world().rank(), static_cast<long long>(dropped));
        mine = 1;
    }
    return static_cast<int>(world().all_reduce_scalar(mine, ReduceOp::kMax));
}

}  // namespace evenkeel::testing

int main(int argc, char** argv) {
    try {
        return evenkeel::testing::run_all(argc, argv);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
