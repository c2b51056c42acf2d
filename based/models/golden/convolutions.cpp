// Short convolutions: BaseConv of the paper (gated_conv here) and of the recall experiments (base_conv here).
#include "based/models/golden/family.h"

namespace based::golden {
namespace {

ReferenceMixer gated_conv(const PeerParameters& parameters) {
  ReferenceMixer mixer{"gated_conv", {}, {}, ""};
  const int64_t expansion =
      divide(parameters.size("in_proj.weight", 0), parameters.size("in_proj.weight", 1), "in_proj rows", parameters.path());
  mixer.options = {{"expansion", Config(expansion)},
                   {"taps", Config(parameters.size("conv.conv.weight", 2))},
                   {"use_bias", Config(parameters.has("in_proj.bias"))},
                   {"conv_bias", Config(parameters.has("conv.conv.bias"))}};
  add_pair(mixer, "in_proj", "in_proj");
  add_pair(mixer, "out_proj", "out_proj");
  add_pair(mixer, "conv.conv", "conv");
  return mixer;
}

ReferenceMixer base_conv(const Json& config, const PeerParameters& parameters, int64_t length) {
  ReferenceMixer mixer{"base_conv", {}, {}, ""};
  mixer.options = {{"use_act", Config(field<bool>(config, "use_act", false, parameters.path()))}};
  const auto option = [&](const char* key, auto value) { mixer.options.emplace_back(key, Config(value)); };
  add_pair(mixer, "projection", "projection");
  if (parameters.has("conv.conv.weight")) {
    option("kernel_size", parameters.size("conv.conv.weight", 2));
    add_pair(mixer, "conv.conv", "conv");
    return mixer;
  }
  option("kernel_size", int64_t{-1});
  if (parameters.has("conv.filter")) {
    const int64_t taps = parameters.size("conv.filter", 1);
    if (taps > length + 1) {
      return skipped("the reference wraps around where its filter (" + std::to_string(taps) + " taps) is longer than the text (" +
                     std::to_string(length) + " tokens): not causal");
    }
    option("l_max", taps);
    mixer.names["conv.filter"] = "filter.taps";
    return mixer;
  }
  option("implicit", true);
  option("l_max", parameters.size("conv.pos_emb.z", 1));
  option("d_emb", parameters.size("conv.pos_emb.z", 2));
  option("d_hidden", parameters.size("conv.mlp.0.weight", 0));
  add_pair(mixer, "conv.mlp.0", "filter.hidden");
  add_pair(mixer, "conv.mlp.2", "filter.out");
  mixer.names["conv.pos_emb.z"] = "";
  return mixer;
}

std::optional<ReferenceMixer> convolutions_mixer(const PeerMixer& peer) {
  if (starts_with(peer.name, "gated_short_conv")) return gated_conv(peer.parameters);
  if (peer.name == "BaseConv" || starts_with(peer.name, "base_conv")) return base_conv(peer.config, peer.parameters, peer.length);
  return std::nullopt;
}

}  // namespace

BASED_GOLDEN_FAMILY_DEFINE(convolutions, {convolutions_mixer, nullptr})

}  // namespace based::golden
