#include "based/models/weights.h"

#include <filesystem>
#include <future>

#include "based/core/files.h"
#include "based/core/folders.h"
#include "based/core/hash.h"
#include "based/core/new_folder.h"
#include "based/mixers/kit/shapes_only.h"
#include "based/models/tensor_view.h"

namespace based {
namespace {

constexpr const char* kTokenizer = "tokenizer";  // in the metadata of the weights' file
constexpr const char* kEmbedding = "embedding";  // the tensor whose type is the model's

std::string in(const std::string& folder, const char* name) { return (std::filesystem::path(folder) / name).string(); }

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

bool is_float(DType dtype) { return dtype == DType::F32 || dtype == DType::BF16 || dtype == DType::F64 || dtype == DType::F16; }

// All reasons why `file` does not match the parameters of a model with this config, one per line.
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

// The type of each parameter in a model of type `type`: WideParameters are not narrower than fp32.
std::map<std::string, torch::Dtype> parameter_types(const ModelConfig& config, torch::Dtype type) {
  const ShapesOnly nothing_else;
  LanguageModel model(config);
  model.to(type);
  std::map<std::string, torch::Dtype> types;
  for (const auto& item : model.named_parameters()) types[item.key()] = item.value().scalar_type();
  return types;
}

// The type of the whole model, which is that of its embedding. WideParameters may have this type too. Other mixtures of types are an error,
// since no command writes them.
torch::Dtype common_dtype(const SafetensorsFile& file, const ModelConfig& config) {
  const TensorView& first = file.at(kEmbedding);
  const torch::Dtype type = torch_dtype(first.dtype);
  const auto types = parameter_types(config, type);
  for (const auto& view : file.tensors())
    if (view.dtype != first.dtype && torch_dtype(view.dtype) != types.at(view.name))
      throw Error(file.path() + ": tensor '" + view.name + "' has type " + dtype_name(view.dtype) + ", '" + first.name + "' has " +
                  dtype_name(first.dtype) + "; give --dtype to convert them");
  return type;
}

}  // namespace

NamedTensors named_weights(const LanguageModel& model) {
  NamedTensors weights;
  for (const auto& item : model.named_parameters()) weights.emplace_back(item.key(), item.value().detach());
  return weights;
}

void save_model(const LanguageModel& model, const std::string& folder, std::optional<uint64_t> tokenizer) {
  save_model(model.config(), named_weights(model), folder, tokenizer);
}

void save_model(const ModelConfig& model, const NamedTensors& weights, const std::string& folder, std::optional<uint64_t> tokenizer) {
  std::vector<Tensor> kept;  // dense copies where needed; the views point into them
  std::vector<TensorView> views;
  kept.reserve(weights.size());
  views.reserve(weights.size());
  for (const auto& [name, tensor] : weights) {
    kept.push_back(tensor.cpu().contiguous());
    views.push_back(view_of(name, kept.back()));
  }
  save_model(model, std::move(views), folder, tokenizer);
}

void save_model(const ModelConfig& model, std::vector<TensorView> weights, const std::string& folder, std::optional<uint64_t> tokenizer) {
  MadeFolder made(folder);
  // Both files are written before either is renamed: if the disk is full, the folder stays as it was.
  AtomicFile config(in(folder, "config.json"));
  const std::string config_text = write_config(model).to_json() + "\n";
  config.write(std::as_bytes(std::span(config_text)));
  std::map<std::string, std::string> metadata{{"format", "pt"}};
  if (tokenizer) metadata[kTokenizer] = hex(*tokenizer);
  write_safetensors(in(folder, "model.safetensors"), std::move(weights), metadata);
  config.commit();
  made.keep();
}

ModelFiles read_model_files(const std::string& folder) {
  if (!is_folder(folder))
    throw Error(folder + ": is not a model's folder; it holds config.json and model.safetensors, as `based train` leaves them");
  ModelFiles files{in(folder, "config.json"), in(folder, "model.safetensors"), {}, {}, torch::kFloat};
  files.config = read_stored([&] {
    const ModelConfig config = read_config<ModelConfig>(Config::parse_json_file(files.config_path));
    check_model_config(config);
    return config;
  });
  const SafetensorsFile weights(files.weights_path);
  if (weights.metadata().contains(kTokenizer)) files.tokenizer = weights.metadata().at(kTokenizer);
  const TensorView* embedding = weights.find(kEmbedding);
  if (embedding != nullptr && is_float(embedding->dtype)) files.dtype = torch_dtype(embedding->dtype);
  return files;
}

namespace {

// Copies a view, at any alignment, into new memory of the device.
Tensor placed(const TensorView& view, torch::Dtype dtype, torch::Device device) {
  const torch::Dtype stored = torch_dtype(view.dtype);
  const bool aligned = reinterpret_cast<uintptr_t>(view.bytes.data()) % torch::elementSize(stored) == 0;
  if (!aligned || view.bytes.empty()) return tensor_of(view).to(device, dtype);
  const Tensor mapped = torch::from_blob(const_cast<std::byte*>(view.bytes.data()), view.shape, torch::dtype(stored));
  if (device.is_cpu()) return mapped.to(dtype, /*non_blocking=*/false, /*copy=*/true);
  return mapped.to(device).to(dtype);  // transfers the stored bytes and converts them on the device
}

std::string hash_of(const ModelFiles& files) {
  Hasher128 hasher;
  for (const auto& path : {files.config_path, files.weights_path}) hasher.update(MappedFile(path).bytes());
  return hasher.digest().hex();
}

}  // namespace

LoadedModel load_model(const std::string& folder, std::optional<torch::Dtype> dtype, torch::Device device) {
  const ModelFiles files = read_model_files(folder);
  const SafetensorsFile file(files.weights_path);
  if (const std::string list = disagreements(file, files.config); !list.empty())
    throw Error(files.weights_path + ": does not fit " + files.config_path + ":" + list);
  const torch::Dtype type = dtype ? *dtype : common_dtype(file, files.config);
  const auto types = parameter_types(files.config, type);
  // Runs in parallel to the transfer of the weights, or after it if no thread can be started.
  auto hash = std::async(std::launch::async | std::launch::deferred, [&] { return hash_of(files); });
  LoadedModel loaded;
  {
    const SkipInitialisation weights_follow;  // memory that is allocated but never written takes no physical memory
    loaded.model = std::make_shared<LanguageModel>(files.config);
  }
  const torch::NoGradGuard no_grad;
  for (const auto& item : loaded.model->named_parameters())
    item.value().set_data(placed(file.at(item.key()), types.at(item.key()), device));
  // The parameters are already on the device. This moves the buffers, which are converted to the weights' type; a FixedTensor keeps its own
  // type.
  loaded.model->to(device, type);
  loaded.model->eval();
  loaded.hash = hash.get();
  return loaded;
}

}  // namespace based
