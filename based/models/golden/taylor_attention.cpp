// Second-order Taylor linear attention: whole mixers, and the attention alone.
#include "based/ops/taylor_attention.h"

#include <cmath>

#include "based/mixers/sequences.h"
#include "based/models/golden/family.h"

namespace based::golden {
namespace {

ReferenceMixer taylor_attention(const Json& config, const PeerParameters& parameters) {
  const std::string& path = parameters.path();
  const int64_t heads = required_int(config, "num_heads", path);
  if (!field<bool>(config, "causal", true, path)) return skipped("the reference sums over the whole sequence: not causal");
  if (field<bool>(config, "apply_rotary", false, path)) return skipped("the reference rotates q and k; taylor_attention has no positions");
  const int64_t kv_heads = field<int64_t>(config, "num_key_value_heads", heads, path);
  if (kv_heads != heads) return skipped("the reference shares keys between heads; taylor_attention does not");
  if (field<double>(config, "eps", 1e-12, path) > 1e-12) {
    return skipped("the reference adds an eps above 1e-12 to the denominator; ours is at least 1/2 and needs none");
  }
  ReferenceMixer mixer{"taylor_attention", {}, {}, ""};
  mixer.options = {{"heads", Config(heads)},
                   {"feature_dim", Config(divide(parameters.size("proj_q.weight", 0), heads, "proj_q rows", path))},
                   {"head_dim", Config(divide(parameters.size("proj_v.weight", 0), heads, "proj_v rows", path))}};
  for (const char* part : {"q", "k", "v", "o"}) add_pair(mixer, std::string("proj_") + part, std::string(part) + "_proj");
  add_pair(mixer, "out_proj", "o_proj");
  return mixer;
}

// q, k, v [rows, heads, tokens, size], not yet scaled.
Run core(const SafetensorsFile& file, const Place& place) {
  Run run;
  std::vector<Tensor> packed;
  for (const char* name : {"q", "k", "v"}) {
    const Tensor tensor = read_input(run, file, name, place);
    if (tensor.dim() != 4) throw Error(file.path() + ": '" + name + "' must be [rows, heads, tokens, size]");
    packed.push_back(tensor.transpose(1, 2).flatten(0, 1));
  }
  const Tensor& q = run.inputs[0].second;
  const double scale = std::pow(static_cast<double>(q.size(3)), -0.25);
  const Sequences rows = Sequences::equal(q.size(0), q.size(2), place.device);
  const auto [y, state] = ops::taylor_attention(packed[0] * scale, packed[1] * scale, packed[2], rows.cu_seqlens());
  run.outputs = {{"y", y.unflatten(0, {q.size(0), q.size(2)}).transpose(1, 2)}};
  run.objective = (run.outputs[0].second * read(file, "g").to(y.options())).sum();
  return run;
}

std::optional<ReferenceMixer> mixer(const PeerMixer& peer) {
  const std::string& path = peer.parameters.path();
  if (peer.name.find("with fixed decay") != std::string::npos)
    return skipped("the reference decays the numerator alone, ours the denominator too");
  const bool taylor = field<std::string>(peer.config, "feature_name", "taylor_exp", path) == "taylor_exp";
  if (starts_with(peer.name, "linear_attention/taylor_exp") || (peer.name == "Based" && taylor))
    return taylor_attention(peer.config, peer.parameters);
  return std::nullopt;
}

std::optional<Case> operators(const SafetensorsFile& file, const std::string& mixer, const Json& config) {
  if (mixer != "taylor linear attention, core only") return std::nullopt;
  if (field<double>(config, "eps", 1e-6, file.path()) > 1e-12)  // the peer's own default
    return Case{{}, "the reference adds an eps above 1e-12 to the denominator; ours is at least 1/2 and needs none"};
  return Case{[&file](const Place& place) { return core(file, place); }, ""};
}

}  // namespace

BASED_GOLDEN_FAMILY_DEFINE(taylor_attention, {mixer, operators})

}  // namespace based::golden
