// Shards of tensors (state_shard.h) as one TensorSource.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "framework/storage/state_shard.h"

namespace evenkeel {

class ShardedSource : public TensorSource {
  public:
    // Opens the files and checks that their parts make whole tensors; throws kIo as open_state says. `origin` is what
    // messages call all of them.
    ShardedSource(const std::string& origin, const std::vector<std::string>& paths);

    const std::vector<std::unique_ptr<SafetensorsReader>>& files() const { return files_; }

    std::string origin() const override { return origin_; }
    // What the metadata says under the key "model".
    std::string model() const override;
    std::vector<std::string> names() const override { return names_; }
    bool contains(const std::string& name) const override { return tensors_.contains(name); }
    Shape shape(const std::string& name) const override { return find(name).shape; }
    // Throws kIo for a tensor of a type that no Tensor has.
    DType dtype(const std::string& name) const override;
    void read_slice(const std::string& name,
                    int dim,
                    std::int64_t begin,
                    std::int64_t end,
                    const Tensor& out) const override;

  private:
    struct Part {
        const SafetensorsReader* file = nullptr;
        PieceExtent extent;
        std::int64_t count = 0;  // elements
    };
    struct Whole {
        Shape shape;
        std::string dtype;
        std::vector<Part> parts;  // in the order of their elements, none empty
    };
    const Whole& find(const std::string& name) const;
    void add_file(const SafetensorsReader& file);
    static void check_cover(const std::string& name, Whole& tensor);
    static void read_part(const std::string& name,
                          const Whole& tensor,
                          const Part& part,
                          int dim,
                          std::int64_t begin,
                          std::int64_t end,
                          const Tensor& out);

    std::string origin_;
    std::vector<std::unique_ptr<SafetensorsReader>> files_;
    std::vector<std::string> names_;  // in the order of the files
    std::map<std::string, Whole> tensors_;
};

}  // namespace evenkeel
