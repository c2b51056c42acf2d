// Mamba: mixers, and the selective scan alone.
#include "based/mixers/kit/sequences.h"
#include "based/models/golden/family.h"
#include "based/ops/scan/selective_scan.h"

namespace based::golden {
namespace {

std::optional<ReferenceMixer> mamba_mixer(const PeerMixer& peer) {
  if (peer.name != "mamba" && peer.name != "Mamba") return std::nullopt;
  const PeerParameters& parameters = peer.parameters;
  const int64_t width = parameters.size("A_log", 0);
  ReferenceMixer mixer{"mamba", {}, {}, ""};
  mixer.options = {{"d_state", Config(parameters.size("A_log", 1))},
                   {"d_conv", Config(parameters.size("conv1d.weight", 2))},
                   {"expand", Config(divide(width, parameters.size("in_proj.weight", 1), "A_log rows", parameters.path()))},
                   {"dt_rank", Config(parameters.size("dt_proj.weight", 1))},
                   {"conv_bias", Config(parameters.has("conv1d.bias"))},
                   {"bias", Config(parameters.has("in_proj.bias"))}};
  for (const char* name : {"A_log", "D"}) mixer.names[name] = name;
  for (const char* name : {"in_proj", "x_proj", "dt_proj", "out_proj"}) add_pair(mixer, name, name);
  mixer.names["dt_proj.bias"] = "dt_bias";
  add_pair(mixer, "conv1d", "conv");
  return mixer;
}

// Runs the selective scan on u, delta, z [rows, channels, tokens], A [channels, state], negative, and B and C, which are [rows, state,
// tokens], [rows, groups, state, tokens], or constant over tokens, [channels, state].
Run scan(const SafetensorsFile& file, const Place& place, bool softplus) {
  Run run;
  const std::vector<int64_t>& shape = file.at("u").shape;
  if (shape.size() != 3 || shape[2] == 0) throw Error(file.path() + ": 'u' must be [rows, channels, tokens]");
  const auto is_given = [&](const char* name) { return file.find(name) != nullptr; };
  const auto by_token = [&](const char* name) { return read_input(run, file, name, place).transpose(1, 2).flatten(0, 1); };
  const Tensor u = by_token("u"), delta = by_token("delta"), A = read_input(run, file, "A", place);
  const int64_t tokens = u.size(0), length = shape[2];
  const auto by_group = [&](const char* name) {
    const Tensor given = read_input(run, file, name, place);
    if (given.dim() == 2) return given.expand({tokens, given.size(0), given.size(1)});
    return (given.dim() == 3 ? given.unsqueeze(1) : given).permute({0, 3, 1, 2}).flatten(0, 1);
  };
  const Tensor B = by_group("B"), C = by_group("C");
  const auto optional = [&](const char* name) { return is_given(name) ? read_input(run, file, name, place) : Tensor(); };
  const ops::OptionalTensor D = ops::if_defined(optional("D")), bias = ops::if_defined(optional("delta_bias"));
  const ops::OptionalTensor z = ops::if_defined(is_given("z") ? by_token("z") : Tensor());
  const Sequences rows = Sequences::equal(tokens / length, length, place.device);
  const auto [y, last] = ops::selective_scan({u, delta, (-A).log(), B, C, D, z, bias, softplus}, rows.cu_seqlens());
  run.outputs = {{"y", y.unflatten(0, {tokens / length, length}).transpose(1, 2)}, {"last_state", last}};
  run.objective =
      (run.outputs[0].second * read(file, "g").to(y.options())).sum() + (last * read(file, "g.last_state").to(last.options())).sum();
  return run;
}

std::optional<Case> mamba_operators(const SafetensorsFile& file, const std::string& mixer, const Json& config) {
  if (mixer != "selective_scan") return std::nullopt;
  const bool softplus = field<bool>(config, "delta_softplus", false, file.path());
  return Case{[&file, softplus](const Place& place) { return scan(file, place, softplus); }, ""};
}

}  // namespace

BASED_GOLDEN_FAMILY_DEFINE(mamba, {mamba_mixer, mamba_operators})

}  // namespace based::golden
