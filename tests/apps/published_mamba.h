// A model of one Mamba layer as Mamba's authors publish theirs, with 257 tokens and weights of zero.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "based/core/safetensors.h"

namespace based {

inline void write_published_mamba(const std::string& folder, DType dtype = DType::F32) {
  std::filesystem::create_directories(folder);
  write_file_atomic(folder + "/config.json", R"({"d_model": 8, "n_layer": 1, "vocab_size": 257, "ssm_cfg": {}})");
  const std::vector<std::byte> zeros(size_t{264} * 8 * 4);
  std::vector<TensorView> tensors;
  const auto add = [&](const std::string& name, const std::vector<int64_t>& shape) {
    tensors.push_back({"backbone." + name, dtype, shape, std::span(zeros).first(static_cast<size_t>(*tensor_bytes(dtype, shape)))});
  };
  add("embedding.weight", {264, 8});
  add("norm_f.weight", {8});
  add("layers.0.norm.weight", {8});
  const std::string mixer = "layers.0.mixer.";
  add(mixer + "A_log", {16, 16});
  add(mixer + "D", {16});
  add(mixer + "in_proj.weight", {32, 8});
  add(mixer + "conv1d.weight", {16, 1, 4});
  add(mixer + "conv1d.bias", {16});
  add(mixer + "x_proj.weight", {33, 16});
  add(mixer + "dt_proj.weight", {16, 1});
  add(mixer + "dt_proj.bias", {16});
  add(mixer + "out_proj.weight", {8, 16});
  write_safetensors(folder + "/model.safetensors", tensors);
}

}  // namespace based
