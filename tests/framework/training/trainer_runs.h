// What the tests of the training loop share: a model, and runs of it.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <utility>

#include "framework/data/byte_dataset.h"
#include "framework/storage/safetensors.h"
#include "framework/training/trainer.h"
#include "tests/support/compare.h"
#include "tests/support/run_files.h"
#include "tests/support/temporary_directory.h"

namespace evenkeel::testing {

// A table of next-byte logits, one row a byte, and a bias that a first phase trains: the smallest model with
// a loss worth lowering. It stands for one data-parallel rank of `ranks`.
class BigramTable : public TrainableModel {
  public:
    explicit BigramTable(int rank = 0, int ranks = 1, bool main = true)
        : rank_(rank),
          ranks_(ranks),
          main_(main),
          table_(
              declare_parameter("table", {256, 256}, Sharding::replicated(0, 1), DType::kFloat32)),
          bias_(declare_parameter("bias", {256}, Sharding::replicated(0, 1), DType::kFloat32)),
          parameters_({&table_, &bias_}) {
        bias_.first_phase = true;
        buckets_ = ParameterBuckets(parameters_, Device::kCpu);
        init_normal(table_, 0.02, 7);
    }

    const ParameterList& parameters() override { return parameters_; }

    const ParameterBuckets& buckets() override { return buckets_; }

    void forward_backward(const Batch& batch,
                          double loss_scale,
                          bool,
                          const Tensor& loss) override {
        seen.push_back(batch.tokens.clone());
        waited_ += wait_of_pass;
        *loss.data<double>() += loss_scale * pass(batch, loss_scale);
        const int call = static_cast<int>(seen.size());
        if (spoil && spoil(call)) table_.grad.data<float>()[5] = NAN;
        if (added_loss) *loss.data<double>() += added_loss(call);
        if (added_gradient) bias_.grad.data<float>()[3] += static_cast<float>(added_gradient(call));
    }
    void finish_update() override { ++updates; }
    void drop_update() override { ++dropped; }
    double evaluate(const Batch& batch) override {
        evaluated.push_back(batch.tokens.clone());
        waited_ += wait_of_pass;
        return pass(batch, 0.0);
    }
    void reduce_numbers(const Tensor& numbers) override {
        numbers.data<double>()[kSquaredNormIndex] = std::pow(gradient_norm(), 2);
    }
    double gradient_norm() const {
        double sum = 0.0;
        for (const Parameter* parameter : parameters_) {
            for (double g : to_doubles(parameter->grad)) sum += g * g;
        }
        return std::sqrt(sum);
    }
    double data_parallel_mean(double value) override { return value; }
    std::vector<CommunicationPart> take_communication() override {
        return {{"tensor", "all_reduce", std::exchange(waited_, 0.0), 0.0}};
    }
    std::vector<MetricTable> head_metrics() override {
        ++tables_asked;
        return {{"max_logit", 1, 2, {1.5f, second_head}, MetricTable::Summary::kMax},
                {"entropy", 1, 2, {0.5f, 1.5f}, MetricTable::Summary::kMean}};
    }
    std::string locate_non_finite(const std::vector<Batch>& batches) override {
        located += static_cast<int>(batches.size());
        return "table (gradient)";
    }
    ModelState state() override {
        ModelState out;
        if (!main_) return out;
        out.shards.push_back({"state.safetensors", {}, {}});
        for (const auto& [name, tensor] : state(true)) {
            out.shards[0].pieces.push_back(
                {name, tensor.shape(), {0, 0, tensor.size(0), 0, false}, tensor});
        }
        return out;
    }
    void load_state(const std::string& directory) override {
        const SafetensorsReader reader(directory + "/state.safetensors");
        for (const auto& [name, tensor] : state(true)) reader.read(name, tensor);
    }
    bool load_initial(const std::string& directory, bool with_moments) override {
        const SafetensorsReader reader(directory + "/state.safetensors");
        for (const auto& [name, tensor] : state(with_moments)) reader.read(name, tensor);
        return with_moments;
    }
    std::string description() const override {
        return concat(R"({"kind": "bigram", "size": )", size, "}");
    }
    bool is_main_rank() const override { return main_; }
    int data_parallel_rank() const override { return rank_; }
    int data_parallel_size() const override { return ranks_; }
    void barrier() override {}
    int rank() const override { return main_ ? 0 : 1; }
    int ranks() const override { return 1; }
    double max_over_ranks(double value) override { return value; }
    double flops_per_token(std::int64_t) const override { return 256.0; }

