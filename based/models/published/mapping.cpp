#include "based/models/published/mapping.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "based/core/text.h"
#include "based/mixers/kit/shapes_only.h"
#include "based/models/language_model.h"
#include "based/models/published/state_space.h"

namespace based::published {
namespace {

std::string list_of(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

bool is_float_type(DType dtype) { return dtype == DType::F32 || dtype == DType::BF16 || dtype == DType::F64 || dtype == DType::F16; }

// The shapes of the model's parameters.
std::map<std::string, std::vector<int64_t>> parameter_shapes(const ModelConfig& config) {
  const ShapesOnly no_memory;
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const auto& item : LanguageModel(config).named_parameters()) shapes[item.key()] = item.value().sizes().vec();
  return shapes;
}

// Compares a tensor with the shape that it should have; "" or a line.
std::string difference(const TensorView* tensor, const std::string& name, const std::vector<int64_t>& shape) {
  if (tensor == nullptr) return "\n  missing: " + printable(name, 200) + " " + list_of(shape);
  if (tensor->shape != shape) return "\n  " + printable(name, 200) + ": shape " + list_of(tensor->shape) + ", expected " + list_of(shape);
  if (!is_float_type(tensor->dtype))
    return "\n  " + printable(name, 200) + ": type " + dtype_name(tensor->dtype) + " is no floating-point type";
  return "";
}

std::string head_difference(const Mapping& mapping, const SourceTensors& source) {
  const TensorView *head = source.find(mapping.head), *embedding = source.find(mapping.embedding);
  if (head == nullptr || embedding == nullptr) return "";
  const std::string line = difference(head, mapping.head, embedding->shape);
  if (!line.empty()) return line;
  const bool same = head->dtype == embedding->dtype && std::ranges::equal(head->bytes, embedding->bytes);
  return same ? "" : "\n  " + mapping.head + ": differs from " + mapping.embedding + "; in this library the head is the embedding";
}

bool has_word(std::string_view text, std::string_view word) {
  const auto in_word = [&](size_t at) {
    return at < text.size() && (std::isalnum(static_cast<unsigned char>(text[at])) || text[at] == '_');
  };
  for (size_t at = 0; (at = text.find(word, at)) != std::string_view::npos; ++at)
    if ((at == 0 || !in_word(at - 1)) && !in_word(at + word.size())) return true;
  return false;
}

// "; made of 'n_inner'" for a message about 'mlp_width'; "" if no field in it has an origin.
std::string origins_in(const std::string& message, const Origins& origins) {
  std::string keys;
  for (const auto& [field, key] : origins)
    if (has_word(message, field)) keys += (keys.empty() ? "; made of " : ", ") + in_quotes(key, 200);
  return keys;
}

// A line that says which prefix programs have put before the embedding's name, and so before all names; "" if there is none.
std::string prefix_hint(const Mapping& mapping, const SourceTensors& source) {
  if (source.has(mapping.embedding)) return "";
  for (const auto& [name, tensor] : source.by_name())
    if (name.ends_with("." + mapping.embedding))
      return "\n  the names begin with " + in_quotes(name.substr(0, name.size() - mapping.embedding.size()), 200) +
             ", which the authors' do not; save the tensors without it";
  return "";
}

Mapping map_state_space_family(ConfigReader& config) {
  const std::string layer = state_space_layer(config);
  if (layer != "Mamba1" && layer != "Mamba2") config.table("ssm_cfg")->refuse("layer", "Mamba1 and Mamba2 are converted");
  Mapping mapping = layer == "Mamba2" ? map_mamba2(config) : map_mamba(config);
  mapping.family = layer == "Mamba2" ? "mamba2" : "mamba";
  return mapping;
}

}  // namespace

bool is_metric(const std::string& full_name) { return full_name.find("metrics") != std::string::npos; }

std::string without_prefix(const std::string& full_name) {
  constexpr std::string_view prefix = "model.";
  return full_name.starts_with(prefix) ? full_name.substr(prefix.size()) : full_name;
}

SourceTensors::SourceTensors(const std::vector<TensorView>& tensors, const std::string& path) {
  for (const TensorView& tensor : tensors) {
    if (is_metric(tensor.name)) continue;
    if (!by_name_.emplace(without_prefix(tensor.name), &tensor).second)
      throw Error(path + ": " + in_quotes(without_prefix(tensor.name), 200) + " occurs twice, with and without the prefix 'model.'");
  }
}

const TensorView* SourceTensors::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

int64_t SourceTensors::rows(const std::string& name) const {
  const TensorView* found = find(name);
  return found == nullptr || found->shape.empty() ? 0 : found->shape[0];
}

void Mapping::add_layer(const MappedMixer& mixer, const std::string& theirs, const std::string& ours) {
  // Two kinds of layers with one name and other options get two names.
  std::string name = mixer.name;
  const std::string options = Config(mixer.options).to_json();
  for (int number = 2; config.mixers.contains(name) && config.mixers.at(name).to_json() != options; ++number)
    name = mixer.name + std::to_string(number);
  config.mixers.emplace(name, Config(mixer.options));
  config.layers.push_back(name);
  origins.insert(mixer.origins.begin(), mixer.origins.end());
  for (const MappedName& each : mixer.names) names.push_back({theirs + each.theirs, ours + each.ours, each.is_filter});
}

Mapping map_published(ConfigReader& config, const SourceTensors& source) {
  Mapping mapping;
  if (config.has("d_model") && config.has("n_layer")) {
    mapping = map_state_space_family(config);
  } else if (config.has("n_embd") && config.has("n_layer")) {
    const bool hybrid = config.has("mixer") || config.has("alt_mixer") || config.has("alt_mixer_2");
    mapping = hybrid ? map_based(config, source) : map_attention(config, source);
    mapping.family = hybrid ? "based" : "attention";
  } else {
    throw Error(config.path() +
                ": is no config of Based and attention ('n_embd', 'n_layer') or of Mamba ('d_model', 'n_layer') as their authors publish "
                "them; transformers' own layout of these models has other keys and names");
  }
  for (const std::string& key : config.unread()) mapping.warnings.push_back(in_quotes(key, 200) + " is unknown and has no effect");
  try {
    check_model_config(mapping.config);
    parameter_shapes(mapping.config);
  } catch (const UsageError& error) {
    throw Error(config.path() + ": " + error.what() + origins_in(error.what(), mapping.origins));
  }
  return mapping;
}

std::string disagreements(const Mapping& mapping, const SourceTensors& source) {
  std::map<std::string, std::vector<int64_t>> shapes = parameter_shapes(mapping.config);
  std::set<std::string> expected = {mapping.head};
  std::string list;
  for (const MappedName& name : mapping.names) {
    const auto ours = shapes.find(name.ours);
    BASED_ASSERT(ours != shapes.end());
    std::vector<int64_t> shape = ours->second;
    if (name.is_filter) shape.insert(shape.begin() + 1, 1);
    list += difference(source.find(name.theirs), name.theirs, shape);
    expected.insert(name.theirs);
    shapes.erase(ours);
  }
  BASED_ASSERT(shapes.empty());  // each parameter has a name in the source
  for (const auto& [name, shape] : mapping.constants) {
    if (source.has(name)) list += difference(source.find(name), name, shape);
    expected.insert(name);
  }
  for (const auto& [name, tensor] : source.by_name())
    if (!expected.contains(name)) list += "\n  unexpected: " + printable(name, 200) + " " + list_of(tensor->shape);
  return list + head_difference(mapping, source) + prefix_hint(mapping, source);
}

}  // namespace based::published
