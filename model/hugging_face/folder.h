// A Hugging Face folder (config.json and safetensors files) as a model of this project: its configuration, and its
// weights under this project's names, in this project's layouts, read without making copies of the files.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "framework/storage/tensor_source.h"
#include "model/hugging_face/family.h"
#include "model/hugging_face/shards.h"

namespace evenkeel::hugging_face {

// Whether the directory's config.json is one of these: it says what kind of model the folder holds.
bool is_folder(const std::string& directory);
// config.json of a directory. Throws kIo when it is not there or no JSON object.
ConfigJson read_config_json(const std::string& directory);

class Folder : public TensorSource {
  public:
    // Reads config.json and the headers of the weights. Throws kIo for files that are not sound or do not fit the
    // configuration, naming missing, surplus and differently shaped tensors, and kConfig for a model that can't be
    // represented, with the reason.
    explicit Folder(const std::string& directory);

    const Family& family() const { return *family_; }
    const ConfigJson& json() const { return json_; }
    // model.type is fp32 where the embedding is, else bf16.
    const ModelConfig& config() const { return config_; }
    const std::vector<TensorMap>& maps() const { return maps_; }
    const Shards& shards() const { return shards_; }
    // Tensors of the files that no parameter is made of: tables of RoPE, a copy of a tied embedding.
    const std::vector<std::string>& left_out() const { return left_out_; }

    std::string origin() const override { return shards_.directory(); }
    std::vector<std::string> names() const override;
    bool contains(const std::string& name) const override { return index_.count(name) != 0; }
    Shape shape(const std::string& name) const override { return map(name).shape; }
    // Of the files' tensors, which agree.
    DType dtype(const std::string& name) const override;
    // Throws kNonFinite too, naming the tensor of the file and the element.
    void read_slice(const std::string& name,
                    int dim,
                    std::int64_t begin,
                    std::int64_t end,
                    const Tensor& out) const override;

  private:
    const TensorMap& map(const std::string& name) const;
    void check_tensors();
    void check_tied_output(const std::string& embedding) const;
    void read_piece(const TensorMap& map, const TensorMap::Piece& piece, const Tensor& out) const;

    ConfigJson json_;
    const Family* family_ = nullptr;
    Shards shards_;
    ModelConfig config_;
    std::vector<TensorMap> maps_;
    std::map<std::string, std::size_t> index_;  // of maps_, by our name
    std::vector<std::string> left_out_;
};

}  // namespace evenkeel::hugging_face
