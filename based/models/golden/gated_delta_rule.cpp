// Mixers with decay or the delta rule: GLA, DeltaNet, Gated DeltaNet, Mamba-2 and RWKV-5, and their recurrences alone.
#include "based/ops/delta_rule/gated_delta_rule.h"

#include <cmath>

#include "based/mixers/kit/sequences.h"
#include "based/models/golden/family.h"

namespace based::golden {
namespace {

// The options and names that are common to all layers of the peer library.
ReferenceMixer gated_heads(const std::string& type, const PeerMixer& peer, int64_t heads) {
  const PeerParameters& parameters = peer.parameters;
  ReferenceMixer mixer{type, {}, {}, ""};
  const bool convolves = parameters.has("q_conv1d.weight");
  mixer.options = {{"heads", Config(heads)},
                   {"use_short_conv", Config(convolves)},
                   {"conv_bias", Config(parameters.has("q_conv1d.bias"))},
                   {"use_gate", Config(parameters.has("g_proj.weight"))},
                   {"norm_eps", Config(field<double>(peer.config, "norm_eps", 1e-5, parameters.path()))}};
  if (convolves) mixer.options.emplace_back("conv_size", Config(parameters.size("q_conv1d.weight", 2)));
  for (const char* part : {"q", "k", "v"}) add_pair(mixer, std::string(part) + "_conv1d", std::string(part) + "_conv");
  for (const char* part : {"q", "k", "v", "g", "o", "b", "a"}) add_pair(mixer, std::string(part) + "_proj", std::string(part) + "_proj");
  mixer.names["o_norm.weight"] = mixer.names["g_norm_swish_gate.weight"] = mixer.names["g_norm.weight"] = "norm.weight";
  return mixer;
}

// The ratio of two widths.
double ratio(const PeerParameters& parameters, const char* numerator, const char* denominator, size_t dimension) {
  return static_cast<double>(parameters.size(numerator, 0)) / static_cast<double>(parameters.size(denominator, dimension));
}

ReferenceMixer with_expansion(ReferenceMixer mixer, const PeerParameters& parameters) {
  mixer.options.emplace_back("expand_k", Config(ratio(parameters, "q_proj.weight", "q_proj.weight", 1)));
  mixer.options.emplace_back("expand_v", Config(ratio(parameters, "v_proj.weight", "v_proj.weight", 1)));
  return mixer;
}

ReferenceMixer gla(const PeerMixer& peer) {
  const std::string& path = peer.parameters.path();
  ReferenceMixer mixer = with_expansion(gated_heads("gla", peer, field<int64_t>(peer.config, "num_heads", 4, path)), peer.parameters);
  mixer.options.emplace_back("gate_low_rank_dim", Config(peer.parameters.size("gk_proj.0.weight", 0)));
  mixer.options.emplace_back("gate_logit_normalizer", Config(field<double>(peer.config, "gate_logit_normalizer", 16, path)));
  add_pair(mixer, "gk_proj.0", "decay_down");
  add_pair(mixer, "gk_proj.1", "decay_up");
  return mixer;
}

ReferenceMixer delta_net(const PeerMixer& peer) {
  const std::string& path = peer.parameters.path();
  const auto activation = field<std::string>(peer.config, "qk_activation", "silu", path),
             norm = field<std::string>(peer.config, "qk_norm", "l2", path);
  if (activation != "silu" || norm != "l2")
    return skipped("the reference has " + activation + " and " + norm + " on queries and keys; delta_net has SiLU and the length");
  ReferenceMixer mixer = with_expansion(gated_heads("delta_net", peer, field<int64_t>(peer.config, "num_heads", 4, path)), peer.parameters);
  mixer.options.emplace_back("use_beta", Config(peer.parameters.has("b_proj.weight")));
  mixer.options.emplace_back("allow_neg_eigval", Config(field<bool>(peer.config, "allow_neg_eigval", false, path)));
  return mixer;
}

// The peer's D is never used.
ReferenceMixer gated_delta_net(const PeerMixer& peer) {
  const int64_t heads = peer.parameters.size("A_log", 0);
  ReferenceMixer mixer = gated_heads("gated_delta_net", peer, heads);
  mixer.options.emplace_back("head_dim",
                             Config(divide(peer.parameters.size("q_proj.weight", 0), heads, "q_proj rows", peer.parameters.path())));
  mixer.options.emplace_back("expand_v", Config(ratio(peer.parameters, "v_proj.weight", "q_proj.weight", 0)));
  for (const char* name : {"A_log", "dt_bias"}) mixer.names[name] = name;
  mixer.names["D"] = "";
  return mixer;
}

ReferenceMixer mamba2(const PeerMixer& peer) {
  const PeerParameters& parameters = peer.parameters;
  const std::string& path = parameters.path();
  if (!field<bool>(peer.config, "rmsnorm", true, path)) return skipped("the reference has no norm; mamba2 has one");
  ReferenceMixer mixer{"mamba2", {}, {}, ""};
  const int64_t width = parameters.size("out_proj.weight", 1), groups = field<int64_t>(peer.config, "ngroups", 1, path);
  const auto option = [&](const char* key, auto value) { mixer.options.emplace_back(key, Config(value)); };
  option("expand", divide(width, parameters.size("in_proj.weight", 1), "out_proj columns", path));
  option("headdim", divide(width, parameters.size("D", 0), "out_proj columns", path));
  option("ngroups", groups);
  option("d_state", divide(parameters.size("conv1d.weight", 0) - width, 2 * groups, "channels of B and C", path));
  option("d_conv", parameters.size("conv1d.weight", 2));
  option("bias", parameters.has("in_proj.bias"));
  option("conv_bias", parameters.has("conv1d.bias"));
  option("norm_before_gate", field<bool>(peer.config, "norm_before_gate", false, path));
  for (const char* name : {"A_log", "dt_bias", "D", "norm.weight"}) mixer.names[name] = name;
  add_pair(mixer, "in_proj", "in_proj");
  add_pair(mixer, "out_proj", "out_proj");
  add_pair(mixer, "conv1d", "conv");
  return mixer;
}

ReferenceMixer rwkv5(const PeerMixer& peer) {
  ReferenceMixer mixer{"rwkv5", {}, {}, ""};
  mixer.options = {{"head_size", Config(peer.parameters.size("time_decay", 1))},
                   {"head_size_divisor", Config(field<double>(peer.config, "head_size_divisor", 8, peer.parameters.path()))}};
  for (const auto& [theirs, ours] : {std::pair{"receptance", "r_proj"},
                                     {"key", "k_proj"},
                                     {"value", "v_proj"},
                                     {"gate", "g_proj"},
                                     {"output", "o_proj"},
                                     {"ln_x", "norm"}})
    add_pair(mixer, theirs, ours);
  for (const char* part : {"k", "v", "r", "g"}) mixer.names[std::string("time_mix_") + part] = std::string("shift.time_mix_") + part;
  mixer.names["time_decay"] = "time_decay";
  mixer.names["time_faaaa"] = "bonus";
  return mixer;
}

std::optional<ReferenceMixer> gated_delta_rule_mixer(const PeerMixer& peer) {
  const auto is = [&](const char* name, const char* type) {
    return peer.name == type || (peer.name + ",").starts_with(std::string(name) + ",");
  };
  if (is("gla", "GatedLinearAttention")) return gla(peer);
  if (is("delta_net", "DeltaNet")) return delta_net(peer);
  if (is("gated_delta_net", "GatedDeltaNet")) return gated_delta_net(peer);
  if (is("mamba2", "Mamba2")) return mamba2(peer);
  if (is("rwkv5", "RWKVTimeMixer")) return rwkv5(peer);
  return std::nullopt;
}

// Runs a recurrence. Inputs are [rows, tokens, …] and get packed. The outputs are y and the last state, each with a cotangent in the file.
Run recurrence(const SafetensorsFile& file, const Place& place) {
  Run run;
  const auto input = [&](const char* name) { return read_input(run, file, name, place); };
  const auto packed = [&](const char* name) { return input(name).flatten(0, 1); };
  const auto gate = [&](const char* name) { return file.find(name) == nullptr ? ops::OptionalTensor() : packed(name); };
  ops::GatedDeltaRuleInputs in{packed("q"), packed("k"), packed("v"), gate("gk"), gate("beta")};
  if (!in.log_decay) in.log_decay = gate("g_log");
  in.delta = in.beta.has_value();
  in.scale = 1 / std::sqrt(static_cast<double>(in.q.size(2)));
  ops::OptionalTensor initial;
  if (file.find("initial_state") != nullptr) initial = input("initial_state");
  const std::vector<int64_t> sizes = file.at("v").shape;
  const auto [y, last] = ops::gated_delta_rule(in, Sequences::equal(sizes[0], sizes[1], place.device).cu_seqlens(), initial);
  run.outputs = {{"y", y.view(sizes)}, {"last_state", last}};
  return run;
}

// Runs RWKV-5's recurrence on r, k, v [rows, tokens, heads · head_size], w and u [heads, head_size].
Run wkv5(const SafetensorsFile& file, const Place& place) {
  Run run;
  const auto input = [&](const char* name) { return read_input(run, file, name, place); };
  const Tensor u = input("u");
  const auto packed = [&](const char* name) { return input(name).flatten(0, 1).view({-1, u.size(0), u.size(1)}); };
  ops::GatedDeltaRuleInputs in{packed("r"), packed("k"), packed("v")};
  in.log_decay = (-input("w").exp()).expand_as(in.q);
  in.bonus = u;
  const std::vector<int64_t> sizes = file.at("v").shape;
  const auto [y, last] = ops::gated_delta_rule(in, Sequences::equal(sizes[0], sizes[1], place.device).cu_seqlens());
  run.outputs = {{"y", y.reshape(sizes)}, {"last_state", last}};
  return run;
}

std::optional<Case> gated_delta_rule_operators(const SafetensorsFile& file, const std::string& mixer, const Json&) {
  if (mixer != "gla recurrence" && mixer != "delta rule" && mixer != "gated delta rule" && mixer != "wkv5") return std::nullopt;
  const auto form = mixer == "wkv5" ? wkv5 : recurrence;
  return Case{[&file, form](const Place& place) {
                Run run = form(file, place);
                run.objective = (run.outputs[0].second * read(file, "g").to(run.outputs[0].second.options())).sum() +
                                (run.outputs[1].second * read(file, "g.last_state").to(run.outputs[1].second.options())).sum();
                return run;
              },
              ""};
}

}  // namespace

BASED_GOLDEN_FAMILY_DEFINE(gated_delta_rule, {gated_delta_rule_mixer, gated_delta_rule_operators})

}  // namespace based::golden
