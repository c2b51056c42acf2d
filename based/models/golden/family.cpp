#include "based/models/golden/family.h"

#include <sstream>

#include "based/models/tensor_view.h"

namespace based::golden {

#define BASED_GOLDEN_FAMILY(name) Family golden_family_##name();
#include "based/models/golden/families.def"
#undef BASED_GOLDEN_FAMILY

const std::vector<Family>& families() {
  static const std::vector<Family> all = {
#define BASED_GOLDEN_FAMILY(name) golden_family_##name(),
#include "based/models/golden/families.def"
#undef BASED_GOLDEN_FAMILY
  };
  return all;
}

int64_t PeerParameters::size(const std::string& name, size_t dimension) const {
  const TensorView& tensor = file_->at(prefix_ + name);
  if (dimension >= tensor.shape.size()) throw Error(path() + ": tensor '" + prefix_ + name + "' has too few dimensions");
  return tensor.shape[dimension];
}

PeerParameters PeerParameters::below(const std::string& prefix) const {
  PeerParameters result = *this;
  result.prefix_ += prefix;
  return result;
}

bool starts_with(const std::string& text, const char* start) { return text.rfind(start, 0) == 0; }

void add_pair(ReferenceMixer& mixer, const std::string& theirs, const std::string& ours) {
  mixer.names[theirs + ".weight"] = ours + ".weight";
  mixer.names[theirs + ".bias"] = ours + ".bias";
}

int64_t divide(int64_t total, int64_t parts, const char* what, const std::string& path) {
  if (parts < 1 || total % parts != 0) {
    throw Error(path + ": " + what + " " + std::to_string(total) + " is not a multiple of " + std::to_string(parts));
  }
  return total / parts;
}

Tensor read(const SafetensorsFile& file, const std::string& name) { return tensor_of(file.at(name)); }

Tensor read_input(Run& run, const SafetensorsFile& file, const std::string& name, const Place& place) {
  run.inputs.emplace_back(name, read(file, name).to(place.device, place.dtype).requires_grad_(true));
  return run.inputs.back().second;
}

void load_parameters(const SafetensorsFile& file, torch::nn::Module& module, const std::map<std::string, std::string>& names,
                     const char* prefix) {
  const torch::NoGradGuard no_grad;
  auto parameters = module.named_parameters();
  std::map<std::string, bool> filled;
  for (const auto& parameter : parameters) filled[parameter.key()] = false;
  for (const TensorView& view : file.tensors()) {
    const bool buffer = starts_with(view.name, "buffer.");
    if (!buffer && !starts_with(view.name, prefix)) continue;
    const auto found = names.find(view.name.substr(view.name.find('.') + 1));
    if (found == names.end() && buffer) continue;
    if (found == names.end()) throw Error(file.path() + ": '" + view.name + "' has no counterpart in ours");
    if (found->second.empty()) continue;
    Tensor* ours = parameters.find(found->second);
    const Tensor theirs = tensor_of(view);
    if (ours == nullptr) throw Error(file.path() + ": '" + view.name + "' should be our '" + found->second + "', which there is not");
    if (theirs.numel() != ours->numel()) {
      std::ostringstream message;
      message << file.path() << ": '" << view.name << "' has shape " << theirs.sizes() << ", our '" << found->second << "' "
              << ours->sizes();
      throw Error(message.str());
    }
    ours->copy_(theirs.view_as(*ours));
    filled[found->second] = true;
  }
  for (const auto& [name, is_filled] : filled) {
    if (!is_filled) throw Error(file.path() + ": holds nothing for our parameter '" + name + "'");
  }
}

void add_parameters(Run& run, const SafetensorsFile& file, torch::nn::Module& module, const std::map<std::string, std::string>& names) {
  const auto parameters = module.named_parameters();
  for (const auto& [theirs, ours] : names) {
    if (!ours.empty() && file.find("grad." + theirs) != nullptr) run.inputs.emplace_back(theirs, parameters[ours]);
  }
}

int64_t required_int(const Json& config, const char* key, const std::string& path) {
  const auto value = field<int64_t>(config, key, -1, path);
  if (value < 1) throw Error(path + ": metadata config needs a positive '" + key + "'");
  return value;
}

}  // namespace based::golden
