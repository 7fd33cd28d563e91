// Shards: safetensors files that hold parts of tensors, each written by the rank that owns them, and what they hold
// as one TensorSource, however they were cut.
//
// A file NAME.safetensors holds everything; or NAME-00001-of-0000N.safetensors to NAME-0000N-of-0000N.safetensors
// hold it together. Tensors that are whole in a file stand there as in any safetensors file. A part is a slice of one
// dimension, and of that slice maybe only a run of elements in row-major order (then one-dimensional in the file);
// where it lies is in the file's metadata, under "pieces": JSON
// {"TENSOR": {"shape": [whole tensor], "dim": 0, "begin": 0, "end": 8, "first": 0}}, "first" of runs alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "framework/storage/manifest.h"
#include "framework/storage/safetensors.h"
#include "framework/storage/tensor_source.h"

namespace evenkeel {

// Where a part lies in its tensor.
struct PieceExtent {
    int dim = 0;
    std::int64_t begin = 0, end = 0;  // of that dimension
    std::int64_t first = 0;           // elements of the slice that come before, in row-major order
    bool is_run = false;              // otherwise the whole slice
    bool operator==(const PieceExtent&) const = default;
};

struct TensorPiece {
    std::string name;
    Shape global_shape;  // one dimension at least
    PieceExtent extent;
    Tensor data;  // on any device: the slice, contiguous; of a run any shape
};

// One file, its tensors in memory.
struct StateShard {
    std::string file;  // "model-00001-of-00002.safetensors"
    SafetensorsMetadata metadata;
    std::vector<TensorPiece> pieces;  // at most one of each tensor
};

// "model.safetensors" of one, "model-00002-of-00003.safetensors" for index 1 of 3.
std::string shard_name(const std::string& name, int index, int count);

// Writes it into the directory and flushes it. Throws kIo, and kInvalidArgument for pieces that a reader would
// refuse.
ManifestFile write_shard(const std::string& directory, const StateShard& shard);

// Whether the directory holds NAME.safetensors or shards of that name.
bool has_state(const std::string& directory, const std::string& name);

// Reads what the files of that name in a directory hold. All files must be there, with the same metadata apart from
// "pieces", and their parts must cover every element of every tensor exactly once; else kIo names file and tensor.
// Files are treated as hostile. Callable from several threads.
std::unique_ptr<TensorSource> open_state(const std::string& directory, const std::string& name);

}  // namespace evenkeel
