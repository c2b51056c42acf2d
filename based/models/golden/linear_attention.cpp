// Linear attention: mixers with any feature map, feature maps alone, and Taylor attention alone.
#include "based/ops/taylor/taylor_attention.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "based/mixers/kit/feature_map.h"
#include "based/models/golden/family.h"

namespace based::golden {
namespace {

// A peer's feature map: its name and options, the length of a row, and the prefix of its learned or random tensors.
struct PeerMap {
  std::string name;
  Config::Table options;
  std::string skipped;
};

PeerMap peer_map(const std::string& name, const Json& config, const PeerParameters& parameters, int64_t length) {
  const auto& known = feature_maps();
  if (std::none_of(known.begin(), known.end(), [&](const FeatureMapInfo& info) { return name == info.name; }))
    return {"", {}, "feature map '" + name + "' is not in this build"};
  const std::string& path = parameters.path();
  PeerMap map{name, {}, ""};
  for (const FieldHelp& option : find_feature_map(name).help()) {
    if (option.name == "scale") map.options.emplace_back("scale", Config(field<double>(config, "temp", 1.0, path)));
    if (option.name == "floor") map.options.emplace_back("floor", Config(field<double>(config, "eps", 1e-12, path)));
  }
  if (name == "cosformer") map.options.emplace_back("length", Config(length));
  if (name == "performer") map.options.emplace_back("features", Config(field<int64_t>(config, "expanded_dim", 256, path)));
  if (name == "all_poly") map.options.emplace_back("features", Config(parameters.size("proj_1.weight", 0)));
  if (name == "taylor_exp") map.options.emplace_back("packed", Config(false));
  return map;
}

// Adds the parameter names of all maps, with this prefix.
void add_map_names(std::map<std::string, std::string>& names, const std::string& prefix) {
  for (const char* weight : {"proj_1.weight", "proj_2.weight"}) names[prefix + weight] = prefix + weight;
  names[prefix + "random_feats"] = prefix + "random_features";
}

// Adds the authors' fixed decay (DecayClass) to Taylor attention.
void add_fixed_decay(ReferenceMixer& mixer, const PeerMixer& peer) {
  const std::string& path = peer.parameters.path();
  mixer.options.emplace_back("decay", Config(true));
  mixer.options.emplace_back("decay_form", Config(std::string("code")));
  mixer.options.emplace_back("decay_const", Config(field<double>(peer.config, "decay_const", -5, path)));
  mixer.options.emplace_back("decay_normalised", Config(field<bool>(peer.config, "decay_denom", true, path)));
  mixer.options.emplace_back("decay_projection", Config(peer.parameters.has("decay_proj.weight")));
  mixer.options.emplace_back("decay_bias", Config(peer.parameters.has("decay_proj.bias")));
  add_pair(mixer, "decay_proj", "head_scale");
}

ReferenceMixer linear_attention(const PeerMixer& peer, const std::string& map_name) {
  const PeerParameters& parameters = peer.parameters;
  const std::string& path = parameters.path();
  const int64_t heads = required_int(peer.config, "num_heads", path);
  if (!field<bool>(peer.config, "causal", true, path)) return skipped("the reference sums over the whole sequence: not causal");
  if (field<bool>(peer.config, "apply_rotary", false, path))
    return skipped("the reference rotates q and k; linear attention has no positions");
  const int64_t kv_heads = field<int64_t>(peer.config, "num_key_value_heads", heads, path);
  if (kv_heads != heads) return skipped("the reference shares keys between heads; linear attention does not");
  const double eps = field<double>(peer.config, "eps", 1e-12, path);
  const bool taylor = map_name == "taylor_exp";
  if (taylor && eps > 1e-12)
    return skipped("the reference adds an eps above 1e-12 to the denominator; ours is at least 1/2 and needs none");
  ReferenceMixer mixer{taylor ? "taylor_attention" : "linear_attention", {}, {}, ""};
  mixer.options = {{"heads", Config(heads)},
                   {"feature_dim", Config(divide(parameters.size("proj_q.weight", 0), heads, "proj_q rows", path))},
                   {"head_dim", Config(divide(parameters.size("proj_v.weight", 0), heads, "proj_v rows", path))}};
  for (const char* part : {"q", "k", "v", "o"}) add_pair(mixer, std::string("proj_") + part, std::string(part) + "_proj");
  add_pair(mixer, "out_proj", "o_proj");
  if (taylor && peer.name.find("with fixed decay") != std::string::npos) add_fixed_decay(mixer, peer);
  if (taylor) return mixer;
  const Json kwargs = field<Json>(peer.config, "feature_kwargs", Json::object(), path);
  const PeerMap map = peer_map(map_name, kwargs, parameters.below("feature_map."), peer.length);
  if (!map.skipped.empty()) return skipped(map.skipped);
  mixer.options.emplace_back("feature_map", Config(map.name));
  mixer.options.emplace_back("feature_options", Config(map.options));
  mixer.options.emplace_back("eps", Config(eps));
  add_map_names(mixer.names, "feature_map.");
  return mixer;
}

// Reorders packed features: this library stores x_i x_j, i ≤ j, row by row; the peer stores the squares first, then the products of the
// lower triangle by rows.
Tensor in_the_peers_order(const Tensor& packed, int64_t d) {
  const auto at = [d](int64_t i, int64_t j) { return 1 + d + i * d - i * (i - 1) / 2 + j - i; };
  std::vector<int64_t> order(static_cast<size_t>(1 + d));
  std::iota(order.begin(), order.end(), 0);
  for (int64_t i = 0; i < d; ++i) order.push_back(at(i, i));
  for (int64_t i = 0; i < d; ++i)
    for (int64_t j = 0; j < i; ++j) order.push_back(at(j, i));
  return packed.index_select(-1, torch::tensor(order, torch::kInt64).to(packed.device()));
}

// Runs a feature map alone on x [rows, heads, tokens, size].
Run run_map(const SafetensorsFile& file, const PeerMap& peer, const Place& place) {
  Run run;
  const Tensor x = read_input(run, file, "x", place);
  if (x.dim() != 4) throw Error(file.path() + ": 'x' must be [rows, heads, tokens, size]");
  const Pass pass(Sequences::equal(x.size(0), x.size(2), place.device));
  std::map<std::string, std::string> names;
  add_map_names(names, "");
  const auto features = [&](FeatureMap& map) {
    map.to(place.device, place.dtype);
    load_parameters(file, map, names);
    return map.forward(x.transpose(1, 2).flatten(0, 1), pass).unflatten(0, {x.size(0), x.size(2)}).transpose(1, 2);
  };
  const FeatureMapInfo& info = find_feature_map(peer.name);
  const auto map = info.make(Config(peer.options, file.path() + ": "), x.size(3));
  run.outputs = {{"y", features(*map)}};
  run.objective = (run.outputs[0].second * read(file, "g").to(x.options())).sum();
  add_parameters(run, file, *map, names);
  if (file.find("y_packed") != nullptr)
    run.outputs.emplace_back("y_packed", in_the_peers_order(features(*info.make(Config(Config::Table{}), x.size(3))), x.size(3)));
  return run;
}

// Runs Taylor attention alone on q, k, v [rows, heads, tokens, size] before scaling.
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

std::optional<ReferenceMixer> linear_attention_mixer(const PeerMixer& peer) {
  constexpr const char* kForm = "linear_attention/";
  if (starts_with(peer.name, "linear_attention/taylor_exp")) return linear_attention(peer, "taylor_exp");  // more words may follow
  if (starts_with(peer.name, kForm)) return linear_attention(peer, peer.name.substr(std::string(kForm).size()));
  if (peer.name == "Based")
    return linear_attention(peer, field<std::string>(peer.config, "feature_name", "taylor_exp", peer.parameters.path()));
  return std::nullopt;
}

std::optional<Case> linear_attention_operators(const SafetensorsFile& file, const std::string& mixer, const Json& config) {
  constexpr const char* kMap = "feature_map/";
  if (starts_with(mixer, kMap)) {
    const std::vector<int64_t>& shape = file.at("x").shape;
    const int64_t length = shape.size() < 2 ? 0 : shape[shape.size() - 2];
    const PeerMap map = peer_map(mixer.substr(std::string(kMap).size()), config, PeerParameters(file, ""), length);
    if (!map.skipped.empty()) return Case{{}, map.skipped};
    return Case{[&file, map](const Place& place) { return run_map(file, map, place); }, ""};
  }
  if (mixer != "taylor linear attention, core only") return std::nullopt;
  if (field<double>(config, "eps", 1e-6, file.path()) > 1e-12)  // 1e-6 is the peer's default
    return Case{{}, "the reference adds an eps above 1e-12 to the denominator; ours is at least 1/2 and needs none"};
  return Case{[&file](const Place& place) { return core(file, place); }, ""};
}

}  // namespace

BASED_GOLDEN_FAMILY_DEFINE(linear_attention, {linear_attention_mixer, linear_attention_operators})

}  // namespace based::golden
