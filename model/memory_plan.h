// How much memory training takes on each rank, known before anything is allocated.
//
// B sequences of a micro-batch, T positions, N = B T tokens, C width, H query heads, K key/value heads, D head
// width, F feed-forward width, V vocabulary, L layers, P tensor-parallel size. Hl = H/P and Kl = K/P heads are on
// this rank (Kl = 1 where P > K), g = 2 matrices lead into the feed-forward layer where it is gated and 1 with GELU,
// a layer has n norms (pre_norm and post_norm 2, sandwich_norm 4, parallel 1) with m numbers a row (RMSNorm 1,
// LayerNorm 2), R = N rows of the stream are on this rank, with sequence parallelism N/P, e bytes are an element of
// the compute type, s are those of flash_attention_scratch in backward and, on a GPU, 8 N
// where documents are packed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "model/model_config.h"

namespace evenkeel {

// What a step does on one rank.
struct StepShape {
    Device device = Device::kCpu;
    std::int64_t tensor_parallel = 1;
    std::int64_t data_parallel = 1;
    std::int64_t zero_stage = 0;        // ParallelConfig::zero_stage
    std::int64_t micro_batch_size = 1;  // B
    std::int64_t micro_batches = 1;     // of a step
    std::int64_t seq_len = 256;         // T
    bool sequence_parallel = false;
    bool packed = false;  // batches are documents one behind the other (Batch::cu_seqlens)
    bool async_checkpoints = false;  // TrainerConfig::checkpoint_async
};

// In bytes.
struct MemoryPlan {
    // Held throughout. M matrix elements: V/P C, twice unless embeddings are tied, and in each layer
    // (2 Hl + 2 Kl) D C + (g + 1) F/P C. G gain elements: (n L + 1) C, twice that with biases, and in each layer
    // those of the gains of q and k, (Hl + Kl) D where each head has its own, and Hl of learned sinks.
    // sigma_reparam.h adds small parameters, tables, and fp32 values; nGPT has 2 L C rates instead of the norms'
    // gains, L g F/P + V/P scales, and fp32 values of the matrices with these.
    // With zero_stage 1 over Q > 1 data-parallel ranks a rank has the masters of bf16 values and the moments of a Qth,
    // but of all Mw matrix and Gw gain elements that rules change as a whole (Parameter::whole_state): everything but
    // norms and q and k gains in nGPT, the matrices of the layers with sigma_reparam, wq, wk and wv, or q and k gains
    // where there are any, with qk_clip_threshold, those gains where they are held.
    std::size_t values = 0;     // bf16 only: 2 M; fp32 values are their own masters
    std::size_t masters = 0;    // 4 (M + G); cut, of bf16: 4 (Mw + (M - Mw)/Q + G)
    std::size_t gradients = 0;  // 4 (M + G)
    std::size_t moments = 0;    // 8 (M + G); cut: 8 (Mw + Gw + (M - Mw + G - Gw)/Q)
    // Rotation of each layer 4 T D, telemetry, token ids, singular vectors; of packed documents positions, 4 N.
    std::size_t tables = 0;

    // Of one layer between forward and backward where nothing is made again:
    //   e (4 R C + N (3 Hl + 3 Kl) D + N (g + 1) F/P) + 4 N (2 Hl + Kl) + 4 R n m,
    // without QK-norm e (4 R C + N (2 Hl + 2 Kl) D + N (g + 1) F/P) + 4 N Hl + 4 R n m. In place of 4 C sandwich_norm has
    // 6 C, parallel 2 C. With one statistic for all heads 2 in place of the second Hl + Kl; with a factor of the logits in place of gains a channel 4 Hl D more.
    // In nGPT 4 R more a layer for each of its two updates than a norm keeps, 4 R (.. + 4).
    // recompute full keeps e R C of all this, attention all but what it makes up to its output projection,
    //   e N (3 Hl + 3 Kl) D + 4 N (2 Hl + Kl), and e R C where a norm is before it and before it alone,
    // elementwise all but e N F/P, with QK-norm e N (Hl + Kl) D (not of one statistic for all heads), and e R C for each
    // norm before a layer.
    std::size_t saved_layer = 0;  // the most that a layer has
    std::size_t saved = 0;        // of all layers
    // Logits, then their gradients, e N V/P; of the final norm 2 e R C + 4 R m, e R C without one; w and 4 N.
    std::size_t loss = 0;
    // What backward makes on top, after the loss, most in the last layer, for which all others wait: the gradient of the
    // residual stream, and the larger of what its two halves make,
    //   e R C + max(e N F/P, w - e N F/P, e N (2 Hl + 2 Kl) D + max(s, w) - d),
    // and e R C of a norm after a layer and in nGPT, e N C beside the first e N F/P with sequence parallelism. w is what a column-parallel product makes for the gradient of its input: e N C, and
    // with sequence parallelism that of all rows, the input of all rows, and their sum, e (2 N + R) C. d is what only the feed-forward half reads, dropped after it:
    // e N (g + 1) F/P + e R C, of sandwich_norm e R C more, of parallel as much less, and there attention's half has
    // e R C more. What has not been kept is there too: the layer's own with recompute full (of parallel half by
    // half), attention's in its half with recompute attention; with elementwise what each half reads.
    std::size_t backward = 0;
    std::size_t communication = 0;  // staging of sums over ranks on the CPU

    // What the first rank copies for checkpoints that are written beside the training, kept from the first one on, in
    // the host's memory: 12 bytes for each element whose master and moments it writes (state_shard.h), and 4 for
    // each that is not trained. Others of its data-parallel group write nothing, or with zero_stage 1 their parts.
    std::size_t snapshot = 0;

    // What cuBLASLt holds on a GPU beside tensors, at most. A CUDA context, loaded kernels and NCCL's channels are
    // not known here, nor what oneDNN keeps on the CPU.
    std::size_t workspace = 0;

    std::size_t parameters() const { return values + masters + gradients + moments; }
    // Between forward and backward.
    std::size_t passes() const { return saved + (loss > backward ? loss : backward); }
    // Of a step's tensors: what Buffer::peak_bytes shows before there is a checkpoint.
    std::size_t peak() const { return parameters() + tables + passes() + communication; }
    // Of the device's memory.
    std::size_t total() const { return peak() + workspace + (snapshot_is_apart ? 0 : snapshot); }

    bool snapshot_is_apart = false;  // on a GPU, whose memory is not the host's
};

// The configuration must be valid for that tensor-parallel size.
MemoryPlan plan_memory(const ModelConfig& config, const StepShape& shape);

// A line for each part.
std::string to_text(const MemoryPlan& plan);
// "512 B", "1.50 KiB", "12.3 MiB".
std::string bytes_text(std::size_t bytes);

}  // namespace evenkeel
