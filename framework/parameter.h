// A trainable tensor and everything that is true of it: how it is cut over the tensor-parallel group,
// over which ranks its gradient is summed, whether weight decay applies. Declared by the layer that
// owns it; nothing infers any of this from a name or from the rank of a tensor.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "framework/tensor.h"

namespace evenkeel {

// Elements begin .. end-1 of a dimension.
struct PieceRange {
    std::int64_t begin = 0, end = 0;
    std::int64_t size() const { return end - begin; }
};
// Piece `index` of `pieces` of `extent` elements: as even as can be, the longer ones first, so that with fewer
// elements than pieces the last ones are empty. Every cut of a dimension in this project is one of these.
PieceRange piece_range(std::int64_t extent, std::int64_t pieces, std::int64_t index);

// Which part of a global tensor a tensor-parallel rank holds. Ranks and sizes are those of the
// tensor-parallel group.
struct Sharding {
    enum class Kind {
        kReplicated,         // every rank holds the whole tensor
        kSharded,            // size pieces along `dim`, one a rank
        kReplicatedInGroup,  // fewer pieces than ranks: each piece lives on `replicas` successive ranks
    };
    Kind kind = Kind::kReplicated;
    int dim = 0;             // the cut dimension
    std::int64_t begin = 0;  // this rank's range of that dimension
    std::int64_t end = 0;
    int replicas = 1;          // how many ranks hold these same elements
    int replica_index = 0;     // which of them this rank is; number 0 is the owner
    std::int64_t longest = 0;  // extent of the longest piece; 0: of this one

    // The owner is the one that counts in norms and that writes checkpoints, so every element of the
    // global tensor has exactly one.
    bool is_owner() const { return replica_index == 0; }

    static Sharding replicated(int rank, int size);
    // Even pieces of `extent`, in whole units of `unit` elements. Throws unless size * unit divides
    // extent.
    static Sharding sharded(int dim, std::int64_t extent, std::int64_t unit, int rank, int size);
    // piece_range of `extent`, which need not be divisible: pieces may differ by one element, and be empty.
    static Sharding sharded_unevenly(int dim, std::int64_t extent, int rank, int size);
    // `heads` blocks of `unit` elements along `dim`. heads >= size: size must divide heads; otherwise
    // heads must divide size and each head is replicated on size / heads successive ranks.
    static Sharding sharded_by_head(
        int dim, std::int64_t heads, std::int64_t unit, int rank, int size);
};

// Over which ranks of the tensor-parallel group the local gradient is only a part. (Over the
// data-parallel group every gradient is averaged.)
enum class GradientSum {
    kNone,            // the local gradient is whole: a shard, or a replica that saw the whole input
    kTensorParallel,  // each rank saw its own heads only: sum over the group
    kReplicaGroup,    // sum over the ranks that hold the same piece
};

// Elements [begin, end) of a tensor in row-major order.
struct FlatRange {
    std::int64_t begin = 0, end = 0;

    std::int64_t size() const { return end - begin; }
    bool operator==(const FlatRange&) const = default;
};

// How master and moments of a parameter lie on the data-parallel ranks (ZeRO stage 1: Rajbhandari et al. 2020,
// "ZeRO: memory optimizations toward training trillion parameter models", section 5.1). A bucket of parameters is
// cut into equal runs, one a rank in the ranks' order, wherever parameters begin and end in it.
struct StateCut {
    int parts = 1;                   // data-parallel ranks; 1: every rank has all
    int part = 0;                    // this rank's
    std::int64_t part_elements = 0;  // of the bucket
    std::int64_t offset = 0;         // of the parameter's first element in the bucket
};

struct Parameter {
    std::string name;  // "layers.3.attention.q_gain"
    Shape global_shape;
    Sharding sharding;
    DType dtype = DType::kFloat32;  // of value
    GradientSum gradient_sum = GradientSum::kNone;
    bool weight_decay = true;
    // Otherwise state that the optimizer leaves alone: no gradient, no moments in checkpoints.
    bool trained = true;
    // May be missing among weights that a run starts from, and then stays as its owner has initialised it. A
    // checkpoint that a run resumes from has it.
    bool optional = false;
    // What a run's first phase trains, where there is one (TrainerConfig::first_phase_steps).
    bool first_phase = false;
    // What value holds is made from master by a rule (model/rules/weight_rule.h), not rounded from it: it has
    // memory of its own in fp32 too, where the optimizer does not write it.
    bool derived_value = false;
    // Lies directly behind the parameter before it in the list, as the next rows of one matrix that is
    // used whole (Tensor::joined).
    bool joins_previous = false;
    // Every data-parallel rank has all of master and moments, also where those of others are cut: for what a rule
    // reads or changes as a whole. Goes for those that are joined with it too.
    bool whole_state = false;

    // What ParameterBuckets gives.
    StateCut state_cut;
    // Memory, undefined until then.
    Tensor value;  // local shape, what forward and backward read: fp32 or bf16
    // fp32: what the optimizer updates; value's memory when that is fp32 and not derived. Local shape, or where
    // is_cut() flat, [held().size()]: elements held() of the local shape; none where a rank's part of the bucket lies
    // elsewhere. Only together do the data-parallel ranks have all of it.
    Tensor master;
    Tensor grad;                 // local shape, fp32: backward adds to it
    Tensor exp_avg, exp_avg_sq;  // fp32, of master's shape: AdamW's moments

    Shape local_shape() const;
    bool is_cut() const { return state_cut.parts > 1; }
    // The local elements that data-parallel rank `part` has master and moments of. The ranks' ranges are in the ranks'
    // order and cover every element once; with is_cut() false each is everything.
    FlatRange held_by(int part) const;
    FlatRange held() const { return held_by(state_cut.part); }
    // Gives weights, fp32 of local shape on any device and the same on all data-parallel ranks, to master (what is
    // held) and, rounded, to value (all of it).
    void assign(const Tensor& weights) const;
    // Copies what is held of a tensor of local shape to one of master's shape.
    void put_held(const Tensor& whole, const Tensor& held) const;
    // Rounds master into what value has of the same elements; nothing to do when they share memory.
    void refresh_value() const;
};

// A parameter without memory; global_shape has at least one dimension ([1] for a scalar).
Parameter declare_parameter(const std::string& name,
                            const Shape& global_shape,
                            const Sharding& sharding,
                            DType dtype);

// Fills master (then value) with normal numbers of the given standard deviation, keyed by (seed,
// parameter name, index in the global tensor): the same weights at any tensor-parallel size.
void init_normal(const Parameter& parameter, double standard_deviation, std::uint64_t seed);
void init_constant(const Parameter& parameter, float value);

// Layers declare and own their parameters; everything else sees them through this list, in one order that is the
// same on all ranks.
using ParameterList = std::vector<Parameter*>;

}  // namespace evenkeel