    std::string replica_drift() override { return ++compared == drifts_at ? "table differs" : ""; }

    Parameter& table() { return table_; }
    Parameter& bias() { return bias_; }
    // Weights, and moments too.
    std::vector<std::pair<std::string, Tensor>> state(bool with_moments) const {
        std::vector<std::pair<std::string, Tensor>> tensors;
        for (const Parameter* p : parameters_) {
            tensors.emplace_back(p->name, p->master);
            if (!with_moments) continue;
            tensors.emplace_back(p->name + ".exp_avg", p->exp_avg);
            tensors.emplace_back(p->name + ".exp_avg_sq", p->exp_avg_sq);
        }
        return tensors;
    }
    std::vector<Tensor> seen, evaluated;  // tokens of each call
    std::function<bool(int)> spoil;       // whether forward_backward call n (from 1) goes wrong
    std::function<double(int)> added_loss, added_gradient;  // of call n; to one element
    int updates = 0, dropped = 0;     // calls of finish_update and of drop_update
    int compared = 0, drifts_at = 0;  // calls of replica_drift, and which of them finds something
    int tables_asked = 0;
    float second_head = 2.5f;   // its max_logit
    int located = 0;            // micro-batches looked through
    int size = 256;             // as the description says
    double wait_of_pass = 0.0;  // seconds for other ranks, forward and backward or forward

  private:
    double pass(const Batch& batch, double loss_scale) {
        const std::int64_t tokens = batch.tokens.numel();
        double loss = 0.0;
        for (std::int64_t i = 0; i < tokens; ++i) {
            const std::int64_t from = batch.tokens.data<std::int32_t>()[i] * 256;
            const std::int32_t target = batch.targets.data<std::int32_t>()[i];
            double row[256], sum = 0.0;
            for (int v = 0; v < 256; ++v) {
                row[v] = table_.value.data<float>()[from + v] + bias_.value.data<float>()[v];
                sum += std::exp(row[v]);
            }
            loss += std::log(sum) - row[target];
            if (loss_scale == 0.0) continue;
            for (int v = 0; v < 256; ++v) {
                const auto gradient = static_cast<float>(
                    loss_scale / tokens * (std::exp(row[v]) / sum - (v == target ? 1.0 : 0.0)));
                table_.grad.data<float>()[from + v] += gradient;
                bias_.grad.data<float>()[v] += gradient;
            }
        }
        return loss / static_cast<double>(tokens);
    }

    int rank_, ranks_;
    bool main_;
    double waited_ = 0.0;
    Parameter table_, bias_;
    ParameterList parameters_;
    ParameterBuckets buckets_;
};

class TrainerTest : public ::testing::Test {
  protected:
    TrainerTest() {
        write_text(files_.file("text"), 20000);
        config_.steps = 20;
        config_.batch_size = 8;
        config_.micro_batch_size = 8;
        config_.seq_len = 16;
        config_.eval_sequences = 8;
        schedule_.warmup_steps = 2;
        schedule_.peak_lr = 0.1;
    }

    ByteDataset data(const std::string& name = "text") const {
        return ByteDataset({files_.file(name), 0.1}, config_.seq_len);
    }
    TrainResult run(TrainableModel& model, const std::string& name) {
        config_.run_dir = files_.file(name);
        return train(model, data(), config_, schedule_, optimizer_, "{}\n", {}, alarms_, control_);
    }
    // The message and code of the error that running throws.
    Error failure(TrainableModel& model, const std::string& name) {
        try {
            run(model, name);
        } catch (const Error& error) {
            return error;
        }
        return Error(ErrorCode::kInternal, "no error was thrown");
    }

    TemporaryDirectory files_;
    std::vector<AlarmRule> alarms_;
    RunControl control_;
    TrainerConfig config_;
    ScheduleConfig schedule_;
    AdamWConfig optimizer_;
};

}  // namespace evenkeel::testing
