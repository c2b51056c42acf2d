#include "based/experiments/versions.h"

#include <algorithm>

#include "based/experiments/axes.h"
#include "based/mixers/kit/mixer.h"

namespace based {
namespace {

struct Raised {
  const char* mixer;
  int64_t version;
};
// Mixers whose results have changed by more than rounding, with their number of such changes plus one. All others have version 1.
constexpr std::array<Raised, 1> raised{{{"scatterbrain", 2}}};  // 2: long queries and keys in the range of fp32

std::string type_of(const ModelConfig& model, const std::string& layer) {
  const auto found = model.mixers.find(layer);
  return found == model.mixers.end() ? layer : std::get<std::string>(found->second.find("type")->value());
}

Config mixer_key(const Config& mixer) {
  Config::Table options = std::get<Config::Table>(mixer.value());
  const std::string type = std::get<std::string>(mixer.find("type")->value());
  const std::vector<FieldHelp> usual = find_mixer(type).help();
  std::erase_if(options, [&](const auto& option) {
    return std::any_of(usual.begin(), usual.end(),
                       [&](const FieldHelp& help) { return help.name == option.first && help.default_value == option.second.to_json(-1); });
  });
  std::sort(options.begin(), options.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  return Config(std::move(options));
}

}  // namespace

Config mixer_versions(const ModelConfig& model) {
  std::map<std::string, int64_t> versions;
  for (const std::string& layer : model.layers) {
    const std::string type = type_of(model, layer);
    const auto* found = std::find_if(raised.begin(), raised.end(), [&](const Raised& each) { return each.mixer == type; });
    versions[type] = found == raised.end() ? 1 : found->version;
  }
  Config table{Config::Table{}};
  for (const auto& [type, version] : versions) table.set(type, Config(version));
  return table;
}

Config model_key(const ModelConfig& model) {
  ModelConfig used = model;
  for (auto& [name, mixer] : used.mixers) mixer = mixer_key(mixer);
  std::erase_if(used.mixers,
                [&](const auto& mixer) { return std::find(used.layers.begin(), used.layers.end(), mixer.first) == used.layers.end(); });
  return without_defaults(write_config(used), write_config(ModelConfig{}));
}

}  // namespace based
