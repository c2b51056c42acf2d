#include "based/models/published/published.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "based/core/files.h"
#include "based/core/folders.h"
#include "based/core/new_folder.h"
#include "based/core/text.h"
#include "based/models/tensor_view.h"
#include "based/models/weights.h"

namespace based {
namespace {

constexpr const char* kTorchWeights = "pytorch_model.bin";
constexpr const char* kSafetensorsWeights = "model.safetensors";
constexpr const char* kSourceConfig = "source_config.json";
constexpr const char* kSourceTensors = "source.safetensors";
// Keys of the metadata of source.safetensors.
constexpr const char* kSourceFile = "file";          // the name of the authors' file of weights
constexpr const char* kSourceNames = "names";        // [["their name", "our name or empty", [shape]], …] in the order of their file
constexpr const char* kSourceFamily = "family";      //
constexpr const char* kSourceMetadata = "metadata";  // that of a safetensors file

std::string weights_file_of(const std::string& folder) {
  for (const char* name : {kSafetensorsWeights, kTorchWeights}) {
    const std::string index = path_in(folder, std::string(name) + ".index.json");
    if (path_exists(index))
      throw Error(index +
                  ": weights in several files are not converted; in Python, load the files, put all tensors into one dict and save it as " +
                  name + ", then remove the others");
  }
  const bool torch = path_exists(path_in(folder, kTorchWeights)), safetensors = path_exists(path_in(folder, kSafetensorsWeights));
  if (torch && safetensors)
    throw Error(folder + ": holds both " + kTorchWeights + " and " + kSafetensorsWeights +
                "; remove one, so that it is clear which is meant");
  if (!torch && !safetensors) throw Error(folder + ": holds neither " + kTorchWeights + " nor " + kSafetensorsWeights);
  return path_in(folder, torch ? kTorchWeights : kSafetensorsWeights);
}

// The multiple that pads `tokens` to exactly `rows`: `preferred`, or the smallest one; 0 if there is none.
int64_t pad_multiple(int64_t tokens, int64_t rows, int64_t preferred) {
  constexpr int64_t most = 1024;  // as check_model_config
  const auto fits = [&](int64_t multiple) { return (tokens + multiple - 1) / multiple * multiple == rows; };
  if (fits(preferred)) return preferred;
  for (int64_t multiple = 1; multiple <= most; ++multiple)
    if (fits(multiple)) return multiple;
  return 0;
}

// The shape of a tensor here: a filter [channels, 1, taps] is [channels, taps].
std::vector<int64_t> our_shape(const published::MappedName& name, std::vector<int64_t> shape) {
  if (name.is_filter) shape.erase(shape.begin() + 1);
  return shape;
}

}  // namespace

PublishedModel::PublishedModel(const std::string& folder) : config_path_(path_in(folder, "config.json")) {
  if (!is_folder(folder))
    throw Error(folder + ": is no folder; name the folder with config.json and " + kTorchWeights + " or " + kSafetensorsWeights);
  config_text_ = read_regular_file(config_path_, kMaxConfigBytes);
  const Json json = parse_json(config_text_, config_path_);
  weights_path_ = weights_file_of(folder);
  if (weights_path_.ends_with(kTorchWeights)) {
    torch_ = std::make_unique<TorchFile>(weights_path_);
  } else {
    safetensors_ = std::make_unique<SafetensorsFile>(weights_path_);
  }
  source_ = std::make_unique<published::SourceTensors>(tensors(), weights_path_);
  published::ConfigReader config(json, config_path_);
  mapping_ = published::map_published(config, *source_);
  if (const std::string list = published::disagreements(mapping_, *source_); !list.empty())
    throw Error(weights_path_ + ": does not fit " + config_path_ + ":" + list);
  if (torch_)
    for (const std::string& entry : torch_->other_entries())
      mapping_.warnings.push_back("entry " + in_quotes(entry, 200) + " of the file holds no tensor and is left out");
}

DType PublishedModel::dtype() const { return source_->find(mapping_.embedding)->dtype; }

size_t PublishedModel::dropped() const {
  const auto has_no_counterpart = [&](const TensorView& tensor) {
    return published::is_metric(tensor.name) || mapping_.constants.contains(published::without_prefix(tensor.name));
  };
  return static_cast<size_t>(std::ranges::count_if(tensors(), has_no_counterpart));
}

void PublishedModel::fit_vocabulary(int64_t tokens) {
  ModelConfig& config = mapping_.config;
  if (tokens == config.vocab_size) return;
  if (tokens > config.vocab_size)
    throw Error(config_path_ + ": 'vocab_size' is " + std::to_string(config.vocab_size) + ", and the tokenizer has " +
                std::to_string(tokens) + " tokens; give the tokenizer that the model was trained with");
  const int64_t multiple = pad_multiple(tokens, config.padded_vocab(), config.pad_vocab_multiple);
  if (multiple == 0)
    throw Error(config_path_ + ": the tokenizer has " + std::to_string(tokens) +
                " tokens, and no pad_vocab_multiple up to 1024 pads them to the embedding's " + std::to_string(config.padded_vocab()) +
                " rows");
  config.vocab_size = tokens;
  config.pad_vocab_multiple = multiple;
}

std::shared_ptr<LanguageModel> PublishedModel::load(torch::Dtype dtype, torch::Device device) const {
  std::shared_ptr<LanguageModel> model;
  {
    const SkipInitialisation weights_follow;
    model = std::make_shared<LanguageModel>(mapping_.config);
  }
  model->to(device, dtype);
  const torch::NoGradGuard no_gradients;
  auto parameters = model->named_parameters();
  for (const published::MappedName& name : mapping_.names) {
    Tensor& parameter = parameters[name.ours];
    parameter.copy_(tensor_of(*source_->find(name.theirs)).view_as(parameter));
  }
  model->eval();
  return model;
}

void PublishedModel::save(const std::string& folder, std::optional<uint64_t> tokenizer) const {
  std::map<std::string, const published::MappedName*> by_theirs;
  std::vector<TensorView> ours, without_counterpart;
  for (const published::MappedName& name : mapping_.names) {
    by_theirs[name.theirs] = &name;
    const TensorView& tensor = *source_->find(name.theirs);
    ours.push_back({name.ours, tensor.dtype, our_shape(name, tensor.shape), tensor.bytes});
  }
  Json names = Json::array();
  for (const TensorView& tensor : tensors()) {
    const std::string name = published::without_prefix(tensor.name);
    const auto mapped = by_theirs.find(name == mapping_.head ? mapping_.embedding : name);
    const bool has_counterpart = mapped != by_theirs.end() && !published::is_metric(tensor.name);
    if (!has_counterpart) without_counterpart.push_back(tensor);
    names.push_back({tensor.name, has_counterpart ? mapped->second->ours : "", tensor.shape});
  }
  std::map<std::string, std::string> record{{kSourceFamily, mapping_.family}, {kSourceNames, dump_json(names)}};
  record[kSourceFile] = torch_ ? kTorchWeights : kSafetensorsWeights;
  if (safetensors_) record[kSourceMetadata] = dump_json(Json(safetensors_->metadata()));
  MadeFolder made(folder);
  write_file_atomic(path_in(folder, kSourceConfig), config_text_);
  write_safetensors(path_in(folder, kSourceTensors), without_counterpart, record);
  save_model(mapping_.config, std::move(ours), folder, tokenizer);
  made.keep();
}

namespace {

// The files of a converted folder, and the authors' tensors out of them.
class WayBack {
 public:
  explicit WayBack(const std::string& folder)
      : record_(recorded(folder)),
        weights_(path_in(folder, kSafetensorsWeights)),
        config_(read_regular_file(path_in(folder, kSourceConfig), kMaxConfigBytes)) {
    const std::string where = record_.path() + ": metadata '" + kSourceNames + "'";
    const Json names = parse_json(record_.metadata_at(kSourceNames), where);
    std::set<std::string> used;
    try {
      for (const Json& entry : names) {
        const auto ours = entry.at(1).get<std::string>();
        tensors_.push_back(tensor(entry.at(0).get<std::string>(), ours, entry.at(2).get<std::vector<int64_t>>()));
        used.insert(ours);
      }
    } catch (const Json::exception&) {
      throw Error(where + " must be a list of [name, name, shape]");
    }
    for (const TensorView& view : weights_.tensors())
      if (!used.contains(view.name))
        throw Error(weights_.path() + ": tensor " + in_quotes(view.name, 200) + " has no name in " + record_.path());
  }

