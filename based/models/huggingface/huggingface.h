// Models in the layout of Hugging Face's transformers library. Such a folder holds
//   config.json             the keys that transformers reads, and this library's config under "based"
//   modeling_based.py, configuration_based.py   classes that import the Python package based_cpp, named by "auto_map"
//   generation_config.json  the token that ends documents, if the model has a tokenizer
//   model.safetensors       this library's names, except that "embedding" and "position_embedding" end in ".weight"
// and the tokenizer's files, which the caller writes. docs/huggingface.md describes it for users.
#pragma once
#include <optional>
#include <string>

#include "based/models/config.h"

namespace based {

// Whether the config.json of the folder names the classes of based_cpp, independently of the folder's other files.
bool is_huggingface_model(const std::string& folder);

// The name of a tensor there, from its name here, and back. Other names stay the same.
std::string huggingface_name(const std::string& ours);
std::string name_from_huggingface(const std::string& theirs);

// Writes the files above into the existing folder `out`, from a model's folder of this library. `end_of_text` is the id of the tokenizer's
// token that ends documents. Weights keep their types and bytes. Throws UsageError for quantised weights and for a layer whose mixer has no
// Python module.
void write_huggingface_model(const std::string& folder, const std::string& out, std::optional<int32_t> end_of_text);

// The way back: writes config.json and model.safetensors as save_model does into `out`, which is created if it is absent, from a folder
// that write_huggingface_model or save_pretrained wrote. `tokenizer` is the hash of the folder's tokenizer; it is recorded if the config
// has none. Weights keep their types and bytes. Returns the model's config. Throws Error that names the file and lists all missing,
// unexpected, misshapen and wrongly typed tensors.
ModelConfig read_huggingface_model(const std::string& folder, const std::string& out, std::optional<uint64_t> tokenizer);

}  // namespace based
