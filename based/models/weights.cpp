#include "based/models/weights.h"

#include <filesystem>
#include <future>
#include <set>

#include "based/core/files.h"
#include "based/core/folders.h"
#include "based/core/hash.h"
#include "based/core/log.h"
#include "based/core/new_folder.h"
#include "based/mixers/kit/shapes_only.h"
#include "based/models/quantised.h"
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

// The reason why a layer's weight is not stored as "weights" in config.json says, "" if it is. `view`: of a full weight, or null.
std::string form_problem(const TensorView* view, const std::optional<StoredQuantised>& stored, const std::vector<int64_t>& shape,
                         ops::WeightForm form) {
  const bool fits = ops::can_quantise(form, shape.at(1));
  if (view != nullptr && fits) return std::string("is ") + dtype_name(view->dtype) + ", must be " + weight_form_name(form);
  if (view != nullptr || !stored) return "";
  if (stored->form != form) return fits ? "must be " + weight_form_name(form) : "must be in full precision";
  return quantised_problem(*stored, shape.at(0), shape.at(1));
}

bool is_float(DType dtype) { return dtype == DType::F32 || dtype == DType::BF16 || dtype == DType::F64 || dtype == DType::F16; }

// All reasons why `file` does not match the parameters of the model, one per line.
std::string disagreements(const SafetensorsFile& file, const ModelFiles& files) {
  const ShapesOnly nothing_else;
  const LanguageModel model(files.config);
  const auto parameters = model.named_parameters();
  const auto layers = quantisable_layers(model);
  std::set<std::string> quantised;  // names of the tensors of quantised weights
  std::string list;
  for (const auto& item : parameters) {
    const TensorView* view = file.find(item.key());
    const bool is_embedding = item.key() == kEmbeddingName, may_be_quantised = files.form && (is_embedding || layers.contains(item.key()));
    const auto stored = may_be_quantised && !view ? find_quantised(file, item.key()) : std::nullopt;
    if (stored) {
      quantised.insert(stored->values->name);
      if (stored->scales != nullptr) quantised.insert(stored->scales->name);
    }
    const std::string problem =
        may_be_quantised ? form_problem(view, stored, item.value().sizes().vec(), is_embedding ? kEmbeddingForm : *files.form) : "";
    if (!problem.empty())
      list += "\n  " + (stored ? stored->values->name : item.key()) + ": " + problem;
    else if (stored)
      continue;
    else if (!view)
      list += "\n  missing: " + item.key() + " " + shape_text(item.value().sizes().vec());
    else if (view->shape != item.value().sizes().vec())
      list += "\n  " + item.key() + ": shape " + shape_text(view->shape) + ", the model's is " + shape_text(item.value().sizes().vec());
    else if (!is_float(view->dtype))
      list += "\n  " + item.key() + ": type " + dtype_name(view->dtype) + " is no floating-point type";
  }
  for (const auto& view : file.tensors())
    if (!parameters.contains(view.name) && !quantised.contains(view.name))
      list += "\n  unexpected: " + view.name + " " + shape_text(view.shape);
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

// A tensor of the model's type: the embedding or, if that is quantised, the first of the others except WideParameters. Null if there is
// none.
const TensorView* typical_tensor(const SafetensorsFile& file, const ModelConfig& config) {
  if (const TensorView* embedding = file.find(kEmbeddingName)) return embedding;
  for (const auto& [name, type] : parameter_types(config, torch::kBFloat16)) {
    const TensorView* view = file.find(name);
    if (view != nullptr && type == torch::kBFloat16) return view;
  }
  return nullptr;
}

// The type of the whole model. WideParameters may have this type too. Other mixtures of types are an error, since no command writes them.
torch::Dtype common_dtype(const SafetensorsFile& file, const ModelConfig& config) {
  const TensorView* const typical = typical_tensor(file, config);
  if (typical == nullptr) return torch::kFloat;
  const TensorView& first = *typical;
  const torch::Dtype type = torch_dtype(first.dtype);
  const auto types = parameter_types(config, type);
  for (const auto& view : file.tensors())
    if (const auto wanted = types.find(view.name);
        wanted != types.end() && view.dtype != first.dtype && torch_dtype(view.dtype) != wanted->second)
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
  write_model_files(write_config(model), std::move(weights), folder, tokenizer ? std::optional(hex(*tokenizer)) : std::nullopt);
}

void write_model_files(const Config& json, std::vector<TensorView> weights, const std::string& folder,
                       const std::optional<std::string>& tokenizer) {
  MadeFolder made(folder);
  // Both files are written before either is renamed: if the disk is full, the folder stays as it was.
  AtomicFile config(in(folder, "config.json"));
  const std::string config_text = json.to_json() + "\n";
  config.write(std::as_bytes(std::span(config_text)));
  std::map<std::string, std::string> metadata{{"format", "pt"}};
  if (tokenizer) metadata[kTokenizer] = *tokenizer;
  write_safetensors(in(folder, "model.safetensors"), std::move(weights), metadata);
  config.commit();
  made.keep();
}

StoredConfig read_stored_config(const std::string& path) {
  return read_stored([&] {
    const Config json = Config::parse_json_file(path);
    if (json.find("n_embd") != nullptr || (json.find("d_model") != nullptr && json.find("n_layer") != nullptr))
      throw Error(path + ": is of a model as its authors published it; `based convert FOLDER --out NEW` makes a model's folder of it");
    StoredConfig stored;
    Config fields = json;
    if (const Config* form = json.find(kWeightFormKey)) {
      if (!std::holds_alternative<std::string>(form->value())) throw UsageError(form->where() + kWeightFormKey + " must be a string");
      stored.form = parse_weight_form(std::get<std::string>(form->value()), form->where() + kWeightFormKey);
      Config::Table others = std::get<Config::Table>(json.value());
      std::erase_if(others, [](const auto& entry) { return entry.first == kWeightFormKey; });
      fields = Config(Config::Value(std::move(others)), json.where());
    }
    stored.config = read_config<ModelConfig>(fields);
    check_model_config(stored.config);
    return stored;
  });
}

void require_full_weights(const ModelFiles& files, const std::string& action) {
  if (files.form)
    throw UsageError(files.config_path + ": the weights are " + weight_form_name(*files.form) + "; " + action +
                     " needs the model that they were converted from");
}

void check_weights(const SafetensorsFile& file, const ModelFiles& files) {
  if (const std::string list = disagreements(file, files); !list.empty())
    throw Error(files.weights_path + ": does not fit " + files.config_path + ":" + list);
}

ModelFiles read_model_files(const std::string& folder) {
  if (!is_folder(folder))
    throw Error(folder + ": is not a model's folder; it holds config.json and model.safetensors, as `based train` leaves them");
  ModelFiles files{in(folder, "config.json"), in(folder, "model.safetensors"), {}, {}, torch::kFloat, {}};
  const StoredConfig stored = read_stored_config(files.config_path);
  files.config = stored.config, files.form = stored.form;
  const SafetensorsFile weights(files.weights_path);
  if (weights.metadata().contains(kTokenizer)) files.tokenizer = weights.metadata().at(kTokenizer);
  const TensorView* typical = typical_tensor(weights, files.config);
  if (typical != nullptr && is_float(typical->dtype)) files.dtype = torch_dtype(typical->dtype);
  return files;
}

torch::Dtype run_type(torch::Dtype stored) { return stored == torch::kHalf ? torch::kFloat : stored; }

namespace {

// The type in which a model runs that is loaded without a wish for one.
torch::Dtype default_type(const SafetensorsFile& file, const ModelConfig& config) {
  const torch::Dtype stored = common_dtype(file, config), type = run_type(stored);
  if (type != stored)
    log_info(file.path() + ": the weights are " + float_type_name(stored) + "; the model runs in " + float_type_name(type) +
             ", since no type is asked for");
  return type;
}

// Copies a view, at any alignment, into new memory of the device.
Tensor placed(const TensorView& view, torch::Dtype dtype, torch::Device device) {
  const torch::Dtype stored = torch_dtype(view.dtype);
  const bool aligned = reinterpret_cast<uintptr_t>(view.bytes.data()) % torch::elementSize(stored) == 0;
  if (!aligned || view.bytes.empty()) return tensor_of(view).to(device, dtype);
  const Tensor mapped = torch::from_blob(const_cast<std::byte*>(view.bytes.data()), view.shape, torch::dtype(stored));
  if (device.is_cpu()) return mapped.to(dtype, /*non_blocking=*/false, /*copy=*/true);
  return mapped.to(device).to(dtype);  // transfers the stored bytes and converts them on the device
}

// Quantised weights have kernels for activations in fp32 and bf16; int4 for the CPU only.
void require_quantised_support(const ModelFiles& files, torch::Dtype type, torch::Device device) {
  const std::string weights = files.config_path + ": the weights are " + weight_form_name(*files.form);
  if (!device.is_cpu() && *files.form == ops::WeightForm::int4)
    throw UsageError(weights +
                     ", which runs on the CPU only; give --device cpu, or use the model that they were converted from, or its int8 form");
  if (type != torch::kFloat && type != torch::kBFloat16)
    throw UsageError(weights + ", which runs in fp32 or bf16, not in " + float_type_name(type) + "; give --dtype fp32 or bf16");
}

// Replaces the weights that the file holds in quantised form. The other parameters get no gradient.
void place_quantised(LanguageModel& model, const SafetensorsFile& file, torch::Dtype type, torch::Device device) {
  for (const auto& [name, layer] : quantisable_layers(model))
    if (const auto stored = find_quantised(file, name)) layer->quantise(read_quantised(*stored, device), type);
  for (const auto& parameter : model.parameters()) parameter.set_requires_grad(false);
}

void place_embedding(LanguageModel& model, const SafetensorsFile& file, torch::Dtype type, torch::Device device) {
  const auto stored = find_quantised(file, kEmbeddingName);
  if (!stored) return;
  Tensor embedding = model.named_parameters()[kEmbeddingName];
  embedding.set_data(torch::empty(embedding.sizes(), torch::dtype(type).device(device)));
  model.quantise_embedding(read_quantised(*stored, device));
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
  check_weights(file, files);
  const torch::Dtype type = dtype ? *dtype : default_type(file, files.config);
  if (files.form) require_quantised_support(files, type, device);
  const auto types = parameter_types(files.config, type);
  // Runs in parallel to the transfer of the weights, or after it if no thread can be started.
  auto hash = std::async(std::launch::async | std::launch::deferred, [&] { return hash_of(files); });
  LoadedModel loaded;
  {
    const SkipInitialisation weights_follow;  // memory that is allocated but never written takes no physical memory
    loaded.model = std::make_shared<LanguageModel>(files.config);
  }
  const torch::NoGradGuard no_grad;
  if (files.form) place_quantised(*loaded.model, file, type, device);
  for (const auto& item : loaded.model->named_parameters())
    if (const TensorView* view = file.find(item.key())) item.value().set_data(placed(*view, types.at(item.key()), device));
  if (files.form) place_embedding(*loaded.model, file, type, device);
  // The parameters are already on the device. This moves the buffers, which are converted to the weights' type; a FixedTensor keeps its own
  // type.
  loaded.model->to(device, type);
  loaded.model->eval();
  loaded.hash = hash.get();
  return loaded;
}

}  // namespace based