  bool was_torch() const { return record_.metadata_at(kSourceFile) == kTorchWeights; }
  const std::vector<TensorView>& tensors() const { return tensors_; }
  const std::string& config() const { return config_; }

  std::map<std::string, std::string> metadata() const {
    const auto found = record_.metadata().find(kSourceMetadata);
    if (found == record_.metadata().end()) return {{"format", "pt"}};
    const std::string where = record_.path() + ": metadata '" + kSourceMetadata + "'";
    try {
      return parse_json(found->second, where).get<std::map<std::string, std::string>>();
    } catch (const Json::exception&) {
      throw Error(where + " must be a table of strings");
    }
  }

 private:
  static SafetensorsFile recorded(const std::string& folder) {
    const std::string path = path_in(folder, kSourceTensors);
    if (!path_exists(path))
      throw Error(folder + ": holds no " + kSourceTensors +
                  ", which `based convert` writes beside a model; without it the authors' names are not known");
    return SafetensorsFile(path);
  }

  TensorView tensor(const std::string& theirs, const std::string& ours, const std::vector<int64_t>& shape) const {
    const TensorView& found = ours.empty() ? record_.at(theirs) : weights_.at(ours);
    if (tensor_bytes(found.dtype, shape) != static_cast<int64_t>(found.bytes.size()))
      throw Error((ours.empty() ? record_ : weights_).path() + ": tensor " + in_quotes(found.name, 200) + " has another size than " +
                  in_quotes(theirs, 200) + " of the source");
    return {theirs, found.dtype, shape, found.bytes};
  }

  SafetensorsFile record_, weights_;
  std::string config_;
  std::vector<TensorView> tensors_;
};

}  // namespace

std::string write_published(const std::string& folder, const std::string& out, PublishedFormat format) {
  const WayBack back(folder);
  const bool torch = format == PublishedFormat::torch || (format == PublishedFormat::as_source && back.was_torch());
  const std::string path = path_in(out, torch ? kTorchWeights : kSafetensorsWeights);
  if (torch) {
    write_torch_file(path, back.tensors());
  } else {
    write_safetensors(path, back.tensors(), back.metadata());
  }
  write_file_atomic(path_in(out, "config.json"), back.config());
  return path;
}

}  // namespace based
