// Exact softmax attention over all keys or a window.
#include "based/models/golden/family.h"

#include <cmath>

namespace based::golden {
namespace {

// All softmax attentions of the peers, with parameters "Wqkv" and "out_proj". A window of 0 means all keys.
ReferenceMixer softmax_attention(const Json& config, const PeerParameters& parameters, int64_t heads, int64_t window) {
  const std::string& path = parameters.path();
  ReferenceMixer mixer{window > 0 ? "sliding_window" : "attention", {}, {}, ""};
  const int64_t head_dim = divide(parameters.size("Wqkv.weight", 1), heads, "d_model", path);
  const double scale = field<double>(config, "softmax_scale", 0.0, path);
  if (scale != 0 && std::abs(scale * std::sqrt(static_cast<double>(head_dim)) - 1) > 1e-12) {
    return {"", {}, {}, "the reference scales scores by " + std::to_string(scale) + "; ours are divided by the root of head_dim"};
  }
  if (config.contains("rotary_emb_scale_base") && !config["rotary_emb_scale_base"].is_null()) {
    return skipped("the reference scales its rotary positions; ours does not");
  }
  if (!field<bool>(config, "causal", true, path)) return skipped("the reference is not causal");
  mixer.options = {{"heads", Config(heads)},
                   {"kv_heads", Config(field<int64_t>(config, "num_heads_kv", heads, path))},
                   {"rotary_dim", Config(field<int64_t>(config, "rotary_emb_dim", 0, path))},
                   {"rotary_base", Config(field<double>(config, "rotary_emb_base", 10000.0, path))},
                   {"rotary_interleaved", Config(field<bool>(config, "rotary_emb_interleaved", false, path))},
                   {"qkv_bias", Config(parameters.has("Wqkv.bias"))},
                   {"out_bias", Config(parameters.has("out_proj.bias"))}};
  if (window > 0) mixer.options.emplace_back("window", Config(window));
  add_pair(mixer, "Wqkv", "qkv_proj");
  add_pair(mixer, "out_proj", "out_proj");
  return mixer;
}

// In the library that the paper's code calls, a token attends to its own key and to window_size/2 keys before it.
int64_t window_of(const Json& config, const std::string& path) { return required_int(config, "window_size", path) / 2 + 1; }

std::optional<ReferenceMixer> softmax_attention_mixer(const PeerMixer& peer) {
  const std::string& path = peer.parameters.path();
  // A layer of the paper's code has the same name as a file with one such layer.
  if (peer.name == "causal_attention" || peer.name == "attention" || peer.name == "MHA")
    return softmax_attention(peer.config, peer.parameters, field<int64_t>(peer.config, "num_heads", 1, path), 0);
  if (peer.name == "sliding_attention")
    return softmax_attention(peer.config, peer.parameters, required_int(peer.config, "num_heads", path), window_of(peer.config, path));
  if (starts_with(peer.name, "sliding_attention (synthetic-task form") || peer.name == "SlidingAttn")
    return softmax_attention(peer.config, peer.parameters, 1, required_int(peer.config, "block_size", path) + 1);
  return std::nullopt;
}

}  // namespace

BASED_GOLDEN_FAMILY_DEFINE(softmax_attention, {softmax_attention_mixer, nullptr})

}  // namespace based::golden
