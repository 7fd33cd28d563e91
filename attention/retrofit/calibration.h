// What one attention layer's queries and keys look like before they are normalised: the statistics that gains
// are made of, and a bounded sample of rows that they are fitted on (gain_fit.h). Everything is by head, so that
// tensor-parallel ranks calibrate their own heads without communication, and a head's result is the same
// whichever rank has it.
//
// B sequences of a call, T tokens, H/P query and K/P key heads of this rank, D head width.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "attention/attention_config.h"
#include "attention/flash_attention.h"
#include "framework/tensor.h"

namespace evenkeel {

struct CalibrationOptions {
    double eps = 1e-6;  // of the norm to come, inside the root
    // Bounds of the sample that is kept for fits: keys are kept of whole sequences, at most max_tokens of them
    // (but two sequences at least), queries of at most max_rows tokens (but one a sequence at least), as many in
    // each kept sequence.
    std::int64_t max_tokens = 16384;
    std::int64_t max_rows = 4096;
    // Share of the kept sequences that gains are judged on, not fitted on; one at least.
    double held_out = 0.25;
    std::uint64_t seed = 0;  // of the choice of sequences and rows
};

// Mean and standard deviation of a stream of numbers (Welford 1962).
class RunningMoments {
  public:
    void add(double value);
    std::int64_t count() const { return count_; }
    double mean() const { return mean_; }
    double deviation() const;
    // Deviation over mean; 0 if the mean is.
    double variation() const;

  private:
    std::int64_t count_ = 0;
    double mean_ = 0.0, squares_ = 0.0;
};

// A sequence of the sample.
struct CalibrationSequence {
    std::int64_t index = 0;               // in the order in which sequences came
    std::vector<std::int32_t> positions;  // [T], for the rotation
    std::vector<std::int32_t> documents;  // cu_seqlens (AttentionMask); empty: one document
    std::vector<std::int64_t> rows;       // ascending: tokens whose queries are kept
    std::vector<float> q;                 // [rows, H/P, D]
    std::vector<float> k;                 // [T, K/P, D]
};

struct SampledSequence {
    std::shared_ptr<const CalibrationSequence> sequence;
    bool held_out = false;  // judged on, not fitted on
};

class HeadCalibration {
  public:
    // config: of the layer as it is, without QK-norm. Throws kConfig where there is one, and where logits are capped
    // (softcap): nothing is known of the fit there. heads, kv_heads: this rank's. sink [H/P] fp32: the learned
    // ones of a layer that has them, else undefined.
    HeadCalibration(const AttentionConfig& config,
                    std::int64_t heads,
                    std::int64_t kv_heads,
                    const CalibrationOptions& options,
                    const Tensor& sink = {});

    // Adds B sequences. q [B, T, H/P, D] and k [B, T, K/P, D] after biases, before rotation; fp32 or bf16 on
    // the CPU, any strides with contiguous rows of D. positions [B, T] int32; undefined: 0 .. T-1. documents:
    // AttentionMask::cu_seqlens, with B = 1. T is the same in all calls. How sequences are spread over calls
    // makes no difference. Throws kNonFinite naming the first head and token with a NaN or an infinity.
    void update(const Tensor& q,
                const Tensor& k,
                const Tensor& positions = {},
                const std::vector<std::int32_t>& documents = {});

    // Adds the kernels' telemetry of `sequences` sequences (fp32 [H/P] on the CPU), if the caller has it: the
    // largest logit and the entropy over all data, where the sample has a part.
    void observe(const AttentionStats& stats, std::int64_t sequences);

    const AttentionConfig& config() const { return config_; }
    const CalibrationOptions& options() const { return options_; }
    std::int64_t heads() const { return heads_; }
    std::int64_t kv_heads() const { return kv_heads_; }
    std::int64_t sequences() const { return sequences_; }  // seen so far
    std::int64_t tokens() const { return tokens_; }

    // Of sqrt(mean(x^2) + eps) over all tokens, x a head's row: what the norm will divide by.
    const RunningMoments& q_rms(std::int64_t head) const;     // of query head 0 .. H/P - 1
    const RunningMoments& k_rms(std::int64_t kv_head) const;  // of key head 0 .. K/P - 1
    // A query head's learned sink; 0 with the off-by-one softmax; -infinity without any.
    double sink(std::int64_t head) const;
    // From observe: -infinity and NaN if it never was called. Of query head 0 .. H/P - 1.
    double observed_max_logit(std::int64_t head) const;
    double observed_entropy(std::int64_t head) const;

    // The sample, in order of index. Which sequences and rows are in it depends on seed, bounds, T and the number
    // of sequences alone: the sequences and the rows of smallest random key. Rows of a sequence are halved whenever
    // there would be too many.
    std::vector<SampledSequence> sample() const;
    // Memory of the sample as it is now, and the most that one may have.
    std::size_t sample_bytes() const;
    static std::size_t max_sample_bytes(std::int64_t heads,
                                        std::int64_t kv_heads,
                                        std::int64_t head_dim,
                                        std::int64_t sequence_length,
                                        const CalibrationOptions& options);

  private:
    struct Kept {
        std::uint64_t key;
        std::shared_ptr<const CalibrationSequence> sequence;
    };
    void thin();  // halves the rows until they are few enough

    AttentionConfig config_;
    CalibrationOptions options_;
    std::int64_t heads_, kv_heads_;
    std::vector<double> sinks_;
    std::int64_t length_ = 0;     // T
    std::int64_t rows_each_ = 0;  // rows kept of a sequence
    std::int64_t sequences_ = 0, tokens_ = 0;
    std::vector<RunningMoments> q_rms_, k_rms_;
    std::vector<Kept> kept_;
    std::vector<double> max_logit_, entropy_;
    std::int64_t observed_ = 0;  // sequences
};

}  // namespace evenkeel
