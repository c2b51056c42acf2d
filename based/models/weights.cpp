#include "based/models/weights.h"

#include <filesystem>

#include "based/core/hash.h"
#include "based/mixers/shapes_only.h"
#include "based/models/tensor_view.h"

namespace based {
namespace {

constexpr const char* kTokenizer = "tokenizer";  // in the metadata of the weights' file

std::string in(const std::string& folder, const char* name) { return (std::filesystem::path(folder) / name).string(); }

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

bool is_float(DType dtype) { return dtype == DType::F32 || dtype == DType::BF16 || dtype == DType::F64 || dtype == DType::F16; }

// Everything that keeps `file` from filling the parameters of such a model, one line each.
std::string disagreements(const SafetensorsFile& file, const ModelConfig& config) {
  const ShapesOnly nothing_else;
  const auto parameters = LanguageModel(config).named_parameters();
  std::string list;
  for (const auto& item : parameters) {
    const TensorView* view = file.find(item.key());
    if (!view)
      list += "\n  missing: " + item.key() + " " + shape_text(item.value().sizes().vec());
    else if (view->shape != item.value().sizes().vec())
      list += "\n  " + item.key() + ": shape " + shape_text(view->shape) + ", the model's is " + shape_text(item.value().sizes().vec());
    else if (!is_float(view->dtype))
      list += "\n  " + item.key() + ": type " + dtype_name(view->dtype) + " is no floating-point type";
  }
  for (const auto& view : file.tensors())
    if (!parameters.contains(view.name)) list += "\n  unexpected: " + view.name + " " + shape_text(view.shape);
  return list;
}

// One type for the whole model: a mixture is made by nobody, and hides mistakes.
torch::Dtype common_dtype(const SafetensorsFile& file) {
  const auto& tensors = file.tensors();
  if (tensors.empty()) throw Error(file.path() + ": holds no tensors");
  for (const auto& view : tensors)
    if (view.dtype != tensors.front().dtype)
      throw Error(file.path() + ": tensor '" + view.name + "' has type " + dtype_name(view.dtype) + ", '" + tensors.front().name +
                  "' has " + dtype_name(tensors.front().dtype) + "; give --dtype to convert them");
  return torch_dtype(tensors.front().dtype);
}

}  // namespace

void save_model(const LanguageModel& model, const std::string& folder, std::optional<uint64_t> tokenizer) {
  std::filesystem::create_directories(folder);
  std::vector<Tensor> kept;  // dense copies where needed; the views point into them
  std::vector<TensorView> views;
  for (const auto& item : model.named_parameters()) {
    kept.push_back(item.value().detach().cpu().contiguous());
    views.push_back(view_of(item.key(), kept.back()));
  }
  std::map<std::string, std::string> metadata{{"format", "pt"}};
  if (tokenizer) metadata[kTokenizer] = hex(*tokenizer);
  write_safetensors(in(folder, "model.safetensors"), views, metadata);
  write_file_atomic(in(folder, "config.json"), write_config(model.config()).to_json() + "\n");
}

ModelFiles read_model_files(const std::string& folder) {
  if (!std::filesystem::is_directory(folder))
    throw Error(folder + ": is not a model's folder; it holds config.json and model.safetensors, as `based train` leaves them");
  ModelFiles files{in(folder, "config.json"), in(folder, "model.safetensors"), {}, {}};
  files.config = read_stored([&] {
    const ModelConfig config = read_config<ModelConfig>(Config::parse_json_file(files.config_path));
    check_model_config(config);
    return config;
  });
  const SafetensorsFile weights(files.weights_path);
  if (weights.metadata().contains(kTokenizer)) files.tokenizer = weights.metadata().at(kTokenizer);
  return files;
}

LoadedModel load_model(const std::string& folder, std::optional<torch::Dtype> dtype, torch::Device device) {
  const ModelFiles files = read_model_files(folder);
  const SafetensorsFile file(files.weights_path);
  if (const std::string list = disagreements(file, files.config); !list.empty())
    throw Error(files.weights_path + ": does not fit " + files.config_path + ":" + list);
  LoadedModel loaded;
  {
    const SkipInitialisation weights_follow;
    loaded.model = std::make_shared<LanguageModel>(files.config);
  }
  const torch::NoGradGuard no_grad;
  loaded.model->to(device, dtype ? *dtype : common_dtype(file));
  for (const auto& item : loaded.model->named_parameters()) item.value().copy_(tensor_of(file.at(item.key())));
  loaded.model->eval();
  Hasher128 hasher;
  for (const auto& path : {files.config_path, files.weights_path}) hasher.update(MappedFile(path).bytes());
  loaded.hash = hasher.digest().hex();
  return loaded;
}

}  // namespace based
