// Hyena and H3 of the recall experiments' code.
#include "based/models/golden/family.h"

namespace based::golden {
namespace {

ReferenceMixer hyena(const PeerMixer& peer) {
  const std::string& path = peer.parameters.path();
  const int64_t inner = field<int64_t>(peer.config, "num_inner_mlps", 2, path);
  if (field<int64_t>(peer.config, "num_heads", 1, path) != 1 || field<int64_t>(peer.config, "num_blocks", 1, path) != 1 ||
      field<bool>(peer.config, "bidirectional", false, path))
    return skipped("the reference has heads, blocks or a filter of later tokens; hyena has none of them");
  ReferenceMixer mixer{"hyena", {}, {}, ""};
  mixer.options = {{"l_max", Config(peer.parameters.size("filter_fn.pos_emb.z", 1))},
                   {"filter_order", Config(peer.parameters.size("filter_fn.implicit_filter.0.weight", 0))},
                   {"emb_dim", Config(peer.parameters.size("filter_fn.implicit_filter.0.weight", 1))},
                   {"num_inner_mlps", Config(inner)},
                   {"short_filter_order", Config(peer.parameters.size("short_filter.weight", 2))}};
  add_pair(mixer, "in_proj", "in_proj");
  add_pair(mixer, "out_proj", "out_proj");
  add_pair(mixer, "short_filter", "conv");
  const auto layer = [](int64_t index) { return "filter_fn.implicit_filter." + std::to_string(2 * index); };
  add_pair(mixer, layer(0), "filter.first");
  for (int64_t i = 0; i < inner; ++i) add_pair(mixer, layer(1 + i), "filter.inner" + std::to_string(i));
  mixer.names[layer(1 + inner) + ".weight"] = "filter.out.weight";
  mixer.names["filter_fn.implicit_filter.1.freq"] = "filter.frequency";
  mixer.names["filter_fn.pos_emb.z"] = "filter.z";
  mixer.names["filter_fn.bias"] = "filter.bias";
  mixer.buffers = {{"filter_fn.pos_emb.t", "filter.positions.value"}, {"filter_fn.modulation.deltas", "filter.decay.value"}};
  return mixer;
}

ReferenceMixer h3(const PeerMixer& peer) {
  ReferenceMixer mixer{"h3", {}, {}, ""};
  mixer.options = {{"d_state", Config(peer.parameters.size("ssm_k_kernel.kernel.B", 1))},
                   {"head_dim", Config(divide(peer.parameters.size("q_proj.weight", 0), peer.parameters.size("D", 0), "q_proj rows",
                                              peer.parameters.path()))}};
  for (const char* name : {"q_proj", "k_proj", "v_proj"}) add_pair(mixer, name, name);
  add_pair(mixer, "output_linear", "o_proj");
  mixer.names.insert({{"ssm_k_kernel.kernel.B", "shift.B"},
                      {"ssm_k_kernel.kernel.C", "shift.C"},
                      {"ssm_k_D", "shift.D"},
                      {"kernel.kernel.log_dt", "diagonal.log_dt"},
                      {"kernel.kernel.inv_A_real", "diagonal.log_decay"},
                      {"kernel.kernel.A_imag", "diagonal.frequency"},
                      {"kernel.kernel.B", "diagonal.B"},
                      {"kernel.kernel.C", "diagonal.C"},
                      {"D", "diagonal.D"}});
  return mixer;
}

std::optional<ReferenceMixer> long_convolutions_mixer(const PeerMixer& peer) {
  if (peer.name == "Hyena" || peer.name == "hyena") return hyena(peer);
  if (peer.name == "H3" || peer.name == "h3") return h3(peer);
  return std::nullopt;
}

}  // namespace

BASED_GOLDEN_FAMILY_DEFINE(long_convolutions, {long_convolutions_mixer, nullptr})

}  // namespace based::golden
