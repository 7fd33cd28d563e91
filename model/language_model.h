// A decoder language model: embedding, blocks (decoder_block.h), final norm, vocabulary-parallel projection,
// cross-entropy. nGPT has no final norm.
//
// B batch, T positions, C width, V vocabulary, L layers, H query heads, P tensor-parallel size.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attention/tensor_parallel_attention.h"
#include "framework/storage/tensor_source.h"
#include "framework/training/trainer.h"
#include "model/model_config.h"
#include "parallel/process_grid.h"
#include "parallel/sequence_region.h"
#include "parallel/tensor_reduce.h"
#include "parallel/vocab.h"

namespace evenkeel {

class DecoderBlock;
class FiniteProbe;
class HeadStatistics;
class Norm;
class UploadRing;
class WeightRule;

class LanguageModel : public TrainableModel {
  public:
    // Allocates on the grid's device and initialises. The grid must outlive the model.
    LanguageModel(const ProcessGrid& grid, const ModelConfig& config, std::uint64_t seed);
    ~LanguageModel() override;
    LanguageModel(const LanguageModel&) = delete;
    LanguageModel& operator=(const LanguageModel&) = delete;

    const ModelConfig& config() const { return config_; }

    // Whether training on CUDA records its passes as graphs, one for each shape, after the first few of
    // that shape, and replays them (the default): a step then costs the host a handful of calls. Not
    // batches with cu_seqlens; turn it off for others whose number of targets changes, since a graph holds the
    // scale of the loss. Only on another stream than the default one, and where all groups can be recorded. Exposed communication is
    // not timed inside a graph.
    void set_graphs(bool on) { graphs_on_ = on; }

    // Logits of every position, this rank's part of the vocabulary: [B, T, V/P]. tokens [B, T] int32; cu_seqlens: of
    // packed documents (Batch).
    Tensor local_logits(const Tensor& tokens, const std::vector<std::int32_t>& cu_seqlens = {});

    // Keys and values of the tokens decoded so far, a cache a layer.
    struct DecodeState {
        std::vector<KvCache> caches;
    };
    std::unique_ptr<DecodeState> start_decoding(std::int64_t batch, std::int64_t capacity);
    // Appends tokens [B, T] int32 to the sequences; returns the logits of the last position, gathered
    // over TP: [B, V] fp32, the same bits on all TP ranks.
    Tensor decode(DecodeState& state, const Tensor& tokens);

    // TrainableModel; see there.
    const ParameterList& parameters() override { return parameters_; }
    const ParameterBuckets& buckets() override { return buckets_; }
    void forward_backward(const Batch& batch,
                          double loss_scale,
                          bool last,
                          const Tensor& loss) override;
    void finish_update() override;
    void drop_update() override;
    double evaluate(const Batch& batch) override;
    // What a layer's attention does in a forward pass, this rank's heads.
    struct AttentionView {
        std::int64_t layer = 0;
        // [B, T, H/P, D], [B, T, K/P, D], as the projections give them, biases included: before norm and
        // rotation. Gone when the layer is.
        Tensor q, k;
        AttentionStats stats;
    };
    using AttentionObserver = std::function<void(const AttentionView&)>;
    // As evaluate, and shows every layer's attention on the way. Nothing of a layer is kept when the next begins.
    double observe(const Batch& batch, const AttentionObserver& observer);
    void reduce_numbers(const Tensor& numbers) override;
    // Of the grid's groups, if their timing is on (Communicator::set_timing); nothing where passes were replayed, which is
    // not timed.
    std::vector<CommunicationPart> take_communication() override;
    double data_parallel_mean(double value) override;
    // The tables of head_statistics.h and head_weights.h; empty without telemetry or without a forward
    // pass.
    std::vector<MetricTable> head_metrics() override;
    // "qk_norm_lambda" while the norm of queries and keys comes in (qk_norm_anneal.h), and after.
    std::vector<std::pair<std::string, double>> scalar_metrics() override;
    std::string locate_non_finite(const std::vector<Batch>& batches) override;
    ModelState state() override;
    // Writes it into a directory that all ranks see. Collective.
    void save_state(const std::string& directory);
    void load_state(const std::string& directory) override;
    bool load_initial(const std::string& directory, bool with_moments) override;
    // Without optimizer state: of the directory of a checkpoint or of Hugging Face, or from wherever they are.
    // Throws kConfig for weights that say they are another model's, and as load_parameters does.
    void load_weights(const std::string& directory);
    void load_weights(const TensorSource& weights);
    // Parameters have been given other first values than the constructor's: rules take them as theirs.
    void weights_given();
    std::string description() const override;
    std::string restated(const std::string& description) const override;
    bool is_main_rank() const override;
    int data_parallel_rank() const override;
    int data_parallel_size() const override;
    void barrier() override;
    int rank() const override;
    int ranks() const override;
    double max_over_ranks(double value) override;
    std::string replica_drift() override;
    double flops_per_token(std::int64_t seq_len) const override;

  private:
    struct Activations;
    struct Recorded;
    // A batch on the model's device. Packed documents are one sequence, [1, B T].
    struct Input {
        Tensor tokens, targets;
        SequenceLayout layout;
    };
    Input prepare(const Batch& batch) const;
    // forward_backward on the model's device.
    void run_passes(const Input& input, double loss_scale, bool last, const Tensor& loss);
    bool can_record(const Batch& batch) const;
    Recorded& recorded(const Batch& batch, double loss_scale, bool last, const Tensor& loss);
    // saved null: forward only.
    Tensor forward(const Input& input,
                   Activations* saved,
                   HeadStatistics* statistics,
                   FiniteProbe* probe,
                   const AttentionObserver* observer = nullptr);
    // Tells `reducer`, if there is one, of gradients that are final. Takes dlogits over, and drops what it has read.
    void backward(const Input& input,
                  Tensor dlogits,
                  Activations& saved,
                  GradientReducer* reducer,
                  FiniteProbe* probe);
    void check_batch(const Batch& batch) const;
    void make_rules();
    double lambda() const;  // 1 without one
    Tensor on_device(const Tensor& ids) const;
    SequenceLayout layout_of(const Input& input) const;
    Tensor embed(const Tensor& tokens, const SequenceRegion& region) const;
    Tensor normalize(const Tensor& x, Tensor& statistics) const;
    Tensor project(const Tensor& x, const SequenceRegion& region) const;
    Tensor project_backward(const Tensor& dlogits, const Tensor& x, const SequenceRegion& region);
    void check_same_model(const TensorSource& weights) const;

    const ProcessGrid& grid_;
    ModelConfig config_;
    std::unique_ptr<VocabParallelEmbedding> embedding_;
    std::vector<std::unique_ptr<DecoderBlock>> blocks_;
    std::unique_ptr<Norm> final_norm_;              // null in nGPT
    std::unique_ptr<ColumnParallelLinear> output_;  // null when tied
    std::vector<std::unique_ptr<WeightRule>> rules_;
    Tensor lambda_;  // of one of them (qk_norm_anneal.h); undefined without
    // [L, H/P] fp32: the largest logits, before softcap, since the last update; undefined if no rule asks.
    Tensor step_max_logit_;
    ParameterList parameters_;
    ParameterBuckets buckets_;
    std::unique_ptr<GradientReducer> reducer_;
    std::unique_ptr<HeadStatistics> statistics_;  // null without telemetry
    std::unique_ptr<UploadRing> uploads_;         // on CUDA
    bool graphs_on_ = true;
    bool replayed_ = false;  // a graph since exposed seconds were taken
    std::vector<std::unique_ptr<Recorded>> graphs_;
};

}  // namespace evenkeel
