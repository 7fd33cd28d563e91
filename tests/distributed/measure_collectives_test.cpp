#include "scaling/measure_collectives.h"

#include <gtest/gtest.h>

#include "parallel/process_grid.h"
#include "tests/support/ranks.h"

namespace evenkeel::scaling {
namespace {

using testing::world;

MeasureSettings quick() {
    MeasureSettings settings;
    settings.from = 4;
    settings.to = 4096;
    settings.rounds = 2;
    settings.seconds = 1e-6;
    return settings;
}

// What goes wrong, on one rank, in one element.
enum class Fault { kNone, kReduces, kGathers, kBroadcasts };

// Another group's work, with that fault.
class FaultyCommunicator final : public Communicator {
  public:
    FaultyCommunicator(Communicator& group, Fault fault) : group_(group), fault_(fault) {}
    int rank() const override { return group_.rank(); }
    int size() const override { return group_.size(); }
    void set_timeout(double seconds) override { group_.set_timeout(seconds); }

  protected:
    int do_start_all_reduce(const Tensor& tensor, ReduceOp op) override {
        group_.all_reduce(tensor, op);
        spoil(Fault::kReduces, tensor);
        return 0;
    }
    int do_start_reduce_scatter(const Tensor& input, const Tensor& output, ReduceOp op) override {
        group_.reduce_scatter(input, output, op);
        spoil(Fault::kReduces, output);
        return 0;
    }
    int do_start_all_gather(const Tensor& input, const Tensor& output) override {
        group_.all_gather(input, output);
        spoil(Fault::kGathers, output);
        return 0;
    }
    void do_broadcast(const Tensor& tensor, int root) override {
        group_.broadcast(tensor, root);
        spoil(Fault::kBroadcasts, tensor);
    }
    void do_send(const Tensor& tensor, int to) override { group_.send(tensor, to); }
    void do_receive(const Tensor& tensor, int from) override { group_.receive(tensor, from); }
    void do_barrier() override { group_.barrier(); }
    void do_all_reduce_double(double& value, ReduceOp op) override {
        value = group_.all_reduce_scalar(value, op);
    }
    std::unique_ptr<Communicator> do_split(int color, const std::string& name) override {
        return group_.split(color, name);
    }
    OnNode do_on_node() override { return group_.on_node(); }

  private:
    void spoil(Fault kind, const Tensor& tensor) const {
        if (kind != fault_ || rank() != size() - 1) return;
        tensor.data<float>()[tensor.numel() - 1] += 1.0f;
    }

    Communicator& group_;
    Fault fault_;
};

void expect_right(const std::vector<Series>& all, std::int64_t ranks) {
    ASSERT_EQ(all.size(), std::size(kOperations));
    for (const Series& series : all) {
        EXPECT_TRUE(series.even);
        EXPECT_EQ(series.place.size(), ranks);
        EXPECT_EQ(series.place.nodes, 1) << "all ranks of this test are on one machine";
        ASSERT_EQ(series.sizes.size(), 11u);
        for (const Measurement& m : series.sizes) {
            const std::string what = concat(series.group, " ", name_of(m.operation), " ", m.bytes);
            EXPECT_EQ(m.wrong, 0) << what;
            EXPECT_EQ(m.bytes % (4 * ranks), 0) << what << ": whole elements a rank";
            EXPECT_GT(m.seconds, 0.0) << what;
            EXPECT_LE(m.low, m.seconds) << what;
            EXPECT_GE(m.high, m.seconds) << what;
            EXPECT_DOUBLE_EQ(m.algorithm_bandwidth, static_cast<double>(m.bytes) / m.seconds);
            EXPECT_DOUBLE_EQ(m.bus_bandwidth,
                             m.algorithm_bandwidth * bus_factor(m.operation, ranks));
        }
        EXPECT_EQ(series.points(true).size(), 3u);
        EXPECT_EQ(series.points(false).size(), 8u);
        EXPECT_FALSE(series.sizes.front().held_out || series.sizes.back().held_out);
    }
}

TEST(MeasureCollectivesTest, AllGroupsOfAGridAreRight) {
    expect_right(measure_collectives(world(), "world", world(), quick()), world().size());
    if (world().size() < 4) return;
    ParallelConfig config;
    config.tensor_parallel = 2;
    const ProcessGrid grid(world(), config);
    expect_right(measure_collectives(grid.tensor(), "tensor", world(), quick()), 2);
    expect_right(measure_collectives(grid.data(), "data", world(), quick()), world().size() / 2);
}

TEST(MeasureCollectivesTest, AWrongElementOnOneRankIsSeenOnAll) {
    for (const Fault fault : {Fault::kNone, Fault::kReduces, Fault::kGathers, Fault::kBroadcasts}) {
        FaultyCommunicator group(world(), fault);
        for (const Series& series : measure_collectives(group, "faulty", world(), quick())) {
            for (const Measurement& m : series.sizes) {
                const bool reduces = m.operation == Operation::kAllReduce ||
                                     m.operation == Operation::kReduceScatter;
                const bool spoilt =
                    (fault == Fault::kReduces && reduces) ||
                    (fault == Fault::kGathers && m.operation == Operation::kAllGather) ||
                    (fault == Fault::kBroadcasts && m.operation == Operation::kBroadcast);
                EXPECT_EQ(m.wrong, spoilt ? 2 : 0)  // before the series and after it
                    << name_of(m.operation) << " of " << m.bytes << " bytes, fault "
                    << static_cast<int>(fault);
            }
        }
    }
}

TEST(MeasureCollectivesTest, AGroupOfOneHasNothingToMeasure) {
    const auto alone = make_single_communicator();
    EXPECT_TRUE(measure_collectives(*alone, "alone", world(), quick()).empty());
}

TEST(MeasureCollectivesTest, BusFactorsAreThoseOfNcclTests) {
    EXPECT_DOUBLE_EQ(bus_factor(Operation::kAllReduce, 2), 1.0);
    EXPECT_DOUBLE_EQ(bus_factor(Operation::kAllReduce, 8), 1.75);
    EXPECT_DOUBLE_EQ(bus_factor(Operation::kReduceScatter, 8), 0.875);
    EXPECT_DOUBLE_EQ(bus_factor(Operation::kAllGather, 8), 0.875);
    EXPECT_DOUBLE_EQ(bus_factor(Operation::kBroadcast, 8), 1.0);
}

TEST(MeasureCollectivesTest, SettingsOutOfRangeAreRefused) {
    const auto refused = [](auto change) {
        MeasureSettings settings = quick();
        change(settings);
        EXPECT_THROW(settings.validate(), Error);
    };
    refused([](MeasureSettings& s) { s.from = 0; });
    refused([](MeasureSettings& s) { s.to = s.from - 1; });
    refused([](MeasureSettings& s) { s.to = std::int64_t{1} << 40; });
    refused([](MeasureSettings& s) { s.rounds = 0; });
    refused([](MeasureSettings& s) { s.seconds = 0.0; });
    EXPECT_NO_THROW(MeasureSettings().validate());
}

}  // namespace
}  // namespace evenkeel::scaling
